"""Keras as the engine of a run, on the devices of a strategy."""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_keras.checkpoints import run_directory, training_state, weights
from bert_keras.training.step import replicas, self_check
from bert_keras.training.step.learner import Learner

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


class KerasEngine:
    """Keras's steps and evaluations; see `training.run.Engine`."""

    errors = (tf.errors.OpError,)

    def __init__(self, strategy: tf.distribute.Strategy):
        self.strategy = strategy
        self.is_alone = not replicas.is_multi_worker(strategy)
        self.is_chief = self.is_alone or strategy.cluster_resolver.task_id == 0
        self.describe = functools.partial(replicas.describe_devices, strategy)
        self.differing = functools.partial(replicas.differing, strategy)
        self.wait_for_all = functools.partial(replicas.wait_for_all, strategy)

    def take(self, learner: Learner, network: keras.Model) -> None:
        """Trains a learner from now on; the weights of the network are kept."""
        self.learner, self.network = learner, network
        # The loop calls them as they are: `fit` is deep enough.
        self.make_steps, self.evaluate = learner.make_steps, learner.evaluate_round
        self.request: Callable[..., None] = learner.request

    def self_check(self) -> None:
        if self_check.is_due(self.strategy):
            self_check.check(self.strategy)

    def in_words(self, error: Exception) -> str | None:
        """Returns a line about the lost worker of `error`; `None`: another error.

        A worker that is killed, hangs or ends early breaks the next sum over replicas
        of all others: at once if the connection breaks, else when TensorFlow misses its
        heartbeats, after about ten seconds. `fit` and `evaluate` then raise
        `tf.errors.UnavailableError`, and all processes have to be started again.
        """
        # The text before it names this worker's own devices.
        reason = str(error).partition(_ABORTED)[2]
        is_lost = any(sign in reason for sign in _LOST_WORKER_SIGNS)
        if not isinstance(error, _LOST_WORKER_ERRORS) or not is_lost:
            return None
        tasks = sorted(set(re.findall(r"/task:(\d+)", reason)), key=int)
        who = " and ".join(f"task {task}" for task in tasks) or "another worker"
        return (
            f"{who} no longer answers (ended, killed, stopped or cut off); start all "
            "workers again with the same command to go on from the last checkpoint"
        )

    @property
    def step(self) -> int:
        return replicas.optimizer_step(self.learner)

    def state(self) -> dict[str, keras.Variable]:
        return training_state.named_variables(self.learner, self.learner.optimizer)

    def checksums(self) -> dict[str, list[int]]:
        return replicas.checksums(self.strategy, self.state())

    def finish(self, run: run_directory.Run, results: Mapping[str, Any]) -> None:
        weights.finish_run(run, self.network, results)
