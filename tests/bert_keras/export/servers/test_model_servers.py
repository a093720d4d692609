"""Files that model servers read, by the schemas that their owners publish."""

import functools
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf
import yaml
from google.protobuf import json_format

from bert_keras import export
from bert_keras.core.errors import InputError
from bert_keras.data import tfrecords
from bert_keras.export import writing
from bert_keras.export.servers import warm_up
from bert_keras.kinds import served

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
        options = {"vectors": {"embedding": "mean"}, "masks": {"top_k": 2}}
        return writing.load(run, **options.get(name, {}))

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


def test_batching_parameters():
    # Of session_bundle_config.proto, which no package has.
    fields = {"max_batch_size", "batch_timeout_micros", "max_enqueued_batches"}
    fields |= {"num_batch_threads", "thread_pool_name", "max_execution_batch_size"}
    fields |= {"pad_variable_length_inputs", "enable_large_batch_splitting"}
    lines = block("protobuf").splitlines()
    matches = [re.fullmatch(r"(\w+) \{ value: (\w+) \}", line) for line in lines]
    parameters = {match[1]: match[2] for match in matches}
    assert parameters.keys() <= fields
    assert parameters["max_execution_batch_size"] == "32"
    assert parameters["max_batch_size"] == "1024"
    assert parameters["enable_large_batch_splitting"] == "true"


def test_triton_takes_the_file_of_the_page(onnx_model):
    """Fields and types are those of Triton's model_config.proto."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(onnx_model / "model.onnx"))
    types = {"tensor(int32)": "TYPE_INT32", "tensor(float)": "TYPE_FP32"}
    lines = ['backend: "onnxruntime"', "max_batch_size: 32"]
    lines.append("dynamic_batching { max_queue_delay_microseconds: 2000 }")
    for field, tensors in (
        ("input", session.get_inputs()),
        ("output", session.get_outputs()),
    ):
        for tensor in tensors:
            dims = [d if isinstance(d, int) else -1 for d in tensor.shape[1:]]
            data_type = f"data_type: {types[tensor.type]}, dims: [ {str(dims)[1:-1]} ]"
            lines.append(f'{field} {{ name: "{tensor.name}", {data_type} }}')
    labels = f', label_filename: "{writing.LABELS_NAME}" }}'
    lines[-1] = lines[-1].removesuffix(" }") + labels
    assert block("protobuf", 1).splitlines() == lines


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "mine"}, "mine: TensorFlow Serving reads numbered versions in a"),
        ({"to": "onnx"}, "--serving tf needs --to saved_model, got --to onnx"),
    ],
)
def test_options_that_do_not_fit_together(options, message, tmp_path):
    given = {"output": "mine/1", "serving": "tf", **options}
    with pytest.raises(InputError, match=message):
        export.export_model(tmp_path, tmp_path / given.pop("output"), **given)
