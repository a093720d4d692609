"""Reading of damaged inputs of one kind, in a process of its own."""

import contextlib
import io
import json
import logging
import os
import random
import re
import resource
import shutil
import signal
import sys
import tarfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.hostile_inputs import damage
from bert_keras.errors import InputError

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = REPOSITORY / "tests/golden/before_the_move.tar.xz"
"""A run, data and checkpoints of a BERT of two layers and 16 hidden units."""

HANG_SECONDS = 10
"""Processor seconds of all threads after which an input is a fault."""
MEMORY_BYTES = 500_000_000
"""Memory that an input may take more than the healthy one."""


class Kind(NamedTuple):
    """Files of one kind, and the reader of them."""

    count: int
    """Inputs among a million."""
    make: Callable[[Path, Path], object]
    """Fills a folder with healthy files, out of the unpacked `GOLDEN`."""
    read: Callable[[Path], object]
    """Reads a folder as the commands do."""
    damaged: str = "*"
    """Patterns of the files to damage."""
    alone: bool = False
    """Whether a damaged file is read without the healthy ones."""


class Healthy(NamedTuple):
    """Files of a kind before any damage, by their paths in the folder."""

    contents: dict[Path, bytes]
    damaged: list[Path]
    """Those to damage."""


def unpack(folder: Path) -> Path:
    """Unpacks `GOLDEN` into a folder in `folder`."""
    golden = folder / "golden"
    shutil.rmtree(golden, ignore_errors=True)
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(golden, filter="data")
    return golden


def prepare(kind: Kind, work: Path, golden: Path) -> Healthy:
    """Makes the healthy files in `work/healthy` and reads them in `work/input`.

    The reading loads the modules, and a healthy input must be accepted.
    """
    for part in ("healthy", "input"):
        shutil.rmtree(work / part, ignore_errors=True)
        (work / part).mkdir(parents=True)
    healthy, folder = work / "healthy", work / "input"
    kind.make(healthy, golden)
    shutil.copytree(healthy, folder, dirs_exist_ok=True)
    kind.read(folder)
    contents = {
        path.relative_to(healthy): path.read_bytes()
        for path in sorted(healthy.rglob("*"))
        if path.is_file()
    }
    patterns = kind.damaged.split()
    damaged = [p for p in contents if any(map(p.match, patterns))]
    if kind.alone:
        for path in contents:
            (folder / path).unlink()
    return Healthy(contents, damaged)


class Result(NamedTuple):
    """What became of an input."""

    outcome: str
    """`read`, `refused` or `fault`."""
    file: str
    """The damaged file."""
    fault: str | None
    processor_seconds: float
    seconds: float


def read_input(
    kind: Kind,
    name: str,
    folder: Path,
    healthy: Healthy,
    *,
    seed: int,
    number: int,
    is_kept: bool = False,
) -> Result:
    """Reads one input of the kind called `name`.

    It is made of `seed`, `name` and `number`, and is gone afterwards unless `is_kept`.
    """
    choose = random.Random(f"{seed}/{name}/{number}")
    place = choose.choice(healthy.damaged)
    data = damage.damage(healthy.contents[place], choose, name=place.name)
    path = folder / place
    path.write_bytes(data)
    start, processor_start = time.perf_counter(), time.process_time()
    outcome, fault = _read(kind, folder)
    processor_seconds = time.process_time() - processor_start
    seconds = time.perf_counter() - start
    if kind.alone and not is_kept:
        path.unlink()
    elif not is_kept:
        path.write_bytes(healthy.contents[place])
    return Result(outcome, str(place), fault, processor_seconds, seconds)


class Hang(BaseException):
    """An input that is not read within `HANG_SECONDS`."""


def _on_alarm(*_: object) -> None:
    raise Hang


def _read(kind: Kind, folder: Path) -> tuple[str, str | None]:
    signal.signal(signal.SIGPROF, _on_alarm)
    signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            kind.read(folder)
    except InputError as error:
        if len(str(error).splitlines()) > 1:
            return "fault", f"a message of several lines: {str(error)[:200]!r}"
        if any(isinstance(cause, MemoryError) for cause in _causes(error)):
            return "fault", f"memory: {str(error)[:200]}"
        return "refused", None
    except Hang:
        return "fault", f"not read within {HANG_SECONDS} processor s: {_places()}"
    except Exception as error:
        return "fault", f"{type(error).__name__}: {str(error)[:200]} {_places()}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "read", None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__context__


def _places() -> str:
    """The innermost lines of ours in a traceback."""
    stack = traceback.extract_tb(sys.exc_info()[2])
    lines = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for frame in stack
        if str(REPOSITORY) in frame.filename and ".venv" not in frame.filename
    ]
    return " < ".join(lines[:-4:-1])


class Memory:
    """Resident memory of this process, in bytes, and its highest values."""

    def __init__(self) -> None:
        self._status = os.open("/proc/self/status", os.O_RDONLY)
        self._reset = os.open("/proc/self/clear_refs", os.O_WRONLY)

    def highest(self) -> int:
        """The highest value since the last `reset`, or since the start."""
        return self._kilobytes(b"VmHWM") * 1024

    def now(self) -> int:
        return self._kilobytes(b"VmRSS") * 1024

    def addresses(self) -> int:
        return self._kilobytes(b"VmSize") * 1024

    def reset(self) -> None:
        os.pwrite(self._reset, b"5", 0)

    def _kilobytes(self, key: bytes) -> int:
        status = os.pread(self._status, 4096, 0)
        return int(re.search(rb"%s:\s+(\d+)" % key, status)[1])  # type: ignore[index]


def read_all(
    kind: Kind, name: str, work: Path, *, seed: int, first: int, stop: int
) -> None:
    """Reads the inputs `first` to `stop`; prints each fault as a line of JSON.

    `work/progress` says at any time, as JSON, which input is being read and what became
    of those before it: if the process ends, that input has ended it.
    """
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    healthy = prepare(kind, work, unpack(work))
    memory = Memory()
    peak, before = memory.highest(), memory.now()
    limit = memory.addresses() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    outcomes: Counter[str] = Counter()
    facts: dict[str, Any] = {
        "outcomes": outcomes,
        "worst": 0.0,
        "worst_number": first,
        "worst_by_the_clock": 0.0,
        "memory": 0,
        "peak": peak,
        "has_tensorflow": "tensorflow" in sys.modules,
    }
    # Created by rename: whoever reads it finds whole JSON.
    progress = work / "progress"
    with (work / "progress.new").open("wb", buffering=0) as file:
        for number in range(first, stop + 1):
            line = json.dumps({"number": number, **facts}).ljust(500)
            os.pwrite(file.fileno(), line.encode(), 0)
            if number == first:
                os.replace(work / "progress.new", progress)
            if number == stop:
                break
            memory.reset()
            result = read_input(
                *(kind, name, work / "input", healthy),
                seed=seed,
                number=number,
                is_kept=stop - first == 1,
            )
            highest = memory.highest()
            fault = result.fault
            if highest - before > MEMORY_BYTES and not fault:
                fault = f"takes {(highest - before) / 1e6:.0f} MB"
            outcomes["fault" if fault else result.outcome] += 1
            facts["memory"] = max(facts["memory"], highest - before)
            facts["peak"] = max(facts["peak"], highest)
            facts["worst_by_the_clock"] = max(
                facts["worst_by_the_clock"], result.seconds
            )
            if result.processor_seconds > facts["worst"]:
                facts["worst"] = result.processor_seconds
                facts["worst_number"] = number
            if fault:
                found = {"number": number, "file": result.file, "fault": fault}
                print(json.dumps(found), flush=True)
