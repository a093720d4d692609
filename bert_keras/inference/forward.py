"""One forward pass of a network over many inputs, in batches, without training."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from bert_keras import progress
from bert_keras.model import trace_registry
from bert_keras.tasks import dataset

TOKENS_PER_BATCH = 8192
"""Padding included; bounds the memory whatever the length."""

INPUT_NAMES = ("input_ids", "input_mask", "segment_ids")


class Forward:
    """Computes the outputs for many inputs, batch by batch.

    Args:
        compute: from the features of a batch to its outputs. Their last axis, or
            axes, are the width of an answer.
        feature_names: keys of a batch that `compute` reads; `input_mask` is one.
        tokens_per_batch: padding included; `None`: `TOKENS_PER_BATCH`.
    """

    def __init__(
        self,
        compute: Callable[[Mapping[str, tf.Tensor]], tf.Tensor],
        *,
        feature_names: Sequence[str] = INPUT_NAMES,
        tokens_per_batch: int | None = None,
    ):
        self._compute = compute
        self._feature_names = feature_names
        self._tokens_per_batch = tokens_per_batch or TOKENS_PER_BATCH
        self._traced: Callable[..., tf.Tensor] | None = None
        self.num_done = 0
        """Inputs that are done, for a progress line, whose owner sets it back."""

    def __call__(self, inputs: dataset.Inputs, *, title: str | None) -> np.ndarray:
        """Outputs of all inputs, `(inputs.num_answers, width)` float32.

        Args:
            inputs: one or more.
            title: of a progress line; `None`: shows none.
        """
        if title is None:
            return self._all_outputs(inputs)
        self.num_done = 0
        with progress.Progress(
            title,
            total=len(inputs.lengths),
            unit="inputs",
            read=lambda: self.num_done,
            only_if_long=True,
        ):
            return self._all_outputs(inputs)

    def _all_outputs(self, inputs: dataset.Inputs) -> np.ndarray:
        outputs = None
        for rows in self._batches(inputs):
            found, places = self._run(inputs.batch(rows)), inputs.places(rows)
            if outputs is None:
                width = found.shape[len(places.index) :]
                outputs = np.zeros((inputs.num_answers, *width), np.float32)
            outputs[places.ids] = found[places.index]
            self.num_done += len(rows)
        return outputs

    def _batches(self, inputs: dataset.Inputs) -> Iterator[np.ndarray]:
        # The longest first: what does not fit into memory fails at once.
        rest = np.argsort(-inputs.lengths, kind="stable")
        while len(rest):
            # All of a batch may be as long as its first.
            num_tokens = inputs.batch(rest[:1])["input_mask"].size
            num_rows = max(1, self._tokens_per_batch // num_tokens)
            yield rest[:num_rows]
            rest = rest[num_rows:]

    def _run(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        features = {name: batch[name] for name in self._feature_names}
        if self._traced is None:
            # One trace for all shapes.
            signature = {
                name: tf.TensorSpec([None] * values.ndim, values.dtype)
                for name, values in features.items()
            }
            self._traced = tf.function(self._compute, input_signature=[signature])
        with trace_registry.custom_gradients_end():
            return self._traced(features).numpy()


def of_task(network: keras.Model) -> Forward:
    """The forward pass of a built network with a task's head: logits, or of a span
    those of its start and of its end."""

    def compute(features):
        outputs = network(features, training=False)
        if "logits" in outputs:
            return outputs["logits"]
        return tf.stack([outputs["start_logits"], outputs["end_logits"]], axis=-1)

    return Forward(compute)
