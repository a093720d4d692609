"""Signals that end a training."""

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator

from bert_keras.core.errors import InputError, Stopped, Unavailable

logger = logging.getLogger(__name__)


class StopSignal:
    """Context manager that notes SIGTERM, which cloud machines get, and Ctrl-C.

    Inside the block these signals do not end the process, except where nothing is lost:
    where `may_end_at_once()` is true, the signal raises `Stopped` wherever the process
    is, for it may take minutes to build a graph or to evaluate. A second Ctrl-C always
    ends it. Outside of the main thread, where Python delivers no signals, it notes
    nothing.
    """

    _NUMBERS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, may_end_at_once: Callable[[], bool]):
        self.number: int | None = None
        """The first signal that came; `None`: no signal came."""
        self._may_end_at_once = may_end_at_once
        self._ends_at_once = self._has_raised = False

    @property
    def received(self) -> bool:
        return self.number is not None

    def __enter__(self) -> "StopSignal":
        self._previous = {}
        if threading.current_thread() is threading.main_thread():
            for number in self._NUMBERS:
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._restore_reason(error)

    def _note(self, number: int, _: object) -> None:
        if number == signal.SIGINT and self.received:
            raise KeyboardInterrupt
        self.number = self.number or number
        if self._ends_at_once or self._may_end_at_once():
            self._has_raised = True
            raise self.stopped()
        again = "; Ctrl-C again: at once" if number == signal.SIGINT else ""
        logger.info(
            "%s: stopping as soon as nothing is lost%s",
            signal.Signals(number).name,
            again,
        )

    def _restore_reason(self, error: BaseException | None) -> None:
        """Raises `Stopped` again where TensorFlow has made an error of it.

        TensorFlow does so if the handler is called while an error of C++ becomes one of
        Python, such as that of a read that failed after minutes. An error of ours came
        after the signal: that the last checkpoint could not be written.
        """
        is_ours = isinstance(error, InputError | Unavailable)
        if self._has_raised and isinstance(error, Exception) and not is_ours:
            raise self.stopped() from error

    def stopped(self, step: int | None = None) -> Stopped:
        # Another worker's signal is taken for SIGTERM.
        number = self.number or signal.SIGTERM
        where = "" if step is None else f" at step {step}"
        return Stopped(
            f"stopped by {signal.Signals(number).name}{where}; run the same command "
            "again to resume",
            signal_number=number,
        )

    @contextlib.contextmanager
    def ending_at_once(self) -> Iterator[None]:
        """Makes a signal raise `Stopped` inside the block, also an earlier signal."""
        before, self._ends_at_once = self._ends_at_once, True
        try:
            if self.received:
                raise self.stopped()
            yield
        except Exception as error:
            self._restore_reason(error)
            raise
        finally:
            self._ends_at_once = before
