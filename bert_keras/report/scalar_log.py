"""Reads `scalars.jsonl`, which a training writes beside TensorBoard's event files.

A process begins with a line that has the step after which it continues, and its name:
`{"step": 20, "time": 1764288000.0, "start": "1c7a90d2"}`. Each other line has what was
logged at a step: `step`, `time`, and numbers or texts by tag. A number that is not
finite is null.
"""

import contextlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.core import files

logger = logging.getLogger(__name__)

NAME = "scalars.jsonl"


class Curve(NamedTuple):
    steps: np.ndarray
    """`(n,)` int64, rising."""
    values: np.ndarray
    """`(n,)` float64; NaN where a number was not finite."""


@dataclass(frozen=True, kw_only=True)
class ScalarLog:
    scalars: dict[str, Curve]
    texts: dict[str, tuple[int, str]]
    """The last step and its text, by tag."""
    restarts: tuple[int, ...]
    """First step logged by each process except the first."""
    seconds: float
    """Sum over processes of the time from the start to the last line."""


def read_log(directory: Path) -> ScalarLog:
    """Reads what was logged in a directory, nothing if it has no `scalars.jsonl`."""
    numbers: dict[str, dict[int, float]] = {}
    texts: dict[str, tuple[int, str]] = {}
    first_steps: list[int] = []
    seconds = begin = end = 0.0
    is_new = True
    for line in read_lines(directory):
        step, time = line.pop("step"), line.pop("time")
        if line.pop("start", False):
            seconds += end - begin
            begin, is_new = time, True
        end = time
        for tag, value in line.items():
            if isinstance(value, str):
                texts[tag] = (step, value)
                continue
            numbers.setdefault(tag, {})[step] = np.nan if value is None else value
            if is_new:
                first_steps.append(step)
                is_new = False
    return ScalarLog(
        scalars={
            tag: Curve(np.array([*values]), np.array([*values.values()], np.float64))
            for tag, values in numbers.items()
        },
        texts=texts,
        restarts=tuple(first_steps[1:]),
        seconds=seconds + end - begin,
    )


def read_lines(directory: Path) -> Iterator[dict[str, Any]]:
    """Yields the lines of a log. A last line that is cut off, because the run is under
    way or was killed, is left out; any other damaged line is ignored with a warning."""
    path = files.path(directory) / NAME
    if not path.is_file():
        return
    with files.open_to_read(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            values = None
            with contextlib.suppress(ValueError):
                values = json.loads(line)
            if isinstance(values, dict) and values.keys() >= {"step", "time"}:
                yield values
            else:
                logger.warning("%s: line %d is damaged and was ignored", path, number)
