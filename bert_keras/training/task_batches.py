"""Batches of labelled examples held in memory."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from bert_keras.data import features
from bert_keras.training import record_parsing, replicas


def example_batches(
    lengths: np.ndarray,
    make_batch: Callable[[np.ndarray], dict[str, np.ndarray]],
    *,
    batch_size: int,
    by_length: bool,
    seed: int,
    start_step: int = 0,
) -> tf.data.Dataset:
    """Endless batches of the rows of a data set.

    `features.DROPOUT_SEEDS`, `(rows,)` int32, of (seed, epoch, row), are added to the
    arrays of each batch.

    Args:
        lengths: `(num_examples,)` tokens of each example.
        make_batch: makes the arrays of a batch from the numbers of its rows.
        batch_size: rows of a batch; the last of an epoch may have fewer.
        by_length: see `epoch_batches`.
        seed: for the order; batch N is a function of (seed, N).
        start_step: number of the first batch, from 0.
    """
    signature = {
        name: tf.TensorSpec([None] * array.ndim, array.dtype)
        for name, array in make_batch(np.arange(1)).items()
    }
    signature["epoch"] = tf.TensorSpec([], tf.int64)
    signature["row_numbers"] = tf.TensorSpec([None], tf.int64)

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
            for rows in of_epoch[num_done if epoch == first_epoch else 0 :]:
                yield {**make_batch(rows), "epoch": epoch, "row_numbers": rows}

    def with_seeds(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        seeds = record_parsing.dropout_seeds(
            seed, batch.pop("epoch"), batch.pop("row_numbers")
        )
        return batch | {features.DROPOUT_SEEDS: seeds}

    # With unknown dimensions the training step is traced once, not for every length.
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return replicas.untuned(dataset.map(with_seeds).prefetch(tf.data.AUTOTUNE))


def padded(
    make_batch: Callable[[np.ndarray], dict[str, np.ndarray]],
    *,
    multiple: int,
    max_length: int,
) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """The same batches with more padding.

    Args:
        make_batch: as for `example_batches`; arrays of the shape of `input_ids` have a
            value for each token.
        multiple: of which the number of tokens becomes one.
        max_length: up to which it is raised.
    """

    def make_padded(rows: np.ndarray) -> dict[str, np.ndarray]:
        batch = make_batch(rows)
        *axes, length = shape = batch["input_ids"].shape
        more = min(-length % multiple, max(0, max_length - length))
        widths = [*((0, 0) for _ in axes), (0, more)]
        return {
            # Below 0: a label that does not count.
            name: np.pad(array, widths, constant_values=-(name == "label_ids"))
            if array.shape == shape
            else array
            for name, array in batch.items()
        }

    return make_batch if multiple == 1 else make_padded


# More batches to sort among pad less; fewer leave the batches more random.
_MAX_BATCHES_SORTED_TOGETHER = 50


def epoch_batches(
    lengths: np.ndarray, *, batch_size: int, by_length: bool, seed: int, epoch: int
) -> list[np.ndarray]:
    """Row numbers of each batch of an epoch; every row comes once.

    The rows are shuffled and cut into batches. If `by_length`, they are cut into chunks
    of many batches, sorted by length within a chunk, and the batches shuffled; there
    are at least four chunks if there are four batches, so that no two epochs have the
    same batches.
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
