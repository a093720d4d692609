"""Runs a command and measures all of its processes: CPU time and peak memory."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

_SAMPLE_SECONDS = 0.1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One command that was run."""

    seconds: float
    cpu_seconds: float
    """CPU seconds of all processes, workers included."""
    peak_megabytes: float
    """Largest sample over all processes, shared pages counted once."""
    output: str


def run(arguments: Sequence[str]) -> Measured:
    """Runs a command to its end, with what it prints shown and kept.

    Linux only: memory is the proportional set size of the kernel, and processes that
    lose their parent come to this one, so that their CPU time is counted.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = _children_cpu()
    start = time.monotonic()
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    sampler = _Sampler()
    sampler.start()
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    code = process.wait()
    seconds = time.monotonic() - start
    sampler.stop()
    while _reap():
        time.sleep(0.02)
    if code:
        sys.exit(f"failed with exit code {code}: {' '.join(arguments)}")
    return Measured(
        seconds=seconds,
        cpu_seconds=_children_cpu() - before,
        peak_megabytes=sampler.peak / 1e6,
        output="".join(lines),
    )


def _reap() -> bool:
    """Reaps ended processes; returns whether others remain."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _children_cpu() -> float:
    times = os.times()
    return times.children_user + times.children_system


class _Sampler(threading.Thread):
    """Samples the memory of all descendants at intervals."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(_SAMPLE_SECONDS):
            self.peak = max(self.peak, sum(map(_proportional_bytes, _descendants())))

    def stop(self) -> None:
        self._done.set()
        self.join()


def _descendants() -> list[int]:
    parents = {}
    for name in os.listdir("/proc"):
        try:
            if name.isdigit():
                with open(f"/proc/{name}/stat") as file:
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue  # It has just ended.
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def _proportional_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # It has just ended.
    return 0
