"""Batches of pre-training examples: `tf.data` pipelines over TFRecord shards."""

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras.core import files, manifest
from bert_keras.core.errors import InputError
from bert_keras.core.settings.pipelines import ExamplesConfig, instances_per_row
from bert_keras.data import features, masking
from bert_keras.training.pretraining import record_parsing
from bert_keras.training.step import replicas

_COMPRESSIONS = {"none": "", "gzip": "GZIP"}
_MAX_SHARDS_PER_STRETCH = 64
_SHARDS_AT_A_TIME = 16
_BLOCK_LENGTH = 64
"""Records that are read from one shard before the next shard has its turn."""


class Shard(NamedTuple):
    path: str
    first_record: int
    """Position of its first record among the records of all shards."""
    num_records: int


def read_shards(directory: files.Path, contents: manifest.Manifest) -> list[Shard]:
    starts = itertools.accumulate((s.num_records for s in contents.shards), initial=0)
    return [
        Shard(files.join(directory, shard.name), start, shard.num_records)
        for shard, start in zip(contents.shards, starts, strict=False)
    ]


def split_shards(
    shards: Sequence[Shard], num_eval_shards: int | None
) -> tuple[list[Shard], list[Shard]]:
    """Returns the shards to train on and, from the end, those to evaluate on.

    A shard is a bucket of documents, and random next sentences come from within it, so
    no document is in both (of a source with fewer than four documents, no part of a
    document). `None`: one shard in fifty, at least one if there are two.
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


@dataclass(frozen=True, kw_only=True)
class RecordBatches(record_parsing.Parser):
    """Batches of the examples of one directory.

    `batch_size` is that of all workers, whose replicas need equal shares; `seed` is for
    their order, too. The batches are the same for any number of workers: each takes the
    rows of its `place`, which has the arguments of `replicas.distribute`.
    """

    batch_size: int
    shuffle_buffer_size: int
    mask_share: Callable[[tf.Tensor], tf.Tensor] | None = None
    """From the number of a batch, from 0, to the share of tokens to hide in it, both
    scalars, int64 and float64; `None`: the examples' `masked_lm_prob`. Evaluation has
    that in any case, so that its losses compare."""

    def to_train(
        self, shards: Sequence[Shard], *place: int, start_step: int = 0
    ) -> tf.data.Dataset:
        """Returns endless shuffled batches; `seed` and N determine batch N.

        An epoch has every record once: shards in another order each time, records
        shuffled in buffers. A batch may span two epochs. Records that are not masked
        yet get other masks in every epoch. A start at `start_step` rereads little of
        the earlier data.

        Each step has one element for each replica of the worker, of static shape
        `{name: (rows, length)}`, integers as int32: `features.batch_features` (with
        `left_to_right`, see `record_parsing.next_tokens`) and `features.DROPOUT_SEEDS`.
        """
        batch_size = self.batch_size
        num_records = sum(shard.num_records for shard in shards)
        own_share = tf.constant(self.config.masked_lm_prob, tf.float64)
        records = self._shuffled(shards, start_step * batch_size)
        rows = tf.range(batch_size, dtype=tf.int64)

        def with_chance(step: tf.Tensor, batch: tuple) -> tuple:
            share = own_share if self.mask_share is None else self.mask_share(step)
            epochs = (step * batch_size + rows) // num_records
            return epochs, tf.fill([batch_size], share), *batch

        batches = records.batch(batch_size, drop_remainder=True).enumerate(start_step)
        return self._parsed(_shares(batches.map(with_chance), *place), self.parse)

    def shards_of_steps(
        self, shards: Sequence[Shard], *, start_step: int, num_steps: int
    ) -> list[str]:
        """Returns the files that batches of `to_train` come from."""
        records = self._shuffled(shards, start_step * self.batch_size)
        records = records.take(num_steps * self.batch_size)
        numbers = [int(number) for number, _ in records.as_numpy_iterator()]
        starts = [shard.first_record for shard in shards]
        indices = {bisect.bisect_right(starts, number) - 1 for number in numbers}
        return sorted(Path(shards[index].path).name for index in indices)

    def to_evaluate(
        self, shards: Sequence[Shard], *place: int, num_batches: int
    ) -> tuple[tf.data.Dataset, int]:
        """Returns the first `num_batches` batches over and over, and their number.

        The shards take turns, record by record, so that few batches sample all of them.
        The batches are endless because Keras takes a phantom step when data ends
        unforeseen, and a strategy forgets a cardinality that was stated. Masks are the
        same in every round, and no record comes twice in one. The last batch is filled
        up with examples that do not count: a `[CLS]`, padding, `masked_lm_weights` 0
        and `next_sentence_labels` -1.
        """
        num_batches = self.num_evaluation_batches(shards, num_batches)
        records = tf.data.Dataset.from_tensor_slices(_shard_table(shards)).interleave(
            lambda path, first: self._records(path).enumerate(first),
            cycle_length=min(_SHARDS_AT_A_TIME, len(shards)),
            block_length=1,
        )
        record = record_parsing.padding_record(self.config, self.vocabulary.cls_id)
        # Any number will do: nothing in it is drawn by chance.
        padding = tf.data.Dataset.from_tensors((tf.constant(-1, tf.int64), record))
        records = records.concatenate(padding.repeat(self.batch_size))
        batches = records.batch(self.batch_size, drop_remainder=True)
        epoch = tf.constant(masking.EVALUATION_EPOCH, tf.int64)
        share = tf.constant(self.config.masked_lm_prob, tf.float64)
        chance = [tf.fill([self.batch_size], value) for value in (epoch, share)]
        endless = batches.take(num_batches).repeat()
        shares = _shares(endless.map(lambda *batch: (*chance, *batch)), *place)

        def parse(*columns: tf.Tensor) -> dict[str, tf.Tensor]:
            parsed = self.parse(*columns).items()
            return {k: v for k, v in parsed if k != features.DROPOUT_SEEDS}

        return self._parsed(shares, parse), num_batches

    def texts(self, shards: Sequence[Shard]) -> Iterator[np.ndarray]:
        """Yields the ids of all records once, `(n, max_seq_length)` int64 of some
        thousand at a time, in the order of the shards, nothing masked."""
        paths = tf.data.Dataset.from_tensor_slices([shard.path for shard in shards])
        for records in paths.flat_map(self._records).batch(4096):
            yield self.true_ids(records).numpy()

    def num_evaluation_batches(self, shards: Sequence[Shard], num_batches: int) -> int:
        num_records = sum(shard.num_records for shard in shards)
        return min(num_batches, -(-num_records // self.batch_size))

    def _parsed(self, batches: tf.data.Dataset, parse: Callable) -> tf.data.Dataset:
        parsed = batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        return replicas.without_autotune(parsed.prefetch(tf.data.AUTOTUNE))

    def _records(self, path: str | tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(path, _COMPRESSIONS[self.config.compression])

    def _shuffled(self, shards: Sequence[Shard], start: int) -> tf.data.Dataset:
        """Yields number and bytes of each record, endlessly, from the `start`-th on.

        An epoch has all records once, in an order of (seed, epoch). The shuffled shards
        are cut into stretches, whose shards are read several at a time; records are
        shuffled in buffers. A start within an epoch reads one stretch at most. All
        randomness is in stateless operations: `Dataset.shuffle` would also depend on
        the global seed of the process.
        """
        num_stretches = math.ceil(len(shards) / _MAX_SHARDS_PER_STRETCH)
        starts = range(0, len(shards), math.ceil(len(shards) / num_stretches))
        shuffle = tf.random.experimental.stateless_shuffle

        def seeds(number: tf.Tensor) -> tf.Tensor:
            return tf.stack([tf.constant(self.seed, tf.int64), number])

        def order_of(epoch: tf.Tensor) -> tf.Tensor:
            return shuffle(tf.range(len(shards)), seeds(epoch))

        def blocks_of(path: tf.Tensor, first_record: tf.Tensor) -> tf.data.Dataset:
            def with_numbers(index: tf.Tensor, block: tf.Tensor) -> tuple:
                places = tf.range(tf.size(block, out_type=tf.int64))
                return first_record + index * _BLOCK_LENGTH + places, block

            return (
                self._records(path).batch(_BLOCK_LENGTH).enumerate().map(with_numbers)
            )

        def buffers_of(number: tf.Tensor) -> tf.data.Dataset:
            """Returns the shuffled buffers of a stretch, counted through all epochs."""
            first = number % len(starts) * starts.step
            order = order_of(number // len(starts))[first : first + starts.step]
            table = tuple(tf.gather(column, order) for column in _shard_table(shards))
            blocks = tf.data.Dataset.from_tensor_slices(table).interleave(
                blocks_of,
                cycle_length=min(_SHARDS_AT_A_TIME, len(shards)),
                num_parallel_calls=tf.data.AUTOTUNE,
                deterministic=True,
            )

            def shuffled(index: tf.Tensor, columns: tuple) -> tuple[tf.Tensor, ...]:
                rows = tf.range(tf.shape(columns[0])[0])
                order = shuffle(rows, tf.random.fold_in(seeds(number), index))
                return tuple(tf.gather(column, order) for column in columns)

            buffers = blocks.rebatch(self.shuffle_buffer_size, drop_remainder=False)
            return buffers.enumerate().map(shuffled)

        # 1. The stretch that has the `start`-th record.
        sizes = np.array([shard.num_records for shard in shards])
        epoch, num_passed = divmod(start, int(sizes.sum()))
        order = order_of(tf.constant(epoch, tf.int64)).numpy()
        ends = np.cumsum(np.add.reduceat(sizes[order], starts))
        stretch = int(np.searchsorted(ends, num_passed, side="right"))
        num_passed -= int(ends[stretch - 1]) if stretch else 0
        # 2. All stretches from there on. One buffer is drawn from while the next is
        # made.
        first = epoch * len(starts) + stretch
        stretches = tf.data.Dataset.counter(first, dtype=tf.int64)
        return stretches.flat_map(buffers_of).prefetch(1).unbatch().skip(num_passed)


def check_lengths(path: files.Path, config: ExamplesConfig) -> None:
    """Checks the features of a shard's first record, and that TensorFlow reads it."""
    scheme = str(path).partition("://")[0]
    if files.is_remote(path) and scheme not in tf.io.gfile.get_registered_schemes():
        raise InputError(
            f"{path}: TensorFlow reads examples from a disk or gs://, not from "
            f"{scheme}://: copy them there"
        )
    dataset = tf.data.TFRecordDataset(str(path), _COMPRESSIONS[config.compression])
    for record in dataset.take(1):
        example = tf.train.Example.FromString(record.numpy())
        for feature in features.record_features(config):
            stored = example.features.feature.get(feature.name)
            if stored is None:
                raise InputError(f"{path}: its records have no feature {feature.name}")
            length = len(stored.int64_list.value) + len(stored.float_list.value)
            limit = config.max_seq_length
            if feature.name == "next_sentence_labels":
                limit = instances_per_row(limit)
            expected = feature.length or min(length, limit)
            if length != expected:
                raise InputError(
                    f"{path}: its records hold {length} {feature.name}, "
                    f"{manifest.MANIFEST_NAME} says {expected}: make the "
                    "examples again with the max_seq_length and "
                    "max_predictions_per_seq you want"
                )


def _shard_table(shards: Sequence[Shard]) -> tuple[tf.Tensor, tf.Tensor]:
    paths = tf.constant([shard.path for shard in shards])
    return paths, tf.constant([shard.first_record for shard in shards], tf.int64)


def _shares(
    batches: tf.data.Dataset,
    index: int = 0,
    num_workers: int = 1,
    num_replicas: int = 1,
) -> tf.data.Dataset:
    """Yields this worker's rows of every batch, an element for each of its replicas."""

    def rows(*columns: tf.Tensor) -> tuple[tf.Tensor, ...]:
        shape = [num_workers, num_replicas, -1]
        return tuple(
            tf.reshape(column, [*shape, *column.shape[1:]])[index] for column in columns
        )

    return batches.map(rows).unbatch()
