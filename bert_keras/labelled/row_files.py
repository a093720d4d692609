"""Rows of labelled files, each with its place: `.tsv`, `.csv`, `.jsonl`, `.txt`."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bert_keras.core.errors import InputError, nearest
from bert_keras.core.settings import tasks
from bert_keras.labelled import reading

_Example = TypeVar("_Example")

_READERS = {
    ".txt": reading.read_txt,
    ".tsv": reading.read_tsv,
    ".csv": reading.read_csv,
    ".jsonl": reading.read_jsonl_to_copy,
}


_SPREADSHEET = ": save the sheet as .csv (Excel: CSV UTF-8)"
_PACKED = ": unpack it first"
_REMEDIES = {
    **dict.fromkeys((".xlsx", ".xls", ".ods"), _SPREADSHEET),
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".zip"), _PACKED),
    **dict.fromkeys((".pdf", ".docx"), ": copy its texts into a table"),
    ".parquet": ": write its rows as JSON lines",
    ".json": ": write one object on each line, and name it .jsonl",
}
"""By suffixes of other formats."""


class Row(NamedTuple):
    """A row of a file."""

    path: Path
    line: int
    """Its first line, from 1."""
    cells: Mapping[str, Any]
    """By column."""

    @property
    def is_json(self) -> bool:
        return self.path.suffix.lower() == ".jsonl"

    def error(self, problem: str) -> InputError:
        return InputError(f"{self.path}: line {self.line}: {problem}")

    def value(self, name: str, *, key: str | None) -> Any:
        """Returns a cell. `key` of `columns` names its column; `None`: no setting
        does."""
        if name in self.cells:
            return self.cells[name]
        problem = (
            f"no column {name!r} (there: {', '.join(self.cells)})"
            f"{nearest(name, self.cells)}; rename it"
        )
        if key is not None:
            problem += f", or fine-tune with --set columns.{key}=NAME"
        # Only in JSON lines can one row lack what another has.
        if self.is_json:
            raise self.error(problem)
        raise InputError(f"{self.path}: {problem}")

    def string(self, name: str, *, key: str | None) -> str:
        value = self.value(name, key=key)
        if not isinstance(value, str):
            raise self.error(f"{name!r}: expected a string, got {value!r}")
        return value

    def label(self, name: str, value: Any) -> str:
        """Returns a label from a string, a number or a truth value."""
        if isinstance(value, bool | int | float):
            value = json.dumps(value)
        if isinstance(value, list):
            raise self.error(
                f"{name!r}: expected a label, got a list; --set multi_label=true is "
                "for texts with several"
            )
        if not isinstance(value, str):
            raise self.error(f"{name!r}: expected a string, got {value!r}")
        # Labels become column names and lines of files.
        if not value or tasks.NOT_IN_LABELS.search(value):
            raise self.error(f"expected a label of one line, got {value!r}")
        return value


def at_least_one(path: Path, rows: Iterable[_Example]) -> list[_Example]:
    """Returns all rows of a file, or raises an `InputError` if there are none."""
    if listed := list(rows):
        return listed
    raise InputError(f"{path}: holds no rows, expected at least one")


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Returns all columns of each row of a file that `read_texts` takes."""
    return (row for _, row in reader(path)(path))


def rows_of(path: Path) -> "Iterator[Row]":
    return (Row(path, line, cells) for line, cells in reader(path)(path))


def reader(path: Path) -> Callable[[Path], reading.Rows]:
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        raise InputError(
            f"{path}: expected a file named .tsv, .csv, .jsonl or .txt, got "
            f"{suffix or 'no suffix'}{_REMEDIES.get(suffix, '')}"
        )
    return _READERS[suffix]


def check_output_name(path: Path) -> None:
    """Refuses a name that promises another format than tables and JSON lines."""
    if (suffix := path.suffix.lower()) in _REMEDIES:
        raise InputError(
            f"{path}: answers are written as .tsv, .csv or .jsonl, got {suffix}"
        )
