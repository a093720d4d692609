"""The task part of KerasHub's presets: a `BertTextClassifier` around the backbone.

`task.json` describes it, `preprocessor.json` how texts become its inputs, and
`task.weights.h5` has the head. KerasHub has no names of labels: `labels.txt`, a line
for each, is ours. Read and written with h5py alone, like the rest of a preset.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from bert_keras.checkpoints import weights
from bert_keras.checkpoints.containers import keras_files
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config
from bert_keras.kinds import registry

TASK, PREPROCESSOR, WEIGHTS = "task.json", "preprocessor.json", "task.weights.h5"
_LABELS = "labels.txt"

HEAD = {
    "head/classifier/kernel": "layers/dense/vars/0",
    "head/classifier/bias": "layers/dense/vars/1",
}
"""Our names of the head's weights, and theirs."""


class Head(NamedTuple):
    task: config.Task
    arrays: Mapping[str, np.ndarray]
    max_seq_length: int | None
    unused: Mapping[str, str]
    """Tensors of `task.weights.h5` that are not the head's, and the reasons."""


def has_place(task: config.Task) -> bool:
    return registry.find(task.kind).names.keras_hub is not None


def write(
    checkpoint: weights.Checkpoint,
    directory: Path,
    *,
    backbone: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
) -> None:
    task, bert_config = checkpoint.task, checkpoint.bert_config
    length = checkpoint.max_seq_length or bert_config.max_position_embeddings
    preprocessor = serialized(
        "bert_text_classifier_preprocessor",
        "BertTextClassifierPreprocessor",
        "float32",
        {
            "tokenizer": tokenizer,
            "config_file": PREPROCESSOR,
            "sequence_length": length,
            "truncate": "round_robin",
        },
    )
    described = serialized("bert_text_classifier", "BertTextClassifier", None, {})
    described["config"] |= {
        "backbone": backbone,
        "preprocessor": preprocessor,
        "num_classes": len(checkpoint.arrays["head/classifier/bias"]),
        "activation": registry.find(task.kind).names.keras_hub,
        "dropout": bert_config.hidden_dropout_prob,
    }
    files.write_json(directory / TASK, described, indent=4)
    files.write_json(directory / PREPROCESSOR, preprocessor, indent=4)
    with h5py.File(directory / WEIGHTS, "w") as file:
        for ours, theirs in HEAD.items():
            file[theirs] = checkpoint.arrays[ours]
    if task.labels:
        lines = "".join(f"{label}\n" for label in task.labels)
        files.write_atomically(directory / _LABELS, lines.encode())


def read(directory: Path, bert_config: config.BertConfig) -> Head | None:
    """Reads the head of a preset; `None`: there is no head that has a place here."""
    if not all((directory / name).is_file() for name in (TASK, WEIGHTS)):
        return None
    described = files.read_json(directory / TASK)
    values = described.get("config")
    if described.get("class_name") != "BertTextClassifier" or not _is_dict(values):
        return None
    number, activation = values.get("num_classes"), values.get("activation", "linear")
    if type(number) is not int or number < 1:
        raise InputError(
            f"{directory / TASK}: expected a number of classes, `num_classes`, found "
            f"{number!r}"
        )
    kind = _kind(number, activation)
    if kind is None:
        return None
    source = keras_files.WeightsFile(directory / WEIGHTS)
    if missing := [name for name in HEAD.values() if name not in source.shapes()]:
        raise InputError(f"{directory / WEIGHTS}: expected a tensor {missing[0]!r}")
    source.check_dtypes(HEAD.values())
    task = _task(directory, kind, number)
    arrays = weights.Arrays(
        source,
        [weights.Row(*names) for names in HEAD.items()],
        bert_config,
        task,
        path=directory / WEIGHTS,
    )
    preprocessor = values.get("preprocessor") or {}
    length = (preprocessor.get("config") or {}).get("sequence_length")
    return Head(
        task=task,
        arrays=arrays,
        max_seq_length=length if type(length) is int and length > 0 else None,
        unused={
            name: "optimizer slot" if name.startswith("optimizer/") else "not of BERT"
            for name in sorted(source.shapes().keys() - HEAD.values())
        },
    )


def _kind(num_classes: int, activation: Any) -> config.TaskKind | None:
    if activation in ("linear", None) and num_classes == 1:
        return "regression"
    if activation in ("linear", "softmax", None):
        return "classification" if num_classes > 1 else None
    return "multi_label" if activation == "sigmoid" else None


def _task(directory: Path, kind: config.TaskKind, num_classes: int) -> config.Task:
    if not registry.find(kind).has_labels:
        return config.Task(kind=kind)
    path = directory / _LABELS
    labels = tuple(map(str, range(num_classes)))
    if path.is_file():
        labels = tuple(files.read_text(path, expected="labels").splitlines())
    config.check_labels(labels, path=path)
    if len(labels) != num_classes:
        raise InputError(
            f"{path}: expected {num_classes} different labels, one a line, as many as "
            f"`num_classes` in {TASK}, found {len(labels)}"
        )
    return config.Task(kind=kind, labels=labels)


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def serialized(
    name: str, class_name: str, dtype: str | None, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Describes an object as `keras.saving.serialize_keras_object` does.

    Args:
        name: of the object, and of the module of its class.
        dtype: of its policy; `None`: it has no policy, as a task.
        values: all other keys of its configuration.
    """
    settings: dict[str, Any] = {"name": name}
    if dtype is not None:
        policy = {
            "module": "keras",
            "class_name": "DTypePolicy",
            "config": {"name": dtype},
            "registered_name": None,
        }
        settings |= {"trainable": True, "dtype": policy}
    return {
        "module": f"keras_hub.src.models.bert.{name}",
        "class_name": class_name,
        "config": {**settings, **values},
        "registered_name": f"keras_hub>{class_name}",
    }
