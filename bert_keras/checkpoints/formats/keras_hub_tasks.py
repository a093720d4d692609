"""The task part of KerasHub's presets: a `BertTextClassifier` around the backbone.

`task.json` describes it, `preprocessor.json` how texts become its inputs, and
`task.weights.h5` has the head. KerasHub has no names of labels: `labels.txt`, a line
for each, is ours. Read and written with h5py alone, like the rest of a preset.
"""

import collections
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py

from bert_keras.checkpoints import weights
from bert_keras.checkpoints.containers import keras_files
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.kinds import registry

TASK, PREPROCESSOR, WEIGHTS = "task.json", "preprocessor.json", "task.weights.h5"
_LABELS = "labels.txt"

HEAD = {
    "head/classifier/kernel": "layers/dense/vars/0",
    "head/classifier/bias": "layers/dense/vars/1",
}
"""Our names of the head's weights, and theirs."""


OTHER_HEAD = (
    "KerasHub's masked-LM head computes the exact GELU and a norm with epsilon 1e-5"
)


def has_place(task: tasks.Task) -> bool:
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


def with_head(backbone: weights.Checkpoint, directory: Path) -> weights.Checkpoint:
    """Returns the backbone of a preset with the preset's head, if that has a place
    here. All other tensors of the head's file are unused."""
    path = directory / WEIGHTS
    if not path.is_file():
        return backbone
    task, max_seq_length = _read_task(directory)
    source = keras_files.WeightsFile(path)
    names = HEAD if has_place(task) else {}
    if missing := [name for name in names.values() if name not in source.shapes()]:
        raise InputError(f"{path}: expected a tensor {missing[0]!r}")
    source.check_dtypes(names.values())
    head = weights.open_checkpoint(
        source,
        [weights.Row(*pair) for pair in names.items()],
        backbone.bert_config,
        task,
        path=path,
        tokenizer=(backbone.vocabulary, backbone.do_lower_case),
        why_unused=_why_unused,
        max_seq_length=max_seq_length,
    )
    unused = {f"{WEIGHTS}: {name}": why for name, why in head.unused.items()}
    return dataclasses.replace(
        head,
        arrays=collections.ChainMap(backbone.arrays, head.arrays),
        unused={**backbone.unused, **unused},
    )


def _why_unused(name: str) -> str:
    if name.startswith("optimizer/"):
        return "optimizer slot"
    return (
        OTHER_HEAD if "/masked_lm_head/" in name else "of a head that is not known here"
    )


def _read_task(directory: Path) -> tuple[tasks.Task, int | None]:
    """Returns the task of a preset and its longest input, `None` if no file tells;
    an encoder: the preset has no head that has a place here."""
    no_head = tasks.Task(kind="encoder"), None
    path = directory / TASK
    described = files.read_json(path) if path.is_file() else {}
    values = described.get("config")
    is_classifier = described.get("class_name") == "BertTextClassifier"
    if not is_classifier or not isinstance(values, dict):
        return no_head
    number, activation = values.get("num_classes"), values.get("activation", "linear")
    if type(number) is not int or number < 1:
        raise InputError(
            f"{path}: expected a number of classes, `num_classes`, found {number!r}"
        )
    kind = _kind(number, activation)
    if kind is None:
        return no_head
    preprocessor = values.get("preprocessor") or {}
    length = (preprocessor.get("config") or {}).get("sequence_length")
    is_length = type(length) is int and length > 0
    return _task(directory, kind, number), length if is_length else None


def _kind(num_classes: int, activation: Any) -> tasks.TaskKind | None:
    if activation in ("linear", None) and num_classes == 1:
        return "regression"
    if activation in ("linear", "softmax", None):
        return "classification" if num_classes > 1 else None
    return "multi_label" if activation == "sigmoid" else None


def _task(directory: Path, kind: tasks.TaskKind, num_classes: int) -> tasks.Task:
    if not registry.find(kind).has_labels:
        return tasks.Task(kind=kind)
    path = directory / _LABELS
    labels = tuple(map(str, range(num_classes)))
    if path.is_file():
        labels = tuple(files.read_text(path, expected="labels").splitlines())
    tasks.check_labels(labels, path=path)
    if len(labels) != num_classes:
        raise InputError(
            f"{path}: expected {num_classes} different labels, one a line, as many as "
            f"`num_classes` in {TASK}, found {len(labels)}"
        )
    return tasks.Task(kind=kind, labels=labels)


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
