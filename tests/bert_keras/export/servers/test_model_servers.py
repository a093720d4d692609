"""Files that model servers read, by the schemas that their owners publish."""

import math
import re
from pathlib import Path

import jsonschema
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
from bert_keras.checkpoints import starting_point
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.data import features, tfrecords, tokenization
from bert_keras.export import formats, loading
from bert_keras.export.servers import model_servers, warm_up
from bert_keras.kinds import served
from bert_keras.kinds.choice import served_choices
from bert_keras.kinds.masked_words import served_words
from bert_keras.kinds.span import served_spans
from bert_keras.kinds.tagging import served_tags
from bert_keras.kinds.text import served_labels
from bert_keras.kinds.vectors import served_embeddings
from tests import make

VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *"abcdefg.[]", "the"))
SPAN = finetuning.SpanConfig(doc_stride=7, max_query_length=9)
TASKS = {
    "labels": ("text", {"kind": "classification", "labels": ("bad", "good")}),
    "pairs": ("text", {"kind": "regression", "has_text_pair": True}),
    "spans": ("span", {"kind": "span"}),
    "tags": ("tagging", {"kind": "tagging", "labels": ("O", "B-X", "I-X")}),
    "choices": ("choice", {"kind": "choice"}),
    "masks": (None, {"kind": "pretraining"}),
}
PAGE = Path(__file__).parents[4] / "docs/serving.md"


def make_run(directory: Path, task: str | None, **of_task) -> Path:
    """A finished run with the weights that a network begins with."""
    settings = None
    if task is not None:
        settings = finetuning.FinetuningConfig(
            task=task,
            max_seq_length=20,
            span=SPAN,
            document_context=task == "tagging",
        )
    return make.make_run(directory, VOCABULARY, settings=settings, **of_task)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, served.ServedModel]:
    """A model of each kind, as `export` has it."""
    kinds = {
        "labels": served_labels.Labels,
        "pairs": served_labels.Labels,
        "spans": served_spans.Spans,
        "tags": served_tags.Tags,
        "choices": served_choices.Choices,
    }
    folder = tmp_path_factory.mktemp("runs")
    runs = {
        name: make_run(folder / name, task, **of_task)
        for name, (task, of_task) in TASKS.items()
    }
    read = {n: starting_point.read_with_tokenizer(path) for n, path in runs.items()}
    found = {n: kind(loading.load(read[n], path=runs[n])) for n, kind in kinds.items()}
    found["masks"] = served_words.MaskedWords(
        loading.load(read["masks"], path=runs["masks"]), top_k=2
    )
    found["vectors"] = served_embeddings.Embeddings(
        loading.load(read["labels"], path=runs["labels"], embedding="mean"),
        kind="mean",
        layers=(-1,),
    )
    return found


def write(model, directory: Path, output: str = "exported/mine/1") -> Path:
    directory.mkdir()
    server = model_servers.server(
        to="saved_model", output_dir=Path(output).absolute(), image=None
    )
    model_servers.write(model, directory, server)
    return directory


# Requests to warm up


@pytest.mark.parametrize("kind", [*TASKS, "vectors"])
def test_warm_up_requests_are_answered(models, kind, tmp_path):
    log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    model = models[kind]
    warm_up.write(model, tmp_path / "requests")
    with (tmp_path / "requests").open("rb") as file:
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


def test_a_full_text_fills_an_input(models):
    model = models["labels"]
    lengths = {
        math.prod(model.encode(tf.constant(inputs["text"]))["input_ids"].shape)
        for name, inputs in warm_up.requests(model)
        if name == served.STRINGS and len(inputs["text"]) == 1
    }
    assert lengths == {14, 18}


def test_requests_stay_small_for_long_inputs(models, monkeypatch):
    model = models["labels"]
    monkeypatch.setattr(model, "max_seq_length", 512)
    shapes = [
        inputs["input_ids"].shape
        for name, inputs in warm_up.requests(model)
        if name == served.IDS
    ]
    assert shapes == [
        (1, 16),
        (8, 16),
        (32, 16),
        (1, 64),
        (8, 64),
        (32, 64),
        (1, 512),
        (8, 512),
    ]


# TensorFlow Serving


def message(name: str, fields: dict[str, str | int]):
    """A protocol buffer with fields of wrappers by name, or of types by number."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{name}.proto",
        package=name,
        syntax="proto3",
        dependency=["google/protobuf/wrappers.proto"],
    )
    found = file.message_type.add(name=name)
    for number, (field, kind) in enumerate(fields.items(), start=1):
        added = found.field.add(name=field, number=number, label=1)
        if isinstance(kind, str):
            added.type, added.type_name = 11, f".google.protobuf.{kind}"
        else:
            added.type = kind
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{name}.{name}"))


def test_batching_parameters(models, tmp_path):
    # session_bundle_config.proto, which no package has; fields as published.
    parameters = message(
        "BatchingParameters",
        {
            "max_batch_size": "Int64Value",
            "batch_timeout_micros": "Int64Value",
            "max_enqueued_batches": "Int64Value",
            "num_batch_threads": "Int64Value",
            "thread_pool_name": "StringValue",
            "pad_variable_length_inputs": 8,
            "enable_large_batch_splitting": "BoolValue",
            "max_execution_batch_size": "Int64Value",
        },
    )
    directory = write(models["labels"], tmp_path / "1")
    text = (directory / "batching_params.pbtxt").read_text()
    found = text_format.Parse(text, parameters())
    assert found.max_execution_batch_size.value == 32
    assert found.max_batch_size.value == 1024
    assert found.enable_large_batch_splitting.value


def test_sentences_of_several_requests_are_no_document(models, tmp_path):
    assert models["tags"].has_documents
    directory = write(models["tags"], tmp_path / "1")
    assert not (directory / "batching_params.pbtxt").exists()
    assert (directory / "assets.extra/tf_serving_warmup_requests").exists()


def test_compose_file(models, tmp_path):
    directory = write(models["labels"], tmp_path / "1", "exported/mine/7")
    assert yaml.safe_load((directory / "assets.extra/compose.yaml").read_text()) == {
        "services": {
            "tf-serving": {
                "image": "tensorflow/serving:2.20.0",
                "environment": {"MODEL_NAME": "mine"},
                "command": [
                    "--enable_batching",
                    "--enable_per_model_batching_parameters",
                    "--monitoring_config_file=/models/mine/7/assets.extra/monitoring.config",
                ],
                "ports": ["8500:8500", "8501:8501"],
                "volumes": ["../..:/models/mine:ro"],
            }
        }
    }
    assert sorted(path.name for path in directory.rglob("*") if path.is_file()) == [
        "batching_params.pbtxt",
        "compose.yaml",
        "monitoring.config",
        "tf_serving_warmup_requests",
    ]
    assert (directory / "assets.extra/monitoring.config").read_text() == (
        'prometheus_config { enable: true, path: "/monitoring/prometheus/metrics" }\n'
    )


# Files to copy from the page


def block(language: str) -> str:
    """The page's only block in a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.S | re.M)
    return found


def strict(required: str, **properties) -> dict:
    """A JSON schema of an object without other fields."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


STRING = {"type": "string"}
INFERENCE_SERVICE = strict(
    "apiVersion kind metadata spec",
    apiVersion={"const": "serving.kserve.io/v1beta1"},
    kind={"const": "InferenceService"},
    metadata=strict(
        "name",
        name={"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"},
    ),
    spec=strict(
        "predictor",
        predictor=strict(
            "model",
            model=strict(
                "modelFormat",
                modelFormat=strict("name", name=STRING, version=STRING),
                runtimeVersion=STRING,
                storageUri={"type": "string", "pattern": "^(gs|s3)://"},
                args={"type": "array", "items": STRING},
            ),
        ),
    ),
)
"""Fields of KServe's custom resource, as far as they are used."""


def test_kserve_takes_the_file_of_the_page():
    service = yaml.safe_load(block("yaml"))
    jsonschema.validate(service, INFERENCE_SERVICE)
    model = service["spec"]["predictor"]["model"]
    assert model_servers.TF_SERVING_IMAGE.endswith(f":{model['runtimeVersion']}")


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
    file = descriptor_pb2.FileDescriptorProto(
        name="model_config.proto", package="inference", syntax="proto3"
    )
    types = file.enum_type.add(name="DataType")
    for number, name in ((0, "INVALID"), (8, "INT32"), (11, "FP32")):
        types.value.add(name=f"TYPE_{name}", number=number)
    string, int32, int64, uint64 = 9, 5, 3, 4
    tensor = (("name", 1, string), ("data_type", 2, "DataType"))
    for name, fields in {
        "ModelInput": (*tensor, ("*dims", 4, int64)),
        "ModelOutput": (*tensor, ("*dims", 3, int64), ("label_filename", 4, string)),
        "ModelDynamicBatching": (("max_queue_delay_microseconds", 2, uint64),),
        "ModelConfig": (
            ("name", 1, string),
            ("backend", 17, string),
            ("max_batch_size", 4, int32),
            ("*input", 5, "ModelInput"),
            ("*output", 6, "ModelOutput"),
            ("dynamic_batching", 11, "ModelDynamicBatching"),
        ),
    }.items():
        added = file.message_type.add(name=name)
        for field, number, kind in fields:
            found = added.field.add(
                name=field.removeprefix("*"),
                number=number,
                label=3 if field.startswith("*") else 1,
            )
            if isinstance(kind, int):
                found.type = kind
            else:
                found.type = 14 if kind == "DataType" else 11
                found.type_name = f".inference.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    name = "inference.ModelConfig"
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()


def test_triton_takes_the_file_of_the_page(models, tmp_path):
    pytest.importorskip("tf2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    described = text_format.Parse(block("protobuf"), model_config())
    formats.write_onnx(models["labels"], tmp_path)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
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
        ({"serving": None, "image": "i"}, "--image is for --serving tf"),
        ({"serving": "kserve"}, "--serving.*kserve"),
    ],
)
def test_options_that_do_not_fit_together(options, message, tmp_path):
    given = {"output": "mine/1", "serving": "tf", **options}
    with pytest.raises(InputError, match=message):
        export.export_model(tmp_path, tmp_path / given.pop("output"), **given)
