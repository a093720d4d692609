"""Ends of training: the last step, a signal, numbers that explode, a lost worker."""

import logging
import re
import signal
import threading
from collections.abc import Callable

import keras
import tensorflow as tf

from bert_keras.errors import InputError, Stopped
from bert_keras.training import replicas

logger = logging.getLogger(__name__)


class StopAtStep(keras.callbacks.Callback):
    """Ends training when the optimizer has made `last_step` steps."""

    def __init__(self, last_step: int):
        super().__init__()
        self._last_step = last_step

    def on_train_batch_end(self, batch, logs=None):
        if replicas.optimizer_step(self.model) >= self._last_step:
            self.model.stop_training = True


class SaveEachEpoch(keras.callbacks.Callback):
    """Calls `save(step, evaluation_loss)` at the end of each save interval.

    The loss is `None` if nothing was evaluated.
    """

    def __init__(self, save: Callable[[int, float | None], object]):
        super().__init__()
        self._save = save

    def on_epoch_end(self, epoch, logs=None):
        loss = (logs or {}).get("val_loss")
        self._save(
            replicas.optimizer_step(self.model),
            None if loss is None else float(loss),
        )


class StopSignal:
    """Context manager that notes SIGTERM, which cloud machines get before they go.

    Within it the signal does not end the process. Outside of the main thread, where
    Python delivers no signals, it notes nothing.
    """

    def __init__(self) -> None:
        self.received = False

    def __enter__(self) -> "StopSignal":
        self._is_main = threading.current_thread() is threading.main_thread()
        if self._is_main:
            self._previous = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._is_main:
            signal.signal(signal.SIGTERM, self._previous)

    def _note(self, *_: object) -> None:
        self.received = True
        logger.info("SIGTERM: stopping after this step")


class StopOnSignal(keras.callbacks.Callback):
    """Saves and leaves `fit` with `Stopped` after the step in which a signal came.

    At the end of an epoch the evaluation and the save that are due come first, so that
    a run resumed there has missed nothing. With several workers, all stop at the same
    step: the request travels with the gradients of the next one.

    Args:
        stop_signal: this process's.
        save: called with the step.
        is_multi_worker: whether the steps carry requests.
        steps_per_epoch: steps between evaluations, counted from step 0.
        last_step: step at which this `fit` ends.
    """

    def __init__(
        self,
        stop_signal: StopSignal,
        save: Callable[[int], object],
        *,
        is_multi_worker: bool,
        steps_per_epoch: int,
        last_step: int,
    ):
        super().__init__()
        self._signal = stop_signal
        self._save = save
        self._is_multi_worker = is_multi_worker
        self._steps_per_epoch = steps_per_epoch
        self._last_step = last_step
        self._stops = False

    def on_train_batch_end(self, batch, logs=None):
        if self._is_multi_worker:
            if self._signal.received:
                self.model.request_stop()
            self._stops = float(logs["stop_requested"]) > 0
        else:
            self._stops = self._signal.received
        step = replicas.optimizer_step(self.model)
        ends_epoch = step % self._steps_per_epoch == 0 or step >= self._last_step
        if self._stops and not ends_epoch:
            self._save(step)
            raise _stopped(step)

    def on_epoch_end(self, epoch, logs=None):
        if self._stops:
            step = replicas.optimizer_step(self.model)
            raise _stopped(step)


def _stopped(step: int) -> Stopped:
    return Stopped(
        f"stopped by SIGTERM at step {step}; give the same command again to resume"
    )


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
