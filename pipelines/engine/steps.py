"""Jobs: items, steps, and the shuffles between them.

An engine runs a job as one Beam graph on any runner (`graphs`) or in passes on this
machine (`passes`). Both give the same results, since a step does not know where it
runs. This module and its users do not import Beam, which takes a second and 140 MB.
"""

import abc
import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from bert_keras.core import files, manifest

Result = dict[str, Any]
"""A step's message to the driver: rare, small, made of JSON values."""

COUNTERS = "counters"


class Item(NamedTuple):
    value: Any
    """Element for the first step."""
    num_bytes: int
    """Approximate size."""


class Send(NamedTuple):
    """A value on its way to the steps that read a shuffle."""

    shuffle: str
    key: int
    value: bytes


class Step(abc.ABC):
    """A step of a job: picklable; its output depends on the element alone. The name of
    its class is a verb, such as `_FindDuplicates`. What a process loads once is a
    `cached_property`."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    memory_per_byte: float = 1.0
    """Bytes of memory for each byte of the values of one key."""

    def __init__(self, job: Any, heartbeat: "Heartbeat"):
        self._job = job
        self._heartbeat = heartbeat

    @property
    def name(self) -> str:
        return type(self).__name__.removeprefix("_")

    @property
    def title(self) -> str:
        """Returns the name for people: `find duplicates`."""
        return re.sub(r"(?<=.)(?=[A-Z])", " ", self.name).lower()

    @abc.abstractmethod
    def process(self, element: Any) -> Iterable[Send | Result]:
        """Turns one element into values for shuffles and results. `element` is the
        value of an item or, for a step that reads shuffles, `(key, {name of shuffle:
        iterable of bytes})` for each key that has values."""


class Heartbeat:
    """Work done by one process, counted where the driver can see it. No local runner
    has live metrics, so each process writes its running total into a file of its own in
    `directory`. Picklable; the file is made on first use in the worker."""

    # Of the class, since each unpickled copy in a process adds to its one file.
    _totals: ClassVar[Counter[str]] = Counter()
    _written_at: ClassVar[dict[str, float]] = {}

    def __init__(self, directory: str):
        self._directory = directory

    def add(self, amount: int) -> None:
        self._totals[self._directory] += amount
        now = time.monotonic()
        if now - self._written_at.get(self._directory, 0.0) >= 0.5:
            self._written_at[self._directory] = now
            self.flush()

    def flush(self) -> None:
        """Writes the total; `add` does so at most twice a second."""
        path = Path(self._directory, str(os.getpid()))
        # On another machine there is no such directory, and nobody reads it.
        with contextlib.suppress(OSError):
            path.write_text(str(self._totals[self._directory]))


def sum_of_heartbeats(directory: files.Path) -> int:
    # The directory of a failed process may be deleted meanwhile.
    with contextlib.suppress(OSError):
        return sum(int(path.read_text() or 0) for path in Path(directory).glob("*"))
    return 0


@dataclass(frozen=True, kw_only=True)
class Job:
    title: str
    """Product of the job, for the progress line."""
    items: Sequence[Item]
    steps: Sequence[type[Step]]
    """Each comes after those whose shuffles it reads. A step that reads items adds the
    bytes read to the heartbeat."""
    settings: Any
    """The `job` of each step."""
    shuffles: Mapping[str, int]
    """Number of keys of each shuffle: keys are 0, 1, ..."""
    work_dir: str
    """Directory for intermediate files. Files left by an interrupted run must be of
    the same job; the caller deletes it once it has the results."""

    def make_steps(self, heartbeat: Heartbeat) -> list[Step]:
        return [step(self.settings, heartbeat) for step in self.steps]


class Engine(Protocol):
    def run(self, job: Job) -> list[Result]:
        """Runs a job, with progress on stderr; returns all results, unordered. A
        worker's `InputError` is raised unchanged; a dead worker raises one too."""
        ...


def items_of_corpus(directory: files.Path, corpus: manifest.Manifest) -> list[Item]:
    """Returns the items of a job that reads a corpus: (path, bytes) of each shard."""
    return [
        Item((files.join(directory, one.name), one.num_bytes), one.num_bytes)
        for one in corpus.shards
    ]


def counted(counts: Mapping[str, int], /, **result: Any) -> Result:
    """Returns a result with counters, from which the manifest's are summed. Not every
    Beam runner has metrics, and a retried bundle may count twice in them."""
    return {COUNTERS: dict(counts), **result}


def sum_counters(results: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for result in results:
        total.update(result.get(COUNTERS, {}))
    return dict(sorted(total.items()))


def shards_of(results: Iterable[Mapping[str, Any]]) -> tuple[manifest.Shard, ...]:
    shards = [manifest.Shard(**r["shard"]) for r in results if "shard" in r]
    return tuple(sorted(shards, key=lambda shard: shard.name))


@contextlib.contextmanager
def without_current_directory() -> Iterator[None]:
    """Keeps the current directory off the module path of processes started inside.
    multiprocessing and Beam start Python with `-c` and `-m`, which look there first: a
    user's own `pipelines/` would be imported in place of ours."""
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before
