"""The best of four endings: SWAG, CODAH and your own data of that shape.

A `.csv` file has the columns of SWAG, of which `sent1`, `sent2`, `ending0` to `ending3`
and `label` are read. A `.tsv` file is laid out as CODAH: no line of column names, but
category, beginning, four endings and label. No TensorFlow.
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
_CODAH_COLUMNS = ("category", "prompt", *_ENDINGS, "label")


class Question(NamedTuple):
    """One row of a file."""

    sentence: str
    """Given text. Empty if CODAH begins with the sentence to be ended."""
    beginning: str
    """Beginning of the next sentence; may be empty."""
    endings: tuple[str, ...]
    """Four, each of which goes on with `beginning`."""
    label: int | None
    """Number of the right ending, from 0."""
    line: int
    """First line of the row in its file, from 1."""


def read(path: str | Path, *, has_label: bool = True) -> list[Question]:
    """Reads all rows of a `.csv` file as SWAG or a `.tsv` file as CODAH. Without
    `has_label`, `label` is `None`."""
    path = files.path(path)
    rows = (row_files.Row(path, line, cells) for line, cells in _numbered_rows(path))
    questions = (_question(row, has_label=has_label) for row in rows)
    return row_files.at_least_one(path, questions)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Returns all columns of each row of a file that `read` takes."""
    return (row for _, row in _numbered_rows(path))


def _numbered_rows(path: Path) -> reading.Rows:
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise InputError(
            f"{path}: expected a file named .csv (columns of SWAG) or .tsv (CODAH), "
            f"got {path.suffix or 'no suffix'}"
        )
    return read(path)


def _read_codah(path: Path) -> reading.Rows:
    for number, line in enumerate(reading.read_lines(path), start=1):
        if not line:
            continue
        fields = line.split("\t")
        if len(fields) != len(_CODAH_COLUMNS):
            raise InputError(
                f"{path}: line {number}: expected {len(_CODAH_COLUMNS)} columns "
                f"({', '.join(_CODAH_COLUMNS)}; no line of names), got {len(fields)}"
            )
        row = dict(zip(_CODAH_COLUMNS, fields, strict=True))
        row["sent1"], row["sent2"] = _split_prompt(row["prompt"])
        yield number, row


def _split_prompt(prompt: str) -> tuple[str, str]:
    """Returns the given text and the beginning of a sentence; either may be empty."""
    match = re.fullmatch(r"(.*[.!?][\"')]*)(?:\s+|$)(.*)", prompt)
    return (match[1], match[2]) if match else ("", prompt)


_READERS = {".csv": reading.read_csv, ".tsv": _read_codah}


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
