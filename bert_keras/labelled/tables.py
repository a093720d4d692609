"""Tables of answers, with the columns of the input that was answered."""

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any


def joined(
    rows: Iterable[Mapping[str, Any]],
    answers: str,
    *,
    suffix: str,
    separator: str | None = None,
) -> str:
    """Joins the rows of an input with answers, which replace columns of their names.

    Args:
        answers: tab-separated, with a line of names, a line for each row.
        suffix: `.csv` or `.jsonl`; any other file is tab-separated, and there white
            space in a value becomes single spaces.
        separator: between the several labels of a `prediction`, which are a list in
            JSON lines; `None`: a prediction is one label.
    """
    answer_lines = answers.removesuffix("\n").split("\n")
    header, *lines = (line.split("\t") for line in answer_lines)
    found = []
    for row, line in zip(rows, lines, strict=True):
        kept = {name: value for name, value in row.items() if name not in header}
        found.append({**kept, **dict(zip(header, line, strict=True))})
    if suffix == ".jsonl":
        for row in found:
            # Every value but a predicted class is a number, or a list of numbers.
            row.update({name: _numbers(row[name]) for name in header[1:] or header})
            if separator is not None:
                labels = row[header[0]]
                row[header[0]] = labels.split(separator) if labels else []
        return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in found)
    # In JSON lines rows may have different keys.
    names = list(dict.fromkeys(name for row in found for name in row))
    names = [name for name in names if name not in header] + header
    table = [names, *([_text(row.get(name, "")) for name in names] for row in found)]
    if suffix == ".csv":
        file = io.StringIO(newline="")
        csv.writer(file, lineterminator="\n").writerows(table)
        return file.getvalue()
    lines = ([re.sub(r"[\t\r\n]+", " ", field) for field in row] for row in table)
    return "".join("\t".join(fields) + "\n" for fields in lines)


def _numbers(value: str) -> float | list[float]:
    return json.loads(value) if value.startswith("[") else float(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
