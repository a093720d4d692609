"""Keras's `fit` and `evaluate` as the engine of a run: the only calls of both."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_keras.checkpoints import training_state
from bert_keras.training.step import replicas
from bert_keras.training.step.learner import Learner
from bert_keras.training.step.replicas import Schedule, Stream

Batches = tf.data.Dataset | tf.distribute.DistributedDataset
Evaluation = tuple[Batches, int]
"""Endless batches, and their number in one round."""
Logs = dict[str, float]


class _Follow(keras.callbacks.Callback):
    def __init__(
        self,
        before: Callable[[int], None] = lambda step: None,
        after: Callable[[int, Logs], bool] = lambda step, logs: False,
        after_test_batch: Callable[[bool], None] = lambda stop_is_requested: None,
    ):
        super().__init__()
        self._before, self._after = before, after
        self._after_test_batch = after_test_batch
        self.last_logs: Logs = {}

    def on_train_batch_begin(self, batch, logs=None):
        self._before(batch)

    def on_train_batch_end(self, batch, logs=None):
        self.last_logs = {name: float(value) for name, value in logs.items()}
        if self._after(replicas.optimizer_step(self.model), self.last_logs):
            self.model.stop_training = True

    def on_test_batch_end(self, batch, logs=None):
        self._after_test_batch(float(self.model.stop_requested_in_test) > 0)


def fit(
    learner: Learner, batches: Batches | Stream, schedule: Schedule, **follow: Callable
) -> Logs:
    """Trains to `schedule.last_step`; returns its scalars, empty if there are no steps.

    `before(step)` and `after(step, logs)` are called around each execution; `after`
    returns whether to end the training early. A stream that is given stays open.
    """
    callback = _Follow(**follow)
    if replicas.optimizer_step(learner) < schedule.last_step:
        stream = batches if isinstance(batches, Stream) else Stream(batches)
        try:
            learner.make_steps(stream, schedule, callbacks=[callback])
        finally:
            if stream is not batches:
                stream.close()
    return callback.last_logs


def evaluate(
    learner: Learner, evaluation: Evaluation, **follow: Callable[[bool], None]
) -> Logs:
    """Returns the metrics of one round; `after_test_batch` follows each execution."""
    batches, num_batches = evaluation
    metrics = learner.evaluate(
        batches,
        steps=num_batches,
        callbacks=[_Follow(**follow)],
        return_dict=True,
        verbose=0,
    )
    return {name: float(value) for name, value in metrics.items()}


def trial_step(learner: Learner, batches: Batches, evaluation: Evaluation) -> None:
    """Makes a training step and an evaluation step, which change all variables."""
    fit(learner, batches, Schedule(replicas.optimizer_step(learner) + 1))
    evaluate(learner, evaluation)


class KerasEngine:
    """Keras's steps and evaluations; see `training.run.Engine`."""

    errors = (tf.errors.OpError,)

    def __init__(self, learner: Learner):
        self.learner = learner
        self.is_alone = not replicas.is_multi_worker(learner.distribute_strategy)
        self.request = learner.request

    @property
    def step(self) -> int:
        return replicas.optimizer_step(self.learner)

    def state(self) -> dict[str, keras.Variable]:
        return training_state.named_variables(self.learner, self.learner.optimizer)

    def make_steps(
        self, stream: Stream, schedule: Schedule, **follow: Callable
    ) -> None:
        self.learner.make_steps(stream, schedule, callbacks=[_Follow(**follow)])

    def evaluate(self, evaluation: Evaluation, **follow: Callable[[bool], None]):
        return evaluate(self.learner, evaluation, **follow)

    def differing(self, values: Mapping[str, Any]) -> list[str]:
        return replicas.differing(self.learner.distribute_strategy, values)

    def checksums(self, state: Mapping[str, keras.Variable]) -> dict[str, list[int]]:
        return replicas.checksums(self.learner.distribute_strategy, state)

    def wait_for_all(self) -> None:
        replicas.wait_for_all(self.learner.distribute_strategy)
