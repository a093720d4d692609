"""The local engine: a job in passes, each a part of a step in its own process.

A pass runs one step on some of its items or keys. Its shuffles go to disk, so that
memory holds one key's values at a time, whatever the size of the corpus. A finished
pass leaves a marker; an interrupted job resumes with the passes that have none.
"""

import contextlib
import dataclasses
import functools
import multiprocessing
import operator
import os
import re
import shutil
import signal
import tempfile
import threading
import traceback
import uuid
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, cast

from bert_keras.core import files, progress
from bert_keras.core.errors import InputError, Unavailable
from bert_keras.pipelines.engine import spills, steps

PASS_BYTES = 32_000_000
"""Items or values that one pass reads: enough that its start hardly counts."""

_MAX_ATTEMPTS = 3
_PROCESS_NAME = "bert-keras pass"
# Exit code of a pass whose process is told to start passes itself.
_RAN_THE_SCRIPT = 86
# Memory of an idle process. Besides the workers there are this process and the one
# that they are forked from.
_PROCESS_BYTES = 60_000_000
# Memory of a pass beyond the values of one key: a page, and values not yet spilled.
_LEAST_WORK_BYTES = 100_000_000


@dataclasses.dataclass(frozen=True)
class Pass:
    job: steps.Job
    """The job, with the items of this pass alone."""
    step_name: str
    units: tuple[int, ...]
    """Numbers of the job's items, or keys."""
    inputs: Mapping[str, Sequence[str]]
    """Files of each shuffle that is read."""
    directory: str
    """The step's, for markers and spilled files."""

    def path(self, suffix: str) -> str:
        return f"{self.directory}/{self.units[0]:06d}-{self.units[-1]:06d}{suffix}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passes:
    num_workers: int
    """Passes that run at the same time."""
    memory_limit: int
    """Bytes for all processes together. A key whose values need more is refused before
    its step starts."""

    def __post_init__(self) -> None:
        if multiprocessing.current_process().name == _PROCESS_NAME:
            # A new process imports the script that it was started from before it does
            # anything else, and a script without a main guard starts all over.
            os._exit(_RAN_THE_SCRIPT)
        if self.num_workers < 1:
            raise InputError(f"--workers must be at least 1, got {self.num_workers}")

    def run(self, job: steps.Job) -> list[steps.Result]:
        # The memory of one pass: a worker's share, beside the idle processes.
        workers, limit = self.num_workers, self.memory_limit
        least = (2 + workers) * _PROCESS_BYTES + workers * _LEAST_WORK_BYTES
        if limit < least:
            raise InputError(
                f"--memory_limit {limit / 1e9:.1f} GB is too little for {workers} "
                f"workers: give at least {least / 1e9:.1f} GB, or fewer --workers"
            )
        budget = (limit - least) // workers + _LEAST_WORK_BYTES
        root = _local_directory(job.work_dir)
        results: list[steps.Result] = []
        spilled: dict[str, list[str]] = {name: [] for name in job.shuffles}
        for step in job.make_steps(steps.Heartbeat(str(root))):
            directory = root / step.name
            directory.mkdir(parents=True, exist_ok=True)
            # 1. Items or keys that no finished pass covers; none may be too large.
            inputs = {name: spilled[name] for name in step.reads}
            sizes = _pending_sizes(job, step, inputs, directory, budget)
            # 2. Passes over them, each in a process, some at a time.
            passes = []
            for units in _group(sizes, workers):
                items = [] if step.reads else [job.items[unit] for unit in units]
                own = dataclasses.replace(job, items=items)
                passes.append(Pass(own, step.name, units, inputs, str(directory)))
            with progress.Progress(
                f"{job.title}: {step.title}",
                total=sum(sizes.values()),
                unit="bytes",
                read=functools.partial(_bytes_read, passes, sizes),
            ):
                _supervise(passes, workers, type(step).__module__)
            # 3. Results, and the files that the next steps read.
            for marker in _read_markers(directory):
                results += marker["results"]
                for name, paths in marker["spilled"].items():
                    spilled[name] += paths
        if files.is_remote(job.work_dir):
            # The caller deletes the remote directory, but not its part on this disk.
            shutil.rmtree(root, ignore_errors=True)
        return results


def _pending_sizes(
    job: steps.Job,
    step: steps.Step,
    inputs: Mapping[str, Sequence[str]],
    directory: Path,
    budget: int,
) -> dict[int, int]:
    """Returns the bytes of each item, or key with values, that no finished pass covers.
    Refuses a key whose values take more memory than `budget`."""
    sizes = {number: item.num_bytes for number, item in enumerate(job.items)}
    if step.reads:
        spilled = [spills.spilled_bytes(p) for paths in inputs.values() for p in paths]
        # (keys,) each: all shuffles that a step reads have the same keys.
        totals = functools.reduce(operator.add, spilled).tolist() if spilled else []
        sizes = {key: size for key, size in enumerate(totals) if size}
    for marker in _read_markers(directory):
        for unit in marker["units"]:
            sizes.pop(unit, None)
    largest = max(sizes, key=sizes.__getitem__, default=0)
    needed = sizes.get(largest, 0) * step.memory_per_byte
    if step.reads and needed > budget:
        raise InputError(
            f"shard {largest} of {step.name} would take {needed / 1e9:.1f} GB of "
            f"memory, a worker may take {budget / 1e9:.1f} GB: give more "
            "--memory_limit, fewer --workers or more --num_shards"
        )
    return sizes


def _group(sizes: Mapping[int, int], num_workers: int) -> list[tuple[int, ...]]:
    """Cuts units into passes of about `PASS_BYTES`, with work for every worker."""
    limit = min(PASS_BYTES, sum(sizes.values()) / num_workers)
    groups: list[list[int]] = [[]]
    num_bytes = 0
    for unit in sorted(sizes):
        if groups[-1] and num_bytes + sizes[unit] / 2 > limit:
            groups.append([])
            num_bytes = 0
        groups[-1].append(unit)
        num_bytes += sizes[unit]
    return [tuple(group) for group in groups if group]


def _bytes_read(passes: Iterable[Pass], sizes: Mapping[int, int]) -> int:
    """Returns the bytes that passes have read so far."""
    return sum(
        sum(sizes[unit] for unit in one.units)
        if os.path.exists(one.path(".done"))
        else steps.sum_of_heartbeats(one.path(".heartbeats"))
        for one in passes
    )


def _local_directory(work_dir: str) -> Path:
    if not files.is_remote(work_dir):
        return Path(work_dir)
    # The same directory when the same command is run again, and another one for a
    # later job with the same output: the token goes when the output does.
    path = files.join(work_dir, "token")
    try:
        token = files.read_bytes(path).decode()
    except FileNotFoundError:
        token = uuid.uuid4().hex
        files.write_atomically(path, token.encode())
    if not re.fullmatch("[0-9a-f]{32}", token):
        raise InputError(f"{path}: damaged; delete {work_dir} to start over")
    directory = Path(tempfile.gettempdir(), f"bert-keras-{token}")
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.stat().st_uid != os.getuid():
        raise InputError(f"{directory}: belongs to another user; set TMPDIR")
    return directory


def _read_markers(directory: Path) -> list[dict[str, Any]]:
    """Returns what `_do` wrote for each finished pass."""
    return [files.read_json(path) for path in sorted(directory.glob("*.done"))]


def _supervise(passes: Sequence[Pass], num_workers: int, module: str) -> None:
    """Runs passes, some at a time, and retries those whose process dies. `module`,
    which all passes import, is loaded once before they are forked."""
    # Not `fork`: the thread of the progress line may hold a lock, which a fork would
    # copy. Not `spawn`: each pass would import everything anew.
    context = multiprocessing.get_context("forkserver")
    # Only heeded by the first job of this process; later ones import it in each pass.
    context.set_forkserver_preload([__name__, module])
    waiting = deque(passes)
    attempts: Counter[tuple[int, ...]] = Counter()
    running: dict[Any, tuple[Any, Pass]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < num_workers:
                one = waiting.popleft()
                attempts[one.units] += 1
                # A pass that ends, in whatever way, closes its end of the pipe. Our own
                # copy of that end is closed below, or reading would never end.
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_run_pass, args=(one, sender))
                process.name, process.daemon = _PROCESS_NAME, True
                # The first start makes the process that all are forked from.
                with steps.without_current_directory(), sender:
                    process.start()
                running[receiver] = process, one
            for receiver in cast(list[Any], connection.wait(list(running))):
                process, one = running.pop(receiver)
                with contextlib.suppress(EOFError), receiver:
                    raise receiver.recv()
                process.join()
                if process.exitcode == _RAN_THE_SCRIPT:
                    raise InputError(
                        "a worker process began to run this program's script again "
                        "instead of its share of the work: put the calls of the script "
                        'under `if __name__ == "__main__":`'
                    )
                if process.exitcode and attempts[one.units] >= _MAX_ATTEMPTS:
                    raise InputError(
                        f"a worker process died {_MAX_ATTEMPTS} times at the same "
                        f"place ({one.step_name}, exit code {process.exitcode}), "
                        "perhaps for want of memory: use fewer --workers, then run the "
                        "same command again"
                    )
                if process.exitcode:
                    waiting.append(one)
    finally:
        for process, _ in running.values():
            process.kill()
            process.join()


# In the process of a pass.


def _run_pass(one: Pass, sender: connection.Connection) -> None:
    """Runs a pass and leaves its marker, or sends its error to the supervisor."""
    # Ctrl-C is for the supervisor alone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_supervisor, daemon=True).start()
    try:
        _do(one)
    except (InputError, Unavailable) as error:
        sender.send(error)
    except Exception as error:  # whatever it is, the supervisor raises it
        failure: Exception = RuntimeError(traceback.format_exc())
        if isinstance(error, OSError) and error.filename is not None:
            reason = error.strerror or str(error)
            failure = OSError(error.errno, reason, str(error.filename))
        sender.send(failure)


def _end_with_the_supervisor() -> None:
    # A supervisor that is killed cannot stop its passes, so each watches for its end.
    if supervisor := multiprocessing.parent_process():
        connection.wait([supervisor.sentinel])
    os._exit(1)


def _do(one: Pass) -> None:
    heartbeats = Path(one.path(".heartbeats"))
    # What an attempt before this one had read counts no more.
    shutil.rmtree(heartbeats, ignore_errors=True)
    heartbeats.mkdir()
    heartbeat = steps.Heartbeat(str(heartbeats))
    job_steps = one.job.make_steps(heartbeat)
    (step,) = (step for step in job_steps if step.name == one.step_name)
    writers = {
        name: spills.SpillWriter(one.path(f"-{name}"), num_keys=one.job.shuffles[name])
        for name in step.writes
    }
    elements: Iterable[Any] = [item.value for item in one.job.items]
    if step.reads:
        read = functools.partial(spills.read_values, advance=heartbeat.add)
        elements = (
            (key, {name: read(paths, key) for name, paths in one.inputs.items()})
            for key in one.units
        )
    results = []
    for element in elements:
        for output in step.process(element):
            if isinstance(output, steps.Send):
                writers[output.shuffle].add(output.key, output.value)
            else:
                results.append(output)
    spilled = {name: writer.close() for name, writer in writers.items()}
    heartbeat.flush()
    marker = {"units": one.units, "results": results, "spilled": spilled}
    files.write_json(one.path(".done"), marker, indent=None)
