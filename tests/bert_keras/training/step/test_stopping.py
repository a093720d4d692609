import contextlib
import os
import signal
import threading
import time

import pytest
import tensorflow as tf

from bert_keras.core.errors import Stopped
from bert_keras.training.step import stopping

NEVER, ALWAYS = (lambda: False), (lambda: True)


def test_a_second_ctrl_c_ends_at_once():
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), stopping.StopSignal(NEVER) as stop_signal:
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

    with stopping.StopSignal(NEVER) as stop_signal, stop_signal.ending_at_once():
        with pytest.raises(Stopped, match="SIGTERM; run the same"):
            build()


def test_a_signal_while_an_error_of_c_plus_plus_is_raised_keeps_its_name():
    """A read of a store that fails after minutes, in which the signal came."""
    queue = tf.queue.FIFOQueue(1, tf.int32)

    def send_then_fail():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        queue.close()

    for within in (contextlib.nullcontext, stopping.StopSignal.ending_at_once):
        with pytest.raises(Stopped, match="SIGTERM; run the same"):
            with stopping.StopSignal(ALWAYS) as stop_signal, within(stop_signal):
                threading.Timer(0.2, send_then_fail).start()
                queue.dequeue()
        queue = tf.queue.FIFOQueue(1, tf.int32)
