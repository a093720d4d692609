"""Training and evaluation by a learner: the only calls of `fit` and `evaluate`."""

import math
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from bert_keras.training.step import replicas, stopping
from bert_keras.training.step.learner import Learner

Evaluation = tuple[tf.data.Dataset | tf.distribute.DistributedDataset, int]
"""Endless batches, and their number in one round."""


def fit(
    learner: Learner,
    batches: tf.data.Dataset | tf.distribute.DistributedDataset,
    *,
    last_step: int,
    steps_per_epoch: int,
    evaluation: Evaluation | None,
    run_callbacks: Sequence[keras.callbacks.Callback],
    stops_every: int | None = None,
    evaluates_after: Callable[[int], bool] = lambda step: True,
    evaluation_timer: stopping.Timer | None = None,
    is_chief: bool = True,
) -> dict[str, float]:
    """Trains until the optimizer has made `last_step` steps.

    Args:
        learner: built; its optimizer may have made steps already.
        batches: endless, from the first one to train on.
        last_step: step of the optimizer to stop at.
        steps_per_epoch: steps between two calls of `on_epoch_end`.
        evaluation: see `Evaluation`; `None`: none.
        run_callbacks: called with the logs of each execution and epoch.
        stops_every: steps after whose multiples an execution ends, as at the end of an
            epoch; `None`: at that only.
        evaluates_after: whether an epoch that ends with this step is evaluated.
        evaluation_timer: when it is due, there is an evaluation within the epoch.
        is_chief: whether this process's timer decides.

    Returns:
        Scalars of the last step and, under names that begin with `val_`, of the last
        evaluation; empty if there was nothing to do.
    """
    start_step = replicas.optimizer_step(learner)
    if start_step >= last_step:
        return {}
    first_epoch = start_step // steps_per_epoch
    num_epochs = math.ceil((last_step - start_step) / steps_per_epoch)
    evaluation_batches, validation_steps = evaluation or (None, None)

    def next_multiple(step: int, interval: int) -> int:
        return min(last_step, (step // interval + 1) * interval)

    intervals = [steps_per_epoch] + ([] if stops_every is None else [stops_every])
    learner.end_of_epoch = lambda step: next_multiple(step, steps_per_epoch)
    learner.next_stop = lambda step: min(next_multiple(step, n) for n in intervals)
    if evaluation and evaluation_timer:
        by_time = _EvaluateByTime(
            evaluation, evaluation_timer, run_callbacks, is_chief=is_chief
        )
        run_callbacks = [*run_callbacks, by_time]
    history = learner.fit(
        batches,
        steps_per_epoch=min(steps_per_epoch, last_step - start_step),
        initial_epoch=first_epoch,
        epochs=first_epoch + num_epochs,
        validation_data=evaluation_batches,
        validation_steps=validation_steps,
        validation_freq=[
            epoch
            for epoch in range(first_epoch + 1, first_epoch + num_epochs + 1)
            if evaluates_after(min(epoch * steps_per_epoch, last_step))
        ],
        callbacks=[stopping.StopAtStep(last_step), *run_callbacks],
        shuffle=False,
        verbose=0,
    )
    return {name: float(values[-1]) for name, values in history.history.items()}


class _EvaluateByTime(keras.callbacks.Callback):
    """Evaluates within an epoch when minutes have passed without an evaluation.

    With several workers the chief's clock decides, and all evaluate after the same
    step: the request travels with the gradients of the next one.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        timer: stopping.Timer,
        run_callbacks: Sequence[keras.callbacks.Callback],
        *,
        is_chief: bool,
    ):
        super().__init__()
        self._evaluation = evaluation
        self._timer = timer
        self._run_callbacks = run_callbacks
        self._is_chief = is_chief

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch
        self._end = self.model.end_of_epoch(replicas.optimizer_step(self.model))

    def on_train_batch_end(self, batch, logs=None):
        is_due = self._is_chief and self._timer.is_due
        if replicas.is_multi_worker(self.model.distribute_strategy):
            if is_due:
                self.model.request("evaluation_requested")
            is_due = float(logs["evaluation_requested"]) > 0
        # At its end an epoch may be evaluated anyway.
        if is_due and replicas.optimizer_step(self.model) < self._end:
            callbacks = keras.callbacks.CallbackList(
                [*self._run_callbacks, self], model=self.model
            )
            metrics = _evaluate(self.model, self._evaluation, callbacks)
            callbacks.on_epoch_end(self._epoch, metrics)
            callbacks.on_epoch_begin(self._epoch)

    def on_test_end(self, logs=None):
        self._timer.restart()
        if replicas.is_multi_worker(self.model.distribute_strategy):
            self.model.request("evaluation_requested", 0.0)


def _evaluate(
    learner: Learner, evaluation: Evaluation, callbacks: keras.callbacks.CallbackList
) -> dict[str, float]:
    """Metrics as Keras names them in the logs of an epoch."""
    batches, num_batches = evaluation
    metrics = learner.evaluate(
        batches, steps=num_batches, callbacks=callbacks, return_dict=True, verbose=0
    )
    return {f"val_{name}": float(value) for name, value in metrics.items()}


def evaluate(
    learner: Learner,
    evaluation: Evaluation | None,
    *,
    run_callbacks: Sequence[keras.callbacks.Callback] = (),
) -> dict[str, float]:
    """Evaluates between two calls of `fit`, as `fit` does at the end of an epoch.

    Args:
        learner: built.
        evaluation: see `Evaluation`; `None`: the callbacks evaluate.
        run_callbacks: called as at the beginning of a `fit`, in its evaluation, at the
            end of an epoch and at that of the `fit`.

    Returns:
        Metrics by name.
    """
    callbacks = keras.callbacks.CallbackList(list(run_callbacks), model=learner)
    callbacks.on_train_begin()
    metrics = {} if evaluation is None else _evaluate(learner, evaluation, callbacks)
    callbacks.on_epoch_end(0, metrics)
    callbacks.on_train_end()
    return {name.removeprefix("val_"): value for name, value in metrics.items()}


def try_out(
    learner: Learner,
    batches: tf.data.Dataset | tf.distribute.DistributedDataset,
    evaluation: Evaluation,
) -> None:
    """Makes a training step and an evaluation step, which change all variables."""
    fit(
        learner,
        batches,
        last_step=replicas.optimizer_step(learner) + 1,
        steps_per_epoch=1,
        evaluation=evaluation,
        run_callbacks=[],
    )
