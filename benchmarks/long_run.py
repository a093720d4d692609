"""A long pre-training that is killed once and terminated once, with nobody helping.

    python benchmarks/long_run.py --examples data/examples_128 data/examples_512 \
        --work /tmp/long_run --config bert_mini --set num_train_steps=6000 \
        --kill_at 2000 --terminate_at 4000 --results benchmarks/results/long_run.md

Starts `bert-keras pretrain`, sends SIGKILL when it has logged step `kill_at`, starts
it again, sends SIGTERM at `terminate_at` (which must end it with exit code 143), starts
it again, and lets it come to its end. Writes a page with time, memory, accuracy and
curves. If it is interrupted, the same command resumes: the training process ends with
this one and resumes from its last checkpoint. Linux only.
"""

import argparse
import csv
import ctypes
import dataclasses
import datetime
import importlib.metadata
import itertools
import json
import math
import os
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib import figure, ticker
from PIL import Image

from bert_keras import files, report
from bert_keras.report import facts

SAMPLE_SECONDS = 10.0
POLL_SECONDS = 0.5
WARM_UP_SECONDS = 180.0
"""Start of a stretch to leave out: graphs are built, buffers fill."""
FLAT = 0.05
"""Growth of memory that counts as none."""
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(kw_only=True)
class Attempt:
    """One process of the run."""

    begin: float
    """Seconds since the epoch, like `end`."""
    end: float | None = None
    resumed_step: int = 0
    """Step of the checkpoint from which it resumed; 0: none."""
    last_step: int = 0
    """Last step that it logged."""
    ended_by: str | None = None
    """`SIGKILL`, `SIGTERM`, `the end`, or something unplanned."""

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class Sample(NamedTuple):
    """Memory at one time."""

    seconds: float
    """Seconds since the start of the first attempt."""
    attempt: int
    """Counted from 1."""
    step: int
    """Last step logged."""
    megabytes: float
    """Resident memory of the process and its descendants."""


class Growth(NamedTuple):
    """Change of memory in a stretch of one process and one phase."""

    attempt: int
    phase: int
    seconds: float
    """Duration of the stretch, without its warm-up."""
    first: float
    """Median of the first third, MB."""
    last: float
    """Median of the last third, MB."""

    @property
    def share(self) -> float:
        return self.last / self.first - 1


# Reading what the training says.

_STEP = re.compile(r"^step (\d+)/(\d+) ", re.MULTILINE)
_RESUMED = re.compile(r"^resuming after step (\d+) ", re.MULTILINE)


def last_step(log: str) -> int:
    """The step of the last progress line, 0 without any."""
    steps = _STEP.findall(log)
    return int(steps[-1][0]) if steps else 0


def resumed_step(log: str) -> int:
    """Step of the checkpoint from which the run resumed, 0 if none."""
    found = _RESUMED.search(log)
    return int(found[1]) if found else 0


# Memory.


def tree_megabytes(pid: int) -> float:
    """Resident memory of a process and its descendants."""
    parents, pages = {}, {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            text = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue  # It has just ended.
        # The name before the bracket may hold anything.
        fields = text.rpartition(")")[2].split()
        parents[int(name)], pages[int(name)] = int(fields[1]), int(fields[21])
    tree = [pid]
    for found in tree:
        tree += [child for child, parent in parents.items() if parent == found]
    resident = sum(pages.get(found, 0) for found in tree)
    return resident * os.sysconf("SC_PAGE_SIZE") / 1e6


def memory_growth(
    samples: Sequence[Sample],
    *,
    phase_ends: Sequence[int] = (),
    warm_up_seconds: float = WARM_UP_SECONDS,
) -> list[Growth]:
    """Medians of the first and the last third of each stretch after its warm-up.

    A stretch is what one process does in one phase: longer sequences need more memory.
    Those with fewer than 9 samples after the warm-up tell nothing and are left out.
    """

    def stretch(sample: Sample) -> tuple[int, int]:
        return sample.attempt, 1 + sum(sample.step > end for end in phase_ends)

    found = []
    for (attempt, phase), group in itertools.groupby(samples, stretch):
        inside = list(group)
        begin = inside[0].seconds + warm_up_seconds
        warm = [sample for sample in inside if sample.seconds >= begin]
        if len(warm) < 9:
            continue
        values, third = [sample.megabytes for sample in warm], len(warm) // 3
        found.append(
            Growth(
                attempt=attempt,
                phase=phase,
                seconds=warm[-1].seconds - warm[0].seconds,
                first=statistics.median(values[:third]),
                last=statistics.median(values[-third:]),
            )
        )
    return found


def read_samples(path: Path) -> list[Sample]:
    """Reads the record of `LongRun`."""
    with open(path, encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return [
        Sample(float(seconds), int(attempt), int(step), float(megabytes))
        for seconds, attempt, step, megabytes in rows
    ]


# Running.


class LongRun:
    """Starts, watches and interrupts the training; knows in `work` how far it came.

    Args:
        work: holds `run`, `state.json`, `memory.csv` and the logs of all attempts.
        command: the training's.
        kill_at: SIGKILL comes when this step is logged.
        terminate_at: SIGTERM does.
    """

    def __init__(
        self, work: Path, command: Sequence[str], *, kill_at: int, terminate_at: int
    ):
        self._work, self._command = work, list(command)
        self._plan = {"SIGKILL": kill_at, "SIGTERM": terminate_at}
        self._state_path, self._memory_path = work / "state.json", work / "memory.csv"
        self.attempts: list[Attempt] = []
        work.mkdir(parents=True, exist_ok=True)
        if not self._memory_path.is_file():
            self._append(Sample._fields)
        if self._state_path.is_file():
            self._resume()

    @property
    def samples(self) -> list[Sample]:
        return read_samples(self._memory_path)

    def complete(self) -> None:
        """Runs the rest of the plan, to the training's own end."""
        while not self.attempts or self.attempts[-1].ended_by != "the end":
            self._run_attempt()
        missing = [name for name in self._plan if not self._was_sent(name)]
        if missing:
            sys.exit(f"the training ended before {missing[0]} was due: set it earlier")

    def _resume(self) -> None:
        state = json.loads(self._state_path.read_text(encoding="utf-8"))
        if state["command"] != self._command or state["plan"] != self._plan:
            sys.exit(f"{self._work}: holds another run; choose another --work")
        self.attempts = [Attempt(**attempt) for attempt in state["attempts"]]
        # A line that was being written is not whole.
        rows = self._memory_path.read_bytes()
        files.write_atomically(self._memory_path, rows[: rows.rfind(b"\n") + 1])
        if self.attempts and self.attempts[-1].end is None:
            attempt = self.attempts[-1]
            attempt.ended_by = "the end of this script"
            samples = [s for s in self.samples if s.attempt == len(self.attempts)]
            attempt.end = attempt.begin
            if samples:
                attempt.end = self.attempts[0].begin + samples[-1].seconds
                attempt.last_step = samples[-1].step
            self._save()

    def _run_attempt(self) -> None:
        attempt = Attempt(begin=time.time())
        self.attempts.append(attempt)
        self._save()
        log_path = self._work / f"attempt-{len(self.attempts)}.log"
        with open(log_path, "wb") as log:
            process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_end_with_parent,
            )
            signal_sent = self._watch(process, attempt, log_path)
        attempt.end = time.time()
        self._note_progress(attempt, log_path)
        expected = {None: 0, "SIGKILL": -signal.SIGKILL}.get(signal_sent, 143)
        if process.returncode != expected:
            attempt.ended_by = f"exit code {process.returncode}"
            self._save()
            sys.exit(
                f"exit code {process.returncode} after {signal_sent or 'no signal'}, "
                f"expected {expected}: see {log_path}"
            )
        attempt.ended_by = signal_sent or "the end"
        self._save()

    def _watch(
        self, process: subprocess.Popen, attempt: Attempt, log_path: Path
    ) -> str | None:
        """Samples memory until the process ends; returns the signal sent to it."""
        signal_sent, next_sample = None, time.monotonic()
        while process.poll() is None:
            logged_step = self._note_progress(attempt, log_path)
            if time.monotonic() >= next_sample:
                next_sample += SAMPLE_SECONDS
                self._sample(process.pid, attempt.last_step)
            signal_due = None if signal_sent else self._signal_due(logged_step)
            if signal_due:
                process.send_signal(signal.Signals[signal_due])
                signal_sent = signal_due
                print(f"{signal_due} at step {attempt.last_step}", flush=True)
            time.sleep(POLL_SECONDS)
        return signal_sent

    def _sample(self, pid: int, step: int) -> None:
        megabytes = tree_megabytes(pid)
        # A process that has just ended holds nothing.
        if megabytes:
            seconds = time.time() - self.attempts[0].begin
            number = len(self.attempts)
            self._append((f"{seconds:.1f}", number, step, f"{megabytes:.1f}"))

    def _signal_due(self, step: int) -> str | None:
        for name, at in self._plan.items():
            if not self._was_sent(name):
                return name if step >= at else None
        return None

    def _was_sent(self, name: str) -> bool:
        return any(attempt.ended_by == name for attempt in self.attempts)

    def _note_progress(self, attempt: Attempt, log_path: Path) -> int:
        """Returns the last step that this process has logged, 0 before the first."""
        log = log_path.read_text(encoding="utf-8", errors="replace")
        logged_step = last_step(log)
        attempt.resumed_step = resumed_step(log)
        attempt.last_step = logged_step or attempt.resumed_step
        return logged_step

    def _append(self, row: Sequence[Any]) -> None:
        with open(self._memory_path, "a", encoding="utf-8", newline="") as file:
            csv.writer(file).writerow(row)

    def _save(self) -> None:
        state = {
            "command": self._command,
            "plan": self._plan,
            "attempts": [dataclasses.asdict(attempt) for attempt in self.attempts],
        }
        files.write_atomically(self._state_path, json.dumps(state, indent=1).encode())


def _end_with_parent() -> None:
    """Lets the kernel kill the training when this script ends for any reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


# The page.


def render(
    run: facts.Facts,
    attempts: Sequence[Attempt],
    samples: Sequence[Sample],
    *,
    command: str,
    pictures: Sequence[str],
) -> str:
    """The results as Markdown."""
    seconds = sum(attempt.seconds for attempt in attempts)
    parts = [
        "# A long run, killed and terminated on the way",
        f"{machine()}\nMade by `benchmarks/long_run.py`.",
        f"{duration(seconds)} in {len(attempts)} processes, "
        f"{run.last_step:,} steps, nobody helping.",
        f"```\n{command}\n```",
        "## Held-out examples at the end",
        evaluation_table(run.results),
        "## Interruptions",
        attempts_table(attempts),
        "## Memory",
        memory_text(memory_growth(samples, phase_ends=run.phase_ends)),
        "## Curves",
        *(f"![{Path(picture).stem}]({picture})" for picture in pictures),
    ]
    return "\n\n".join(parts) + "\n"


def machine() -> str:
    """Date, cores, processor and versions."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("tensorflow", "keras", "numpy")
    )
    return (
        f"{datetime.date.today()}, {len(os.sched_getaffinity(0))} cores"
        + (f" ({cpu[1].strip()})" if cpu else "")
        + f", Python {platform.python_version()}, {versions}."
    )


def evaluation_table(results: dict[str, Any]) -> str:
    """The model's scores on unseen examples, next to those of a guess."""
    scores, guess = results["eval"], results.get("eval_baseline") or {}
    lines = ["| | model | always guessing the commonest |", "|---|---|---|"]
    for name, value in scores.items():
        other = guess.get(name)
        lines.append(f"| {name} | {value:.4f} | {_or_empty(other, '.4f')} |")
    if "masked_lm_loss" in scores:
        other = guess.get("masked_lm_loss")
        other = None if other is None else math.exp(other)
        perplexity = math.exp(scores["masked_lm_loss"])
        lines.append(
            f"| masked_lm_perplexity | {perplexity:.2f} | {_or_empty(other, '.2f')} |"
        )
    if (token := guess.get("commonest_token")) is not None:
        lines += ["", f"The commonest masked token is `{token}`."]
    return "\n".join(lines)


def attempts_table(attempts: Sequence[Attempt]) -> str:
    """Start and end of each process, and the steps lost."""
    lines = [
        "| process | begins after step | last step logged | wall time | ended by | "
        "logged steps made again |",
        "|---|---|---|---|---|---|",
    ]
    resumed = [attempt.resumed_step for attempt in attempts[1:]]
    for number, (attempt, next_step) in enumerate(
        itertools.zip_longest(attempts, resumed), start=1
    ):
        again = ""
        if next_step is not None:
            # A checkpoint may be of a later step than the last line.
            again = f"{max(attempt.last_step - next_step, 0):,}"
        lines.append(
            f"| {number} | {attempt.resumed_step:,} | {attempt.last_step:,} | "
            f"{duration(attempt.seconds)} | {attempt.ended_by} | {again} |"
        )
    return "\n".join(lines)


def memory_text(growths: Sequence[Growth]) -> str:
    """Whether memory stayed flat."""
    if not growths:
        return "No stretch was long enough to tell."
    lines = [
        f"Resident memory every {SAMPLE_SECONDS:.0f} s, of the process and those below "
        f"it; medians after {WARM_UP_SECONDS / 60:.0f} minutes of warm-up.",
        "",
        "| process | phase | minutes | first third, MB | last third, MB | growth |",
        "|---|---|---|---|---|---|",
        *(
            f"| {g.attempt} | {g.phase} | {g.seconds / 60:.0f} | {g.first:,.0f} | "
            f"{g.last:,.0f} | {g.share:+.1%} |"
            for g in growths
        ),
        "",
    ]
    worst = max(growths, key=lambda growth: abs(growth.share))
    verdict = "Flat" if abs(worst.share) <= FLAT else "Not flat"
    lines.append(f"{verdict} within {FLAT:.0%}: at most {worst.share:+.1%}.")
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """`2:03:04`."""
    return str(datetime.timedelta(seconds=round(seconds)))


def _or_empty(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


# Pictures.

_CURVES = (
    *("masked_lm_loss", "masked_lm_accuracy", "next_sentence_accuracy"),
    *("learning_rate", "gradient_norm", "sequences_per_second"),
)


def draw_memory(samples: Sequence[Sample], path: Path) -> None:
    """Memory over time, one line for each process."""
    with matplotlib.rc_context({"font.size": 12, "axes.grid": True}):
        picture = figure.Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
        plot = picture.add_subplot(title="resident memory")
        plot.set(xlabel="hours", ylabel="MB")
        plot.grid(color="#DDDDDD")
        colours = itertools.cycle(("#0072B2", "#D55E00", "#009E73", "#CC79A7"))
        for attempt, group in itertools.groupby(samples, lambda s: s.attempt):
            inside = list(group)
            plot.plot(
                [sample.seconds / 3600 for sample in inside],
                [sample.megabytes for sample in inside],
                color=next(colours),
                label=f"process {attempt}",
            )
        plot.set_ylim(bottom=0)
        plot.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
        plot.legend()
        picture.savefig(path)


def copy_small(source: Path, target: Path) -> None:
    """Copies a picture with 32 colours, which is enough for lines: a third of it."""
    with Image.open(source) as image:
        image.convert("RGB").quantize(32).save(target, optimize=True)


def write_results(long_run: LongRun, run_dir: Path, page: Path, command: str) -> None:
    """Writes the page and, in a folder of its name, its pictures."""
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    curves = report.write_report(run_dir)
    samples = long_run.samples
    draw_memory(samples, curves / "memory.png")
    names = [f"{name}.png" for name in (*_CURVES, "memory")]
    drawn = [name for name in names if (curves / name).is_file()]
    for name in drawn:
        copy_small(curves / name, folder / name)
    text = render(
        facts.read_facts(run_dir),
        long_run.attempts,
        samples,
        command=command,
        pictures=[f"{folder.name}/{name}" for name in drawn],
    )
    files.write_atomically(page, text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", nargs="+", required=True, help="for each phase")
    parser.add_argument("--work", type=Path, required=True, help="for run and logs")
    parser.add_argument("--config", required=True, help="recipe or file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--kill_at", type=int, required=True, help="step of SIGKILL")
    parser.add_argument("--terminate_at", type=int, required=True, help="of SIGTERM")
    parser.add_argument("--results", type=Path, required=True, help="page to write")
    args = parser.parse_args()
    if not 0 < args.kill_at < args.terminate_at:
        parser.error("--kill_at must come before --terminate_at")
    options = [word for override in args.set for word in ("--set", override)]
    options = ["pretrain", "--config", args.config, *options]
    run_dir = args.work / Path(args.config).stem
    paths = ["--examples", *args.examples, "--output_dir", str(run_dir)]
    command = [sys.executable, "-m", "bert_keras.cli", *options, *paths]
    long_run = LongRun(
        args.work, command, kill_at=args.kill_at, terminate_at=args.terminate_at
    )
    long_run.complete()
    names = [Path(path).name for path in args.examples]
    shown = ["bert-keras", *options, "--examples", *names, "--output_dir", run_dir.name]
    write_results(long_run, run_dir, args.results, shlex.join(shown))
    print(f"results in {args.results}")


if __name__ == "__main__":
    main()
