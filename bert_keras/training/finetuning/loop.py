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
from bert_keras.training import run
from bert_keras.training.finetuning import batches
from bert_keras.training.step import (
    fit,
    learner,
    optimization,
    replicas,
    stopping,
    watcher,
)
from bert_keras.training.tensorboard import curves, progress_line


class Settings(Protocol):
    batch_size: int
    num_train_epochs: float
    learning_rate: float
    warmup_proportion: float
    weight_decay_rate: float
    max_skipped_steps: int
    precision: config.Precision


def num_steps(settings: Settings, num_inputs: int) -> tuple[int, int]:
    """Returns the updates of an epoch and of the whole run."""
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
    """Builds a learner for labelled `inputs`; steps of an execution have one shape."""
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


def build_stretch(
    tuner: learner.Learner,
    settings: Settings,
    inputs: dataset.Inputs,
    *,
    by_length: bool,
    seed: int,
    watch: Callable[[run.Loop], Sequence[watcher.Watcher]] = lambda loop: (),
    batch_shapes: batches.BatchShapes = batches.DYNAMIC_SHAPES,
) -> run.Stretch:
    """Builds the steps of a whole training; `seed` is for order and dropout."""
    strategy = tuner.distribute_strategy
    total = strategy.num_replicas_in_sync
    sizes = settings.batch_size, total, tuner.num_parts
    num_rows = batches.rows_of_replica(*sizes)
    how = {
        "batch_size": settings.batch_size,
        "by_length": by_length,
        "seed": seed,
        "padded_length": batch_shapes.length_of(total),
        "packer": batch_shapes.packer(*sizes),
    }
    spec_of_step = None
    if batch_shapes.ladder:
        spec_of_step = batches.specs_of_steps(
            inputs.lengths, inputs.batch, **how, num_rows=num_rows
        )
    is_cut = bool(batch_shapes.ladder) or total > 1
    redraw = inputs.of_epoch if isinstance(inputs, dataset.RedrawnInputs) else None

    def stream_from(step: int) -> replicas.Stream:
        def of_process(index: int, num_processes: int, num_replicas: int):
            share = shapes.ReplicaShare(
                num_rows=num_rows,
                num_replicas=total,
                begin=index * num_replicas,
                end=(index + 1) * num_replicas,
            )
            return batches.example_batches(
                inputs.lengths,
                inputs.batch,
                **how,
                start_step=step,
                share=share if is_cut else None,
                redraw=redraw,
            )

        return replicas.Stream(replicas.distribute(strategy, of_process))

    _, num_train_steps = num_steps(settings, len(inputs.lengths))
    return run.Stretch(
        last_step=num_train_steps,
        watch=watch,
        stream_from=stream_from,
        schedule_to=lambda step: replicas.Schedule(step, spec_of_step),
    )


def open_watchers(
    tuner: learner.Learner,
    settings: Settings,
    *,
    num_train_steps: int,
    logs: Path,
    repeats_evaluation: bool = False,
    is_chief: bool = True,
) -> list[watcher.Watcher]:
    limit = stopping.SkipLimit(
        tuner,
        # A short run must not end well without a single update.
        min(settings.max_skipped_steps, num_train_steps - 1),
        lambda first, last: ": lower `learning_rate`, or take another checkpoint",
    )
    if not is_chief:
        return [limit]
    batch_size = settings.batch_size
    return [
        curves.Curves(
            logs,
            replicas.optimizer_step(tuner),
            batch_size=batch_size,
            repeats_evaluation=repeats_evaluation,
        ),
        progress_line.ProgressLine(
            num_train_steps=num_train_steps,
            batch_size=batch_size,
            start_line=tuner.describe(batch_size),
        ),
        limit,
    ]


def train(
    tuner: learner.Learner, settings: Settings, stretch: run.Stretch, *, logs: Path
) -> dict[str, float]:
    """Trains to the last step; returns its scalars. Deletes older curves in `logs`."""
    files.delete_tree(logs)
    last_step = stretch.last_step
    watchers = open_watchers(tuner, settings, num_train_steps=last_step, logs=logs)

    def after(step: int, scalars: dict[str, float]) -> bool:
        for each in watchers:
            each.after_steps(step, scalars)
        return False

    scalars = fit.fit(
        tuner, stretch.stream_from(0), stretch.schedule_to(last_step), after=after
    )
    for each in watchers:
        each.close()
    return scalars
