"""Rows of labelled files, in UTF-8 with or without a mark, each with its place.

Files are tab-separated (`.tsv`), comma-separated (`.csv`), JSON lines (`.jsonl`),
Parquet (`.parquet`) or plain texts, one a line (`.txt`).
"""

import csv
import functools
import io
import itertools
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bert_keras.core import errors, files, first_bytes
from bert_keras.core.errors import InputError, nearest
from bert_keras.core.settings import tasks

logger = logging.getLogger(__name__)

_Example = TypeVar("_Example")

_ROWS_AT_A_TIME = 1024
"""Rows of a Parquet file in memory: texts may be long."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class Row(NamedTuple):
    """A row of a file."""

    path: Path
    line: int
    """Its first line, from 1."""
    cells: dict[str, Any]
    """By column."""
    unit: str = "line"
    """The word for a row in errors."""

    @property
    def is_json(self) -> bool:
        return self.path.suffix.lower() == ".jsonl"

    def error(self, problem: str) -> InputError:
        return InputError(f"{self.path}: {self.unit} {self.line}: {problem}")

    def value(self, name: str, *, key: str | None) -> Any:
        """Returns a cell. `key` of `columns` names its column; `None`: no setting
        does."""
        if name in self.cells:
            return self.cells[name]
        alike = nearest(name, self.cells)
        problem = f"no column {name!r} (there: {', '.join(self.cells)}){alike}"
        problem += "; rename it"
        if key is not None:
            problem += f", or fine-tune with --set columns.{key}=NAME"
        if not alike and self.path.suffix.lower() in (".tsv", ".csv"):
            problem += "; if the first line is a row, put a line of names above it"
        # Only in JSON lines can one row lack what another has.
        if self.is_json:
            raise self.error(problem)
        raise InputError(f"{self.path}: {problem}")

    def string(self, name: str, *, key: str | None) -> str:
        value = self.value(name, key=key)
        if not isinstance(value, str):
            raise self.error(f"{name!r}: expected a string, got {value!r:.60}")
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


def as_number(value: Any) -> float:
    """Returns the number that a cell holds; NaN: it holds none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def read_lines(path: str | Path) -> list[str]:
    """Returns the lines of a file, without LF or CRLF; an empty file has one."""
    return list(_lines(path)) or [""]


def read_plain_texts(path: str | Path, *, remedy: str) -> list[str]:
    """Reads texts, one a line. A file that holds something else, by its name or its
    beginning, raises an `InputError` that ends with `remedy`."""
    if (actual := other_form(path)) is not None:
        if actual.startswith(("compressed", "packed")):
            remedy = "unpack it first"
        raise InputError(
            f"{path}: expected plain texts, one a line, but this is {actual}: {remedy}"
        )
    first, *others = lines = read_lines(path)
    if others and _NAME_OF_TEXTS.fullmatch(first.strip('"')):
        _warn_of_header(path, first)
    return lines


_NAME_OF_TEXTS = re.compile(
    "(text|sentence|document|question|query|passage|review)s?", re.I
)


# Once: `predict` reads its input again, to write it beside the answers.
@functools.cache
def _warn_of_header(path: str | Path, first: str) -> None:
    logger.warning(
        "%s: the first line, %r, is read as a text: delete it if it names a column",
        *(path, first),
    )


_SUFFIXES = {".tsv": "a table", ".csv": "a table", ".jsonl": "JSON lines"}


def other_form(path: str | Path) -> str | None:
    """Returns what a file is if it does not hold plain texts, one a line."""
    path = files.path(path)
    if (form := _SUFFIXES.get(path.suffix.lower())) is not None:
        return form
    with files.open_to_read(path) as file:
        form = first_bytes.recognize(file.read(first_bytes.NUM_BYTES))
    # A text may begin as a mail does.
    if form is None or (form.is_text and form.name != "a table"):
        return None
    return form.name


def _lines(path: str | Path) -> Iterator[str]:
    # Not splitlines(): text may hold U+2028 and others that end no line here.
    for line in files.read_lines(path):
        yield line.removesuffix("\n").removesuffix("\r")


def read_tsv(path: Path) -> Iterator[Row]:
    """Yields the rows of a `.tsv` file with a line of column names; quotes are
    ordinary. Blank lines are skipped, but in a file of one column a blank line is an
    empty text."""
    lines = _lines(path)
    header = _checked_header(path, next(lines, "").split("\t"), separator="\t")
    for number, line in enumerate(lines, start=2):
        fields = line.split("\t")
        if fields != [""] or len(header) == 1:
            yield make_row(path, number, header, fields)


def read_csv(path: Path) -> Iterator[Row]:
    """Yields the rows of a `.csv` file with standard quoting and column names."""
    # A text may be longer than the module's limit of 131,072 characters.
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(io.StringIO(files.read_text(path), newline=""), strict=True)
    header, start = None, 1
    try:
        for fields in reader:
            if header is None:
                header = _checked_header(path, fields, separator=",")
            elif fields:
                yield make_row(path, start, header, fields)
            start = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}: line {start}: not CSV: {error}") from None


def read_txt(path: Path) -> Iterator[Row]:
    """Yields the lines of a file of plain texts, as rows of one column, `text`."""
    lines = read_plain_texts(path, remedy="name it .tsv, .csv, .jsonl or .parquet")
    for number, line in enumerate(lines if lines != [""] else [], start=1):
        yield Row(path, number, {"text": line})


def read_jsonl(
    path: Path, *, expected: str = '{"text": ..., ...}', is_copied: bool = False
) -> Iterator[Row]:
    """Yields the objects of JSON lines, blank ones skipped; errors show `expected`. In
    rows that are to be written again beside answers, `is_copied`, half of a surrogate
    pair, which no file can hold, is an error. A file named `.json` may have an array of
    objects, or of lists."""
    rows, kinds = _json_lines(path), dict
    is_json = path.suffix.lower() == ".json"
    if is_json and files.read_text(path).lstrip().startswith("["):
        values = enumerate(files.read_json_value(path), start=1)
        rows, kinds = (Row(path, *pair, "record") for pair in values), dict | list
    for row in rows:
        if not isinstance(row.cells, kinds):
            raise row.error(f"expected {expected}, got {json.dumps(row.cells)[:60]}")
        if is_copied and _SURROGATE.search(json.dumps(row.cells, ensure_ascii=False)):
            raise row.error(
                "half of a surrogate pair, such as \\ud83d without its second half, is "
                "no character: was the text cut within an emoji?"
            )
        yield row


def _json_lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(files.read_lines(path), start=1):
        if line.strip():
            try:
                yield Row(path, number, files.parse_json(line))
            except ValueError as error:
                raise InputError(f"{path}: line {number}: not JSON: {error}") from None


def read_parquet(path: Path) -> Iterator[Row]:
    """Yields the rows of a Parquet file, a part of a row group at a time. Dates, times
    and decimals are strings; rows are counted from 1."""
    # Only these files need it, and it takes a tenth of a second.
    import pyarrow
    from pyarrow import parquet

    def cells(column: Any) -> list[Any]:
        kind = column.type
        is_text = pyarrow.types.is_temporal(kind) or pyarrow.types.is_decimal(kind)
        return (column.cast(pyarrow.string()) if is_text else column).to_pylist()

    number = 0
    try:
        with files.open_to_read(path) as source:
            table = parquet.ParquetFile(source, page_checksum_verification=True)
            names = table.schema_arrow.names
            _check_distinct(path, names)
            # `iter_batches` alone opens a page of every group at once.
            groups = ([group] for group in range(table.num_row_groups))
            parts = (table.iter_batches(_ROWS_AT_A_TIME, group) for group in groups)
            for part in itertools.chain.from_iterable(parts):
                for values in zip(*map(cells, part.columns), strict=True):
                    number += 1
                    row = dict(zip(names, values, strict=True))
                    yield Row(path, number, row, "row")
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{path}: cannot be read as Parquet after {number} rows: "
            f"{errors.one_line(error)}"
        ) from None


_SEPARATORS = {
    "\t": ("tabs (.tsv)", "name it .tsv"),
    ",": ("commas (.csv)", "name it .csv"),
    ";": (
        "semicolons",
        "save it with commas, as a .csv (Excel: the list separator of the region)",
    ),
}


def _checked_header(path: Path, names: list[str], *, separator: str) -> list[str]:
    if names in ([], [""]):
        raise InputError(f"{path}: expected a first line with names of columns")
    for actual, (words, way_out) in _SEPARATORS.items():
        if len(names) == 1 and actual in names[0]:
            raise InputError(
                f"{path}: expected {_SEPARATORS[separator][0]} between the columns, "
                f"found {words}: {way_out}"
            )
    _check_distinct(path, names)
    return names


def _check_distinct(path: Path, names: list[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InputError(f"{path}: two columns are named {name!r}: rename one")


def make_row(path: Path, line: int, header: list[str], fields: list[str]) -> Row:
    """Makes a row of a line's fields, one for each name of `header`."""
    if len(fields) != len(header):
        raise InputError(
            f"{path}: line {line}: expected {len(header)} columns "
            f"({', '.join(header)}), got {len(fields)}"
        )
    return Row(path, line, dict(zip(header, fields, strict=True)))


_READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    ".txt": read_txt,
    ".tsv": read_tsv,
    ".csv": read_csv,
    ".jsonl": functools.partial(read_jsonl, is_copied=True),
    ".parquet": read_parquet,
}
_SPREADSHEET = ": save the sheet as .csv (Excel: CSV UTF-8)"
_REMEDIES = {
    **dict.fromkeys((".xlsx", ".xls", ".ods"), _SPREADSHEET),
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".zip"), ": unpack it first"),
    **dict.fromkeys((".pdf", ".docx"), ": copy its texts into a table"),
    ".json": ": write one object on each line, and name it .jsonl",
}
"""By suffixes of other formats."""


def read_rows(path: Path) -> Iterator[Row]:
    """Returns the rows of a file, in the format that its name says."""
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        raise InputError(
            f"{path}: expected a file named .tsv, .csv, .jsonl, .parquet or .txt, got "
            f"{suffix or 'no suffix'}{_REMEDIES.get(suffix, '')}"
        )
    return _READERS[suffix](path)


def at_least_one(path: Path, rows: Iterable[_Example]) -> list[_Example]:
    """Returns all rows of a file, or raises an `InputError` if there are none."""
    if listed := list(rows):
        return listed
    raise InputError(f"{path}: holds no rows, expected at least one")


def check_output_name(path: Path) -> None:
    """Refuses a name that promises another format than tables and JSON lines."""
    if (suffix := path.suffix.lower()) in (*_REMEDIES, ".parquet"):
        raise InputError(
            f"{path}: answers are written as .tsv, .csv or .jsonl, got {suffix}"
        )


def read_strings(patterns: Iterable[str]) -> Iterator[str]:
    """Yields all text in files, in pieces whose ends are ends of words.

    `.jsonl`, `.json` and `.parquet` files give every string that is not a key. Other
    files, such as `.txt`, `.tsv` and `.csv`, are read line by line: column separators
    also separate words there. The patterns are paths, or patterns of paths.
    """
    for pattern in patterns:
        paths = files.match(pattern)
        if not paths:
            raise InputError(f"{pattern}: no such file: expected files of texts")
        for name in paths:
            path = files.path(name)
            if path.suffix.lower() == ".json":
                yield from _strings(files.read_json(path))
            elif (suffix := path.suffix.lower()) in (".jsonl", ".parquet"):
                for row in (read_jsonl if suffix == ".jsonl" else read_parquet)(path):
                    yield from _strings(row.cells)
            else:
                yield from read_lines(path)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)
