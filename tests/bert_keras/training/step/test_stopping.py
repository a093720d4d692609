import contextlib
import itertools
import os
import signal
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.core.errors import InputError, Stopped
from bert_keras.training.step import replicas, stopping

HEARTBEAT = """Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
Collective ops is aborted by: Error reported from /job:worker/task:3: The following \
tasks are unhealthy (stopped sending heartbeats):
/job:worker/replica:0/task:3
/job:worker/replica:0/task:12
The tasks have crashed. Check the task logs for an earlier error, or scheduler events \
(e.g. preemption, eviction) to debug further.
The error could be from a previous operation. Restart your program to reset.
\t [[{{node CollectiveReduceV2}}]] [Op:__inference_step_42]"""
RESET = """{{function_node __wrapped__CollectiveReduceV2_device_/job:worker/replica:0\
/task:1/device:CPU:0}} Collective ops is aborted by: recvmsg:Connection reset by peer
Additional GRPC error information from remote target /job:worker/replica:0/task:0 \
while calling /tensorflow.WorkerService/CompleteInstance:
:UNKNOWN:Error received from peer  {grpc_status:14}"""
SOCKET = "Collective ops is aborted by: Socket closed"


@pytest.mark.parametrize(
    ("text", "who"),
    [(HEARTBEAT, "task 3 and task 12"), (RESET, "task 0"), (SOCKET, "another worker")],
)
def test_a_lost_worker_is_named(text, who):
    """The texts are TensorFlow's: a killed worker, seen by the chief and by another."""
    message = stopping.lost_worker_message(tf.errors.UnavailableError(None, None, text))
    assert message == (
        f"{who} no longer answers (ended, killed, stopped or cut off); start all "
        "workers again with the same command to go on from the last checkpoint"
    )


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.UnavailableError(None, None, "gs://bucket: Connection refused"),
        tf.errors.InternalError(None, None, "Collective ops is aborted by: bad shapes"),
        tf.errors.InvalidArgumentError(None, None, SOCKET),
        ValueError(SOCKET),
    ],
)
def test_another_error_is_no_lost_worker(error):
    assert stopping.lost_worker_message(error) is None


class Checkpoints:
    """Notes what is asked of a `CheckpointDirectory`."""

    def __init__(self):
        self.step, self.calls, self.failure = 0, [], None

    def check(self):
        if self.failure:
            raise self.failure

    def save(self, step, _, *, is_interim=False):
        self.step = step
        self.calls.append(("interim" if is_interim else "saved", step))

    def record_score(self, step, score):
        self.calls.append(("scored", step, score))


def fit(run_callbacks):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse")
    data = tf.data.Dataset.from_tensors((np.ones((4, 1)), np.ones((4, 1)))).repeat()
    model.fit(
        data,
        steps_per_epoch=4,
        epochs=3,
        validation_data=data,
        validation_steps=2,
        callbacks=[stopping.StopAtStep(7), *run_callbacks],
        verbose=0,
    )
    return model


def save_at_steps(checkpoints, *, every_steps=4, minutes=None):
    timer = stopping.Timer(minutes)
    return stopping.SaveAtSteps(
        checkpoints, {}, every_steps=every_steps, timer=timer, last_step=7
    )


def test_steps_are_saved_before_they_are_evaluated():
    checkpoints = Checkpoints()

    class Note(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            checkpoints.calls.append("evaluated")

    model = fit(
        [save_at_steps(checkpoints), Note(), stopping.RecordScores(checkpoints)]
    )
    assert replicas.optimizer_step(model) == 7
    losses = model.history.history["val_loss"]
    assert checkpoints.calls == [
        *(("saved", 4), "evaluated", ("scored", 4, losses[0])),
        *(("saved", 7), "evaluated", ("scored", 7, losses[1])),
    ]


def test_steps_are_saved_after_some_minutes(monkeypatch):
    checkpoints = Checkpoints()
    now = itertools.count(0, 20)
    monkeypatch.setattr(stopping.time, "monotonic", lambda: next(now))
    fit([save_at_steps(checkpoints, minutes=1.0)])
    assert [call for call in checkpoints.calls if call[0] == "saved"] == [
        ("saved", 4),
        ("saved", 7),
    ]
    assert ("interim", 3) in checkpoints.calls


def test_a_checkpoint_that_could_not_be_written_stops_the_next_step():
    checkpoints = Checkpoints()

    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                checkpoints.failure = InputError("the disk is full")

    with pytest.raises(InputError, match="the disk is full"):
        fit([save_at_steps(checkpoints, every_steps=1), Fail()])
    assert checkpoints.step == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("every_steps", [1, 2])
def test_a_signal_ends_at_once_where_nothing_is_lost(every_steps, number):
    """Between a checkpoint and the next step; else after a batch, and that is saved."""
    checkpoints, seen = Checkpoints(), []

    class Send(keras.callbacks.Callback):
        def on_test_batch_begin(self, batch, logs=None):
            seen.append(batch)
            os.kill(os.getpid(), number)

    with stopping.StopSignal() as stop_signal:
        stop = stopping.StopOnSignal(
            stop_signal, checkpoints, {}, is_multi_worker=False
        )
        saves = save_at_steps(checkpoints, every_steps=3 + every_steps)
        where = "" if every_steps == 1 else " at step 4"
        message = f"stopped by {number.name}{where}; give"
        with pytest.raises(Stopped, match=message) as end:
            fit([saves, stop, Send()])
    assert end.value.exit_code == 128 + number
    assert checkpoints.calls == [("saved" if every_steps == 1 else "interim", 4)]
    assert seen == [0]


def test_a_second_ctrl_c_ends_at_once():
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), stopping.StopSignal() as stop_signal:
        signal.raise_signal(signal.SIGINT)
        assert stop_signal.received
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert stop_signal.stopped(3).exit_code == 130
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_a_signal_that_comes_while_pictures_are_drawn():
    checkpoints = Checkpoints()

    class Draw(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            os.kill(os.getpid(), signal.SIGTERM)

    with stopping.StopSignal() as stop_signal:
        stop = stopping.StopOnSignal(
            stop_signal, checkpoints, {}, is_multi_worker=False
        )
        with pytest.raises(Stopped, match="at step 4; give"):
            fit([Draw(), stop])
    assert checkpoints.calls == [("interim", 4)]


def test_a_signal_while_a_graph_is_built_keeps_its_name():
    """TensorFlow makes an error of its own of what is raised in its functions."""

    @tf.function
    def build():
        os.kill(os.getpid(), signal.SIGTERM)
        return tf.constant(1)

    with stopping.StopSignal() as stop_signal, stop_signal.ending_at_once():
        with pytest.raises(Stopped, match="SIGTERM; give the same"):
            build()


def test_a_signal_while_an_error_of_c_plus_plus_is_raised_keeps_its_name():
    """A read of a store that fails after minutes, in which the signal came."""
    queue = tf.queue.FIFOQueue(1, tf.int32)

    def send_then_fail():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        queue.close()

    for within in (contextlib.nullcontext, stopping.StopSignal.ending_at_once):
        with pytest.raises(Stopped, match="SIGTERM; give the same"):
            with stopping.StopSignal() as stop_signal, within(stop_signal):
                stop_signal.ends_at_once = True
                threading.Timer(0.2, send_then_fail).start()
                queue.dequeue()
        queue = tf.queue.FIFOQueue(1, tf.int32)
