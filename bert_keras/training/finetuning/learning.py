"""Training on labelled examples that memory holds: batches, and the steps on them.

Batch N is a function of (seed, N).
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from bert_keras.core.settings import finetuning, pretraining
from bert_keras.data import features, seeded_hash
from bert_keras.labelled import dataset, shapes
from bert_keras.training import run
from bert_keras.training.step import learner, optimization, replicas

Settings = finetuning.FinetuningConfig

# More batches to sort among pad less; fewer leave the batches more random.
_MAX_BATCHES_SORTED_TOGETHER = 50


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The endless training batches of a data set; an epoch has every example once."""

    inputs: dataset.Inputs
    """Inputs with their labels; those of `RedrawnInputs` differ from epoch to epoch."""
    batch_size: int
    """Examples of a batch; the last batch of an epoch may have fewer."""
    by_length: bool
    """Whether a batch has examples of about the same length."""
    seed: int
    """Seed of the order and of dropout."""
    padded_length: Callable[[int], int] | None = None
    """From a batch's longest example to its tokens; `None`: no padding."""

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        return self.inputs.lengths

    @property
    def num_per_epoch(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Returns the row numbers of each batch of an epoch.

        If `by_length`, the shuffled rows are cut into chunks of many batches and sorted
        in a chunk, and the batches are shuffled. Four batches or more make at least
        four chunks, so that no two epochs have the same batches.
        """
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.lengths))
        chunk_batches = 1
        if self.by_length:
            most = min(_MAX_BATCHES_SORTED_TOGETHER, self.num_per_epoch // 4)
            chunk_batches = max(1, most)
        chunk_size = chunk_batches * self.batch_size
        batches = []
        for start in range(0, len(order), chunk_size):
            chunk = order[start : start + chunk_size]
            chunk = chunk[np.argsort(self.lengths[chunk], kind="stable")]
            ends = range(self.batch_size, len(chunk), self.batch_size)
            batches += np.split(chunk, ends)
        return [batches[index] for index in rng.permutation(self.num_per_epoch)]

    def stream(
        self, *, start_step: int = 0, share: shapes.ReplicaShare | None = None
    ) -> tf.data.Dataset:
        """Returns the batches from `start_step` on, each with `features.DROPOUT_SEEDS`,
        `(rows,)` int32, of (seed, epoch, row).

        With a `share`, each element has the rows of one replica, and also
        `features.EXAMPLE_WEIGHTS` and `features.BATCH_LENGTHS`.
        """
        first_epoch, num_done = divmod(start_step, self.num_per_epoch)

        def elements() -> Iterator[dict[str, np.ndarray]]:
            for epoch in itertools.count(first_epoch):
                inputs = self.inputs
                if isinstance(inputs, dataset.RedrawnInputs):
                    inputs = inputs.of_epoch(epoch)
                skipped = num_done if epoch == first_epoch else 0
                for rows in self.epoch(epoch)[skipped:]:
                    yield from self._elements(inputs, epoch, rows, share)

        # With unknown dimensions the training step is traced once, not for every
        # length.
        one = next(self._elements(self.inputs, 0, np.arange(1), share))
        signature = {
            name: tf.TensorSpec([None] * array.ndim, array.dtype)
            for name, array in one.items()
        }
        batches = tf.data.Dataset.from_generator(elements, output_signature=signature)
        # Without a known cardinality, a strategy asks before each batch whether all
        # replicas have one.
        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        batches = batches.apply(endless).prefetch(tf.data.AUTOTUNE)
        return replicas.without_autotune(batches)

    def _elements(
        self,
        inputs: dataset.Inputs,
        epoch: int,
        rows: np.ndarray,
        share: shapes.ReplicaShare | None,
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields one batch, whole or in the parts of a share."""
        longest = int(self.lengths[rows].max())
        for part, weights in [(rows, None)] if share is None else share.rows(rows):
            batch = inputs.batch(part)
            if self.padded_length is not None:
                batch = shapes.padded(batch, self.padded_length(longest))
            if weights is not None:
                # Rows that fill up the share have weight 0, whatever their class's is.
                own = batch.get(features.EXAMPLE_WEIGHTS, np.float32(1))
                batch[features.EXAMPLE_WEIGHTS] = weights * own
                # A part has the answers to choose among that the whole batch has.
                batch[features.BATCH_LENGTHS] = np.full(len(part), longest, np.int32)
            # As `record_parsing.dropout_seeds`, without TensorFlow.
            seeds = seeded_hash.record_seeds(
                self.seed ^ seeded_hash.DROPOUT_SALT, np.full_like(part, epoch), part
            )
            seeds = seeds.astype(np.uint32).view(np.int32)
            yield {**batch, features.DROPOUT_SEEDS: seeds}

    def specs_of_steps(
        self, num_rows: int
    ) -> Callable[[int], dict[str, tf.TensorSpec]]:
        """Returns a function from a batch's number, from 0, to the specs of a replica's
        part, of `num_rows`."""
        padded_length = self.padded_length or int

        # An execution may end where the next epoch begins.
        @functools.lru_cache(maxsize=2)
        def longest(epoch: int) -> list[int]:
            return [int(self.lengths[rows].max()) for rows in self.epoch(epoch)]

        @functools.cache
        def spec(length: int) -> dict[str, tf.TensorSpec]:
            return self.spec(num_rows=num_rows, length=length)

        def spec_of_step(step: int) -> dict[str, tf.TensorSpec]:
            epoch, number = divmod(step, self.num_per_epoch)
            return spec(padded_length(longest(epoch)[number]))

        return spec_of_step

    def spec(self, *, num_rows: int, length: int) -> dict[str, tf.TensorSpec]:
        """Returns the specs of a replica's batch of a fixed shape, by name."""
        # The shortest example: it can be padded to the length of any batch.
        shortest = self.inputs.batch(np.array([self.lengths.argmin()]))
        spec = {
            name: tf.TensorSpec((num_rows, *array.shape[1:]), array.dtype)
            for name, array in shapes.padded(shortest, length).items()
        }
        return spec | {
            features.DROPOUT_SEEDS: tf.TensorSpec([num_rows], tf.int32),
            features.EXAMPLE_WEIGHTS: tf.TensorSpec([num_rows], tf.float32),
            features.BATCH_LENGTHS: tf.TensorSpec([num_rows], tf.int32),
        }


def training_batches(
    settings: Settings, inputs: dataset.Inputs, *, by_length: bool, num_replicas: int
) -> Batches:
    """Returns the batches of a training on the replicas of all processes."""
    if settings.lengths:
        padded_length = shapes.ladder_length(settings.lengths)
    elif num_replicas > 1 and settings.length_multiple == 1:
        # The same on all replicas, because dropout depends on it.
        padded_length = int
    else:
        padded_length = shapes.multiple_length(
            settings.length_multiple, settings.max_seq_length
        )
    return Batches(
        inputs=inputs,
        batch_size=settings.batch_size,
        by_length=by_length,
        seed=settings.seed,
        padded_length=padded_length,
    )


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
    enter: Callable[[run.Loop], Sequence[run.Watcher]] = lambda loop: (),
) -> run.Stretch:
    """Builds the steps of a whole training; its seed is for order and dropout."""
    strategy = tuner.distribute_strategy
    total, num_parts = strategy.num_replicas_in_sync, tuner.num_parts
    # Equally many rows for each part of each replica.
    num_rows = -(-settings.batch_size // (total * num_parts)) * num_parts
    endless = training_batches(
        settings, inputs, by_length=by_length, num_replicas=total
    )
    spec_of_step = endless.specs_of_steps(num_rows) if settings.lengths else None
    is_cut = bool(settings.lengths) or total > 1

    def stream_from(step: int) -> replicas.Stream:
        def of_process(index: int, num_processes: int, num_replicas: int):
            share = shapes.ReplicaShare(
                num_rows=num_rows,
                num_replicas=total,
                begin=index * num_replicas,
                end=(index + 1) * num_replicas,
            )
            return endless.stream(start_step=step, share=share if is_cut else None)

        data = replicas.distribute(strategy, of_process)
        return replicas.Stream(data, spec_of_step)

    return run.Stretch(
        last_step=num_steps(settings, len(inputs.lengths))[1],
        enter=enter,
        stream_from=stream_from,
    )
