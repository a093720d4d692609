"""`bert-keras launch tpu`: rents a TPU, trains on it, and gives it back."""

import logging
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_keras.errors import InputError
from bert_keras.tpu.launch import commands, script

logger = logging.getLogger(__name__)

POLL_SECONDS = 30.0
_GONE = ("TERMINATED", "STOPPED", "STOPPING", "SUSPENDED", "FAILED")
"""States of a machine that is not coming back: it was taken away, or has ended."""
_NO_CAPACITY = ("EXHAUSTED", "STOCKOUT", "does not have enough resources")
_DELETE_TRIES = 6


def planned(
    rental: commands.Rental, *, staged: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """Purpose and words of all commands, for people to read.

    Args:
        rental: what to rent.
        staged: files to stage.
    """
    name, seconds = "startup.sh", rental.max_hours * 3600
    yield "stage the code", commands.copy(staged, rental.folder)
    yield "create", commands.create(rental, script=name, seconds=seconds)
    yield "watch", commands.describe(rental)
    yield "watch: its log", commands.read(rental.staged("log.txt"))
    yield "watch: done?", commands.exists(rental.results)
    yield "delete", commands.delete(rental)


class _Unreachable(Exception):
    """gcloud could not ask: the network is gone, or the service."""


def run(
    rental: commands.Rental,
    *,
    wheel: str,
    requirements: Sequence[str],
    poll_seconds: float = POLL_SECONDS,
    work: str = script.WORK,
) -> None:
    """Stages, creates, watches, creates again after a preemption, and deletes.

    A machine that this made is deleted when it returns or raises, whatever the reason.

    Args:
        rental: what to rent.
        wheel: path of this package's wheel.
        requirements: files with the versions of its packages.
        poll_seconds: time between two looks.
        work: folder on the machine.

    Raises:
        InputError: gcloud is missing or refuses, there is such a machine already, the
            run failed or took too long.
    """
    deadline = time.monotonic() + rental.max_hours * 3600
    if _run(commands.exists(rental.results)).returncode == 0:
        raise InputError(f"{rental.results} is there already: the run is done")
    if _known_state(rental) is not None:
        raise InputError(
            f"{rental.name} runs already: --do watch looks at it until it is done, "
            "--do delete deletes it"
        )
    staging = _run(commands.copy([wheel, *requirements], rental.folder))
    if staging.returncode:
        raise InputError(f"{rental.folder}: cannot copy to it: {_reason(staging)}")
    # Last words of an earlier attempt.
    for name in ("failed.txt", "log.txt"):
        _run(commands.remove(rental.staged(name)))

    def create() -> None:
        seconds = deadline - time.monotonic()
        name = Path(wheel).name
        text = script.startup_script(rental, wheel=name, seconds=seconds, work=work)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "startup.sh")
            path.write_text(text, encoding="utf-8")
            _create(rental, str(path), deadline, poll_seconds)

    try:
        create()
        while not _watch(rental, deadline, poll_seconds):
            # Before its name is free again, there can be no other of that name.
            delete(rental)
            create()
    finally:
        delete(rental)
    logger.info("%s: done, %s is there", rental.name, rental.results)


def watch(rental: commands.Rental, *, poll_seconds: float = POLL_SECONDS) -> None:
    """Watches a machine that another command made, and deletes it at its end.

    Raises:
        InputError: there is none, the run failed or took too long.
    """
    if _known_state(rental) is None:
        raise InputError(f"there is no machine {rental.name} in {rental.zone}")
    deadline = time.monotonic() + rental.max_hours * 3600
    try:
        if not _watch(rental, deadline, poll_seconds):
            raise InputError("the machine was taken away: --do run continues the run")
    finally:
        delete(rental)


def _create(
    rental: commands.Rental, path: str, deadline: float, poll_seconds: float
) -> None:
    """Creates the machine; waits where there is no capacity."""
    while True:
        left = deadline - time.monotonic()
        _check_time(left, rental)
        done = _run(commands.create(rental, script=path, seconds=max(left, 30)))
        if done.returncode == 0:
            logger.info("%s: created, %.1f hours left", rental.name, left / 3600)
            return
        if not any(word in done.stderr for word in _NO_CAPACITY):
            raise InputError(f"gcloud created no machine: {_reason(done)}")
        logger.info("%s: no capacity in %s, waiting", rental.name, rental.zone)
        time.sleep(max(0.0, min(poll_seconds, left)))


def _watch(rental: commands.Rental, deadline: float, poll_seconds: float) -> bool:
    """Shows the machine's log until the run is done, or the machine is gone.

    Returns:
        Whether the run is done.

    Raises:
        InputError: the run failed, or took too long.
    """
    seen = 0
    while True:
        try:
            state = _state(rental)
        except _Unreachable as error:
            logger.warning("%s: cannot be asked for: %s", rental.name, error)
            state = "UNKNOWN"
        log = _run(commands.read(rental.staged("log.txt"))).stdout
        for line in log[seen:].splitlines():
            logger.info("%s", line)
        seen = max(seen, len(log))
        if _run(commands.exists(rental.results)).returncode == 0:
            return True
        failed = _run(commands.read(rental.staged("failed.txt")))
        if failed.returncode == 0:
            raise InputError(
                f"{failed.stdout.strip()} (log: {rental.staged('log.txt')}); the "
                "machine is deleted"
            )
        if state is None or state in _GONE:
            logger.info("%s: the machine was taken away", rental.name)
            return False
        left = deadline - time.monotonic()
        _check_time(left, rental)
        time.sleep(max(0.0, min(poll_seconds, left)))


def _check_time(seconds_left: float, rental: commands.Rental) -> None:
    if seconds_left <= 0:
        raise InputError(
            f"--max_hours {rental.max_hours:g} are over: the machine is deleted; the "
            "same command continues the run"
        )


def _state(rental: commands.Rental) -> str | None:
    """State of the machine; `None`: there is none.

    Raises:
        _Unreachable: nobody knows.
    """
    done = _run(commands.describe(rental))
    if done.returncode == 0:
        return done.stdout.strip()
    if _is_missing(done):
        return None
    raise _Unreachable(_reason(done))


def _known_state(rental: commands.Rental) -> str | None:
    try:
        return _state(rental)
    except _Unreachable as error:
        raise InputError(f"gcloud cannot look at {rental.name}: {error}") from None


def delete(rental: commands.Rental) -> None:
    """Deletes the machine, if there is one; says so loudly where it cannot."""
    for number in range(_DELETE_TRIES):
        done = _run(commands.delete(rental))
        if done.returncode == 0 or _is_missing(done):
            return
        time.sleep(2.0**number)
    logger.error(
        "COULD NOT DELETE %s, WHICH COSTS MONEY (%s): %s",
        rental.name,
        _reason(done),
        shlex.join(commands.delete(rental)),
    )


def _is_missing(done: subprocess.CompletedProcess[str]) -> bool:
    text = done.stderr.lower()
    return "not found" in text or "not_found" in text


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join(done.stderr.split())[-300:]


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, capture_output=True, text=True, errors="replace")
    except FileNotFoundError:
        raise InputError(
            "gcloud is not installed: see cloud.google.com/sdk/docs/install, then run "
            "`gcloud auth login`"
        ) from None
