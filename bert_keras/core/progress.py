"""A progress line for anything that takes longer than ten seconds."""

import collections
import dataclasses
import logging
import sys
import threading
import time
from collections.abc import Callable

from bert_keras.core import messages

logger = logging.getLogger(__name__)

LINE_SECONDS = 10.0
"""Time between two lines in a log."""


class Rate:
    """Units per second over the last minute: the start, or a pause, is soon forgotten.
    The first note only begins the measurement."""

    def __init__(self) -> None:
        # Seconds and units done.
        self._notes: collections.deque[tuple[float, int]] = collections.deque()

    def note(self, seconds: float, done: int) -> None:
        self._notes.append((seconds, done))
        # One note from before the minute stays: the rate is measured from there.
        while len(self._notes) > 2 and self._notes[1][0] <= seconds - 60.0:
            self._notes.popleft()

    def per_second(self) -> float:
        (begin, before), (end, done) = self._notes[0], self._notes[-1]
        return (done - before) / max(end - begin, 1e-9)


@dataclasses.dataclass(eq=False)
class Progress:
    """A line on stderr with share, rate and time left, while a block runs: on a
    terminal rewritten every half second, in a log a new line every ten seconds."""

    title: str
    _: dataclasses.KW_ONLY
    total: int
    unit: str
    """Name of the units; `bytes` are shown in MB."""
    read: Callable[[], int]
    """Returns the number of units done."""
    only_if_long: bool = False
    """Whether nothing is printed for work of less than ten seconds."""

    def __post_init__(self) -> None:
        self._silent_seconds = LINE_SECONDS if self.only_if_long else 0.0
        self._is_terminal = sys.stderr.isatty() and not messages.is_json()
        self._rate = Rate()
        self._rate.note(0.0, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Progress":
        self._start = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        seconds = self._elapsed()
        if self._is_terminal and not logger.disabled:
            sys.stderr.write("\r\x1b[K")
        if exception[0] is None and seconds >= self._silent_seconds:
            self._write(f"{self.title}: done in {duration(seconds)}")

    def _watch(self) -> None:
        while not self._stop.wait(0.5 if self._is_terminal else LINE_SECONDS):
            if self._elapsed() < self._silent_seconds:
                continue
            line = self.line(self.read(), self._elapsed())
            if self._is_terminal:
                self._write(f"\r{line}\x1b[K", end="")
            else:
                self._write(line)

    def _write(self, text: str, *, end: str = "\n") -> None:
        if messages.is_json():
            logger.info(text)
        elif not logger.disabled:
            sys.stderr.write(text + end)
            sys.stderr.flush()

    def _elapsed(self) -> float:
        return time.monotonic() - self._start

    def line(self, done: int, seconds: float) -> str:
        if not done:
            # What loads before the first unit says nothing of the rate.
            self._rate = Rate()
            self._rate.note(seconds, 0)
            return f"{self.title}: starting, {duration(seconds)}"
        self._rate.note(seconds, done)
        rate = self._rate.per_second()
        share = min(done / max(self.total, 1), 1)
        beginning = f"{self.title}: {share:4.0%}  {_quantity(done, self.unit)}"
        if not rate:
            return f"{beginning}  waiting"
        left = duration(max(self.total - done, 0) / rate)
        # Per second, minute or hour: the first that needs no fraction.
        period, name = 1, "s"
        if self.unit != "bytes" and rate < 1:
            period, name = (60, "min") if rate * 60 >= 1 else (3600, "h")
        speed = _quantity(rate * period, self.unit)
        return f"{beginning}  {speed}/{name}  {left} left"


def _quantity(amount: float, unit: str) -> str:
    if unit != "bytes":
        return f"{amount:,.0f} {unit}"
    return f"{amount / 1e6:,.1f} MB" if amount >= 1e5 else f"{amount / 1e3:,.1f} kB"


def duration(seconds: float) -> str:
    """Writes hours, minutes and seconds, `1:02:03`; a day is 24 hours."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
