"""Examples become batches: `tf.data` pipelines over TFRecord shards and over texts."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert_keras import features, manifest
from bert_keras.errors import InputError


def feature_spec(
    wanted: Sequence[features.Feature],
) -> dict[str, tf.io.FixedLenFeature]:
    """How `tf.io.parse_example` reads these features."""
    return {
        feature.name: tf.io.FixedLenFeature([feature.length], feature.dtype)
        for feature in wanted
    }


def split_shards(
    names: Sequence[str], num_eval_shards: int | None
) -> tuple[list[str], list[str]]:
    """Keeps the last shards for evaluation.

    A shard is a bucket of documents, and random next sentences come from within it,
    so what is evaluated on shares no document with what is trained on.

    Args:
        names: of all shards, in order.
        num_eval_shards: how many to keep; `None`: one in fifty, at least one if
            there are two.

    Returns:
        The names to train on and those to evaluate on.
    """
    if num_eval_shards is None:
        num_eval_shards = max(1, len(names) // 50) if len(names) > 1 else 0
    if num_eval_shards >= len(names):
        raise InputError(
            f"`num_eval_shards` is {num_eval_shards}, but the examples have only "
            f"{len(names)} shards, and one must be left to train on: lower it, or make "
            "the examples with a larger --num_shards"
        )
    split = len(names) - num_eval_shards
    return list(names[:split]), list(names[split:])


def training_batches(
    paths: Sequence[Path],
    wanted: Sequence[features.Feature],
    *,
    batch_size: int,
    vocab_size: int,
    shuffle_buffer_size: int,
    seed: int,
    start_step: int = 0,
) -> tf.data.Dataset:
    """Endless shuffled batches; the same for the same seed and shards.

    Shards are read in another order in every epoch, several at a time, and records
    are shuffled in a buffer. Batch N is the same whether or not the batches before
    it were drawn: a resumed run passes its step as `start_step`.

    Returns:
        Batches `{name: (batch_size, length)}`, integers as int32.
    """
    names = tf.constant([str(path) for path in paths])

    def shuffled_names(epoch: tf.Tensor) -> tf.data.Dataset:
        order = tf.random.experimental.stateless_shuffle(names, seed=[seed, epoch])
        return tf.data.Dataset.from_tensor_slices(order)

    epochs = tf.data.Dataset.counter(dtype=tf.int64)
    records = epochs.flat_map(shuffled_names).interleave(
        _records,
        cycle_length=min(8, len(paths)),
        block_length=32,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    records = records.shuffle(
        shuffle_buffer_size, seed=seed, reshuffle_each_iteration=False
    )
    batches = records.batch(batch_size, drop_remainder=True).skip(start_step)
    return _parsed(batches, wanted, vocab_size=vocab_size)


def evaluation_batches(
    paths: Sequence[Path],
    wanted: Sequence[features.Feature],
    *,
    num_records: int,
    batch_size: int,
    vocab_size: int,
    num_batches: int,
) -> tuple[tf.data.Dataset, int]:
    """The first `num_batches` batches of the shards, in order, over and over.

    Endless, because Keras takes a phantom step when data ends unforeseen, and a
    strategy forgets a cardinality that was stated.

    Returns:
        The batches, and how many of them are one round, in which no record comes
        twice.
    """
    records = tf.data.Dataset.from_tensor_slices([str(path) for path in paths])
    batches = records.flat_map(_records).batch(batch_size)
    num_batches = min(num_batches, -(-num_records // batch_size))
    batches = batches.take(num_batches).repeat()
    return _parsed(batches, wanted, vocab_size=vocab_size), num_batches


def check_lengths(path: Path, wanted: Sequence[features.Feature]) -> None:
    """Checks on its first record that a shard holds the features it should.

    Raises:
        InputError: a feature is missing or of another length than the manifest says.
    """
    for record in _records(tf.constant(str(path))).take(1):
        example = tf.train.Example.FromString(record.numpy())
        for feature in wanted:
            stored = example.features.feature.get(feature.name)
            if stored is None:
                raise InputError(f"{path}: its records have no feature {feature.name}")
            found = len(stored.int64_list.value) + len(stored.float_list.value)
            if found != feature.length:
                raise InputError(
                    f"{path}: its records hold {found} {feature.name}, "
                    f"{manifest.MANIFEST_NAME} says {feature.length}: make the "
                    "examples again with the max_seq_length and "
                    "max_predictions_per_seq you want"
                )


def _records(path: tf.Tensor) -> tf.data.Dataset:
    is_compressed = tf.strings.regex_full_match(path, r".*\.gz")
    compression = tf.where(is_compressed, "GZIP", "")
    return tf.data.TFRecordDataset(path, compression_type=compression)


def _parsed(
    batches: tf.data.Dataset,
    wanted: Sequence[features.Feature],
    *,
    vocab_size: int,
) -> tf.data.Dataset:
    spec = feature_spec(wanted)

    def parse(records: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = tf.io.parse_example(records, spec)
        for name in ("input_ids", "masked_lm_ids"):
            # A GPU reads row 0 for an id past the table and says nothing.
            tf.debugging.assert_less(
                parsed[name],
                tf.constant(vocab_size, tf.int64),
                message=f"{name} beyond the vocabulary of {vocab_size}",
            )
        return {
            name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
            for name, value in parsed.items()
        }

    return batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(
        tf.data.AUTOTUNE
    )


def bucketed_batches(
    lengths: np.ndarray,
    make_batch: Callable[[np.ndarray], dict[str, np.ndarray]],
    *,
    batch_size: int,
    seed: int,
) -> tf.data.Dataset:
    """Endless batches of examples held in memory, alike in length within a batch.

    Args:
        lengths: `(num_examples,)` tokens of each example.
        make_batch: arrays of some rows, the rows given by number.
        batch_size: rows of a batch; the last of an epoch may have fewer.
        seed: of the order; the same seed gives the same batches.
    """
    signature = {
        name: tf.TensorSpec([None] * array.ndim, array.dtype)
        for name, array in make_batch(np.arange(1)).items()
    }

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for epoch in itertools.count():
            for rows in epoch_batches(
                lengths, batch_size=batch_size, seed=seed, epoch=epoch
            ):
                yield make_batch(rows)

    # Unknown dimensions: the training step is traced once, not for every length.
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.prefetch(tf.data.AUTOTUNE)


# More batches to sort among pad less; fewer leave the batches more random.
_MAX_BATCHES_SORTED_TOGETHER = 50


def epoch_batches(
    lengths: np.ndarray, *, batch_size: int, seed: int, epoch: int
) -> list[np.ndarray]:
    """Row numbers of each batch of an epoch; every row comes once.

    The rows are shuffled, cut into chunks of many batches, sorted by length within a
    chunk, and the batches shuffled. There are at least four chunks if there are four
    batches, so that no two epochs have the same batches.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(lengths))
    num_batches = -(-len(order) // batch_size)
    chunk_batches = max(1, min(_MAX_BATCHES_SORTED_TOGETHER, num_batches // 4))
    chunk_size = chunk_batches * batch_size
    batches = []
    for start in range(0, len(order), chunk_size):
        chunk = order[start : start + chunk_size]
        chunk = chunk[np.argsort(lengths[chunk], kind="stable")]
        batches += np.split(chunk, range(batch_size, len(chunk), batch_size))
    return [batches[index] for index in rng.permutation(num_batches)]
