"""One forward pass of a network over many inputs, in batches, without training."""

import contextlib
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.core import progress
from bert_keras.core.errors import InputError
from bert_keras.labelled import dataset, shapes
from bert_keras.model import recomputation

TOKENS_PER_BATCH = 8192
"""Of a replica, padding included; bounds the memory whatever the length."""

INPUT_NAMES = ("input_ids", "input_mask", "segment_ids")


class BatchPredictor:
    """Computes the outputs for many inputs, batch by batch.

    Args:
        compute: from features to outputs, whose last axes are an answer's width.
        feature_names: keys that `compute` reads if a batch has them, also `input_mask`.
        strategy: made the variables; its replicas share a batch. `None`: no strategy.
        ladder: ascending lengths to one of which each batch is padded, with as many
            rows as fit: all shapes are fixed. Empty: shapes vary.
    """

    def __init__(
        self,
        compute: Callable[[Mapping[str, tf.Tensor]], tf.Tensor],
        *,
        feature_names: Sequence[str] = (*INPUT_NAMES, "word_positions"),
        strategy: tf.distribute.Strategy | None = None,
        ladder: Sequence[int] = (),
    ):
        self._compute = compute
        self._strategy = strategy or tf.distribute.get_strategy()
        self._num_replicas = self._strategy.num_replicas_in_sync
        self._ladder = ladder
        self._feature_names = feature_names
        self._traced: Callable[..., tf.Tensor] | None = None
        self.num_done = 0
        """Inputs that are done, for a progress line, whose owner sets it back."""

    def __call__(
        self, inputs: dataset.Inputs, *, title: str | None, on_disk: bool = False
    ) -> np.ndarray:
        """Returns the outputs of one or more inputs, `(inputs.num_answers, width)`
        float32, `on_disk` in a file that ends with the process. `title` names a
        progress line; `None`: no line."""
        line, outputs = contextlib.nullcontext(), None
        if title is not None:
            self.num_done = 0
            line = progress.Progress(
                title,
                total=len(inputs.lengths),
                unit="inputs",
                read=lambda: self.num_done,
                only_if_long=True,
            )
        with line:
            for rows, num_rows, length in self._batches(inputs):
                batch = inputs.batch(shapes.pad_rows(rows, num_rows))
                answers = self._run(shapes.padded(batch, length))
                places = inputs.places(rows)
                if outputs is None:
                    shape = inputs.num_answers, *answers.shape[len(places.index) :]
                    make = _zeros_on_disk if on_disk else np.zeros
                    outputs = make(shape, np.float32)
                outputs[places.ids] = answers[places.index]
                self.num_done += len(rows)
        return outputs

    def _batches(self, inputs: dataset.Inputs) -> Iterator[tuple[np.ndarray, int, int]]:
        """Yields the rows of each batch, the number to pad them to, and the tokens."""
        # The longest first: what does not fit into memory fails at once.
        rest = np.argsort(-inputs.lengths, kind="stable")
        while len(rest):
            # All of a batch may be as long as its first.
            *axes, length = inputs.batch(rest[:1])["input_mask"].shape
            if self._ladder:
                length = shapes.ladder_length(self._ladder)(length)
            num_tokens = length * math.prod(axes)
            num_rows = max(1, TOKENS_PER_BATCH // num_tokens) * self._num_replicas
            rows, rest = rest[:num_rows], rest[num_rows:]
            if not self._ladder:
                of_replica = -(-len(rows) // self._num_replicas)
                num_rows = of_replica * self._num_replicas
            yield rows, num_rows, length

    def _run(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the outputs of a batch with equally many rows for each replica."""
        # `(num_replicas, rows, ...)`: each replica takes its part by its number.
        features = {
            name: tf.constant(np.reshape(v, (self._num_replicas, -1, *v.shape[1:])))
            for name, v in batch.items()
            if name in self._feature_names
        }
        if self._traced is None:
            # One trace for all shapes, or one for each of the ladder.
            signature = {
                name: tf.TensorSpec([None] * len(values.shape), values.dtype)
                for name, values in features.items()
            }
            self._traced = tf.function(
                self._on_replicas,
                input_signature=None if self._ladder else [signature],
                autograph=False,
            )
        with recomputation.custom_gradients_end():
            return self._traced(features).numpy()

    def _on_replicas(self, features: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns the outputs of all replicas' rows, along the first two axes."""

        def compute(features: Mapping[str, tf.Tensor]) -> tf.Tensor:
            own = tf.distribute.get_replica_context().replica_id_in_sync_group
            return self._compute({k: tf.gather(v, own) for k, v in features.items()})

        outputs = self._strategy.run(compute, args=(features,))
        if self._num_replicas == 1:
            return self._strategy.experimental_local_results(outputs)[0]
        return self._strategy.gather(outputs, axis=0)


def _zeros_on_disk(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    folder, num_bytes = tempfile.gettempdir(), 4 * math.prod(shape)
    # Writing to a map of a file that does not fit would kill the process.
    if num_bytes > (free := shutil.disk_usage(folder).free):
        raise InputError(
            f"{folder}: expected {num_bytes / 1e9:.1f} GB of free disk for the "
            f"vectors, got {free / 1e9:.1f} GB: name a folder on another disk by TMPDIR"
        )
    with tempfile.TemporaryFile(dir=folder) as file:
        return np.memmap(file, dtype, "w+", shape=shape)


def predictor_for(network: keras.Model, **options: Any) -> BatchPredictor:
    """Returns a predictor of logits, of span starts and ends, or of vectors."""

    def compute(features):
        outputs = network(features, training=False)
        for name in ("logits", "embedding"):
            if name in outputs:
                return outputs[name]
        # `(rows, length, 2)`: each token has an answer of two numbers.
        return tf.stack([outputs["start_logits"], outputs["end_logits"]], axis=-1)

    return BatchPredictor(compute, **options)
