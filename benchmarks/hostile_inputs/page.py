"""The page of the results: a table of kinds, counts, times and memory."""

import os
import platform
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.hostile_inputs import reading


class Outcome(NamedTuple):
    """What became of the inputs of a kind."""

    name: str
    first: int
    """Number of the first."""
    counts: Counter[str]
    """Of `read`, `refused` and `fault`."""
    faults: list[dict[str, Any]]
    worst: float
    """Processor seconds of the slowest input."""
    worst_number: int
    worst_by_the_clock: float
    memory: int
    """Highest addition to the resident memory after the healthy input, bytes."""
    peak: int
    """Highest resident memory of the process from its start, bytes."""
    has_tensorflow: bool
    """Whether the kind loads TensorFlow."""
    seconds: float
    """By the clock, of all processes."""
    seed: int
    commit: str
    """Version of the product and of the fuzzer."""
    date: str

    @property
    def num_inputs(self) -> int:
        return self.counts.total()


COLUMNS = (
    *("kind", "inputs", "read", "refused", "faults"),
    *("slowest, ms", "its number", "by the clock, ms"),
    *("added memory, MB", "peak memory, MB"),
)


def table(found: Sequence[Outcome]) -> str:
    """A row for each kind, and one for all."""
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        "|---" + "|--:" * (len(COLUMNS) - 1) + "|",
    ]
    for kind in found:
        cells = [
            kind.name,
            *_counts(kind.num_inputs, kind.counts),
            f"{kind.worst * 1000:,.0f}",
            f"{kind.worst_number:,}",
            f"{kind.worst_by_the_clock * 1000:,.0f}",
            f"{kind.memory / 1e6:,.0f}",
            f"{kind.peak / 1e6:,.0f}" + (" (TF)" if kind.has_tensorflow else ""),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    totals = sum((kind.counts for kind in found), Counter[str]())
    cells = [
        "all",
        *_counts(totals.total(), totals),
        f"{max(kind.worst for kind in found) * 1000:,.0f}",
        "",
        f"{max(kind.worst_by_the_clock for kind in found) * 1000:,.0f}",
        f"{max(kind.memory for kind in found) / 1e6:,.0f}",
        f"{max(kind.peak for kind in found) / 1e6:,.0f}",
    ]
    lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _counts(num_inputs: int, counts: Counter[str]) -> list[str]:
    numbers = (num_inputs, counts["read"], counts["refused"], counts["fault"])
    return [f"{number:,}" for number in numbers]


def page(found: Sequence[Outcome]) -> str:
    """The whole page."""
    megabytes = reading.MEMORY_BYTES // 1_000_000
    dates = sorted({kind.date for kind in found})
    seeds = sorted({kind.seed for kind in found})
    seconds = sum(kind.seconds for kind in found)
    without = [kind.peak for kind in found if not kind.has_tensorflow]
    peak = f"{max(without) / 1e6:,.0f} MB" if without else "none ran"
    return f"""# Damaged and hostile inputs

{" and ".join(dates)}, {platform.machine()}, one of {os.cpu_count()} cores, Python \
{platform.python_version()}, seed {" and ".join(map(str, seeds))}, \
{seconds / 60:.0f} minutes. {_commits(found)}. Written by \
`python -m benchmarks.hostile_inputs.run`, which says what is done to which files; \
kinds may have been run one by one.

- **Faults**: anything but an input that is read or refused by an `InputError` of one \
line: another error, {reading.HANG_SECONDS} processor seconds or a minute by the clock \
without an end, the end of the process, more memory than below.
- **Slowest**: processor time of all threads; the time by the clock includes the \
machine's other work.
- **Added memory**: highest resident memory during each input (`VmHWM`, reset before \
it) less the resident memory after the healthy input was read, so memory that inputs \
leave behind is counted too. More than {megabytes} MB is a fault. The process may not \
reserve more than {megabytes} MB of addresses above what it has after the healthy input.
- **Peak memory**: highest resident memory of the process from its start, with Python \
and all modules. Processes without TensorFlow: at most {peak}. (TF): the kind loads \
TensorFlow, which takes most of it.

{table(found)}
{_faults(found)}"""


def _commits(found: Sequence[Outcome]) -> str:
    names: dict[str, list[str]] = defaultdict(list)
    for kind in found:
        names[kind.commit].append(kind.name)
    if len(names) == 1:
        return f"Commit {found[0].commit}"
    ordered = sorted(names.items(), key=lambda item: -len(item[1]))
    most, *others = ordered
    shown = "; ".join(f"{commit} ({', '.join(kinds)})" for commit, kinds in others)
    return f"Commit {most[0]}, and {shown}"


def _faults(found: Sequence[Outcome]) -> str:
    """The first fault of each kind of them."""
    lines = []
    for kind in found:
        seen = set()
        for fault in kind.faults:
            if fault["fault"] not in seen:
                text = f"{kind.name}, {fault['number']}, {fault['file']}"
                lines.append(f"- {text}: `{fault['fault']}`")
            seen.add(fault["fault"])
    return "\n".join(["", "Faults:", "", *lines, ""]) if lines else ""
