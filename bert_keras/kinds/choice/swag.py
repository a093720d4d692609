"""The best of four endings: SWAG and your own data of that shape.

A `.csv` file has the columns of SWAG, of which `sent1`, `sent2`, `ending0` to `ending3`
and `label` are read. No TensorFlow.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.core import files
from bert_keras.core.errors import InputError, nearest
from bert_keras.data import tokenization
from bert_keras.labelled import reading, row_files, tokenized

NUM_ENDINGS = 4
LABELS = tuple(str(number) for number in range(NUM_ENDINGS))
"""Numbers of the endings, as classes in tables of answers."""

_ENDINGS = tuple(f"ending{number}" for number in range(NUM_ENDINGS))


class Question(NamedTuple):
    """One row of a file."""

    sentence: str
    """Given text; may be empty."""
    beginning: str
    """Beginning of the next sentence; may be empty."""
    endings: tuple[str, ...]
    """Four, each of which goes on with `beginning`."""
    label: int | None
    """Number of the right ending, from 0."""
    line: int
    """First line of the row in its file, from 1."""


def read(path: str | Path, *, has_label: bool = True) -> list[Question]:
    """Reads all rows of a `.csv` file. Without `has_label`, `label` is `None`."""
    path = files.path(path)
    rows = (row_files.Row(path, line, cells) for line, cells in _numbered_rows(path))
    questions = (_question(row, has_label=has_label) for row in rows)
    return row_files.at_least_one(path, questions)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Returns all columns of each row of a file that `read` takes."""
    return (row for _, row in _numbered_rows(path))


def _numbered_rows(path: Path) -> reading.Rows:
    if path.suffix.lower() != ".csv":
        raise InputError(
            f"{path}: expected a file named .csv with the columns of SWAG, got "
            f"{path.suffix or 'no suffix'}"
        )
    return reading.read_csv(path)


def _question(row: row_files.Row, *, has_label: bool) -> Question:
    path, line, cells = row
    columns = ["sent1", "sent2", *_ENDINGS] + ["label"] * has_label
    for name in columns:
        if name not in cells:
            raise InputError(
                f"{path}: no column {name!r} (there: {', '.join(cells)})"
                f"{nearest(name, cells)}; expected {', '.join(columns)}"
            )
    endings = {name for name in cells if re.fullmatch("ending[0-9]+", name)}
    if more := sorted(endings - set(_ENDINGS)):
        raise InputError(
            f"{path}: expected {NUM_ENDINGS} endings, but there is a column {more[0]!r}"
        )
    sentence, beginning = cells["sent1"], cells["sent2"]
    if not (sentence + beginning).strip():
        raise row.error(
            "`sent1` and `sent2` are both empty: expected a text to be ended"
        )
    if has_label and cells["label"] not in LABELS:
        raise row.error(
            f"expected a label from 0 to {NUM_ENDINGS - 1}, the number of the right "
            f"ending, got {cells['label']!r}"
        )
    label = int(cells["label"]) if has_label else None
    texts = tuple(cells[name] for name in _ENDINGS)
    return Question(sentence, beginning, texts, label, line)


def tokenize(
    questions: Sequence[Question],
    tokenizer: tokenization.Tokenizer,
    *,
    max_seq_length: int,
) -> tokenized.GroupedTexts:
    """Makes the inputs `[CLS] sentence [SEP] beginning ending [SEP]` of each ending.

    Section 4.4 of the paper. Long inputs are cut as by `tokenization.pack_pair`.
    """
    texts = tokenized.tokenize(
        (
            (question.sentence, f"{question.beginning} {ending}")
            for question in questions
            for ending in question.endings
        ),
        tokenizer,
        max_seq_length=max_seq_length,
    )
    ids = np.arange(len(texts)).reshape(-1, NUM_ENDINGS)
    return tokenized.GroupedTexts(texts=texts, ids=ids)
