"""Errors of TensorFlow in words."""

import pytest
import tensorflow as tf

from bert_keras.training.step import engine

ENGINE = engine.KerasEngine(tf.distribute.get_strategy())
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
    message = ENGINE.in_words(tf.errors.UnavailableError(None, None, text))
    assert message == (
        f"{who} no longer answers (ended, killed, stopped or cut off); start all "
        "workers again with the same command to go on from the last checkpoint"
    )


def test_another_error_is_no_lost_worker():
    for error in (
        tf.errors.UnavailableError(None, None, "gs://bucket: Connection refused"),
        tf.errors.InternalError(None, None, "Collective ops is aborted by: bad shapes"),
        tf.errors.InvalidArgumentError(None, None, SOCKET),
        ValueError(SOCKET),
    ):
        assert ENGINE.in_words(error) is None
