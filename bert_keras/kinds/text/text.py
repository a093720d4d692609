"""Your own labelled texts: files in; labels and scores out.

A file is tab-separated (`.tsv`; quotes are ordinary characters, as in GLUE),
comma-separated (`.csv`; standard quoting), JSON lines (`.jsonl`), Parquet (`.parquet`)
or, without labels, a text a line (`.txt`). No TensorFlow.
"""

# Labels are None only in files without any, which are not asked for them.
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportAttributeAccessIssue=false

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_keras.core import files
from bert_keras.core.errors import InputError, nearest
from bert_keras.core.settings.finetuning import FinetuningConfig, TextColumns
from bert_keras.data import features
from bert_keras.labelled import reading


class LabelledText(NamedTuple):
    text: str
    text_pair: str | None
    label: str | tuple[str, ...] | None
    """A tuple where a text may have several."""
    line: int
    """First line in its file, from 1."""


def read_texts(
    path: str | Path,
    columns: TextColumns,
    *,
    has_text_pair: bool | None = None,
    has_label: bool = True,
    has_several_labels: bool = False,
) -> list[LabelledText]:
    """Reads all rows of a file, see `reading`; other columns are ignored.

    Args:
        has_text_pair: whether to read second texts; `None`: if they have a column.
        has_several_labels: whether a text has any number of labels: a cell that has
            them between separators, a list in JSON lines and Parquet, or a column of 0
            and 1 each.
    """
    path, pair_name = files.path(path), columns.text_pair or "text_pair"
    examples = []
    for row in reading.read_rows(path):
        # The first row decides whether there are second texts.
        if has_text_pair is None:
            has_text_pair = columns.text_pair is not None or pair_name in row.cells
        first = row.string(columns.text, key="text")
        second = row.string(pair_name, key="text_pair") if has_text_pair else None
        label = None
        if has_label and has_several_labels:
            label = _labels(row, columns)
        elif has_label:
            label = row.label(columns.label, row.value(columns.label, key="label"))
        examples.append(LabelledText(first, second, label, row.line))
    return reading.at_least_one(path, examples)


def _labels(row: reading.Row, columns: TextColumns) -> tuple[str, ...]:
    """Returns the labels of a text, each once."""
    name, separator = columns.label, columns.label_separator
    flags = {"0": False, "1": True, "false": False, "true": True}
    if isinstance(name, str):
        # 1. Labels in one column. A text may have no label at all.
        value = row.value(name, key="label")
        if not row.is_json and isinstance(value, str):
            value = [v.strip() for v in value.split(separator)] if value.strip() else []
        if not isinstance(value, list):
            raise row.error(
                f'{name!r}: with `multi_label` a list such as ["a", "b"], got {value!r}'
            )
        found = [row.label(name, label) for label in value]
    else:
        # 2. Or a column for each label.
        found = []
        for label in name:
            value = row.value(label, key="label")
            shown = value if isinstance(value, str) else json.dumps(value)
            if shown not in flags:
                raise row.error(f"{label!r}: expected 0 or 1, got {value!r}")
            found += [label] if flags[shown] else []
    labels = tuple(dict.fromkeys(found))
    for label in labels:
        if separator in label:
            raise row.error(
                f"{label!r} has {separator!r} in it, which stands between labels: "
                "--set columns.label_separator=... names another separator"
            )
    return labels


def sorted_labels(labels: Collection[str]) -> tuple[str, ...]:
    """Sorts labels, as numbers if all are integers, else as text."""
    if all(re.fullmatch("-?[0-9]+", label) for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def label_features(
    targets: np.ndarray, labels: Sequence[str] | None, settings: FinetuningConfig
) -> dict[str, np.ndarray]:
    """Returns the features of all texts that the loss reads, by their names in
    `data.features`. `targets` are those of `TextDataset.targets`."""
    if labels is None:
        return {"label_ids": targets}
    by_label = label_weights(targets, labels, settings)
    smoothing = settings.label_smoothing
    if targets.ndim == 2:
        # A share of each label's target is spread over both answers, yes and no.
        smoothed = targets * np.float32(1 - smoothing) + np.float32(smoothing / 2)
        # With two axes, `shapes.padded` would take as many labels as tokens for tokens.
        arrays = {features.LABEL_TARGETS: smoothed[:, None]}
        if by_label is not None:
            arrays[features.LABEL_WEIGHTS] = 1 + (by_label - 1) * smoothed[:, None]
        return arrays
    arrays = {"label_ids": targets}
    if by_label is not None:
        arrays[features.EXAMPLE_WEIGHTS] = by_label[targets]
    if smoothing:
        # As torch's `CrossEntropyLoss(weight=..., label_smoothing=...)`, in which each
        # class of a smoothed target has its own weight. The loss multiplies by that of
        # the true class.
        smoothed = np.full((len(targets), len(labels)), smoothing / len(labels))
        smoothed[np.arange(len(targets)), targets] += 1 - smoothing
        if by_label is not None:
            smoothed *= by_label / by_label[targets, None]
        arrays[features.LABEL_TARGETS] = smoothed[:, None].astype(np.float32)
    return arrays


def label_weights(
    targets: np.ndarray, labels: Sequence[str], settings: FinetuningConfig
) -> np.ndarray | None:
    """Returns the weights that the settings give the labels, `(num_labels,)` float32;
    1 for labels without one, `None`: no label has one.

    Balanced classes that occur weigh the same, as in scikit-learn's
    `compute_class_weight("balanced")`: examples over classes times examples of the
    class. Of several labels each weighs in the texts that have it as much as in those
    without it: texts without over texts with it, the `pos_weight` of torch's
    `BCEWithLogitsLoss`; 1 for a label that no text or every text has.
    """
    if (weights := settings.class_weights) is None:
        return None
    if weights == "balanced":
        if targets.ndim == 2:
            num_with = targets.sum(axis=0, dtype=np.float64)
            num_without = len(targets) - num_with
            is_weighed = (num_with > 0) & (num_without > 0)
            balanced = num_without / np.maximum(num_with, 1)
        else:
            is_weighed = counts = np.bincount(targets, minlength=len(labels))
            balanced = len(targets) / (np.count_nonzero(counts) * np.maximum(counts, 1))
        return np.where(is_weighed, balanced, 1.0).astype(np.float32)
    for label in weights:
        if label not in labels:
            raise InputError(
                f"`class_weights` has {label!r}, which no text of the training file "
                f"is labelled{nearest(label, labels)}"
            )
    return np.array([weights.get(label, 1.0) for label in labels], np.float32)
