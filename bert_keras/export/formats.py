"""The formats of exports: functions that write a file, and load it again to run it.

A SavedModel takes strings and gives answers; LiteRT (TensorFlow Lite) and ONNX files
take ids and give numbers. Both need packages of the extra of their name, which are
imported only when they are used.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_keras.export.quantized import onnx_fusion
from bert_keras.kinds import served

Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
"""From ids to numbers, both by name."""


def signatures_of(model: served.ServedModel) -> dict[str, Any]:
    """Returns TensorFlow's function of each of the model's signatures."""
    return {
        name: tf.function(signature.answer, autograph=False).get_concrete_function(
            *signature.inputs
        )
        for name, signature in model.signatures().items()
    }


def numbers_of(model: served.ServedModel) -> Run:
    """Returns the graph from ids to numbers that a SavedModel's answers come from."""
    run = tf.function(
        model.compute_in_order, input_signature=model.id_specs, autograph=False
    )
    names = [spec.name for spec in model.id_specs]
    return lambda ids: served.as_arrays(run(*(tf.constant(ids[n]) for n in names)))


def write_litert(model: served.ServedModel, path: Path) -> None:
    """Writes a file with one signature, for any batch size and length."""
    function = tf.function(model.compute_in_order, autograph=False)
    concrete = function.get_concrete_function(*model.id_specs)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], model)
    path.write_bytes(converter.convert())


def load_litert(path: Path) -> Run:
    # TensorFlow's own interpreter is deprecated in favour of this package.
    from ai_edge_litert import interpreter

    runner = interpreter.Interpreter(str(path)).get_signature_runner()
    return lambda ids: runner(**ids)


def write_onnx(model: served.ServedModel, path: Path) -> None:
    """Writes a file for any batch size and length."""
    import onnx
    import tf2onnx

    # tf2onnx copies what is constant over and over, for BERT-BASE minutes long: it gets
    # the weights as inputs, and they are put into the file afterwards.
    network = model.trained.network
    weights = {weight.path.replace("/", "."): weight for weight in network.weights}
    specs = [tf.TensorSpec(w.shape, w.dtype, name) for name, w in weights.items()]

    def compute(*values: tf.Tensor) -> dict[str, tf.Tensor]:
        ids, values = values[: len(model.id_specs)], values[len(model.id_specs) :]
        mapping = list(zip(weights.values(), values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return model.compute_in_order(*ids)

    proto, _ = tf2onnx.convert.from_function(
        tf.function(compute, autograph=False),
        input_signature=[*model.id_specs, *specs],
        # Published in 2022, so that runtimes of the last years take it too.
        opset=17,
    )
    used = {name for node in proto.graph.node for name in node.input}
    inputs = {value.name: value for value in proto.graph.input}
    for name, weight in weights.items():
        proto.graph.input.remove(inputs.pop(name))
        if name in used:
            array = keras.ops.convert_to_numpy(weight)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx_fusion.fuse(proto.graph)
    # The names of the axes that a caller may choose.
    specs = {spec.name: spec for spec in model.id_specs}
    for value in (*(inputs[name] for name in specs), *proto.graph.output):
        axes = ["batch_size"]
        if value.name in specs:
            is_place = value.name.endswith("_positions")
            axes.append("num_positions" if is_place else "sequence_length")
            if specs[value.name].shape.rank == 3:
                axes.insert(1, "num_endings")
        dims = value.type.tensor_type.shape.dim
        for dim, name in zip(dims, axes, strict=False):
            dim.dim_param = name
    onnx.save(proto, path)


def load_onnx(path: Path) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda ids: dict(zip(names, session.run(None, dict(ids)), strict=True))


class IdFormat(NamedTuple):
    """A format of one file, from ids to numbers."""

    file_name: str
    needs: tuple[str, ...]
    """Modules of the extra that has the format's name."""
    write: Callable[[served.ServedModel, Path], None]
    load: Callable[[Path], Run]


ID_FORMATS = {
    "litert": IdFormat(
        *("model.tflite", ("ai_edge_litert.interpreter",)), write_litert, load_litert
    ),
    "onnx": IdFormat(
        *("model.onnx", ("onnx", "onnxruntime", "tf2onnx")), write_onnx, load_onnx
    ),
}
