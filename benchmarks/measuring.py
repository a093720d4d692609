"""Clocks, processes, tables and the machine: the common part of the benchmarks.

Scripts run from the root of the repository, as `python -m benchmarks.NAME`. They print
tables in Markdown, which people put into the pages of `benchmarks/results/`.
"""

import argparse
import contextlib
import ctypes
import datetime
import importlib.metadata
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

BERT_KERAS = (sys.executable, "-m", "bert_keras.commands.main")
_SAMPLE_SECONDS = 0.1
_PR_SET_CHILD_SUBREAPER = 36


# The page.


def machine(*packages: str) -> str:
    """Returns date, cores, processor and versions, as one line."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    flags = next(line for line in lines if line.startswith("flags")).split()
    name = next(line for line in lines if line.startswith("model name"))
    units = [flag for flag in ("avx512_bf16", "amx_bf16") if flag in flags]
    versions = [
        f"{package} {importlib.metadata.version(package)}" for package in packages
    ]
    return (
        f"{datetime.date.today()}, {num_cores()} cores of {name.partition(': ')[2]} "
        f"({', '.join(units) or 'no bfloat16'}), load {os.getloadavg()[1]:.1f}, "
        f"Python {platform.python_version()}, {', '.join(versions)}"
    )


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


def print_table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table in Markdown, each row as soon as it comes."""
    print()
    for row in itertools.chain((header, ["---"] * len(header)), rows):
        print(f"| {' | '.join(map(str, row))} |", flush=True)


def mean_and_deviation(values: Sequence[float], form: str = ".1f") -> str:
    """Returns `28.9 ± 0.2`; one value has no deviation, and no value gives nothing."""
    if not values:
        return ""
    mean = format(statistics.fmean(values), form)
    if len(values) == 1:
        return mean
    return f"{mean} ± {format(statistics.stdev(values), form)}"


def once(path: Path, measure: Callable[[], Any]) -> Any:
    """Returns the content of a JSON file, measured unless the file exists."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps(measure(), indent=1)
        path.with_suffix(".new").write_text(content, encoding="utf-8")
        path.with_suffix(".new").rename(path)
    return json.loads(path.read_text(encoding="utf-8"))


def draw_scores(
    path: Path, scores: Mapping[str, Mapping[str, Sequence[float]]], title: str
) -> None:
    """Draws mean and deviation of each series over the columns of `scores`."""
    from bert_keras.pages import drawing

    series = list(dict.fromkeys(name for cells in scores.values() for name in cells))

    def picture() -> Any:
        image, plot = drawing.new_plot(title, width=3 + 1.3 * len(scores))
        for place, name in enumerate(series):
            cells = [(x, c[name]) for x, c in enumerate(scores.values()) if c.get(name)]
            plot.errorbar(
                [x + 0.14 * (place - (len(series) - 1) / 2) for x, _ in cells],
                [statistics.fmean(values) for _, values in cells],
                yerr=[statistics.stdev(v) if len(v) > 1 else 0.0 for _, v in cells],
                **{"linestyle": "none", "marker": "o", "capsize": 3, "label": name},
            )
        plot.set_xticks(range(len(scores)), scores)
        drawing.add_legend(image, num_columns=3)
        return image

    path.write_bytes(drawing.as_png(picture))


# Clocks.


class Times(NamedTuple):
    """Seconds of a call."""

    wall: float
    cpu: float


def timed(function: Callable[[], object]) -> Times:
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return Times(time.perf_counter() - wall, time.process_time() - cpu)


def medians_in_turns(
    functions: Mapping[str, Callable[[], object]], num_turns: int
) -> dict[str, Times]:
    """Returns the median times of each function.

    The functions take turns: other work on the machine slows all of them. The first
    turn, which traces, does not count.
    """
    turns = [{k: timed(f) for k, f in functions.items()} for _ in range(num_turns + 1)]
    return {
        name: Times(
            *map(
                statistics.median, zip(*(turn[name] for turn in turns[1:]), strict=True)
            )
        )
        for name in functions
    }


def resident_megabytes(key: str) -> float:
    """Returns the memory of this process, now (`VmRSS`) or at most (`VmHWM`)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition(f"{key}:")[2].split()[0]) * 1024 / 1e6


# Processes.


class Worker:
    """A process `python -m MODULE --worker WORDS` that answers questions.

    With a `directory` the module is that of another checkout.
    """

    def __init__(self, module: str, *words: object, directory: str | None = None):
        self._command = [sys.executable, "-m", module, "--worker", *map(str, words)]
        self._process = subprocess.Popen(
            self._command,
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, question: Any = None) -> Any:
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit(f"failed, see above: {' '.join(self._command)}")
        return json.loads(answer)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def run_stage(title: str, stages: Mapping[str, Callable[..., None]]) -> None:
    """Runs the stage that the command line names, with its other words."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("stage", choices=stages)
    parser.add_argument("--work", type=Path, required=True, help="for all that is made")
    parser.add_argument("--data", type=Path, help="dumps, books and labelled files")
    parser.add_argument("--only", nargs="+", default=[], help="recipes")
    args = parser.parse_args()
    stages[args.stage](args)


def start(main: Callable[[], None], make_answer: Callable[..., Callable]) -> None:
    """Runs a script, or its worker: `make_answer` gets the words after `--worker`."""
    if sys.argv[1:2] != ["--worker"]:
        return main()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # The output of other packages goes elsewhere.
    answer = make_answer(*sys.argv[2:])
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def ask_once(module: str, *words: object, question: Any = None) -> Any:
    """Returns the answer of a new process."""
    with Worker(module, *words) as worker:
        return worker.ask(question)


class Speed(NamedTuple):
    """Medians over turns of one worker."""

    examples: float
    """Examples per second."""
    examples_per_cpu: float
    """Examples per second of processor time."""
    tokens_per_example: float
    """Tokens with padding."""


def answer_steps(step: Callable[[], tuple[int, int]]) -> Callable[[int], list[float]]:
    """Returns a worker's answer to a number of steps, for `speeds_in_turns`.

    Args:
        step: makes a step; returns its numbers of examples and of tokens.
    """

    def answer(num_steps: int) -> list[float]:
        counts: list[tuple[int, int]] = []
        times = timed(lambda: counts.extend(step() for _ in range(num_steps)))
        return [*times, *map(sum, zip(*counts, strict=True))]

    return answer


def speeds_in_turns(
    workers: Mapping[str, Worker], *, num_turns: int, seconds: float
) -> dict[str, Speed]:
    """Returns the speed of each worker's steps; a turn takes about `seconds`."""
    num_steps = {}
    for name, worker in workers.items():
        worker.ask(3)  # Traces, compiles, allocates.
        num_steps[name] = max(1, round(seconds / worker.ask(2)[0] * 2))
    turns = [
        {k: w.ask(num_steps[k]) for k, w in workers.items()} for _ in range(num_turns)
    ]
    speeds = {}
    for name in workers:
        walls, cpus, examples, tokens = zip(*(t[name] for t in turns), strict=True)
        speeds[name] = Speed(
            statistics.median(n / s for n, s in zip(examples, walls, strict=True)),
            statistics.median(n / s for n, s in zip(examples, cpus, strict=True)),
            sum(tokens) / sum(examples),
        )
    return speeds


class Measured(NamedTuple):
    """The cost of a command with all its processes."""

    seconds: float
    cpu_seconds: float
    """CPU seconds of all processes, workers included."""
    peak_megabytes: float
    """Largest sample over all processes, shared pages counted once."""
    output: str


def run(*arguments: object) -> Measured:
    """Runs a command to its end, with its output shown and returned.

    Linux only: memory is the proportional set size of the kernel, and processes that
    lose their parent come to this process, so that their CPU time is counted.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command, before, start = list(map(str, arguments)), os.times(), time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    done, peaks, lines = threading.Event(), [0], []
    sampler = threading.Thread(target=_sample, args=(done, peaks), daemon=True)
    sampler.start()
    for line in process.stdout:
        print(line, end="", file=sys.stderr, flush=True)
        lines.append(line)
    code = process.wait()
    seconds = time.monotonic() - start
    done.set()
    sampler.join()
    while _reap():
        time.sleep(0.02)
    if code:
        sys.exit(f"failed with exit code {code}: {' '.join(command)}")
    cpu_seconds = sum(os.times()[2:4]) - sum(before[2:4])
    return Measured(seconds, cpu_seconds, max(peaks) / 1e6, "".join(lines))


def bert_keras(*words: object) -> Measured:
    return run(*BERT_KERAS, *words)


def _reap() -> bool:
    """Reaps ended processes; returns whether others remain."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _sample(done: threading.Event, peaks: list[int]) -> None:
    """Samples the memory of all descendants at intervals."""
    while not done.wait(_SAMPLE_SECONDS):
        peaks.append(tree_bytes(psutil.Process().children(recursive=True), "pss"))


def tree_bytes(processes: Iterable[psutil.Process], kind: str) -> int:
    """Returns memory of processes: `rss`, or `pss`, which counts shared pages once."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):  # The process has just ended.
            total += getattr(process.memory_full_info(), kind)
    return total


def set_options(settings: Iterable[str]) -> list[str]:
    """Returns `--set` before each setting."""
    return [word for setting in settings for word in ("--set", setting)]
