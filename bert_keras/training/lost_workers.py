"""Recognises that another worker of a multi-worker run is gone."""

import re

import tensorflow as tf

_KINDS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.InternalError)
_ABORTED = "Collective ops is aborted by"
_SIGNS = (
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
    all the others: at once if the connection breaks, else when TensorFlow misses its
    heartbeats, after about ten seconds. `fit` and `evaluate` then raise
    `tf.errors.UnavailableError`; the process can compute nothing together any more
    and has to be started again.
    """
    text = str(error)
    if not isinstance(error, _KINDS) or _ABORTED not in text:
        return None
    # What comes before names this worker's own devices.
    reason = text.partition(_ABORTED)[2]
    if not any(sign in reason for sign in _SIGNS):
        return None
    tasks = sorted(set(re.findall(r"/task:(\d+)", reason)), key=int)
    who = " and ".join(f"task {task}" for task in tasks) or "another worker"
    return (
        f"{who} no longer answers (ended, killed, stopped or cut off); start all "
        "workers again with the same command to go on from the last checkpoint"
    )
