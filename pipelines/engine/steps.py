"""What a job is made of: items, steps and the shuffles between them.

An engine runs a job as one Beam graph on any runner (`graphs`) or in passes on this
machine (`passes`). Both give the same results, since a step knows nothing of where it
runs. No Beam here, nor in what is built on it: loading it takes a second and 140 MB.
"""

import abc
import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol


@dataclass(frozen=True, kw_only=True)
class Item:
    """A part of the input that one worker reads."""

    value: Any
    """What the first step is given."""
    num_bytes: int
    """About how much there is to read."""


class Send(NamedTuple):
    """A value on its way to the steps that read a shuffle."""

    shuffle: str
    key: int
    value: bytes


Result = dict[str, Any]
"""What a step tells the driver: few, small, and made of what JSON has."""


class Worker(abc.ABC):
    """What a step does; picklable. What it gives depends on the element alone."""

    def setup(self) -> None:  # noqa: B027
        """Called in each process, before the first element; most need none of it."""

    @abc.abstractmethod
    def process(self, element: Any) -> Iterable[Send | Result]:
        """Turns one element into values for shuffles and results.

        Args:
            element: of a step that reads no shuffle, the value of an item. Else
                `(key, {name of shuffle: iterable of bytes})`, for each key that has
                any value.
        """


@dataclass(frozen=True, kw_only=True)
class Step:
    """A worker, and what it reads and writes."""

    name: str
    """Words in camel case that say what is done, such as `FindDuplicates`."""
    do: Worker
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    memory_per_byte: float = 1.0
    """Bytes of memory taken for each byte of the values of one key."""

    @property
    def title(self) -> str:
        """The name for people: `find duplicates`."""
        return re.sub(r"(?<=.)(?=[A-Z])", " ", self.name).lower()


class Heartbeat:
    """Counts work done by one process where the driver can see it.

    No local runner gives live metrics, so each process writes its running total into a
    file of its own. Picklable; the file is made on first use in the worker.
    """

    _totals: ClassVar[dict[str, int]] = {}
    _written_at: ClassVar[dict[str, float]] = {}

    def __init__(self, directory: str | None):
        """`directory`: for these files; None: nobody looks."""
        self._directory = directory

    def add(self, amount: int) -> None:
        """Adds `amount` to this process's total."""
        if self._directory is None:
            return
        self._totals[self._directory] = self._totals.get(self._directory, 0) + amount
        now = time.monotonic()
        if now - self._written_at.get(self._directory, 0.0) >= 0.5:
            self._written_at[self._directory] = now
            self.flush()

    def flush(self) -> None:
        """Writes the total, which `add` does twice a second at most."""
        total = self._totals.get(self._directory or "")
        if total is not None:
            # Another machine has no such directory, and nobody looks into its own.
            with contextlib.suppress(OSError):
                Path(self._directory, str(os.getpid())).write_text(str(total))


def sum_of_heartbeats(directory: str | Path) -> int:
    """What all processes have added to heartbeats of a directory."""
    total = 0
    # The directory of a process that failed may go while it is read.
    with contextlib.suppress(OSError):
        for path in Path(directory).glob("*"):
            total += int(path.read_text() or 0)
    return total


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that an engine needs."""

    title: str
    """What is being made, for the progress line."""
    items: Sequence[Item]
    steps: Callable[[Heartbeat], Sequence[Step]]
    """Each step after those whose shuffles it reads. What reads items adds to the
    heartbeat the bytes that it has read."""
    shuffles: Mapping[str, int]
    """Number of keys of each shuffle: keys are 0, 1, ..."""
    work_dir: str
    """For what lies between the steps. What a run that was stopped has left there must
    be of the same job; whoever has the results deletes it."""


class Engine(Protocol):
    """What runs jobs."""

    def run(self, job: Job) -> dict[str, list[Result]]:
        """Runs a job to its end, showing progress on stderr.

        Returns:
            The results of each step by its name, in no particular order.

        Raises:
            InputError: one that was raised in a worker, as it was; or a worker died.
        """

    def check_paths(self, *paths: str | os.PathLike[str]) -> None:
        """Checks that workers will see what a job reads and writes.

        Raises:
            InputError: names the first path that they will not see.
        """


COUNTERS = "counters"


def counted(counts: Mapping[str, int], /, **result: Any) -> Result:
    """A result with counters.

    The manifest's counters are summed from results: not every Beam runner has metrics,
    and those of a bundle that was tried twice may count twice.
    """
    return {COUNTERS: dict(counts), **result}


def sum_counters(results: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The counters of all results, by name, in the order of the names."""
    total: dict[str, int] = {}
    for result in results:
        for name, amount in result.get(COUNTERS, {}).items():
            total[name] = total.get(name, 0) + amount
    return dict(sorted(total.items()))


def all_results(done: Mapping[str, Sequence[Result]]) -> Iterator[Result]:
    """The results of all steps."""
    for results in done.values():
        yield from results
