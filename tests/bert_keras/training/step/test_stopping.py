import contextlib
import os
import signal
import threading
import time

import pytest
import tensorflow as tf

from bert_keras.core.errors import Stopped
from bert_keras.training.step import stopping

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


def test_a_second_ctrl_c_ends_at_once():
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), stopping.StopSignal() as stop_signal:
        signal.raise_signal(signal.SIGINT)
        assert stop_signal.received
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert stop_signal.stopped(3).exit_code == 130
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers


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
