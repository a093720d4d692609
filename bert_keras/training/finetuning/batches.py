"""Batches of labelled examples held in memory."""

import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from bert_keras.core.settings import finetuning
from bert_keras.data import features
from bert_keras.labelled import dataset, packed_batches, shapes
from bert_keras.training.pretraining import record_parsing
from bert_keras.training.step import replicas


def padded_length_for(
    settings: finetuning.FinetuningConfig, num_replicas: int
) -> Callable[[int], int] | None:
    """Returns `padded_length` of `example_batches`, for all replicas."""
    if settings.lengths:
        return shapes.ladder_length(settings.lengths)
    if num_replicas > 1 and settings.length_multiple == 1:
        # The same on all replicas, because dropout depends on it.
        return int
    return shapes.multiple_length(settings.length_multiple, settings.max_seq_length)


def packer_for(
    settings: finetuning.FinetuningConfig, num_replicas: int
) -> packed_batches.Packer | None:
    """Returns `packer` of `example_batches`. With fixed `lengths` rows have the last of
    them alone, and batches few different numbers of rows."""
    if not settings.pack_examples:
        return None
    lengths = packed_batches.row_lengths(settings.max_seq_length)
    if not settings.lengths:
        return packed_batches.Packer(lengths=lengths, num_replicas=num_replicas)
    multiple = packed_batches.fixed_multiple(
        settings.batch_size, num_replicas, settings.gradient_accumulation_steps
    )
    return packed_batches.Packer(
        lengths=lengths[-1:], num_replicas=num_replicas, row_multiple=multiple
    )


def example_batches(
    lengths: np.ndarray,
    make_batch: Callable[[np.ndarray], dict[str, np.ndarray]],
    *,
    batch_size: int,
    by_length: bool,
    seed: int,
    start_step: int = 0,
    padded_length: Callable[[int], int] | None = None,
    share: shapes.ReplicaShare | None = None,
    packer: packed_batches.Packer | None = None,
    redraw: Callable[[int], dataset.Inputs] | None = None,
) -> tf.data.Dataset:
    """Returns endless batches of the rows of a data set.

    `features.DROPOUT_SEEDS`, `(rows,)` int32, of (seed, epoch, row), are added to each
    batch, and with a `share` also `features.EXAMPLE_WEIGHTS` and
    `features.BATCH_LENGTHS`. Seeds of packed batches have the shape of their weights.

    Args:
        lengths: `(num_examples,)` tokens.
        batch_size: rows of a batch; the last batch of an epoch may have fewer.
        by_length: see `epoch_batches`.
        seed: for the order; batch N, from `start_step` on, is a function of (seed, N).
        padded_length: from a batch's longest example to its tokens; `None`: no padding.
        share: the rows of each batch (with a packer, of the packed rows) that each
            replica gets as an element; `None`: one element has all rows.
        redraw: `RedrawnInputs.of_epoch`; `None`: epochs have the same inputs.
    """
    parts_with = functools.partial(
        _parts_of, lengths, padded_length=padded_length, share=share, packer=packer
    )
    signature = {
        name: tf.TensorSpec([None] * array.ndim, array.dtype)
        for name, array in next(parts_with(make_batch)(np.arange(1))).items()
    }
    signature["epoch"] = tf.TensorSpec([], tf.int64)

    first_epoch, num_done = divmod(start_step, -(-len(lengths) // batch_size))

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for epoch in itertools.count(first_epoch):
            of_epoch = epoch_batches(
                lengths,
                batch_size=batch_size,
                by_length=by_length,
                seed=seed,
                epoch=epoch,
            )
            parts_of = parts_with(redraw(epoch).batch if redraw else make_batch)
            for rows in of_epoch[num_done if epoch == first_epoch else 0 :]:
                for batch in parts_of(rows):
                    yield {**batch, "epoch": np.array(epoch)}

    def with_seeds(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        seeds = record_parsing.dropout_seeds(
            seed, batch.pop("epoch"), batch.pop(packed_batches.ROW_NUMBERS)
        )
        return batch | {features.DROPOUT_SEEDS: seeds}

    # With unknown dimensions the training step is traced once, not for every length.
    batched = tf.data.Dataset.from_generator(batches, output_signature=signature)
    # Else a strategy asks before each batch whether all replicas have one.
    endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    batched = batched.map(with_seeds).apply(endless)
    return replicas.without_autotune(batched.prefetch(tf.data.AUTOTUNE))


def _parts_of(
    lengths: np.ndarray,
    make_batch: Callable[[np.ndarray], dict[str, np.ndarray]],
    *,
    padded_length: Callable[[int], int] | None,
    share: shapes.ReplicaShare | None,
    packer: packed_batches.Packer | None,
) -> Callable[[np.ndarray], Iterator[dict[str, np.ndarray]]]:
    def parts_of(rows: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
        longest = int(lengths[rows].max())
        parts = [(rows, None)] if share is None else share.rows(rows)
        for part, weights in parts:
            batch = make_batch(part)
            if padded_length is not None:
                batch = shapes.padded(batch, padded_length(longest))
            if weights is not None:
                own = batch.get(features.EXAMPLE_WEIGHTS, np.float32(1))
                batch[features.EXAMPLE_WEIGHTS] = weights * own
                batch[features.BATCH_LENGTHS] = np.full(len(part), longest, np.int32)
            yield {**batch, packed_batches.ROW_NUMBERS: part}

    if packer is None:
        return parts_of

    def packed_parts_of(rows: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
        batch = packer.batch(make_batch, rows, lengths[rows])
        return iter([batch]) if share is None else share.cut(batch)

    return packed_parts_of


def batch_spec(
    make_batch: Callable[[np.ndarray], dict[str, np.ndarray]],
    *,
    num_rows: int,
    length: int,
) -> dict[str, tf.TensorSpec]:
    """Returns the specs of a replica's batch of fixed shapes, by name."""
    arrays = make_batch(np.arange(1))
    mask_shape = arrays["input_mask"].shape

    def shape(array: np.ndarray) -> tuple[int, ...]:
        more = array.shape[len(mask_shape) :]
        if array.shape[: len(mask_shape)] == mask_shape:
            return (num_rows, *mask_shape[1:-1], length, *more)
        return (num_rows, *array.shape[1:])

    spec = {name: tf.TensorSpec(shape(a), a.dtype) for name, a in arrays.items()}
    return spec | {
        features.DROPOUT_SEEDS: tf.TensorSpec([num_rows], tf.int32),
        features.EXAMPLE_WEIGHTS: tf.TensorSpec([num_rows], tf.float32),
        features.BATCH_LENGTHS: tf.TensorSpec([num_rows], tf.int32),
    }


def specs_of_steps(
    lengths: np.ndarray,
    make_batch: Callable[[np.ndarray], dict[str, np.ndarray]],
    *,
    batch_size: int,
    by_length: bool,
    seed: int,
    padded_length: Callable[[int], int],
    num_rows: int,
    packer: packed_batches.Packer | None = None,
) -> Callable[[int], dict[str, tf.TensorSpec]]:
    """Returns a function from a batch's number, from 0, to a replica's specs."""
    num_batches = -(-len(lengths) // batch_size)
    order = {"batch_size": batch_size, "by_length": by_length, "seed": seed}

    # An execution may end where the next epoch begins.
    @functools.lru_cache(maxsize=2)
    def of_epoch(epoch: int) -> list[tuple[int, int]]:
        batches = epoch_batches(lengths, epoch=epoch, **order)
        if packer is None:
            longest = (int(lengths[rows].max()) for rows in batches)
            return [(num_rows, padded_length(tokens)) for tokens in longest]
        plans = (packer.plan(lengths[rows]) for rows in batches)
        return [(plan.num_rows // packer.num_replicas, plan.length) for plan in plans]

    @functools.cache
    def spec(num_rows: int, length: int) -> dict[str, tf.TensorSpec]:
        if packer is not None:
            return _packed_spec(make_batch, num_rows=num_rows, length=length)
        return batch_spec(make_batch, num_rows=num_rows, length=length)

    return lambda step: spec(*of_epoch(step // num_batches)[step % num_batches])


def _packed_spec(
    make_batch: Callable[[np.ndarray], dict[str, np.ndarray]],
    *,
    num_rows: int,
    length: int,
) -> dict[str, tf.TensorSpec]:
    packer = packed_batches.Packer(lengths=[length])
    batch = packer.batch(make_batch, np.arange(1), np.ones(1, int))
    seeds = batch.pop(packed_batches.ROW_NUMBERS)
    spec = {
        name: tf.TensorSpec([num_rows, *array.shape[1:]], array.dtype)
        for name, array in batch.items()
    }
    seeds_spec = tf.TensorSpec([num_rows, *seeds.shape[1:]], tf.int32)
    return spec | {features.DROPOUT_SEEDS: seeds_spec}


# More batches to sort among pad less; fewer leave the batches more random.
_MAX_BATCHES_SORTED_TOGETHER = 50


def epoch_batches(
    lengths: np.ndarray, *, batch_size: int, by_length: bool, seed: int, epoch: int
) -> list[np.ndarray]:
    """Returns the row numbers of each batch of an epoch; every row comes once.

    If `by_length`, the shuffled rows are cut into chunks of many batches and sorted in
    a chunk, and the batches are shuffled. Four batches or more make at least four
    chunks, so that no two epochs have the same batches.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(lengths))
    num_batches = -(-len(order) // batch_size)
    chunk_batches = 1
    if by_length:
        chunk_batches = max(1, min(_MAX_BATCHES_SORTED_TOGETHER, num_batches // 4))
    chunk_size = chunk_batches * batch_size
    batches = []
    for start in range(0, len(order), chunk_size):
        chunk = order[start : start + chunk_size]
        chunk = chunk[np.argsort(lengths[chunk], kind="stable")]
        batches += np.split(chunk, range(batch_size, len(chunk), batch_size))
    return [batches[index] for index in rng.permutation(num_batches)]
