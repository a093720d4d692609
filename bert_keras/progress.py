"""A progress line for anything that takes longer than ten seconds."""

import sys
import threading
import time
from collections.abc import Callable

LINE_SECONDS = 10.0
"""Time between two lines in a log."""


class Progress:
    """A line on stderr with share, rate and time left, while a block runs.

    On a terminal the line is rewritten every half second; in a log, a new line is
    added every ten seconds.

    Args:
        title: name of the work.
        total: number of units to do.
        unit: their name; `bytes` are shown in MB.
        read: returns the number of units done.
        only_if_long: print nothing for work of less than ten seconds.
    """

    def __init__(
        self,
        title: str,
        *,
        total: int,
        unit: str,
        read: Callable[[], int],
        only_if_long: bool = False,
    ):
        self._title, self._total, self._unit, self._read = title, total, unit, read
        self._silent_seconds = LINE_SECONDS if only_if_long else 0.0
        self._is_terminal = sys.stderr.isatty()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Progress":
        self._start = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._is_terminal:
            sys.stderr.write("\r\x1b[K")
        if exception[0] is None:
            seconds = self._elapsed()
            if seconds < self._silent_seconds:
                return
            sys.stderr.write(f"{self._title}: done in {duration(seconds)}\n")

    def _watch(self) -> None:
        while not self._stop.wait(0.5 if self._is_terminal else LINE_SECONDS):
            if self._elapsed() < self._silent_seconds:
                continue
            start, end = ("\r", "\x1b[K") if self._is_terminal else ("", "\n")
            sys.stderr.write(start + self.line(self._read(), self._elapsed()) + end)
            sys.stderr.flush()

    def _elapsed(self) -> float:
        return time.monotonic() - self._start

    def line(self, done: int, seconds: float) -> str:
        """The line after `seconds`, with `done` units done."""
        if not done:
            return f"{self._title}: starting, {duration(seconds)}"
        share = min(done / max(self._total, 1), 1)
        left = seconds / share - seconds
        amount = _quantity(done, self._unit)
        rate = _quantity(done / max(seconds, 1e-9), self._unit)
        return f"{self._title}: {share:4.0%}  {amount}  {rate}/s  {duration(left)} left"


def _quantity(amount: float, unit: str) -> str:
    if unit == "bytes":
        return f"{amount / 1e6:,.1f} MB"
    return f"{amount:,.0f} {unit}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, `1:02:03`; a day is 24 hours."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
