"""Answers as a SavedModel: strings in, answers out."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert_keras.export import answers

_IDS = "ids"
_STRINGS = "serving_default"


def write(model: answers.Answers, directory: Path) -> None:
    """Writes both signatures: of strings, and `ids`."""

    def answer_strings(*texts):
        ids = model.encode(*texts)
        return model.present(ids, model.compute(ids))

    def answer_ids(*values):
        ids = dict(zip(model.id_names, values, strict=True))
        return model.present(ids, model.compute(ids))

    signatures = {
        _STRINGS: _concrete(
            answer_strings,
            [tf.TensorSpec([None], tf.string, name) for name in model.string_names],
        ),
        _IDS: _concrete(answer_ids, answers.id_specs(model)),
    }
    # Not `keras.export.ExportArchive`, which in Keras 3.15 writes every weight twice.
    tf.saved_model.save(model, str(directory), signatures=signatures)


def _concrete(function: Callable, specs: list[tf.TensorSpec]):
    return tf.function(function, autograph=False).get_concrete_function(*specs)


def answer_probes(
    directory: Path, probes: answers.Probes
) -> Iterator[Mapping[str, np.ndarray]]:
    """Loads what was written and gives its answers, by both signatures."""
    signatures = tf.saved_model.load(str(directory)).signatures
    for name, inputs in ((_STRINGS, probes.strings), (_IDS, probes.ids)):
        found = signatures[name](**{k: tf.constant(v) for k, v in inputs.items()})
        yield {key: value.numpy() for key, value in found.items()}
