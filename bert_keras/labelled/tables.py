"""Tables of answers, with the columns of the input that was answered."""

import csv
import functools
import io
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# Cells of Parquet may be lists of dates or bytes, which JSON does not know.
_json = functools.partial(json.dumps, ensure_ascii=False, default=str)


class Column(NamedTuple):
    """Answers to the rows of an input: numbers, labels, tuples of labels or lists."""

    values: Iterable[Any]
    number_format: str = ""
    """For `format`; numbers in JSON have as many digits. Empty for other values."""


def joined(
    rows: Iterable[Mapping[str, Any]],
    columns: Mapping[str, Column],
    *,
    suffix: str,
    separator: str = ",",
) -> str:
    """Joins the rows of an input with answers, which replace columns of their names.

    Args:
        suffix: `.csv` or `.jsonl`; any other file is tab-separated, and there white
            space in a value becomes single spaces.
        separator: between the labels of a tuple, which is a list in JSON lines.
    """
    found = [{n: v for n, v in row.items() if n not in columns} for row in rows]
    for name, (values, number_format) in columns.items():
        for row, value in zip(found, values, strict=True):
            if number_format:
                value = format(value, number_format)
            is_number = number_format and suffix == ".jsonl"
            row[name] = float(value) if is_number else value
    if suffix == ".jsonl":
        return "".join(f"{_json(row)}\n" for row in found)
    # In JSON lines rows may have different keys.
    names = list(dict.fromkeys(name for row in found for name in row))
    names = [name for name in names if name not in columns] + [*columns]

    def text(value: Any) -> str:
        if isinstance(value, tuple):
            return separator.join(value)
        return value if isinstance(value, str) else _json(value)

    table = [names, *([text(row.get(name, "")) for name in names] for row in found)]
    if suffix == ".csv":
        file = io.StringIO(newline="")
        csv.writer(file, lineterminator="\n").writerows(table)
        return file.getvalue()
    lines = ([re.sub(r"[\t\r\n]+", " ", field) for field in row] for row in table)
    return "".join("\t".join(fields) + "\n" for fields in lines)
