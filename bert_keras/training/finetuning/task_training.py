"""Training on labelled examples that memory holds: steps, batches and curves."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from bert_keras.core import files
from bert_keras.core.settings import config
from bert_keras.labelled import dataset, shapes
from bert_keras.training.finetuning import keeping, task_batches
from bert_keras.training.step import fitting, learner, optimization, replicas, stopping
from bert_keras.training.tensorboard import curves, progress_line


class Settings(Protocol):
    """Training on labelled examples that memory holds: part of a configuration."""

    batch_size: int
    num_train_epochs: float
    learning_rate: float
    warmup_proportion: float
    weight_decay_rate: float
    max_skipped_steps: int
    precision: config.Precision


def num_steps(settings: Settings, num_inputs: int) -> tuple[int, int]:
    """Updates of an epoch and of the whole run."""
    steps_per_epoch = -(-num_inputs // settings.batch_size)
    total = max(1, round(settings.num_train_epochs * steps_per_epoch))
    return min(steps_per_epoch, total), total


def build_learner(
    settings: Settings,
    make_network: Callable[[], keras.Model],
    inputs: dataset.Inputs,
    *,
    strategy: tf.distribute.Strategy,
    optimizer_settings: Mapping[str, Any] = MappingProxyType({}),
    steps_per_execution: int | None = None,
    **options: Any,
) -> learner.Learner:
    """Builds a learner that trains a network on labelled examples.

    Args:
        settings: how it is trained.
        make_network: makes the network.
        inputs: of all examples, with labels.
        strategy: to train under.
        optimizer_settings: other fields of `config.OptimizerConfig`.
        steps_per_execution: at most, all of one shape; `None`: as suits the devices.
        **options: see `learner.Learner`.
    """
    _, num_train_steps = num_steps(settings, len(inputs.lengths))
    optimizer = config.OptimizerConfig(
        learning_rate=settings.learning_rate,
        warmup_steps=int(settings.warmup_proportion * num_train_steps),
        weight_decay_rate=settings.weight_decay_rate,
        **optimizer_settings,
    )
    return learner.build_learner(
        make_network,
        {k: tf.constant(v) for k, v in inputs.batch(np.arange(1)).items()},
        optimizer=lambda: optimization.build_optimizer(
            optimizer, num_train_steps=num_train_steps
        ),
        max_grad_norm=optimizer.max_grad_norm,
        strategy=strategy,
        steps_per_execution=steps_per_execution
        or replicas.steps_per_execution(strategy),
        scales_loss=settings.precision == "mixed_float16",
        **options,
    )


def fit(
    tuner: learner.Learner,
    settings: Settings,
    inputs: dataset.Inputs,
    *,
    by_length: bool,
    seed: int,
    logs: Path,
    batch_shapes: task_batches.BatchShapes = task_batches.AS_THEY_COME,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    steps_per_evaluation: int | None = None,
    save_steps: int | None = None,
    keeper: keeping.Keeper | None = None,
    is_chief: bool = True,
) -> dict[str, float]:
    """Trains from the step reached, for the epochs that the settings say.

    Args:
        tuner: from `build_learner`, of the same settings and inputs.
        settings: how it is trained.
        inputs: of all examples, with labels.
        by_length: see `task_batches.epoch_batches`.
        seed: of the order of examples, and of dropout.
        logs: directory of the curves; those of steps to come are deleted.
        batch_shapes: what the batches are padded to.
        callbacks: called before the curves are written.
        steps_per_evaluation: steps between two ends of a Keras epoch; `None`: those of
            an epoch of the examples.
        save_steps: steps between checkpoints, at which an execution ends.
        keeper: called last; it may end the training.
        is_chief: whether this process, of several that train together, writes curves
            and says how far it is.

    Returns:
        The scalars of the last step; empty if none was left.

    Raises:
        InputError: the loss or gradients do not stay finite.
    """
    steps_per_epoch, num_train_steps = num_steps(settings, len(inputs.lengths))
    interval = steps_per_evaluation or steps_per_epoch
    batch_size = settings.batch_size
    run_curves = curves.Curves(logs, batch_size=batch_size)
    line = progress_line.ProgressLine(
        num_train_steps=num_train_steps,
        batch_size=batch_size,
        start_line=tuner.describe(batch_size),
    )
    if not (step := replicas.optimizer_step(tuner)) and is_chief:
        files.delete_tree(logs)
    if keeper and keeper.owes_evaluation:
        again = curves.Curves(logs, batch_size=batch_size, repeats_evaluation=True)
        shown = [again, line] if is_chief else []
        fitting.evaluate(tuner, None, run_callbacks=[*callbacks, *shown, keeper])
    order = {"batch_size": batch_size, "by_length": by_length, "seed": seed}
    batches_from = _batches(tuner, inputs, batch_shapes, order)
    run_callbacks = [
        *callbacks,
        *([run_curves, line] if is_chief else []),
        _stop_on_skips(settings, num_train_steps),
        *([keeper] if keeper else []),
    ]
    while step < num_train_steps and not (keeper and keeper.is_over):
        # A call that starts between two evaluations goes to the next one only.
        rest = -step % interval or num_train_steps
        fitting.fit(
            tuner,
            batches_from(step),
            last_step=min(num_train_steps, step + rest),
            steps_per_epoch=min(interval, num_train_steps),
            stops_every=save_steps,
            evaluation=None,
            run_callbacks=run_callbacks,
        )
        step = replicas.optimizer_step(tuner)
    return run_curves.last_step_logs


def _stop_on_skips(settings: Settings, num_train_steps: int) -> stopping.StopOnSkips:
    return stopping.StopOnSkips(
        # A short run must not end well without a single update.
        min(settings.max_skipped_steps, num_train_steps - 1),
        lambda first, last: ": lower `learning_rate`, or take another checkpoint",
    )


def _batches(
    tuner: learner.Learner,
    inputs: dataset.Inputs,
    batch_shapes: task_batches.BatchShapes,
    order: Mapping[str, Any],
) -> Callable[[int], tf.data.Dataset | tf.distribute.DistributedDataset]:
    """From a step to the batches from there on, for all replicas of this process.

    Args:
        tuner: whose strategy has the replicas; it is told the shapes if they are fixed.
        inputs: of all examples.
        batch_shapes: see `fit`.
        order: `batch_size`, `by_length` and `seed` of `task_batches.example_batches`.
    """
    strategy = tuner.distribute_strategy
    total = strategy.num_replicas_in_sync
    sizes = order["batch_size"], total, tuner.num_parts
    num_rows = task_batches.rows_of_replica(*sizes)
    how = {
        **order,
        "padded_length": batch_shapes.length_of(total),
        "packer": batch_shapes.packer(*sizes),
    }
    if batch_shapes.ladder:
        tuner.spec_of_step = task_batches.specs_of_steps(
            inputs.lengths, inputs.batch, **how, num_rows=num_rows
        )
    is_cut = bool(batch_shapes.ladder) or total > 1

    def make(step: int):
        def of_process(index, num_processes, num_replicas):
            share = shapes.Share(
                num_rows=num_rows,
                num_replicas=total,
                begin=index * num_replicas,
                end=(index + 1) * num_replicas,
            )
            return task_batches.example_batches(
                *(inputs.lengths, inputs.batch),
                **how,
                start_step=step,
                share=share if is_cut else None,
            )

        return replicas.distribute(strategy, of_process)

    return make
