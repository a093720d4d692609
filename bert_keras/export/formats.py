"""The formats of exports: functions that write a file, and load it again to run it.

A SavedModel takes strings and gives answers; LiteRT (TensorFlow Lite) and ONNX files
take ids and give numbers. ONNX needs the extra `onnx`, whose packages are imported only
when they are used.
"""

import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.core.errors import InputError
from bert_keras.export.quantized import onnx_fusion
from bert_keras.kinds import served

LITERT_NAME, ONNX_NAME = "model.tflite", "model.onnx"

# Published in 2022, so that runtimes of the last years take it too.
_ONNX_OPSET = 17


def write_saved_model(model: served.ServedModel, directory: Path) -> None:
    signatures = {
        name: tf.function(signature.answer, autograph=False).get_concrete_function(
            *signature.inputs
        )
        for name, signature in model.signatures().items()
    }
    # Not `keras.export.ExportArchive`, which in Keras 3.15 writes every weight twice.
    tf.saved_model.save(model, str(directory), signatures=signatures)


def ask_saved_model(
    directory: Path, probes: Iterable[served.Probe]
) -> Iterator[dict[str, np.ndarray]]:
    signatures = tf.saved_model.load(str(directory)).signatures
    for probe in probes:
        outputs = signatures[probe.signature](**served.as_tensors(probe.inputs))
        yield served.as_arrays(outputs)


def numbers_of(
    model: served.ServedModel,
) -> Callable[[Mapping[str, np.ndarray]], dict]:
    """Returns the graph from ids to numbers that a SavedModel's answers come from."""
    run = tf.function(
        model.compute_in_order, input_signature=model.id_specs, autograph=False
    )
    names = [spec.name for spec in model.id_specs]
    return lambda ids: served.as_arrays(run(*(tf.constant(ids[n]) for n in names)))


def write_litert(model: served.ServedModel, directory: Path) -> None:
    """Writes a file with one signature, for any batch size and length."""
    function = tf.function(model.compute_in_order, autograph=False)
    concrete = function.get_concrete_function(*model.id_specs)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], model)
    (directory / LITERT_NAME).write_bytes(converter.convert())


def load_litert(directory: Path) -> Callable[[Mapping[str, np.ndarray]], dict]:
    with warnings.catch_warnings():
        # TensorFlow says that its interpreter goes on in a package of its own.
        warnings.simplefilter("ignore", UserWarning)
        interpreter = tf.lite.Interpreter(str(directory / LITERT_NAME))
    runner = interpreter.get_signature_runner()
    return lambda ids: runner(**ids)


def check_onnx_installed() -> None:
    for name in ("onnx", "onnxruntime", "tf2onnx"):
        check_installed(name, "onnx", "ONNX needs the package")


def check_installed(name: str, extra: str, need: str) -> None:
    """Raises an `InputError` that begins with `need` if a module is not installed."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"{need} {name} ({error}): run `pip install '.[{extra}]' -c "
            "constraints.txt` in the checkout"
        ) from None


def write_onnx(model: served.ServedModel, directory: Path) -> None:
    """Writes a file for any batch size and length."""
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
            return model.compute_in_order(*ids)

    proto, _ = tf2onnx.convert.from_function(
        tf.function(compute, autograph=False),
        input_signature=[*model.id_specs, *specs],
        opset=_ONNX_OPSET,
    )
    used = {name for node in proto.graph.node for name in node.input}
    inputs = {value.name: value for value in proto.graph.input}
    for name, weight in weights.items():
        proto.graph.input.remove(inputs.pop(name))
        if name in used:
            array = keras.ops.convert_to_numpy(weight)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx_fusion.fuse(proto.graph)
    for spec in model.id_specs:
        _name_axes(inputs[spec.name], _axes_of(spec))
    for value in proto.graph.output:
        _name_axes(value, ("batch_size",))
    onnx.save(proto, directory / ONNX_NAME)


def _axes_of(spec: tf.TensorSpec) -> tuple[str, ...]:
    if spec.name not in served.INPUT_NAMES:
        return "batch_size", "num_positions"
    if spec.shape.rank == 3:
        return "batch_size", "num_endings", "sequence_length"
    return "batch_size", "sequence_length"


def _name_axes(value: Any, names: Sequence[str]) -> None:
    for axis, name in zip(value.type.tensor_type.shape.dim, names, strict=False):
        axis.dim_param = name


def load_onnx(directory: Path) -> Callable[[Mapping[str, np.ndarray]], dict]:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        directory / ONNX_NAME, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return lambda ids: dict(zip(names, session.run(None, dict(ids)), strict=True))


ID_FORMATS = {
    "litert": (write_litert, load_litert),
    "onnx": (write_onnx, load_onnx),
}
"""By name: a function that writes a file into a directory, and one that loads it and
returns a function from ids to numbers."""
