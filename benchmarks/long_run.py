"""A long pre-training that is killed once and terminated once, with nobody helping.

    python -m benchmarks.long_run --config benchmarks/long_run.yaml --work DIR \
        --examples examples_128 examples_512 --kill_at 5000 --terminate_at 11000

Starts `bert-keras pretrain`, sends SIGKILL when it has logged step `kill_at`, starts
it again, sends SIGTERM at `terminate_at` (which must end it with exit code 143), starts
it again, and lets it come to its end. Prints accuracy and memory; `report` of the run
draws its curves. Linux only.
"""

import argparse
import contextlib
import ctypes
import itertools
import json
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks import measuring
from bert_keras.report import facts

SAMPLE_SECONDS = 10.0
POLL_SECONDS = 0.5
WARM_UP_SECONDS = 180.0
"""Start of a stretch to leave out: graphs are built, buffers fill."""
_PR_SET_PDEATHSIG = 1
_STEP = re.compile(r"^step (\d+)/\d+ ", re.MULTILINE)
_RESUMED = re.compile(r"^resuming after step (\d+) ", re.MULTILINE)


class Sample(NamedTuple):
    """Memory at one time."""

    seconds: float
    attempt: int
    """Counted from 1."""
    step: int
    """Last step logged."""
    megabytes: float
    """Resident memory of the process and its descendants."""


def last_step(log: str) -> int:
    """Returns the step of the last progress line, without any the resumed step."""
    steps = _STEP.findall(log) or _RESUMED.findall(log)
    return int(steps[-1]) if steps else 0


def run_attempts(
    command: Sequence[str], work: Path, plan: dict[str, int | None]
) -> list[Sample]:
    """Runs a process for each entry of the plan.

    Args:
        command: the training's.
        work: where `attempt-N.log` is written.
        plan: the step at which a signal is sent, by its name; `None`: no signal.
    """
    samples, start = [], time.time()
    for number, (name, due) in enumerate(plan.items(), start=1):
        path, step, next_sample = work / f"attempt-{number}.log", 0, time.monotonic()
        with open(path, "wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, preexec_fn=_end_with_parent
            )
            while process.poll() is None:
                text = path.read_text(encoding="utf-8", errors="replace")
                step = last_step(text)
                if time.monotonic() >= next_sample:
                    next_sample += SAMPLE_SECONDS
                    with contextlib.suppress(psutil.Error):  # It has just ended.
                        whole = psutil.Process(process.pid)
                        tree = [whole, *whole.children(recursive=True)]
                        place = (time.time() - start, number, step)
                        memory = measuring.tree_bytes(tree, "rss") / 1e6
                        samples.append(Sample(*place, memory))
                # A step of this process, not the step that it resumed from.
                if due and step >= due and _STEP.search(text):
                    process.send_signal(signal.Signals[name])
                    print(f"{name} at step {step}", flush=True)
                    due = None
                time.sleep(POLL_SECONDS)
        expected = {"SIGKILL": -signal.SIGKILL, "SIGTERM": 143}.get(name, 0)
        if process.returncode != expected:
            code = process.returncode
            sys.exit(f"exit code {code}, expected {expected} ({name}): see {path}")
    return samples


def _end_with_parent() -> None:
    """Lets the kernel kill the training when this script ends for any reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def memory_rows(
    samples: Sequence[Sample], phase_ends: Sequence[int]
) -> Iterator[list[object]]:
    """Yields medians of the first and last third of each stretch after its warm-up.

    A stretch is one process in one phase: longer sequences need more memory. Stretches
    of fewer than 9 samples after the warm-up are left out.
    """

    def stretch(sample: Sample) -> tuple[int, int]:
        return sample.attempt, 1 + sum(sample.step > end for end in phase_ends)

    for (attempt, phase), group in itertools.groupby(samples, stretch):
        inside = list(group)
        begin = inside[0].seconds + WARM_UP_SECONDS
        warm = [s.megabytes for s in inside if s.seconds >= begin]
        if len(warm) < 9:
            continue
        third = len(warm) // 3
        first, last = statistics.median(warm[:third]), statistics.median(warm[-third:])
        minutes = f"{(inside[-1].seconds - begin) / 60:.0f}"
        growth = f"{last / first - 1:+.1%}"
        yield [attempt, phase, minutes, f"{first:,.0f}", f"{last:,.0f}", growth]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", nargs="+", required=True, help="for each phase")
    parser.add_argument("--work", type=Path, required=True, help="for run and logs")
    parser.add_argument("--config", required=True, help="recipe or file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--kill_at", type=int, required=True, help="step of SIGKILL")
    parser.add_argument("--terminate_at", type=int, required=True, help="of SIGTERM")
    args = parser.parse_args()
    args.work.mkdir(parents=True)
    run_dir = args.work / "run"
    words = ["pretrain", "--config", args.config, *measuring.set_options(args.set)]
    words += ["--examples", *args.examples, "--output_dir", str(run_dir)]
    plan = {"SIGKILL": args.kill_at, "SIGTERM": args.terminate_at, "the end": None}
    samples = run_attempts([*measuring.BERT_KERAS, *words], args.work, plan)
    print(measuring.machine("tensorflow", "keras", "numpy"))
    results = json.loads((run_dir / "results.json").read_text(encoding="utf-8"))
    guess = results.get("eval_baseline") or {}
    rows = [
        [name, f"{x:.4f}", guess.get(name, "")] for name, x in results["eval"].items()
    ]
    measuring.print_table(["held out", "model", "guessing the commonest"], rows)
    header = ["process", "phase", "minutes", "first third, MB", "last third, MB"]
    ends = facts.read_facts(run_dir).phase_ends
    measuring.print_table([*header, "growth"], memory_rows(samples, ends))


if __name__ == "__main__":
    main()
