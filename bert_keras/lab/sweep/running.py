"""A sweep from start to choice: one `bert-keras finetune` process for each run."""

import collections
import ctypes
import functools
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_keras.checkpoints import run_directory
from bert_keras.core import chips, files, ownership, progress
from bert_keras.core.errors import InputError, Stopped, check_choice
from bert_keras.core.settings import finetuning, loading, strict, sweeps
from bert_keras.kinds import catalogue, splits
from bert_keras.lab.sweep import baselines, planning, ranking, scores, summary

logger = logging.getLogger(__name__)

RUNNER = (sys.executable, "-P", "-m", "bert_keras.commands.main")
"""The program for the arguments of `bert-keras`. `-P`: it ignores modules in the
current directory."""

GRACE_SECONDS = 10.0
"""Time for processes to end when they are told to."""

PROGRESS_SECONDS = 30.0


def run_sweep(
    settings: sweeps.SweepConfig,
    command: planning.Command,
    *,
    output_dir: str | Path,
    num_jobs: int = 1,
    runner: Sequence[str] = RUNNER,
) -> summary.State:
    """Makes the unfinished runs of a sweep, and chooses one.

    A failed run does not stop the others; the next command tries it again. Each run
    adds to results.tsv and the page; pictures, sweep.json and `best` come at the end.
    A command with `models` compares them, with each other and with baselines. Returns
    all finished runs of the directory, also those of another grid or of other models;
    one at least has a score.

    Raises:
        Stopped: SIGTERM or SIGHUP came; the processes were ended.
        KeyboardInterrupt: Ctrl-C came; the processes were ended.
    """
    # 1. Refuse what cannot be run, before anything is written.
    files.check_is_local(output_dir, "a sweep")
    if num_jobs < 1:
        raise InputError(f"--jobs must be at least 1, got {num_jobs}")
    base, directory = command.settings(), Path(output_dir)
    kind, task_kind = catalogue.find(base), catalogue.task_kind(base)
    if command.models and task_kind not in baselines.NAMES:
        raise InputError(
            f"`compare` is for texts and tagged words, got a task of kind {task_kind}: "
            "`sweep` takes any"
        )
    criterion = make_criterion(settings, command)
    if command.models and criterion.metric not in kind.resampled:
        raise InputError(f"`compare` has no paired bootstrap of {criterion.metric!r}")
    planned = planning.plan_runs(settings, command)
    # 2. One owner of the directory, which keeps to the same data and settings.
    with ownership.owned(directory) as owner:
        planning.claim(directory, command)
        sweep = summary.State(directory=directory, settings=base, criterion=criterion)
        model_key = [planning.MODEL_KEY] if command.models else []
        resume(sweep, [*model_key, *settings.grid], planned)
        # 3. Baselines of compared models, in this process.
        labels: Sequence[str] = ()
        if command.models:
            _, train, dev = command.folds[0]
            data = splits.read(kind, train, dev, base)
            labels, runs = data.task.labels or (), sweep.runs.values()
            options = {"metric": criterion.metric}
            sweep.baselines = baselines.make_runs(directory, runs, data, **options)
            del data  # the memory is for the processes
        # 4. The runs, each in a process.
        with Processes(runner, num_slots=num_jobs, lock=owner.descriptor) as jobs:
            make_runs(sweep, command, jobs)
        # 5. The page with the rankings at each share of the labels, and the choice.
        if command.models:
            by_share = collections.defaultdict(list)
            share = sweep.keys.index(planning.FRACTION_KEY)
            for point in (*sweep.baseline_points, *sweep.points):
                if point.scores:
                    by_share[point.values[share]].append(point)
            options = {"kind": kind, "metric": criterion.metric, "labels": labels}
            sweep.rankings = [
                ranking.rank(points, sweep_dir=directory, **options)
                for _, points in sorted(by_share.items())
            ]
        summary.write_pictures(sweep)
        summary.write_tables(sweep)
        report = directory / summary.HTML_NAME
        key = planning.MODEL_KEY
        scored = {o.run.value(key) for o in sweep.outcomes if o.score is not None}
        failed = [model.name for model in command.models if model.name not in scored]
        if failed or not scored:
            which = f"{', '.join(failed)}: " if scored else ""
            raise InputError(
                f"{which}no run has a score: {report} says why; run the same command "
                "again to retry"
            )
        summary.write_best(sweep)
        logger.info("report in %s", report)
        return sweep


def make_criterion(
    settings: sweeps.SweepConfig, command: planning.Command
) -> scores.Criterion:
    """Returns the metric, goal and choice of a sweep, with the task's defaults."""
    base, metric = command.settings(), settings.metric
    kind = catalogue.find(base)
    if metric is None:
        # The file's labels decide: plain tags have no F1.
        labels = catalogue.read(command.folds[0].train, base).describe().labels
        metric = kind.main_metric(base, labels)
    is_less_better = kind.metric(metric).better == "less"
    return scores.Criterion(
        metric=metric,
        goal=settings.goal or ("min" if is_less_better else "max"),
        # The best run of several folds had the easiest one.
        choose=settings.choose or ("mean" if command.has_folds else "best"),
    )


def resume(
    sweep: summary.State, keys: Sequence[str], planned: Sequence[planning.Run]
) -> None:
    """Reads the finished runs of the directory, and writes the plan."""
    path = sweep.directory / "plan.json"
    earlier = loading.read_json(planning.Plan, path) or planning.Plan()
    known = [key for key, _ in strict.walk(finetuning.FinetuningConfig)]
    for key in earlier.keys:
        check_choice(f"{path}: a key", key, [*known, planning.MODEL_KEY])
    planned, others = planning.merge_plans(earlier.runs, planned)
    runs, metric = (*others, *planned), sweep.criterion.metric
    sweep.ended = scores.read_outcomes(sweep.directory, runs, metric=metric)
    finished = [run for run in others if run.name in sweep.ended]
    if others:
        logger.info(
            "resuming with another grid: of %d other runs %d are finished, and "
            "compared with the new ones",
            *(len(others), len(finished)),
        )
    sweep.runs = {run.name: run for run in (*finished, *planned)}
    sweep.keys = tuple(dict.fromkeys((*earlier.keys, *keys)))
    scores.check_same_inputs(sweep.directory, sweep.ended.values())
    plan = planning.Plan(keys=sweep.keys, runs=(*others, *planned))
    files.write_json(path, plan.model_dump(mode="json"), indent=1)


def make_runs(
    sweep: summary.State, command: planning.Command, jobs: "Processes"
) -> None:
    """Makes all unfinished runs, and writes the tables after each; tells the progress
    every `PROGRESS_SECONDS`."""
    waiting = collections.deque(
        run for name, run in sweep.runs.items() if name not in sweep.ended
    )
    num_finished = len(sweep.runs) - len(waiting)
    logger.info("%d runs, %d finished already", len(sweep.runs), num_finished)
    epochs = {
        run.name: run.settings.num_train_epochs * run.settings.train_fraction
        for run in waiting
    }
    start = last_told = time.monotonic()
    while waiting or jobs.jobs:
        # 1. Stop at a signal; the processes end when their block is left.
        if jobs.received is not None:
            message = (
                f"stopped by {signal_name(jobs.received)} with "
                f"{len(sweep.ended)} of {len(sweep.runs)} runs ended; run the same "
                "command again for the others"
            )
            if jobs.received == signal.SIGINT:
                logger.info("%s", message)
                raise KeyboardInterrupt
            raise Stopped(message, signal_number=jobs.received)
        # 2. A process for each free slot.
        while waiting and len(jobs.jobs) < jobs.num_slots:
            run = waiting.popleft()
            path = scores.run_path(sweep.directory, run.name)
            log = sweep.directory / "logs" / f"{run.name}.log"
            jobs.start(run.name, command.arguments(run, path), log)
        # 3. What has come of the processes so far.
        for job in jobs.ended():
            _end(sweep, job)
        if jobs.jobs and time.monotonic() - last_told >= PROGRESS_SECONDS:
            last_told = time.monotonic()
            tails = {job.name: read_tail(job.log) for job in jobs.jobs}
            ended, seconds = epochs.keys() & sweep.ended, last_told - start
            for line in progress_lines(tails, epochs, ended, seconds=seconds):
                logger.info("%s", line)
        time.sleep(0.1)


def _end(sweep: summary.State, job: "Job") -> None:
    """Records the outcome of a run. The first refused run of a model raises an
    `InputError`: others would be refused, too."""
    run, code = sweep.runs[job.name], job.process.returncode
    metric, directory = sweep.criterion.metric, sweep.directory
    if code == 0:
        sweep.ended |= scores.read_outcomes(directory, [run], metric=metric)
    if job.name not in sweep.ended:
        is_first = not any(
            outcome.score is not None and outcome.run.model == run.model
            for outcome in sweep.ended.values()
        )
        # A run that has begun was accepted, with its data and checkpoint.
        task = scores.run_path(directory, job.name) / run_directory.TASK_NAME
        line = last_line(read_tail(job.log))
        if code == 2 and is_first and not task.is_file():
            raise InputError(f"{line} (from the first run, see {job.log})")
        ending = f"exit code {code}" if code >= 0 else f"ended by {signal_name(-code)}"
        sweep.ended[job.name] = scores.Outcome(
            run=run, score=None, evaluation={}, failure=f"{ending}: {line}"
        )
    scores.check_same_inputs(directory, sweep.ended.values())
    outcome = sweep.ended[job.name]
    result = f"failed: {outcome.failure}"
    if outcome.score is not None:
        result = f"{metric} {outcome.score:.4f}"
        if outcome.majority is not None:
            result += f", at the majority class: {outcome.majority}"
    count = f"[{len(sweep.ended)}/{len(sweep.runs)}]"
    duration = progress.duration(time.monotonic() - job.start)
    logger.info("%s %s: %s; %s", count, job.name, result, duration)
    summary.write_tables(sweep)


def progress_lines(
    tails: Mapping[str, str],
    epochs: Mapping[str, float],
    ended: Collection[str],
    *,
    seconds: float,
) -> Iterator[str]:
    """Yields the progress of a command after some seconds, and each job's last line.

    Args:
        tails: ends of the logs of the running jobs, by run.
        epochs: epochs of each run of this command, by run; some runs have `ended`.
    """
    shares = {name: share_done(tail) for name, tail in tails.items()}
    shares |= dict.fromkeys(ended, 1.0)
    done = sum(epochs[name] * share for name, share in shares.items())
    share = done / sum(epochs.values())
    speed = f"starting, {progress.duration(seconds)}"
    if share:
        left = progress.duration(seconds / share - seconds)
        speed = f"{len(epochs) * share / seconds * 3600:.3g} runs/h  {left} left"
    yield f"sweep: {share:4.0%}  {len(ended)}/{len(epochs)} runs  {speed}"
    for name, tail in tails.items():
        yield f"  {name}: {last_line(tail)}"


def share_done(output: str) -> float:
    """Returns the share of a run's steps, from its last `step 12/48  loss 0.3`."""
    steps = re.findall(r"^step (\d+)/(\d+) ", output, re.MULTILINE)
    return min(int(steps[-1][0]) / max(int(steps[-1][1]), 1), 1.0) if steps else 0.0


class Job(NamedTuple):
    name: str
    process: subprocess.Popen
    log: Path
    slot: int
    """Number among the running jobs, from 0."""
    start: float


class Processes:
    """Running jobs; a context manager that ends them when it is left.

    Inside the block, Ctrl-C, SIGTERM and SIGHUP are only noted, so that no process is
    lost between its start and its entry here. If this process is killed, Linux ends the
    jobs with SIGTERM. The processes keep the descriptor `lock` open until they end.
    """

    def __init__(self, runner: Sequence[str], *, num_slots: int, lock: int | None):
        self._runner, self._lock, self.num_slots = runner, lock, num_slots
        self.received: int | None = None
        self.jobs: list[Job] = []

    def __enter__(self) -> "Processes":
        self._previous: dict[int, Any] = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under `nohup`, SIGHUP stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for job in self.jobs:
            job.process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        for job in self.jobs:
            try:
                job.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                job.process.kill()
                job.process.wait()
        self.jobs = []
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        self.received = number

    def start(self, name: str, arguments: Sequence[str], log: Path) -> None:
        """Starts a job in a free slot; its log begins with the command."""
        slot = min(set(range(self.num_slots)) - {job.slot for job in self.jobs})
        with open(log, "wb") as file:
            file.write(f"$ {shlex.join(['bert-keras', *arguments])}\n".encode())
            file.flush()
            process = subprocess.Popen(
                [*self._runner, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=job_environment(slot, self.num_slots),
                pass_fds=() if self._lock is None else (self._lock,),
                preexec_fn=functools.partial(_end_with_parent, os.getpid()),
                # Ctrl-C reaches this process alone, which then ends the others.
                start_new_session=True,
            )
        self.jobs.append(Job(name, process, log, slot, time.monotonic()))

    def ended(self) -> list[Job]:
        ended = [job for job in self.jobs if job.process.poll() is not None]
        self.jobs = [job for job in self.jobs if job not in ended]
        return ended


def _end_with_parent(parent: int) -> None:
    """Asks Linux to send SIGTERM when the parent ends; called in the new process."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent ended before
            os.kill(os.getpid(), signal.SIGTERM)


_PR_SET_PDEATHSIG = 1
# Looked up here: between `fork` and `exec` a process should do little.
_prctl = getattr(ctypes.CDLL(None), "prctl", None)


def job_environment(slot: int, num_slots: int) -> dict[str, str]:
    """Returns the environment of one of several jobs.

    Each gets its share of the cores, and in turn one of the visible GPUs; jobs on one
    GPU take memory as needed. Numbers of threads that the user has set stay.
    """
    if num_slots == 1:
        return dict(os.environ)
    threads = str(max(1, len(os.sched_getaffinity(0)) // num_slots))
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    shared = dict.fromkeys(names, threads) | {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    environment = {**shared, **os.environ}
    if devices := chips.visible_gpus():
        environment["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    return environment


def read_tail(log: Path) -> str:
    with open(log, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        return file.read().decode("utf-8", "replace")


# Lines of TensorFlow's own log, which continues after a program's error message.
_NOISE = re.compile(r"\d{4}-\d\d-\d\d [\d:.]+: [IWEF] |\[\[\{\{node ")


def last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines()]
    lines = [line for line in lines if line and not _NOISE.match(line)]
    if not lines or lines[-1].startswith("$ "):
        return "no output"
    return re.sub(r"^bert-keras [a-z-]+: (error: )?", "", lines[-1])


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
