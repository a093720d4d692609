"""Your own labelled texts: files in; labels, scores and tables of answers out.

A file is tab-separated (`.tsv`; quotes are ordinary characters, as in GLUE),
comma-separated (`.csv`; standard quoting) or JSON lines (`.jsonl`). No TensorFlow.
"""

# Labels are None only in files without any, which are not asked for them.
# scikit-learn and scipy have no types of their own.
# pyright: reportArgumentType=false, reportCallIssue=false, reportReturnType=false, reportAttributeAccessIssue=false

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.special
import scipy.stats
import sklearn.metrics

from bert_keras import files
from bert_keras.errors import InputError, nearest
from bert_keras.finetuning_config import TextColumns
from bert_keras.tasks import reading

DEFAULT_TEXT_PAIR_COLUMN = "text_pair"
"""Used when no other name is set and the file has it."""


class LabelledText(NamedTuple):
    """One row of a file."""

    text: str
    text_pair: str | None
    label: str | None
    line: int
    """First line in its file, from 1."""


def read_texts(
    path: str | Path,
    columns: TextColumns,
    *,
    has_text_pair: bool | None = None,
    has_label: bool = True,
) -> list[LabelledText]:
    """Reads all rows of a file; other columns are ignored.

    A blank line is no row, but in a `.tsv` of one column it is an empty text.

    Args:
        path: `.tsv`, `.csv` or `.jsonl`, UTF-8, a byte order mark allowed; the first
            two begin with a line of column names.
        columns: names of the columns to read.
        has_text_pair: whether to read second texts; `None`: if they have a column.
        has_label: whether to read labels.

    Raises:
        InputError: with file and line: not such a file, no row, a missing column, a
            row with too many or too few fields, a label that is empty or not text.
    """
    path = files.path(path)
    wanted: dict[str, str] | None = None
    examples = []
    for line, row in _reader(path)(path):
        if wanted is None:
            wanted = _wanted_columns(columns, row, has_text_pair, has_label)
        values = {
            role: _value(row, name, role=role, path=path, line=line)
            for role, name in wanted.items()
        }
        examples.append(
            LabelledText(
                values["text"], values.get("text_pair"), values.get("label"), line
            )
        )
    if not examples:
        raise InputError(f"{path}: holds no rows, expected at least one")
    return examples


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """All columns of each row of a file that `read_texts` takes."""
    return (row for _, row in _reader(path)(path))


def _reader(path: Path) -> Callable[[Path], reading.Rows]:
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise InputError(
            f"{path}: expected a file named .tsv, .csv or .jsonl, got "
            f"{path.suffix or 'no suffix'}"
        )
    return read


def _wanted_columns(
    columns: TextColumns,
    row: Mapping[str, Any],
    has_text_pair: bool | None,
    has_label: bool,
) -> dict[str, str]:
    """Column names by role."""
    pair_name = columns.text_pair or DEFAULT_TEXT_PAIR_COLUMN
    if has_text_pair is None:
        has_text_pair = columns.text_pair is not None or pair_name in row
    wanted = {"text": columns.text}
    if has_text_pair:
        wanted["text_pair"] = pair_name
    if has_label:
        wanted["label"] = columns.label
    return wanted


def _value(
    row: Mapping[str, Any], name: str, *, role: str, path: Path, line: int
) -> str:
    if name not in row:
        # Only in JSON lines can one row lack what another has.
        place = f"{path}: line {line}" if path.suffix.lower() == ".jsonl" else path
        raise InputError(
            f"{place}: no column {name!r} (there: {', '.join(row)})"
            f"{nearest(name, row)}; rename it, or fine-tune with "
            f"--set columns.{role}=NAME"
        )
    value = row[name]
    if role == "label" and isinstance(value, bool | int | float):
        value = json.dumps(value)
    if not isinstance(value, str):
        raise InputError(
            f"{path}: line {line}: {name!r}: expected a string, got {value!r}"
        )
    # Labels become column names and lines of files.
    if role == "label" and (not value or _NOT_IN_LABELS.search(value)):
        raise InputError(
            f"{path}: line {line}: expected a label of one line, got {value!r}"
        )
    return value


_READERS = {
    ".tsv": reading.read_tsv,
    ".csv": reading.read_csv,
    ".jsonl": reading.read_jsonl,
}
_NOT_IN_LABELS = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")


def distinct_labels(
    examples: Sequence[LabelledText], *, path: str | Path
) -> tuple[str, ...]:
    """The labels, sorted: as numbers if all are integers, else as text.

    Raises:
        InputError: fewer than two.
    """
    labels = {example.label for example in examples}
    if len(labels) < 2:
        raise InputError(
            f"{path}: every row is labelled {labels.pop()!r}: expected two labels or "
            "more to tell apart"
        )
    if all(re.fullmatch("-?[0-9]+", label) for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def label_ids(
    examples: Sequence[LabelledText],
    labels: Sequence[str] | None,
    *,
    path: str | Path,
) -> np.ndarray:
    """The right answers, as numbers.

    Args:
        examples: with labels.
        labels: the classes; `None`: labels are numbers to be predicted.
        path: of the examples, for errors.

    Returns:
        `(num_examples,)`: int32 places in `labels`, or float32 numbers.

    Raises:
        InputError: with file and line: an unknown label, or not a finite number.
    """
    if labels is None:
        return np.array([_number(e, path) for e in examples], np.float32)
    places = {label: place for place, label in enumerate(labels)}
    for example in examples:
        if example.label not in places:
            shown = ", ".join(labels[:20]) + (", ..." if len(labels) > 20 else "")
            raise InputError(
                f"{path}: line {example.line}: label {example.label!r} was not in the "
                f"training data (known: {shown}){nearest(example.label, labels)}"
            )
    return np.array([places[example.label] for example in examples], np.int32)


def _number(example: LabelledText, path: str | Path) -> float:
    try:
        number = float(example.label)
    except ValueError:
        number = math.nan
    # NaN fails this too.
    if not abs(number) <= float(np.finfo(np.float32).max):
        raise InputError(
            f"{path}: line {example.line}: with `regression` a label is a number, got "
            f"{example.label!r}"
        )
    return number


def scores(logits: np.ndarray, true_label_ids: np.ndarray) -> dict[str, float]:
    """Scores of answers.

    Args:
        logits: `(num_examples, num_labels)`; one column: predicted numbers.
        true_label_ids: as from `label_ids`.

    Returns:
        For classes `loss` (mean cross entropy, nats), `accuracy`, `f1` (for two classes
        that of the second, for more the mean over those that occur) and `matthews`; for
        numbers `loss` (mean squared error), `pearson` and `spearman`. A correlation
        with a constant counts as 0.
    """
    if logits.shape[1] == 1:
        return _regression_scores(logits[:, 0].astype(float), true_label_ids)
    log_probabilities = scipy.special.log_softmax(logits.astype(float), axis=-1)
    rows = np.arange(len(logits))
    predicted = logits.argmax(axis=-1)
    is_varied = _varies(predicted) and _varies(true_label_ids)
    return {
        "loss": float(-log_probabilities[rows, true_label_ids].mean()),
        "accuracy": float(sklearn.metrics.accuracy_score(true_label_ids, predicted)),
        "f1": float(
            sklearn.metrics.f1_score(
                true_label_ids,
                predicted,
                average="binary" if logits.shape[1] == 2 else "macro",
                zero_division=0.0,
            )
        ),
        "matthews": (
            float(sklearn.metrics.matthews_corrcoef(true_label_ids, predicted))
            if is_varied
            else 0.0
        ),
    }


def _regression_scores(
    predicted: np.ndarray, true_numbers: np.ndarray
) -> dict[str, float]:
    is_varied = _varies(predicted) and _varies(true_numbers)
    correlations = {"pearson": 0.0, "spearman": 0.0}
    if is_varied:
        correlations = {
            "pearson": float(scipy.stats.pearsonr(predicted, true_numbers).statistic),
            "spearman": float(scipy.stats.spearmanr(predicted, true_numbers).statistic),
        }
    return {
        "loss": float(sklearn.metrics.mean_squared_error(true_numbers, predicted)),
        **correlations,
    }


def _varies(values: np.ndarray) -> bool:
    return bool((values != values[0]).any())


def predictions_tsv(logits: np.ndarray, labels: Sequence[str] | None) -> str:
    """Answers as a table, one line for each row of the input, in its order.

    Columns: `prediction`, and with `labels` a `p(label)` for each of them, the
    probability that the model gives it.
    """
    if labels is None:
        return _table(["prediction"], ([f"{value:.6g}"] for value in logits[:, 0]))
    probabilities = scipy.special.softmax(logits, axis=-1)
    lines = (
        [labels[row.argmax()], *(f"{probability:.6f}" for probability in row)]
        for row in probabilities
    )
    return _table(["prediction", *(f"p({label})" for label in labels)], lines)


def _table(header: list[str], lines: Iterator[list[str]]) -> str:
    return "".join("\t".join(fields) + "\n" for fields in (header, *lines))
