"""Answers as an ONNX file: ids in, numbers out.

Needs the extra `onnx`, and so imports its packages only when it is used.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.errors import InputError
from bert_keras.export import answers

MODEL_NAME = "model.onnx"

# Of 2022, so that runtimes of the last years take it too.
_OPSET = 17


def check_installed() -> None:
    """Looks for the packages that writing and checking need.

    Raises:
        InputError: one is not there.
    """
    for name in ("onnx", "onnxruntime", "tf2onnx"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise InputError(
                f"ONNX needs the package {name} ({error}): run "
                "`pip install '.[onnx]' -c constraints.txt` in the checkout"
            ) from None


def write(model: answers.Answers, directory: Path) -> None:
    """Writes the file, for any batch size and length."""
    import onnx
    import tf2onnx

    # tf2onnx copies what is constant over and over, for BERT-BASE minutes long: it gets
    # the weights as inputs, and they are put into the file afterwards.
    weights = {
        weight.path.replace("/", "."): weight for weight in model.network.weights
    }
    specs = [tf.TensorSpec(w.shape, w.dtype, name) for name, w in weights.items()]

    def compute(*values: tf.Tensor) -> dict[str, tf.Tensor]:
        ids, values = values[: len(model.id_specs)], values[len(model.id_specs) :]
        mapping = list(zip(weights.values(), values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return model.compute(answers.by_name(model, ids))

    proto, _ = tf2onnx.convert.from_function(
        tf.function(compute, autograph=False),
        input_signature=[*model.id_specs, *specs],
        opset=_OPSET,
    )
    used = {name for node in proto.graph.node for name in node.input}
    inputs = {value.name: value for value in proto.graph.input}
    for name, weight in weights.items():
        proto.graph.input.remove(inputs.pop(name))
        if name in used:
            array = keras.ops.convert_to_numpy(weight)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for spec in model.id_specs:
        _name_axes(inputs[spec.name], _axes_of(spec))
    for value in proto.graph.output:
        _name_axes(value, ("batch_size",))
    onnx.save(proto, directory / MODEL_NAME)


def _axes_of(spec: tf.TensorSpec) -> tuple[str, ...]:
    if spec.name not in answers.INPUT_NAMES:
        return "batch_size", "num_positions"
    if spec.shape.rank == 3:
        return "batch_size", "num_endings", "sequence_length"
    return "batch_size", "sequence_length"


def _name_axes(value: Any, names: Sequence[str]) -> None:
    for axis, name in zip(value.type.tensor_type.shape.dim, names, strict=False):
        axis.dim_param = name


def load(directory: Path) -> Callable[[Mapping[str, np.ndarray]], dict]:
    """Loads the file; what is returned gives numbers for ids."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        directory / MODEL_NAME, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return lambda ids: dict(zip(names, session.run(None, dict(ids)), strict=True))
