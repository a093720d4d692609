"""Reads TensorBoard's event files of a training run, without TensorFlow.

An event file is a TFRecord file of `Event` messages, which come with `tensorboard`
(`tensorflow/core/util/event.proto`).
"""

# protobuf makes the classes of events when it is imported.
# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tensorboard.compat.proto import event_pb2
from tensorboard.util import tensor_util

from bert_keras.core import files
from bert_keras.data import tfrecords

logger = logging.getLogger(__name__)


class Curve(NamedTuple):
    steps: np.ndarray
    """`(n,)` int64, rising."""
    values: np.ndarray
    """`(n,)` float64; not finite where such a value was logged."""


@dataclass(frozen=True, kw_only=True)
class EventLog:
    scalars: dict[str, Curve]
    texts: dict[str, tuple[int, str]]
    """The last step and its text, by tag."""
    restarts: tuple[int, ...]
    """First step logged by each process except the first."""
    seconds: float
    """Sum over processes of the time from the first file's start to the last event."""


def read_log(directory: Path) -> EventLog:
    """Reads all event files below a directory, in the order of their starts.

    A killed process may have logged steps beyond the checkpoint from which the next one
    resumed. So for each tag, a later file's values replace earlier ones from its own
    first step on, and a `SessionLog.START` does that for all tags. A record that is cut
    off, because the run is under way or was killed, ends its file.
    """
    paths = sorted(directory.rglob("*tfevents*"))
    logs = [log for log in map(_read_file, paths) if log.entries]
    logs.sort(key=lambda log: log.order)
    scalars, texts = {}, {}
    for tag, values in _joined(logs).items():
        steps = sorted(values)
        if isinstance(last := values[steps[-1]], str):
            texts[tag] = (steps[-1], last)
        else:
            numbers = np.array([values[step] for step in steps], np.float64)
            scalars[tag] = Curve(np.array(steps, np.int64), numbers)
    processes = _processes(logs)
    return EventLog(
        scalars=scalars,
        texts=texts,
        restarts=tuple(
            next(e.step for log in process for e in log.entries if e.is_scalar)
            for process in processes[1:]
        ),
        seconds=sum(
            max(entry.wall_time for log in process for entry in log.entries)
            - process[0].begin
            for process in processes
        ),
    )


class _Entry(NamedTuple):
    """One value of an event; an event without values has an entry without a tag."""

    wall_time: float
    step: int
    tag: str | None = None
    value: float | str | None = None
    is_start: bool = False

    @property
    def is_scalar(self) -> bool:
        return isinstance(self.value, float)


class _File(NamedTuple):
    path: Path
    entries: list[_Entry]

    @property
    def begin(self) -> float:
        return self.entries[0].wall_time

    @property
    def order(self) -> tuple[float, int]:
        # Starts are whole seconds. By name, writer 10 would come before writer 9.
        writer = _WRITER.search(self.path.name)
        return self.begin, int(writer[3]) if writer else 0


def _joined(logs: list[_File]) -> dict[str, dict[int, float | str]]:
    """Returns values by tag and step, without those of repeated steps."""
    by_tag: dict[str, dict[int, float | str]] = {}
    for file in logs:
        seen: set[str] = set()
        for entry in file.entries:
            if entry.is_start:
                for tag in by_tag:
                    by_tag[tag] = _before(by_tag[tag], entry.step)
            if entry.tag is None or entry.value is None:
                continue
            if entry.tag not in seen:
                seen.add(entry.tag)
                by_tag[entry.tag] = _before(by_tag.get(entry.tag, {}), entry.step)
            by_tag[entry.tag][entry.step] = entry.value
    return {tag: values for tag, values in by_tag.items() if values}


def _before(values: dict[int, float | str], step: int) -> dict[int, float | str]:
    return {s: value for s, value in values.items() if s < step}


# TensorFlow's writers put host, process and a count of the process's writers into
# the name; the count tells apart two containers in which all processes have number 1.
_WRITER = re.compile(r"tfevents\.\d+\.(.+)\.(\d+)\.(\d+)\.v2$")


def _processes(logs: list[_File]) -> list[list[_File]]:
    """Groups files with scalars by the process that wrote them, in order."""
    processes: list[list[_File]] = []
    last = None
    for file in logs:
        if not any(entry.is_scalar for entry in file.entries):
            continue
        writer = _WRITER.search(file.path.name)
        is_same = writer and last and writer.group(1, 2) == last.group(1, 2)
        if not is_same or int(writer[3]) <= int(last[3]):
            processes.append([])
        processes[-1].append(file)
        last = writer
    return processes


def _read_file(path: Path) -> _File:
    entries: list[_Entry] = []
    # Some writers name the plugin only with a tag's first value.
    plugins: dict[str, str] = {}
    for data in read_records(path):
        event = event_pb2.Event.FromString(data)
        is_start = event.session_log.status == event_pb2.SessionLog.START
        entries.append(_Entry(event.wall_time, event.step, is_start=is_start))
        for value in event.summary.value:
            plugin = value.metadata.plugin_data.plugin_name
            decoded = _decode(value, plugins.setdefault(value.tag, plugin))
            if decoded is not None:
                entries.append(_Entry(event.wall_time, event.step, value.tag, decoded))
    return _File(path, entries)


def read_records(path: Path) -> Iterator[bytes]:
    """Yields the records of an event file, up to a damaged or unfinished one."""
    with files.open_to_read(path) as file:
        try:
            yield from tfrecords.read_frames(file)
        except tfrecords.DamagedRecord as error:
            if not error.is_cut:
                logger.warning(
                    "%s: damaged at byte %d, read up to there", path, error.offset
                )


def _decode(value: Any, plugin: str) -> float | str | None:
    """Returns a scalar or a text; `None` for images, histograms and the like."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind == "tensor" and plugin == "scalars":
        return float(tensor_util.make_ndarray(value.tensor).reshape(()))
    if kind == "tensor" and plugin == "text":
        lines = tensor_util.make_ndarray(value.tensor).ravel()
        return "\n".join(line.decode("utf-8", "replace") for line in lines)
    return None
