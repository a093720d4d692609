"""Answers as a SavedModel: strings in, answers out."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert_keras.export import answers


def write(model: answers.Answers, directory: Path) -> None:
    """Writes all signatures."""
    signatures = {
        name: tf.function(signature.function, autograph=False).get_concrete_function(
            *signature.inputs
        )
        for name, signature in model.signatures().items()
    }
    # Not `keras.export.ExportArchive`, which in Keras 3.15 writes every weight twice.
    tf.saved_model.save(model, str(directory), signatures=signatures)


def answer(
    directory: Path, probes: Iterable[answers.Probe]
) -> Iterator[dict[str, np.ndarray]]:
    """Loads what was written and gives its answers to each probe."""
    signatures = tf.saved_model.load(str(directory)).signatures
    for probe in probes:
        found = signatures[probe.signature](**answers.as_tensors(probe.inputs))
        yield answers.as_arrays(found)
