"""Ends of training: the last step, a signal, numbers that explode, a lost worker."""

import contextlib
import logging
import math
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_keras.checkpoints import training_state
from bert_keras.core.errors import InputError, Stopped
from bert_keras.training.step import replicas

logger = logging.getLogger(__name__)


class StopAtStep(keras.callbacks.Callback):
    """Ends training when the optimizer has made `last_step` steps."""

    def __init__(self, last_step: int):
        super().__init__()
        self._last_step = last_step

    def on_train_batch_end(self, batch, logs=None):
        if replicas.optimizer_step(self.model) >= self._last_step:
            self.model.stop_training = True


class Timer:
    """Whether some minutes have passed since something was done; it runs at once.

    Args:
        minutes: `None`: they never pass.
    """

    def __init__(self, minutes: float | None):
        self._seconds = math.inf if minutes is None else 60 * minutes
        self.restart()

    def restart(self) -> None:
        """Notes that it was done now."""
        self._begin = time.monotonic()

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._begin >= self._seconds


class SaveAtSteps(keras.callbacks.Callback):
    """Saves at multiples of some steps, after some minutes, and at the last step.

    It comes before the evaluation of the same step: whatever happens in that, the steps
    are not lost.

    Args:
        checkpoints: where to.
        state: what; see `training_state.named_variables`.
        every_steps: steps between two checkpoints, counted from step 0.
        timer: after which there is a checkpoint that the next one replaces.
        last_step: step at which this `fit` ends.
    """

    def __init__(
        self,
        checkpoints: training_state.CheckpointDirectory,
        state: Mapping[str, keras.Variable],
        *,
        every_steps: int,
        timer: Timer,
        last_step: int,
    ):
        super().__init__()
        self._checkpoints = checkpoints
        self._state = state
        self._every_steps = every_steps
        self._timer = timer
        self._last_step = last_step

    def on_train_batch_end(self, batch, logs=None):
        self._checkpoints.check()
        step = replicas.optimizer_step(self.model)
        is_due = step % self._every_steps == 0 or step >= self._last_step
        if is_due or self._timer.is_due:
            self._checkpoints.save(step, self._state, is_interim=not is_due)
            self._timer.restart()


class StopOnDrift(keras.callbacks.Callback):
    """Ends workers whose states differ, before that is saved.

    They make the same updates from the same sums: a difference is a fault of a device
    or of its memory. Does nothing where there is one worker.

    Args:
        strategy: the workers'.
        state: what must be equal; see `training_state.named_variables`.
        every_steps: steps between two comparisons, counted from step 0.
        last_step: step of one more.

    Raises:
        InputError: from within `fit`, on all workers.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        state: Mapping[str, keras.Variable],
        *,
        every_steps: int,
        last_step: int,
    ):
        super().__init__()
        self._strategy = strategy
        self._state = state
        self._every_steps = every_steps
        self._last_step = last_step

    def on_train_batch_end(self, batch, logs=None):
        step = replicas.optimizer_step(self.model)
        is_due = step % self._every_steps == 0 or step >= self._last_step
        if not is_due or not replicas.is_multi_worker(self._strategy):
            return
        sums = replicas.checksums(self._strategy, self._state)
        if names := replicas.differing(self._strategy, sums):
            raise InputError(
                f"step {step}: the workers' states differ in {len(names)} variables, "
                f"the first is {names[0]}: a device or its memory is faulty; start all "
                "workers again with the same command to go on from the last checkpoint"
            )


class RecordScores(keras.callbacks.Callback):
    """Notes the loss of each evaluation with the checkpoint of its step."""

    def __init__(self, checkpoints: training_state.CheckpointDirectory):
        super().__init__()
        self._checkpoints = checkpoints

    def on_epoch_end(self, epoch, logs=None):
        if "val_loss" in (logs or {}):
            step = replicas.optimizer_step(self.model)
            self._checkpoints.record_score(step, float(logs["val_loss"]))


class StopSignal:
    """Context manager that notes SIGTERM, which cloud machines get, and Ctrl-C.

    Within it these signals do not end the process, or only where nothing is lost; a
    second Ctrl-C ends it at once. Outside of the main thread, where Python delivers no
    signals, it notes nothing.
    """

    _NUMBERS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.number: int | None = None
        """The first signal that came; `None`: none did."""
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

        It does so where the handler is called while an error of C++ becomes one of
        Python, such as that of a read that failed after minutes.
        """
        if self._has_raised and isinstance(error, Exception):
            raise self.stopped() from error

    def stopped(self, step: int | None = None) -> Stopped:
        """Returns the end of a run whose signal came; its state is saved.

        Args:
            step: after which the state was saved; `None`: it is not said.
        """
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
        """Within it a signal raises `Stopped`; so does one that came before it."""
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


class StopOnSignal(keras.callbacks.Callback):
    """Saves and leaves `fit` with `Stopped` after the step in which a signal came.

    It is called after the callback that saves, and leaves an evaluation between two of
    its batches. An evaluation that is due at the step is made when the run is resumed.
    With several workers, all stop at the same step: the request travels with the
    gradients of the next one, or with the next batch of an evaluation.

    Args:
        stop_signal: this process's.
        checkpoints: where to save.
        state: what; see `training_state.named_variables`.
        is_multi_worker: whether the steps carry requests.
    """

    def __init__(
        self,
        stop_signal: StopSignal,
        checkpoints: training_state.CheckpointDirectory,
        state: Mapping[str, keras.Variable],
        *,
        is_multi_worker: bool,
    ):
        super().__init__()
        self._signal = stop_signal
        self._checkpoints = checkpoints
        self._state = state
        self._is_multi_worker = is_multi_worker

    def on_train_batch_end(self, batch, logs=None):
        self._stop_if_asked((logs or {}).get("stop_requested"))
        is_saved = replicas.optimizer_step(self.model) == self._checkpoints.step
        # Other workers would wait for one that leaves alone.
        self._signal.ends_at_once = is_saved and not self._is_multi_worker

    def on_test_batch_end(self, batch, logs=None):
        self._stop_if_asked(getattr(self.model, "stop_requested_in_test", None))

    def on_epoch_end(self, epoch, logs=None):
        # Pictures were drawn since. Several workers agree in their next step.
        if not self._is_multi_worker:
            self._stop_if_asked(None)

    def _stop_if_asked(self, stop_requested: Any) -> None:
        """Stops if the signal came, or with several workers the request of one."""
        stops = self._signal.received
        if self._is_multi_worker:
            if self._signal.received:
                self.model.request("stop_requested")
            stops = float(stop_requested) > 0
        if not stops:
            return
        step = replicas.optimizer_step(self.model)
        if step != self._checkpoints.step:
            self._checkpoints.save(step, self._state, is_interim=True)
        raise self._signal.stopped(step)


class StopOnSkips(keras.callbacks.Callback):
    """Stops a run that has skipped too many updates in a row.

    Args:
        max_skipped_steps: steps in a row; one more is an error.
        describe: says where the batches of steps came from and what to try, given the
            first and the last step, counted from 1.

    Raises:
        InputError: from within `fit`.
    """

    def __init__(
        self,
        max_skipped_steps: int,
        describe: Callable[[int, int], str],
    ):
        super().__init__()
        self._max_skipped_steps = max_skipped_steps
        self._describe = describe
        self._seen = 0

    def on_train_batch_end(self, batch, logs=None):
        skipped = int(logs["skipped_steps"])
        if skipped == self._seen:
            return
        self._seen = skipped
        count = int(keras.ops.convert_to_numpy(self.model.skipped_in_a_row))
        if count <= self._max_skipped_steps:
            return
        step = replicas.optimizer_step(self.model)
        raise InputError(
            f"step {step}: the loss or a gradient was not finite in {count} steps in a "
            f"row{self._describe(step - count + 1, step)}"
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
    """One line about the worker that `error` reports as lost; `None`: another error.

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
