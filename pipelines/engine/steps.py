"""What a job is made of: items, steps and the shuffles between them.

A job is run by `jobs.run`, as one Beam graph on any runner or in passes on this
machine. Both give the same results, since a step knows nothing of where it runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam

from pipelines.engine import runners


@dataclass(frozen=True, kw_only=True)
class Item:
    """A part of the input that one worker reads."""

    value: Any
    """What the first step is given."""
    num_bytes: int
    """About how much there is to read."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A `DoFn` and what it reads and writes.

    The elements of a step that reads no shuffle are the job's items. Else they are
    `(key, {name of shuffle: iterable of bytes})` for each key that has any value.

    Its main output are results, which reach the driver: few, small, and made of what
    JSON has. What it writes into shuffles are tagged outputs `(key, bytes)`.
    """

    name: str
    """A verb, in camel case."""
    do: beam.DoFn
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    memory_per_byte: float = 1.0
    """Bytes of memory taken for each byte of the values of one key."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything `jobs.run` needs."""

    title: str
    """What is being made, for the progress line."""
    items: Sequence[Item]
    steps: Callable[[runners.Heartbeat], Sequence[Step]]
    """Each step after those whose shuffles it reads. What reads items adds to the
    heartbeat the bytes that it has read."""
    shuffles: Mapping[str, int]
    """Number of keys of each shuffle: keys are 0, 1, ..."""
    work_dir: str
    """For what lies between the steps. What a run that was stopped has left there must
    be of the same job; whoever has the results deletes it."""


COUNTERS = "counters"


def counted(counts: Mapping[str, int], /, **result: Any) -> dict[str, Any]:
    """A result with counters, which are raised in Beam's metrics, too.

    The manifest's counters are summed from results: not every runner has metrics, and
    those of a bundle that was tried twice may count twice.
    """
    for name, amount in counts.items():
        beam.metrics.Metrics.counter("bert_keras", name).inc(amount)
    return {COUNTERS: dict(counts), **result}


def sum_counters(results: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The counters of all results, by name, in the order of the names."""
    total: dict[str, int] = {}
    for result in results:
        for name, amount in result.get(COUNTERS, {}).items():
            total[name] = total.get(name, 0) + amount
    return dict(sorted(total.items()))
