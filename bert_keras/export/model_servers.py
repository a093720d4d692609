"""Files that model servers read beside an exported model: `export --serving`.

TensorFlow Serving is also what KServe and Vertex AI run: all three get warm-up requests
and batching parameters, and differ in the file that starts the server. Triton gets the
layout of its model repository, around an ONNX file.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bert_keras import files
from bert_keras.errors import InputError
from bert_keras.export import answers, formats, tags, warm_up

TF_SERVING_IMAGE = "tensorflow/serving:2.20.0"
"""Holds the operations of TensorFlow and tensorflow_text 2.20, as exports need them."""

BATCHING_NAME = "batching_params.pbtxt"
"""Name that TensorFlow Serving looks for beside `saved_model.pb`."""

_BATCHING_FLAGS = ["--enable_batching", "--enable_per_model_batching_parameters"]
"""A model without the file is not batched."""

_FORMATS = {
    "tf": "saved_model",
    "kserve": "saved_model",
    "vertex": "saved_model",
    "triton": "onnx",
}
_KUBERNETES_NAME = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
_MAX_BATCH_SIZE = 32
_MAX_REQUEST_SIZE = 1024
"""Texts in a request: the server computes them `_MAX_BATCH_SIZE` at a time."""


class Server(NamedTuple):
    """A server, and where it finds the model."""

    kind: str
    """One of `config.ModelServer`."""
    name: str
    """Name under which the model is asked; for `triton` that of its directory."""
    version: str
    model_uri: str
    """The directory with all versions, where the server finds it."""
    image: str | None
    """A container image of the user's."""


def server(
    kind: str,
    *,
    to: str,
    output_dir: Path,
    model_uri: str | None,
    image: str | None,
) -> Server:
    """Checks that the options fit together.

    Args:
        kind: one of `config.ModelServer`.
        to: the format of the export.
        output_dir: of the export: for Triton the model's directory in a repository,
            else a version in the model's directory, such as `exported/mine/1`.
        model_uri: where a cluster finds the model's directory; `None`: `output_dir`.
        image: container image to run; `None`: TensorFlow Serving's own.

    Raises:
        InputError: they do not.
    """
    if to != _FORMATS[kind]:
        raise InputError(f"--serving {kind} needs --to {_FORMATS[kind]}, got --to {to}")
    for option, value, kinds in (
        ("--model_uri", model_uri, ("kserve", "vertex")),
        ("--image", image, ("tf", "kserve", "vertex")),
    ):
        if value is not None and kind not in kinds:
            raise InputError(f"{option} is for --serving {', '.join(kinds)}")
    if kind == "triton":
        return Server(kind, output_dir.name, "1", "", None)
    name, version = output_dir.parent.name, output_dir.name
    if not re.fullmatch(r"[0-9]+", version) or not name:
        raise InputError(
            f"{output_dir}: TensorFlow Serving reads numbered versions in a model's "
            "directory: expected an --output such as exported/mine/1"
        )
    uri = (model_uri or str(output_dir.parent)).rstrip("/")
    found = Server(kind, name, version, uri, image)
    if kind != "tf":
        _check_cluster(found)
    return found


def _check_cluster(found: Server) -> None:
    name = found.name
    if found.kind == "kserve" and not re.fullmatch(_KUBERNETES_NAME, name):
        raise InputError(
            "KServe's names, here that of the directory above the version, begin with "
            "a small letter and have small letters, digits and hyphens, 63 at most, "
            f"got {name!r}"
        )
    if found.kind == "vertex" and found.image is None:
        raise InputError(
            "--serving vertex needs --image: Vertex AI runs images from Artifact "
            f"Registry only, so copy {TF_SERVING_IMAGE} there and name the copy, such "
            "as --image europe-docker.pkg.dev/my-project/images/tf-serving:2.20.0"
        )
    if not files.is_remote(found.model_uri):
        raise InputError(
            f"--serving {found.kind} reads the model from a store, got "
            f"{found.model_uri}: give an --output there, such as "
            f"gs://my-bucket/{name}/{found.version}, or say with --model_uri where you "
            f"will copy it to, such as gs://my-bucket/{name}"
        )
    if found.kind == "vertex" and not found.model_uri.startswith("gs://"):
        raise InputError(
            f"Vertex AI reads models from Google Cloud Storage: expected a gs:// "
            f"--model_uri or --output, got {found.model_uri}"
        )


def write(model: answers.Answers, directory: Path, wanted: Server) -> None:
    """Adds a server's files to a new export.

    Args:
        model: what was exported.
        directory: of the export, with its files.
        wanted: from `server`.
    """
    if wanted.kind == "triton":
        _write_triton(model, directory)
        return
    extra = directory / "assets.extra"
    extra.mkdir(exist_ok=True)
    warm_up.write(model, extra / warm_up.FILE_NAME)
    # Batches hold the sentences of several requests, and sentences with the same
    # document, of any request, would become context for each other.
    if not (isinstance(model, tags.Tags) and model.has_documents):
        (directory / BATCHING_NAME).write_text(_BATCHING, encoding="utf-8")
    match wanted.kind:
        case "tf":
            (extra / "monitoring.config").write_text(_MONITORING, encoding="utf-8")
            _write_yaml(extra / "compose.yaml", _compose(wanted))
        case "kserve":
            _write_yaml(extra / "inference_service.yaml", _inference_service(wanted))
        case "vertex":
            _write_yaml(extra / "instance.yaml", _instance_schema(model))
            files.write_json(extra / "upload_model.json", _upload_model(wanted))


_BATCHING = f"""\
# --enable_batching --enable_per_model_batching_parameters
max_batch_size {{ value: {_MAX_REQUEST_SIZE} }}
enable_large_batch_splitting {{ value: true }}
max_execution_batch_size {{ value: {_MAX_BATCH_SIZE} }}
batch_timeout_micros {{ value: 2000 }}
max_enqueued_batches {{ value: 128 }}
"""
_MONITORING = """\
prometheus_config { enable: true, path: "/monitoring/prometheus/metrics" }
"""


def _compose(wanted: Server) -> dict[str, Any]:
    """A service of Docker Compose, for a file in `assets.extra/` of a version."""
    model = f"/models/{wanted.name}"
    monitoring = f"{model}/{wanted.version}/assets.extra/monitoring.config"
    return {
        "services": {
            "tf-serving": {
                "image": wanted.image or TF_SERVING_IMAGE,
                "environment": {"MODEL_NAME": wanted.name},
                "command": [
                    *_BATCHING_FLAGS,
                    f"--monitoring_config_file={monitoring}",
                ],
                "ports": ["8500:8500", "8501:8501"],
                "volumes": [f"../..:{model}:ro"],
            }
        }
    }


def _inference_service(wanted: Server) -> dict[str, Any]:
    """KServe's resource; its runtime for TensorFlow runs TensorFlow Serving."""
    _, _, tag = TF_SERVING_IMAGE.rpartition(":")
    version = {"image": wanted.image} if wanted.image else {"runtimeVersion": tag}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": wanted.name},
        "spec": {
            "predictor": {
                "model": {
                    "modelFormat": {"name": "tensorflow"},
                    **version,
                    "storageUri": wanted.model_uri,
                    "args": list(_BATCHING_FLAGS),
                }
            }
        },
    }


def _upload_model(wanted: Server) -> dict[str, Any]:
    """The body of Vertex AI's `models:upload`."""
    route = f"/v1/models/{wanted.name}"
    schema = f"{wanted.model_uri}/{wanted.version}/assets.extra/instance.yaml"
    return {
        "model": {
            "displayName": wanted.name,
            "artifactUri": wanted.model_uri,
            "predictSchemata": {"instanceSchemaUri": schema},
            "containerSpec": {
                "imageUri": wanted.image,
                "command": ["/usr/bin/tensorflow_model_server"],
                "args": [
                    "--port=8500",
                    "--rest_api_port=8501",
                    f"--model_name={wanted.name}",
                    # Vertex AI copies the artifacts, and puts in where they are.
                    "--model_base_path=$(AIP_STORAGE_URI)",
                    *_BATCHING_FLAGS,
                ],
                "ports": [{"containerPort": 8501}],
                "predictRoute": f"{route}:predict",
                "healthRoute": route,
            },
        }
    }


def _instance_schema(model: answers.Answers) -> dict[str, Any]:
    """A text with its companions, as an OpenAPI 3.0 schema."""
    specs = model.signatures()[answers.STRINGS].inputs
    return {
        "type": "object",
        "properties": {
            spec.name: {"type": "string"}
            if spec.shape.rank == 1
            else {"type": "array", "items": {"type": "string"}}
            for spec in specs
        },
        "required": [spec.name for spec in specs],
    }


def _write_yaml(path: Path, values: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")


def _write_triton(model: answers.Answers, directory: Path) -> None:
    """Moves the ONNX file into a version, and describes it."""
    version = directory / "1"
    version.mkdir()
    path = (directory / formats.ONNX_NAME).rename(version / formats.ONNX_NAME)
    config = _triton_config(path, has_labels=model.labels is not None)
    (directory / "config.pbtxt").write_text(config, encoding="utf-8")


def _triton_config(path: Path, *, has_labels: bool) -> str:
    """Triton's `ModelConfig`, in text; the model's name is that of its directory."""
    import onnx

    graph = onnx.load(path).graph
    lines = [
        'backend: "onnxruntime"',
        f"max_batch_size: {_MAX_BATCH_SIZE}",
        "dynamic_batching { max_queue_delay_microseconds: 2000 }",
    ]
    for field, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            lines.append(_triton_tensor(field, value, has_labels=has_labels))
    return "\n".join(lines) + "\n"


def _triton_tensor(field: str, value: Any, *, has_labels: bool) -> str:
    import onnx

    tensor = value.type.tensor_type
    types = {onnx.TensorProto.INT32: "TYPE_INT32", onnx.TensorProto.FLOAT: "TYPE_FP32"}
    # Axes of any length have names, or nothing. The first is the batch's, and implied.
    dims = [axis.dim_value or -1 for axis in tensor.shape.dim[1:]]
    # Triton's classification extension: labels of a row of numbers.
    labels = ""
    if has_labels and value.name == "logits" and len(dims) == 1 and dims[0] > 0:
        labels = ', label_filename: "labels.txt"'
    return (
        f'{field} {{ name: "{value.name}", data_type: {types[tensor.elem_type]}, '
        f"dims: [ {', '.join(map(str, dims))} ]{labels} }}"
    )
