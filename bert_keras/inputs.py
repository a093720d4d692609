"""Examples become batches: `tf.data` pipelines over TFRecord shards and over texts."""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras import dynamic_masking, features, manifest, masking
from bert_keras.config import ExamplesConfig
from bert_keras.errors import InputError


class Shard(NamedTuple):
    """A file of examples."""

    path: str
    first_record: int
    """Place of its first record in all shards of the directory together."""
    num_records: int


def read_shards(directory: str | Path, made: manifest.Manifest) -> list[Shard]:
    """The shards of a directory of examples, in the manifest's order."""
    starts = itertools.accumulate((s.num_records for s in made.shards), initial=0)
    return [
        Shard(str(Path(directory) / shard.name), start, shard.num_records)
        for shard, start in zip(made.shards, starts, strict=False)
    ]


def split_shards(
    shards: Sequence[Shard], num_eval_shards: int | None
) -> tuple[list[Shard], list[Shard]]:
    """Keeps the last shards for evaluation.

    A shard is a bucket of documents, and random next sentences come from within it,
    so what is evaluated on shares no document with what is trained on.

    Args:
        shards: all, in order.
        num_eval_shards: how many to keep; `None`: one in fifty, at least one if
            there are two.

    Returns:
        The shards to train on and those to evaluate on.
    """
    if num_eval_shards is None:
        num_eval_shards = max(1, len(shards) // 50) if len(shards) > 1 else 0
    if num_eval_shards >= len(shards):
        raise InputError(
            f"`num_eval_shards` is {num_eval_shards}, but the examples have only "
            f"{len(shards)} shards, and one must be left to train on: lower it, or "
            "make the examples with a larger --num_shards"
        )
    split = len(shards) - num_eval_shards
    return list(shards[:split]), list(shards[split:])


def feature_spec(config: ExamplesConfig) -> dict[str, Any]:
    """How `tf.io.parse_example` reads the records of examples made with `config`."""
    return {
        feature.name: tf.io.RaggedFeature(feature.dtype)
        if feature.length is None
        else tf.io.FixedLenFeature([feature.length], feature.dtype)
        for feature in features.record_features(config)
    }


def training_batches(
    shards: Sequence[Shard],
    *,
    config: ExamplesConfig,
    vocabulary: masking.MaskingVocabulary,
    batch_size: int,
    shuffle_buffer_size: int,
    seed: int,
    start_step: int = 0,
) -> tf.data.Dataset:
    """Endless shuffled batches; the same for the same seed and shards.

    Shards are read in another order in every epoch, several at a time, and records
    are shuffled in a buffer. Records that are not masked yet get other masks in every
    epoch. Batch N is the same whether or not the batches before it were drawn: a
    resumed run passes its step as `start_step`.

    Args:
        shards: to train on.
        config: how the examples were made.
        vocabulary: that of the examples.

    Returns:
        Batches of `features.batch_features(config)`: `{name: (batch_size, length)}`,
        integers as int32.
    """
    order = tf.range(len(shards))
    table = _shard_table(shards)

    def shuffled_shards(epoch: tf.Tensor) -> tf.data.Dataset:
        order_now = tf.random.experimental.stateless_shuffle(order, seed=[seed, epoch])
        paths, first_records = (tf.gather(column, order_now) for column in table)
        epochs = tf.fill(tf.shape(order_now), epoch)
        return tf.data.Dataset.from_tensor_slices((epochs, paths, first_records))

    epochs = tf.data.Dataset.counter(dtype=tf.int64)
    records = epochs.flat_map(shuffled_shards).interleave(
        functools.partial(_records, compression=config.compression),
        cycle_length=min(8, len(shards)),
        block_length=32,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    records = records.shuffle(
        shuffle_buffer_size, seed=seed, reshuffle_each_iteration=False
    )
    batches = records.batch(batch_size, drop_remainder=True).skip(start_step)
    return _parsed(batches, config=config, vocabulary=vocabulary, seed=seed)


def evaluation_batches(
    shards: Sequence[Shard],
    *,
    config: ExamplesConfig,
    vocabulary: masking.MaskingVocabulary,
    batch_size: int,
    num_batches: int,
    seed: int,
) -> tuple[tf.data.Dataset, int]:
    """The first `num_batches` batches of the shards, in order, over and over.

    Endless, because Keras takes a phantom step when data ends unforeseen, and a
    strategy forgets a cardinality that was stated. Records that are not masked yet
    get the same masks in every round.

    Returns:
        The batches, and how many of them are one round, in which no record comes
        twice.
    """
    epochs = tf.fill(
        [len(shards)], tf.constant(dynamic_masking.EVALUATION_EPOCH, tf.int64)
    )
    records = tf.data.Dataset.from_tensor_slices((epochs, *_shard_table(shards)))
    records = records.flat_map(
        functools.partial(_records, compression=config.compression)
    )
    batches = records.batch(batch_size)
    num_records = sum(shard.num_records for shard in shards)
    num_batches = min(num_batches, -(-num_records // batch_size))
    batches = batches.take(num_batches).repeat()
    parsed = _parsed(batches, config=config, vocabulary=vocabulary, seed=seed)
    return parsed, num_batches


def check_lengths(path: str | Path, config: ExamplesConfig) -> None:
    """Checks on its first record that a shard holds the features it should.

    Raises:
        InputError: a feature is missing or of another length than the manifest says.
    """
    dataset = tf.data.TFRecordDataset(str(path), _COMPRESSIONS[config.compression])
    for record in dataset.take(1):
        example = tf.train.Example.FromString(record.numpy())
        for feature in features.record_features(config):
            stored = example.features.feature.get(feature.name)
            if stored is None:
                raise InputError(f"{path}: its records have no feature {feature.name}")
            found = len(stored.int64_list.value) + len(stored.float_list.value)
            wanted = feature.length or min(found, config.max_seq_length)
            if found != wanted:
                raise InputError(
                    f"{path}: its records hold {found} {feature.name}, "
                    f"{manifest.MANIFEST_NAME} says {wanted}: make the "
                    "examples again with the max_seq_length and "
                    "max_predictions_per_seq you want"
                )


_COMPRESSIONS = {"none": "", "gzip": "GZIP"}


def _shard_table(shards: Sequence[Shard]) -> tuple[tf.Tensor, tf.Tensor]:
    """Paths and first records."""
    paths = tf.constant([shard.path for shard in shards])
    return paths, tf.constant([shard.first_record for shard in shards], tf.int64)


def _records(
    epoch: tf.Tensor, path: tf.Tensor, first_record: tf.Tensor, *, compression: str
) -> tf.data.Dataset:
    """The epoch, the number and the bytes of each record of a shard."""
    records = tf.data.TFRecordDataset(path, _COMPRESSIONS[compression])
    return records.enumerate(first_record).map(
        lambda number, record: (epoch, number, record)
    )


def _parsed(
    batches: tf.data.Dataset,
    *,
    config: ExamplesConfig,
    vocabulary: masking.MaskingVocabulary,
    seed: int,
) -> tf.data.Dataset:
    spec = feature_spec(config)
    stored_names = {
        feature.name: features.stored_name(feature.name, config)
        for feature in features.batch_features(config)
    }

    def parse(
        epochs: tf.Tensor, numbers: tf.Tensor, records: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        stored = tf.io.parse_example(records, spec)
        parsed = {
            name: stored[stored_name]
            for name, stored_name in stored_names.items()
            if stored_name in stored
        }
        for name in parsed.keys() & {"input_ids", "masked_lm_ids"}:
            _check_ids(name, parsed[name], vocabulary.size)
        if config.masking == "dynamic":
            parsed |= _masked(
                parsed.pop("input_ids"),
                epochs,
                numbers,
                config=config,
                vocabulary=vocabulary,
                seed=seed,
            )
        return {
            name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
            for name, value in parsed.items()
        }

    return batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(
        tf.data.AUTOTUNE
    )


def _check_ids(name: str, ids: tf.Tensor | tf.RaggedTensor, vocab_size: int) -> None:
    # A GPU reads row 0 for an id past the table and says nothing.
    tf.debugging.assert_less(
        ids.flat_values if isinstance(ids, tf.RaggedTensor) else ids,
        tf.constant(vocab_size, tf.int64),
        message=f"{name} beyond the vocabulary of {vocab_size}",
    )


def _masked(
    input_ids: tf.RaggedTensor,
    epochs: tf.Tensor,
    numbers: tf.Tensor,
    *,
    config: ExamplesConfig,
    vocabulary: masking.MaskingVocabulary,
    seed: int,
) -> dict[str, tf.Tensor]:
    """Pads and masks a batch of plain sequences."""
    wanted = [
        feature
        for feature in features.batch_features(config)
        if feature.name != "next_sentence_labels"
    ]

    def mask(
        ids: np.ndarray, lengths: np.ndarray, epochs: np.ndarray, numbers: np.ndarray
    ) -> list[np.ndarray]:
        masked = dynamic_masking.mask_examples(
            ids,
            lengths,
            dynamic_masking.record_seeds(seed, epochs, numbers),
            vocabulary=vocabulary,
            config=config,
        )
        return [masked[feature.name] for feature in wanted]

    lengths = tf.cast(input_ids.row_lengths(), tf.int64)
    tf.debugging.assert_positive(lengths, message="a record holds no input_ids")
    tf.debugging.assert_less_equal(
        lengths,
        tf.constant(config.max_seq_length, tf.int64),
        message=f"a record of more than {config.max_seq_length} input_ids",
    )
    padded = tf.cast(input_ids.to_tensor(shape=[None, config.max_seq_length]), tf.int32)
    types = [tf.int32 if f.dtype == "int64" else tf.float32 for f in wanted]
    arrays = tf.numpy_function(mask, [padded, lengths, epochs, numbers], types)
    for feature, array in zip(wanted, arrays, strict=True):
        array.set_shape([epochs.shape[0], feature.length])
    return {f.name: array for f, array in zip(wanted, arrays, strict=True)}


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
