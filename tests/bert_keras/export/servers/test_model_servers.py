"""Files that model servers read, by the schemas that their owners publish."""

import functools
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf
import yaml
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
    text_format,
)

from bert_keras import export
from bert_keras.checkpoints import conversion
from bert_keras.core.errors import InputError
from bert_keras.data import tfrecords
from bert_keras.export import loading
from bert_keras.export.servers import warm_up
from bert_keras.kinds import registry, served
from bert_keras.kinds.vectors import served_embeddings

TASKS = {
    "labels": ("text", {"kind": "classification", "labels": ("bad", "good")}),
    "tags": ("tagging", {"kind": "tagging", "labels": ("O", "B-X", "I-X")}),
    "pairs": ("text", {"kind": "regression", "has_text_pair": True}),
    "spans": ("span", {"kind": "span"}),
    "choices": ("choice", {"kind": "choice"}),
    "rankings": ("ranking", {"kind": "ranking", "has_text_pair": True}),
    "masks": (None, {"kind": "pretraining"}),
    "vectors": ("text", {"kind": "classification", "labels": ("bad", "good")}),
}
PAGE = Path(__file__).parents[4] / "docs/serving.md"


@pytest.fixture(scope="module")
def model_of(tmp_path_factory, make_run) -> Callable[[str], served.ServedModel]:
    """A function that loads a model of `TASKS` as `export` does."""
    folder = tmp_path_factory.mktemp("runs")

    @functools.cache
    def load(name: str) -> served.ServedModel:
        task, of_task = TASKS[name]
        run = make_run(folder / name, task=task, **of_task)
        checkpoint = conversion.read_with_tokenizer(run)
        if name == "vectors":
            trained = loading.load(checkpoint, path=run, embedding="mean")
            return served_embeddings.Embeddings(trained, kind="mean", layers=(-1,))
        trained = loading.load(checkpoint, path=run)
        return registry.find(checkpoint.task.kind).served(trained, top_k=2)

    return load


# Requests to warm up


KINDS = list(TASKS)
KINDS[1:] = [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:]]


@pytest.mark.parametrize("kind", KINDS)
def test_warm_up_requests_are_answered(model_of, kind, tmp_path):
    log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    model = model_of(kind)
    warm_up.write(model, tmp_path)
    with (tmp_path / "assets.extra" / warm_up.FILE_NAME).open("rb") as file:
        logs = [
            log_pb2.PredictionLog.FromString(r) for r in tfrecords.read_frames(file)
        ]
    assert {log.WhichOneof("log_type") for log in logs} == {"predict_log"}
    signatures = model.signatures()
    shapes = {name: set() for name in signatures}
    for log in logs:
        request = log.predict_log.request
        assert not request.ListFields()[2:]  # nothing but model_spec and inputs
        signature = signatures[request.model_spec.signature_name]
        inputs = {name: tf.make_ndarray(v) for name, v in request.inputs.items()}
        assert set(inputs) == {spec.name for spec in signature.inputs}
        for spec in signature.inputs:
            value = inputs[spec.name]
            assert spec.shape.is_compatible_with(value.shape)
            assert tf.as_dtype(value.dtype) == spec.dtype
        batch_size = len(next(iter(inputs.values())))
        shapes[request.model_spec.signature_name].add((batch_size, log.ByteSize()))
    for name, found in shapes.items():
        # Two lengths, 16 and the model's own, alone and in two sizes of batches.
        assert len(found) == 6, name
        assert {batch_size for batch_size, _ in found} == {1, 8, 32}, name
    for name, inputs in warm_up.requests(model):
        if len(next(iter(inputs.values()))) == 1:
            values = [tf.constant(inputs[s.name]) for s in signatures[name].inputs]
            for output in signatures[name].function(*values).values():
                assert output.shape[0] == 1


def test_a_full_text_fills_an_input(model_of):
    model = model_of("labels")
    lengths = {
        math.prod(model.encode(tf.constant(inputs["text"]))["input_ids"].shape)
        for name, inputs in warm_up.requests(model)
        if name == served.STRINGS and len(inputs["text"]) == 1
    }
    assert lengths == {14, 18}


def test_requests_stay_small_for_long_inputs(model_of, monkeypatch):
    model = model_of("labels")
    monkeypatch.setattr(model, "max_seq_length", 512)
    shapes = [
        inputs["input_ids"].shape
        for name, inputs in warm_up.requests(model)
        if name == served.IDS
    ]
    shorter = [(size, length) for length in (16, 64) for size in (1, 8, 32)]
    assert shapes == [*shorter, (1, 512), (8, 512)]


# Files to copy from the page


def block(language: str, number: int = 0) -> str:
    """One of the page's blocks in a language."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.S | re.M)
    return found[number]


INT32, INT64, UINT64, BOOL, STRING, MESSAGE, ENUM = 5, 3, 4, 8, 9, 11, 14
"""Numbers of `FieldDescriptorProto.Type`."""


def new_message(package: str, enum: dict[str, int], **types: dict):
    """An empty protocol buffer of the last of `types`, whose schema has no package.

    `types` are names of fields, `*` for repeated ones, with their number and their
    type: one of the numbers above or the full name of a message or enum.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto",
        package=package,
        syntax="proto3",
        dependency=["google/protobuf/wrappers.proto"],
    )
    values = file.enum_type.add(name="DataType").value
    for name, number in enum.items():
        values.add(name=name, number=number)
    for type_name, fields in types.items():
        message = file.message_type.add(name=type_name)
        for field, (number, kind) in fields.items():
            label = 3 if field.startswith("*") else 1
            added = message.field.add(
                name=field.removeprefix("*"), number=number, label=label
            )
            if isinstance(kind, int):
                added.type = kind
            else:
                added.type = ENUM if kind.endswith("DataType") else MESSAGE
                added.type_name = f".{kind}"
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindMessageTypeByName(f"{package}.{type_name}")
    return message_factory.GetMessageClass(found)()


def test_batching_parameters():
    # session_bundle_config.proto, which no package has; fields as published.
    number, text = "google.protobuf.Int64Value", "google.protobuf.StringValue"
    fields = {
        "max_batch_size": (1, number),
        "batch_timeout_micros": (2, number),
        "max_enqueued_batches": (3, number),
        "num_batch_threads": (4, number),
        "thread_pool_name": (5, text),
        "pad_variable_length_inputs": (6, BOOL),
        "enable_large_batch_splitting": (7, "google.protobuf.BoolValue"),
        "max_execution_batch_size": (8, number),
    }
    parameters = new_message("serving", {"NONE": 0}, BatchingParameters=fields)
    text_format.Parse(block("protobuf"), parameters)
    assert parameters.max_execution_batch_size.value == 32
    assert parameters.max_batch_size.value == 1024
    assert parameters.enable_large_batch_splitting.value


def test_kserve_takes_the_file_of_the_page():
    """Whose fields are some of those of KServe's custom resource."""
    service = yaml.safe_load(block("yaml", 1))
    predictor = service["spec"].pop("predictor")
    name = service["metadata"].pop("name")
    assert re.fullmatch("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name)
    assert service == {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {},
        "spec": {},
    }
    [model] = predictor.values()
    assert predictor == {"model": model}
    assert {*model} == {"modelFormat", "runtimeVersion", "storageUri", "args"}
    assert {*model["modelFormat"]} <= {"name", "version"}
    assert re.match("(gs|s3)://", model["storageUri"])
    [compose] = yaml.safe_load(block("yaml"))["services"].values()
    assert compose["image"] == f"tensorflow/serving:{model['runtimeVersion']}"
    assert compose["command"] == model["args"]


@pytest.mark.slow
def test_vertex_ai_takes_the_file_of_the_page():
    types = pytest.importorskip("google.cloud.aiplatform_v1.types")
    text = block("json")
    # Refuses a field that the API does not have.
    model = types.UploadModelRequest.from_json(text).model
    container = model.container_spec
    assert container.health_route == f"/v1/models/{model.display_name}"
    assert container.predict_route == f"{container.health_route}:predict"
    assert [port.container_port for port in container.ports] == [8501]
    assert f"--model_name={model.display_name}" in container.args
    with pytest.raises(json_format.ParseError, match="predictRout"):
        types.UploadModelRequest.from_json(text.replace("predictRoute", "predictRout"))


def model_config():
    """Triton's `ModelConfig`, the fields of model_config.proto that are used."""
    data_type = {"TYPE_INVALID": 0, "TYPE_INT32": 8, "TYPE_FP32": 11}
    tensor = {"name": (1, STRING), "data_type": (2, "inference.DataType")}
    return new_message(
        *("inference", data_type),
        ModelInput=tensor | {"*dims": (4, INT64)},
        ModelOutput=tensor | {"*dims": (3, INT64), "label_filename": (4, STRING)},
        ModelDynamicBatching={"max_queue_delay_microseconds": (2, UINT64)},
        ModelConfig={
            "name": (1, STRING),
            "backend": (17, STRING),
            "max_batch_size": (4, INT32),
            "*input": (5, "inference.ModelInput"),
            "*output": (6, "inference.ModelOutput"),
            "dynamic_batching": (11, "inference.ModelDynamicBatching"),
        },
    )


def test_triton_takes_the_file_of_the_page(onnx_model):
    import onnxruntime

    described = text_format.Parse(block("protobuf", 1), model_config())
    session = onnxruntime.InferenceSession(str(onnx_model / "model.onnx"))
    types = {"tensor(int32)": 8, "tensor(float)": 11}
    for values, tensors in (
        (session.get_inputs(), described.input),
        (session.get_outputs(), described.output),
    ):
        actual = [
            (v.name, types[v.type], [d if isinstance(d, int) else -1 for d in v.shape])
            for v in values
        ]
        assert actual == [(t.name, t.data_type, [-1, *t.dims]) for t in tensors]
    assert described.output[0].label_filename == export.writing.LABELS_NAME


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "mine"}, "mine: TensorFlow Serving reads numbered versions in a"),
        ({"to": "onnx"}, "--serving tf needs --to saved_model, got --to onnx"),
        ({"serving": "kserve"}, "--serving.*kserve"),
    ],
)
def test_options_that_do_not_fit_together(options, message, tmp_path):
    given = {"output": "mine/1", "serving": "tf", **options}
    with pytest.raises(InputError, match=message):
        export.export_model(tmp_path, tmp_path / given.pop("output"), **given)
