"""Files that model servers read, by the schemas that their owners publish."""

import math
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import tensorflow as tf
import yaml
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
)

from bert_keras import config, finetuning_config, run_directory
from bert_keras.checkpoints import run_weights, starting_point
from bert_keras.data import features, tfrecords, tokenization
from bert_keras.errors import InputError
from bert_keras.export import (
    answers,
    choices,
    embeddings,
    formats,
    labels,
    masked_words,
    model_servers,
    spans,
    tags,
    warm_up,
)
from bert_keras.model import networks

VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *"abcdefg.[]", "the"))
SPAN = finetuning_config.SpanConfig(doc_stride=7, max_query_length=9)
BERT_CONFIG = config.BertConfig(
    vocab_size=len(VOCABULARY),
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=8,
    max_position_embeddings=24,
)
TASKS = {
    "labels": ("text", {"kind": "classification", "labels": ("bad", "good")}),
    "pairs": ("text", {"kind": "regression", "has_text_pair": True}),
    "spans": ("span", {"kind": "span"}),
    "tags": ("tagging", {"kind": "tagging", "labels": ("O", "B-X", "I-X")}),
    "choices": ("choice", {"kind": "choice"}),
    "masks": (None, {"kind": "pretraining"}),
}
GOOGLE_PROJECT = "europe-docker.pkg.dev/mine/images/tf-serving:2.20.0"


def make_run(directory: Path, task: str | None, **of_task) -> Path:
    """A finished run with the weights that a network begins with."""
    run = run_directory.Run(
        directory=directory,
        task=config.Task(**of_task),
        bert_config=BERT_CONFIG,
        vocabulary=VOCABULARY,
        do_lower_case=True,
    )
    directory.mkdir()
    settings = task and finetuning_config.FinetuningConfig(
        task=task,
        max_seq_length=20,
        span=SPAN,
        document_context=task == "tagging",
    )
    run_directory.describe_run(run, settings or None)
    run_weights.finish_run(run, networks.build(BERT_CONFIG, run.task, seed=0), {})
    return directory


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, answers.Answers]:
    """A model of each kind, as `export` has it."""
    kinds = {
        "labels": labels.Labels,
        "pairs": labels.Labels,
        "spans": spans.Spans,
        "tags": tags.Tags,
        "choices": choices.Choices,
    }
    folder = tmp_path_factory.mktemp("runs")
    runs = {
        name: make_run(folder / name, task, **of_task)
        for name, (task, of_task) in TASKS.items()
    }
    read = {n: starting_point.read_with_tokenizer(path) for n, path in runs.items()}
    found = {n: kind(read[n], path=runs[n]) for n, kind in kinds.items()}
    found["masks"] = masked_words.MaskedWords(
        read["masks"], path=runs["masks"], top_k=2
    )
    found["vectors"] = embeddings.Embeddings(
        read["labels"], path=runs["labels"], kind="mean", layers=(-1,)
    )
    return found


def server_of(kind: str, output: str = "exported/mine/1", **options):
    given = {"to": "saved_model", "model_uri": None, "image": None, **options}
    return model_servers.server(kind, output_dir=Path(output).absolute(), **given)


def write(model, directory: Path, kind: str, *args, **options) -> Path:
    directory.mkdir()
    model_servers.write(model, directory, server_of(kind, *args, **options))
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
        if name == answers.STRINGS and len(inputs["text"]) == 1
    }
    assert lengths == {14, 18}


def test_requests_stay_small_for_long_inputs(models, monkeypatch):
    model = models["labels"]
    monkeypatch.setattr(model, "max_seq_length", 512)
    shapes = [
        inputs["input_ids"].shape
        for name, inputs in warm_up.requests(model)
        if name == answers.IDS
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
    directory = write(models["labels"], tmp_path / "1", "tf")
    text = (directory / "batching_params.pbtxt").read_text()
    found = text_format.Parse(text, parameters())
    assert found.max_execution_batch_size.value == 32
    assert found.max_batch_size.value == 1024
    assert found.enable_large_batch_splitting.value


def test_sentences_of_several_requests_are_no_document(models, tmp_path):
    assert models["tags"].has_documents
    directory = write(models["tags"], tmp_path / "1", "tf")
    assert not (directory / "batching_params.pbtxt").exists()
    assert (directory / "assets.extra/tf_serving_warmup_requests").exists()


def test_compose_file(models, tmp_path):
    directory = write(models["labels"], tmp_path / "1", "tf", "exported/mine/7")
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


# KServe


def test_inference_service(models, tmp_path):
    """Field by field, as KServe's `V1beta1InferenceService` has them."""
    directory = write(
        models["labels"], tmp_path / "1", "kserve", model_uri="s3://bucket/mine/"
    )
    path = directory / "assets.extra/inference_service.yaml"
    wanted = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "mine"},
        "spec": {
            "predictor": {
                "model": {
                    "modelFormat": {"name": "tensorflow"},
                    "runtimeVersion": "2.20.0",
                    "storageUri": "s3://bucket/mine",
                    "args": [
                        "--enable_batching",
                        "--enable_per_model_batching_parameters",
                    ],
                }
            }
        },
    }
    assert yaml.safe_load(path.read_text()) == wanted
    directory = write(
        models["labels"], tmp_path / "2", "kserve", model_uri="gs://b/mine", image="i:2"
    )
    model = wanted["spec"]["predictor"]["model"]
    del model["runtimeVersion"]
    model |= {"storageUri": "gs://b/mine", "image": "i:2"}
    path = directory / "assets.extra/inference_service.yaml"
    assert yaml.safe_load(path.read_text()) == wanted


# Vertex AI


@pytest.mark.parametrize(
    ("kind", "instance"),
    [
        ("labels", {"text": "a"}),
        ("pairs", {"text": "a", "text_pair": "b"}),
        ("choices", {"sentence": "a", "beginning": "b", "endings": ["c", "d"]}),
    ],
)
def test_upload_to_vertex_ai(models, kind, instance, tmp_path):
    types = pytest.importorskip("google.cloud.aiplatform_v1.types")
    directory = write(
        models[kind],
        tmp_path / "1",
        "vertex",
        model_uri="gs://bucket/models/mine",
        image=GOOGLE_PROJECT,
    )
    extra = directory / "assets.extra"
    body = (extra / "upload_model.json").read_text()
    # Refuses a field that the API does not have.
    model = types.UploadModelRequest.from_json(body).model
    assert model.display_name == "mine"
    assert model.artifact_uri == "gs://bucket/models/mine"
    container = model.container_spec
    assert container.image_uri == GOOGLE_PROJECT
    assert container.health_route == "/v1/models/mine"
    assert container.predict_route == "/v1/models/mine:predict"
    assert [port.container_port for port in container.ports] == [8501]
    assert "--model_name=mine" in container.args
    assert "--rest_api_port=8501" in container.args
    assert "--model_base_path=$(AIP_STORAGE_URI)" in container.args
    uri = "gs://bucket/models/mine/1/assets.extra/instance.yaml"
    assert model.predict_schemata.instance_schema_uri == uri
    schema = yaml.safe_load((extra / "instance.yaml").read_text())
    jsonschema.validate(instance, schema)
    for name in instance:
        without = {key: value for key, value in instance.items() if key != name}
        for wrong in ({**instance, name: 3}, without):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(wrong, schema)


# Triton


def test_triton_describes_the_onnx_file(models, tmp_path):
    pytest.importorskip("tf2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    directory = tmp_path / "mine"
    directory.mkdir()
    formats.write_onnx(models["labels"], directory)
    model_servers.write(
        models["labels"], directory, server_of("triton", "repository/mine", to="onnx")
    )
    text = (directory / "config.pbtxt").read_text()
    assert text == (
        'backend: "onnxruntime"\n'
        "max_batch_size: 32\n"
        "dynamic_batching { max_queue_delay_microseconds: 2000 }\n"
        'input { name: "input_ids", data_type: TYPE_INT32, dims: [ -1 ] }\n'
        'input { name: "input_mask", data_type: TYPE_INT32, dims: [ -1 ] }\n'
        'input { name: "segment_ids", data_type: TYPE_INT32, dims: [ -1 ] }\n'
        'output { name: "logits", data_type: TYPE_FP32, dims: [ 2 ], '
        'label_filename: "labels.txt" }\n'
    )
    session = onnxruntime.InferenceSession(str(directory / "1/model.onnx"))
    ids = {value.name: np.ones((3, 5), np.int32) for value in session.get_inputs()}
    ids["segment_ids"] = 0 * ids["input_ids"]
    assert session.run(["logits"], ids)[0].shape == (3, 2)
    # Not in the environment of the tests: it asks for an older ml_dtypes.
    model_config_pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    found = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert found.name == ""  # that of the directory
    assert [i.name for i in found.input] == ["input_ids", "input_mask", "segment_ids"]
    assert found.HasField("dynamic_batching")


# Options


@pytest.mark.parametrize(
    ("kind", "output", "options", "wanted"),
    [
        ("tf", "mine", {}, "mine: TensorFlow Serving reads numbered versions in a mod"),
        ("tf", "mine/1", {"to": "onnx"}, "--serving tf needs --to saved_model, got"),
        ("triton", "mine", {}, "--serving triton needs --to onnx, got --to saved_mod"),
        (
            "triton",
            "mine",
            {"to": "onnx", "image": "i"},
            "--image is for --serving tf,",
        ),
        ("tf", "mine/1", {"model_uri": "gs://b"}, "--model_uri is for --serving kser"),
        ("kserve", "Mine/1", {"model_uri": "gs://b"}, "KServe's names, .*got 'Mine'"),
        ("kserve", "mine/1", {}, "--serving kserve reads the model from a store, got"),
        ("vertex", "mine/1", {"model_uri": "gs://b"}, "vertex needs --image: Vertex"),
        (
            "vertex",
            "mine/1",
            {"model_uri": "s3://b/mine", "image": GOOGLE_PROJECT},
            "expected a gs:// --model_uri or --output, got s3://b/mine",
        ),
    ],
)
def test_options_that_do_not_fit_together(kind, output, options, wanted):
    with pytest.raises(InputError, match=wanted):
        server_of(kind, output, **options)
