"""Files that TensorFlow Serving reads beside an exported model: `export --serving tf`.

KServe and Vertex AI run TensorFlow Serving too: docs/serving.md has the files that
start it there, and Triton's.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from bert_keras.core.errors import InputError
from bert_keras.export.servers import warm_up
from bert_keras.kinds import served
from bert_keras.kinds.tagging import served_tags

TF_SERVING_IMAGE = "tensorflow/serving:2.20.0"
"""Holds the operations of TensorFlow and tensorflow_text 2.20, as exports need them."""

BATCHING_NAME = "batching_params.pbtxt"
"""Name that TensorFlow Serving looks for beside `saved_model.pb`."""

_MAX_BATCH_SIZE = 32
_MAX_REQUEST_SIZE = 1024
"""Texts in a request: the server computes them `_MAX_BATCH_SIZE` at a time."""


def compose(*, to: str, output_dir: Path, image: str | None) -> dict[str, Any]:
    """Returns a Docker Compose file that serves an export, if the options fit together.
    `output_dir` is a version in the model's directory, such as `exported/mine/1`;
    `image` is a container image, `None` for TensorFlow Serving's."""
    if to != "saved_model":
        raise InputError(f"--serving tf needs --to saved_model, got --to {to}")
    name, version = output_dir.parent.name, output_dir.name
    if not re.fullmatch(r"[0-9]+", version) or not name:
        raise InputError(
            f"{output_dir}: TensorFlow Serving reads numbered versions in a model's "
            "directory: expected an --output such as exported/mine/1"
        )
    model = f"/models/{name}"
    monitoring = f"{model}/{version}/assets.extra/monitoring.config"
    return {
        "services": {
            "tf-serving": {
                "image": image or TF_SERVING_IMAGE,
                "environment": {"MODEL_NAME": name},
                "command": [
                    # A model without the file is not batched.
                    "--enable_batching",
                    "--enable_per_model_batching_parameters",
                    f"--monitoring_config_file={monitoring}",
                ],
                "ports": ["8500:8500", "8501:8501"],
                "volumes": [f"../..:{model}:ro"],
            }
        }
    }


def write(
    model: served.ServedModel, directory: Path, compose_file: dict[str, Any]
) -> None:
    extra = directory / "assets.extra"
    extra.mkdir(exist_ok=True)
    warm_up.write(model, extra / warm_up.FILE_NAME)
    # Batches hold the sentences of several requests, and sentences with the same
    # document, of any request, would become context for each other.
    if not (isinstance(model, served_tags.Tags) and model.has_documents):
        (directory / BATCHING_NAME).write_text(_BATCHING, encoding="utf-8")
    (extra / "monitoring.config").write_text(_MONITORING, encoding="utf-8")
    text = yaml.safe_dump(compose_file, sort_keys=False)
    (extra / "compose.yaml").write_text(text, encoding="utf-8")


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
