"""Training on labelled examples that memory holds: steps, batches and curves."""

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from bert_keras.core.settings import finetuning, pretraining
from bert_keras.labelled import dataset, shapes
from bert_keras.training import run
from bert_keras.training.finetuning import batches
from bert_keras.training.step import (
    learner,
    optimization,
    replicas,
    watcher,
)

Settings = finetuning.FinetuningConfig


def num_steps(settings: Settings, num_inputs: int) -> tuple[int, int]:
    """Returns the updates of an epoch and of the whole run."""
    steps_per_epoch = -(-num_inputs // settings.batch_size)
    total = max(1, round(settings.num_train_epochs * steps_per_epoch))
    return min(steps_per_epoch, total), total


def build_learner(
    settings: Settings,
    make_network: Callable[[], keras.Model],
    inputs: dataset.Inputs,
    strategy: tf.distribute.Strategy,
) -> learner.Learner:
    """Builds a learner from settings that `run.resolved` returned.

    The loss can read `inputs`; all steps of an execution have one shape.
    """
    keras.utils.set_random_seed(settings.seed)
    _, num_train_steps = num_steps(settings, len(inputs.lengths))
    optimizer = pretraining.OptimizerConfig(
        learning_rate=settings.learning_rate,
        warmup_steps=int(settings.warmup_proportion * num_train_steps),
        weight_decay_rate=settings.weight_decay_rate,
        adamw_mode=settings.decided_adamw_mode,
    )
    return learner.build_learner(
        make_network,
        {k: tf.constant(v) for k, v in inputs.batch(np.arange(1)).items()},
        optimizer=lambda: optimization.build_optimizer(
            optimizer, num_train_steps=num_train_steps
        ),
        max_grad_norm=settings.max_grad_norm,
        strategy=strategy,
        steps_per_execution=settings.steps_per_execution,
        num_parts=settings.gradient_accumulation_steps,
        recompute=settings.recompute,
        compile_step=settings.jit_compile,
        scales_loss=settings.precision == "mixed_float16",
    )


def build_stretch(
    tuner: learner.Learner,
    settings: Settings,
    inputs: dataset.Inputs,
    *,
    by_length: bool,
    enter: Callable[[run.Loop], Sequence[watcher.Watcher]] = lambda loop: (),
) -> run.Stretch:
    """Builds the steps of a whole training; its seed is for order and dropout."""
    strategy = tuner.distribute_strategy
    total, num_parts = strategy.num_replicas_in_sync, tuner.num_parts
    # Equally many rows for each part of each replica.
    num_rows = -(-settings.batch_size // (total * num_parts)) * num_parts
    endless = batches.training_batches(
        settings, inputs, by_length=by_length, num_replicas=total
    )
    has_fixed_shapes = bool(settings.lengths)
    spec_of_step = endless.specs_of_steps(num_rows) if has_fixed_shapes else None
    is_cut = has_fixed_shapes or total > 1

    def stream_from(step: int) -> replicas.Stream:
        def of_process(index: int, num_processes: int, num_replicas: int):
            share = shapes.ReplicaShare(
                num_rows=num_rows,
                num_replicas=total,
                begin=index * num_replicas,
                end=(index + 1) * num_replicas,
            )
            return endless.stream(start_step=step, share=share if is_cut else None)

        return replicas.Stream(replicas.distribute(strategy, of_process))

    return run.Stretch(
        last_step=num_steps(settings, len(inputs.lengths))[1],
        enter=enter,
        stream_from=stream_from,
        schedule_to=lambda step: replicas.Schedule(step, spec_of_step),
    )
