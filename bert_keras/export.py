"""A tuned run becomes a SavedModel: strings in, answers out.

Whoever loads it needs tensorflow and tensorflow_text, and nothing of this project.
"""

import logging
import os
import shutil
from pathlib import Path

import numpy as np
import scipy.special
import tensorflow as tf

from bert_keras import finetuning, text_graph
from bert_keras.errors import InputError
from bert_keras.tasks import text

logger = logging.getLogger(__name__)

LABELS_PATH = "assets.extra/labels.txt"
"""The classes, one a line, in the order of the probabilities."""

_INPUT_NAMES = ("input_ids", "input_mask", "segment_ids")

# What an export must answer as Python does, in every pair that two of them make.
_PROBES = (
    "",
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "Ein naïver Ångström-Käfer … ΟΔΥΣΣΕΥΣ fährt nach İstanbul № 42!",
    "日本語とひらがな, 한국어, русский, العربية 🙂 \u200b\ufffd\x00\ttab",
    "long " * 600,
)
_TOLERANCE = 1e-5


def export_model(model_dir: str | Path, output_dir: str | Path) -> None:
    """Writes a fine-tuned run as a SavedModel in float32.

    Signatures:
        `serving_default`: `text`, and `text_pair` if the run was trained on pairs,
            each `(batch_size,)` strings. An empty `text_pair` is no second text.
        `ids`: `input_ids`, `input_mask` and `segment_ids`, each `(batch_size,
            sequence_length)` int32, as in `bert_keras.features`.
    Both give of classes `probabilities`, `(batch_size, num_labels)` float32, and
    `label`, `(batch_size,)` strings, the most probable one; of numbers `score`,
    `(batch_size,)` float32. `assets.extra/labels.txt` lists the classes.

    The directory appears when the model in it has been loaded again and has answered
    some texts as the run itself does.

    Args:
        model_dir: made by `finetuning.finetune`.
        output_dir: to make; TensorFlow Serving wants a number for a name.

    Raises:
        InputError: `model_dir` is no finished fine-tuning run, or `output_dir` holds
            something.
        RuntimeError: what was written does not answer as the run does.
    """
    output_dir = Path(output_dir).absolute()
    if output_dir.exists() and not (
        output_dir.is_dir() and not any(output_dir.iterdir())
    ):
        raise InputError(f"{output_dir}: exists already; choose another directory")
    tuned = finetuning.TunedModel(model_dir, precision="float32")
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    # No number, so that a server that watches the parent does not take it for a model.
    temporary = output_dir.with_name(f".{output_dir.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        _write(tuned, temporary)
        _verify(tuned, temporary)
        os.replace(temporary, output_dir)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    logger.info("SavedModel in %s", output_dir)


def _write(tuned: finetuning.TunedModel, directory: Path) -> None:
    server = _Server(tuned)
    strings = ("text", "text_pair")[: 1 + tuned.run.task.has_text_pair]
    signatures = {
        "serving_default": tf.function(server.answer_texts).get_concrete_function(
            *(tf.TensorSpec([None], tf.string, name) for name in strings)
        ),
        "ids": tf.function(server.answer_ids).get_concrete_function(
            *(tf.TensorSpec([None, None], tf.int32, name) for name in _INPUT_NAMES)
        ),
    }
    # Not `keras.export.ExportArchive`, which in Keras 3.15 writes every weight twice.
    tf.saved_model.save(server, str(directory), signatures=signatures)
    if tuned.run.task.labels is not None:
        labels_path = directory / LABELS_PATH
        labels_path.parent.mkdir()
        lines = "".join(f"{label}\n" for label in tuned.run.task.labels)
        labels_path.write_text(lines, encoding="utf-8")


class _Server(tf.Module):
    """What the signatures run."""

    def __init__(self, tuned: finetuning.TunedModel):
        super().__init__(name="server")
        self._tuned = tuned
        # A SavedModel holds what the module holds, and knows only TensorFlow's own.
        self._weights = [weight.value for weight in tuned.network.weights]
        self._tokenizer = text_graph.GraphTokenizer(
            tuned.run.vocabulary, do_lower_case=tuned.run.do_lower_case
        )

    def answer_texts(self, text, text_pair=None):
        packed = text_graph.pack_pairs(
            self._tokenizer(text),
            None if text_pair is None else self._tokenizer(text_pair),
            max_seq_length=self._tuned.settings.max_seq_length,
            vocabulary=self._tuned.run.vocabulary,
        )
        # Without texts there are no columns, but the pooler wants a first one.
        missing = tf.cast(tf.equal(tf.size(text), 0), tf.int32)
        paddings = [[0, 0], [0, missing]]
        return self.answer_ids(**{k: tf.pad(v, paddings) for k, v in packed.items()})

    def answer_ids(self, input_ids, input_mask, segment_ids):
        values = (input_ids, input_mask, segment_ids)
        inputs = dict(zip(_INPUT_NAMES, values, strict=True))
        logits = self._tuned.network(inputs, training=False)["logits"]
        if self._tuned.run.task.labels is None:
            return {"score": logits[:, 0]}
        labels = tf.constant(self._tuned.run.task.labels)
        return {
            "probabilities": tf.nn.softmax(logits),
            "label": tf.gather(labels, tf.argmax(logits, axis=-1)),
        }


def _verify(tuned: finetuning.TunedModel, directory: Path) -> None:
    """Loads a written model and has it answer the probes."""
    task = tuned.run.task
    probes = [
        text.LabelledText(first, second if task.has_text_pair else None, None, 0)
        for first in _PROBES
        for second in (_PROBES if task.has_text_pair else _PROBES[:1])
    ]
    texts = text.tokenize(
        probes, tuned.run.tokenizer, max_seq_length=tuned.settings.max_seq_length
    )
    logits = finetuning.Forward(tuned.network)(texts)
    name, wanted = "probabilities", scipy.special.softmax(logits, axis=-1)
    if task.labels is None:
        name, wanted = "score", logits[:, 0]
    strings = {"text": [probe.text for probe in probes]}
    if task.has_text_pair:
        strings["text_pair"] = [probe.text_pair for probe in probes]
    signatures = tf.saved_model.load(str(directory)).signatures
    from_texts = signatures["serving_default"](
        **{key: tf.constant(values) for key, values in strings.items()}
    )
    batch = texts.batch(np.arange(len(texts)))
    from_ids = signatures["ids"](**{key: tf.constant(batch[key]) for key in batch})
    for answers in (from_texts, from_ids):
        _check_close(answers[name].numpy(), wanted)


def _check_close(found: np.ndarray, wanted: np.ndarray) -> None:
    difference = np.abs(found - wanted).max()
    # A score has no scale of its own, so its own size counts.
    if difference > _TOLERANCE * max(1.0, np.abs(wanted).max()):
        raise RuntimeError(
            f"the exported model answers differently, by up to {difference:.3g}: "
            "nothing was written"
        )
