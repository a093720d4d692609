"""Records that were not packed, packed into rows as they are read.

A shard is cut into windows of records, and each window distributed over rows by
`data.packing`: which records share a row is a function of the shard alone. So rows can
be counted, shuffled and begun at any step as records are.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from bert_keras.config import ExamplesConfig, instances_per_row
from bert_keras.data import features, masking, packing

NO_RECORD = -1
"""Number in an empty slot, whose record is empty too."""


def rows(
    records: tf.data.Dataset, first_record: tf.Tensor, config: ExamplesConfig
) -> tf.data.Dataset:
    """Rows of a shard's records.

    Args:
        records: all of the shard, serialised.
        first_record: number of the first one.
        config: settings that they were made with.

    Returns:
        Pairs of the numbers, `(slots,)` int64, and records, `(slots,)`, of a row;
        `NO_RECORD` and empty after the last one.
    """

    def pack(index: tf.Tensor, window: tf.Tensor) -> tf.data.Dataset:
        places = _planned(window, config)
        is_there = places >= 0
        first = first_record + index * packing.WINDOW
        numbers = tf.where(is_there, first + places, NO_RECORD)
        found = tf.where(is_there, tf.gather(window, tf.maximum(places, 0)), b"")
        return tf.data.Dataset.from_tensor_slices((numbers, found))

    return records.batch(packing.WINDOW).enumerate().flat_map(pack)


def count_rows(
    paths: Sequence[str], config: ExamplesConfig, *, compression: str
) -> list[int]:
    """Rows that the records of each file are packed into; reads them all."""

    def count(path: tf.Tensor) -> tf.Tensor:
        windows = tf.data.TFRecordDataset(path, compression).batch(packing.WINDOW)
        counts = windows.map(lambda window: tf.shape(_planned(window, config))[0])
        return counts.reduce(0, lambda total, more: total + more)

    counts = tf.data.Dataset.from_tensor_slices(list(paths)).map(
        count, num_parallel_calls=tf.data.AUTOTUNE
    )
    return [int(num_rows) for num_rows in counts.as_numpy_iterator()]


def _planned(window: tf.Tensor, config: ExamplesConfig) -> tf.Tensor:
    """Places in a window of the records of each row, `(rows, slots)` int64, else -1."""
    num_slots = instances_per_row(config.max_seq_length)

    def plan(lengths: np.ndarray, num_masked: np.ndarray) -> np.ndarray:
        row_of = packing.plan_rows(lengths, num_masked, config)
        in_order = np.argsort(row_of, kind="stable")
        row_of = row_of[in_order]
        places = np.full((row_of[-1] + 1, num_slots), -1, np.int64)
        places[row_of, packing.places_in_rows(row_of)] = in_order
        return places

    made = tf.numpy_function(plan, _sizes(window, config), tf.int64)
    return tf.ensure_shape(made, [None, num_slots])


def _sizes(window: tf.Tensor, config: ExamplesConfig) -> tuple[tf.Tensor, tf.Tensor]:
    """Tokens and predictions of each record."""
    by_name = {
        features.stored_name(feature.name, config): feature
        for feature in features.batch_features(config)
    }
    if config.masking == "dynamic":
        name = features.stored_name("input_ids", config)
        stored = tf.io.parse_example(window, {name: tf.io.RaggedFeature(tf.int64)})
        lengths = tf.cast(stored[name].row_lengths(), tf.int64)
        num_masked = tf.numpy_function(
            lambda lengths: masking.num_predictions(lengths, config),
            [lengths],
            tf.int64,
        )
        return lengths, num_masked
    names = ("input_mask", "masked_lm_weights")
    spec = {
        name: tf.io.FixedLenFeature([by_name[name].length], by_name[name].dtype)
        for name in names
    }
    stored = tf.io.parse_example(window, spec)
    mask, weights = (
        tf.math.count_nonzero(stored[name], axis=1, dtype=tf.int64) for name in names
    )
    return mask, weights
