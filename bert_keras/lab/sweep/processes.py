"""Several commands at once, each in a process with its share of the machine."""

import ctypes
import functools
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_keras.core import gpus

GRACE_SECONDS = 10.0
"""Time for processes to end when they are told to."""


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
        self._runner = runner
        self.num_slots = num_slots
        self._lock = lock
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
        environment = job_environment(
            os.environ,
            slot=slot,
            num_slots=self.num_slots,
            num_cores=len(os.sched_getaffinity(0)),
            devices=gpus.visible(),
        )
        with open(log, "wb") as file:
            file.write(f"$ {shlex.join(['bert-keras', *arguments])}\n".encode())
            file.flush()
            process = subprocess.Popen(
                [*self._runner, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=() if self._lock is None else (self._lock,),
                preexec_fn=functools.partial(_end_with_parent, os.getpid()),
                # Ctrl-C reaches this process alone, which then ends the others.
                start_new_session=True,
            )
        self.jobs.append(
            Job(name=name, process=process, log=log, slot=slot, start=time.monotonic())
        )

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


def job_environment(
    environment: Mapping[str, str],
    *,
    slot: int,
    num_slots: int,
    num_cores: int,
    devices: Sequence[str] = (),
) -> dict[str, str]:
    """Returns the environment of one of several jobs.

    Each gets its share of the cores, and in turn one of the GPUs in `devices`; jobs on
    one GPU take memory as needed. Numbers of threads that the user has set stay.
    """
    if num_slots == 1:
        return dict(environment)
    threads = str(max(1, num_cores // num_slots))
    shared = {
        "TF_NUM_INTRAOP_THREADS": threads,
        "TF_NUM_INTEROP_THREADS": threads,
        "OMP_NUM_THREADS": threads,
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    result = {**shared, **environment}
    if devices:
        result["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    return result


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
