"""Ends of training: a signal, numbers that explode, a lost worker; and timers."""

import contextlib
import logging
import math
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import keras
import tensorflow as tf

from bert_keras.core.errors import InputError, Stopped
from bert_keras.training.step import watcher

logger = logging.getLogger(__name__)


class Timer:
    """Tells if some minutes have passed since its start or `restart`; `None`: never."""

    def __init__(self, minutes: float | None):
        self._seconds = math.inf if minutes is None else 60 * minutes
        self.restart()

    def restart(self) -> None:
        self._begin = time.monotonic()

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._begin >= self._seconds


class StopSignal:
    """Context manager that notes SIGTERM, which cloud machines get, and Ctrl-C.

    Inside the block these signals do not end the process, or only where nothing is
    lost; a second Ctrl-C ends it at once. Outside of the main thread, where Python
    delivers no signals, it notes nothing.
    """

    _NUMBERS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.number: int | None = None
        """The first signal that came; `None`: no signal came."""
        self.ends_at_once = False
        """Whether the signal raises `Stopped` wherever the process is: it may take
        minutes to build a graph or to evaluate."""
        self._has_raised = False

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
        if self.ends_at_once:
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
        Python, such as that of a read that failed after minutes.
        """
        if self._has_raised and isinstance(error, Exception):
            raise self.stopped() from error

    def stopped(self, step: int | None = None) -> Stopped:
        # Another worker's signal is taken for SIGTERM.
        number = self.number or signal.SIGTERM
        where = "" if step is None else f" at step {step}"
        return Stopped(
            f"stopped by {signal.Signals(number).name}{where}; give the same command "
            "again to resume",
            signal_number=number,
        )

    @contextlib.contextmanager
    def ending_at_once(self) -> Iterator[None]:
        """Makes a signal raise `Stopped` inside the block, also an earlier signal."""
        before, self.ends_at_once = self.ends_at_once, True
        try:
            if self.received:
                raise self.stopped()
            yield
        except Exception as error:
            self._restore_reason(error)
            raise
        finally:
            self.ends_at_once = before


class SkipLimit(watcher.Watcher):
    """Ends a run that has skipped more than `max_skipped_steps` updates in a row.

    `describe` says where the batches of the first to the last step, from 1, came from.
    """

    def __init__(
        self,
        learner: keras.Model,
        max_skipped_steps: int,
        describe: Callable[[int, int], str],
    ):
        self._learner = learner
        self._max_skipped_steps = max_skipped_steps
        self._describe = describe
        self._num_skipped = 0

    def after_steps(self, step: int, logs: Mapping[str, float]) -> None:
        if (num_skipped := int(logs["skipped_steps"])) == self._num_skipped:
            return
        self._num_skipped = num_skipped
        count = int(keras.ops.convert_to_numpy(self._learner.skipped_in_a_row))
        if count > self._max_skipped_steps:
            raise InputError(
                f"step {step}: the loss or a gradient was not finite in {count} steps "
                f"in a row{self._describe(step - count + 1, step)}"
            )


_LOST_WORKER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.InternalError,
)
_ABORTED = "Collective ops is aborted by"
_LOST_WORKER_SIGNS = (
    "stopped sending heartbeats",
    "Connection reset by peer",
    "Connection refused",
    "Socket closed",
    "failed to connect to all addresses",
    "remote target",
)


def lost_worker_message(error: BaseException) -> str | None:
    """Returns a line about the lost worker of `error`; `None`: another error.

    A worker that is killed, hangs or ends early breaks the next sum over replicas of
    all others: at once if the connection breaks, else when TensorFlow misses its
    heartbeats, after about ten seconds. `fit` and `evaluate` then raise
    `tf.errors.UnavailableError`, and all processes have to be started again.
    """
    text = str(error)
    if not isinstance(error, _LOST_WORKER_ERRORS) or _ABORTED not in text:
        return None
    # The text before it names this worker's own devices.
    reason = text.partition(_ABORTED)[2]
    if not any(sign in reason for sign in _LOST_WORKER_SIGNS):
        return None
    tasks = sorted(set(re.findall(r"/task:(\d+)", reason)), key=int)
    who = " and ".join(f"task {task}" for task in tasks) or "another worker"
    return (
        f"{who} no longer answers (ended, killed, stopped or cut off); start all "
        "workers again with the same command to go on from the last checkpoint"
    )
