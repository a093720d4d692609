"""Answers as a LiteRT (TensorFlow Lite) file: ids in, numbers out."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert_keras.export import answers

MODEL_NAME = "model.tflite"


def write(model: answers.Answers, directory: Path) -> None:
    """Writes the file, with one signature and any batch size and length."""
    function = answers.numbers_function(model)
    concrete = function.get_concrete_function(*model.id_specs)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], model)
    (directory / MODEL_NAME).write_bytes(converter.convert())


def load(directory: Path) -> Callable[[Mapping[str, np.ndarray]], dict]:
    """Loads the file; what is returned gives numbers for ids."""
    with warnings.catch_warnings():
        # TensorFlow says that its interpreter goes on in a package of its own.
        warnings.simplefilter("ignore", UserWarning)
        interpreter = tf.lite.Interpreter(str(directory / MODEL_NAME))
    runner = interpreter.get_signature_runner()
    return lambda ids: runner(**ids)
