"""Parsing of records into the features of a batch, all of static shape.

Chance is a function of (seed of the run, epoch, number of the record): see
`dynamic_masking`.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from bert_keras.core.settings.config import ExamplesConfig, instances_per_row
from bert_keras.data import chance, dynamic_masking, features, masking, packing

Attention = Literal["bidirectional", "left_to_right"]
"""See `BertConfig.attention`."""

_NUM_SEGMENTS = 2

NO_LABEL = -1
"""Label of an example that does not count."""


def feature_spec(config: ExamplesConfig) -> dict[str, Any]:
    """Specification for `tf.io.parse_example` of records made with `config`."""
    return {
        feature.name: tf.io.RaggedFeature(feature.dtype)
        if feature.length is None
        else tf.io.FixedLenFeature([feature.length], feature.dtype)
        for feature in features.record_features(config)
    }


def padding_record(config: ExamplesConfig, cls_id: int) -> bytes:
    """Record of a `[CLS]` alone, stored as `config` says, in which nothing counts."""
    example = tf.train.Example()
    for feature in features.record_features(config):
        stored = example.features.feature[feature.name]
        values = [0] * (feature.length or 1)
        if feature.name == features.stored_name("input_ids", config):
            values[0] = cls_id
        elif feature.name in ("input_mask", "instance_ids"):
            values[0] = 1
        elif feature.name == "next_sentence_labels":
            values = [NO_LABEL]
        is_float = feature.dtype == "float32"
        (stored.float_list if is_float else stored.int64_list).value.extend(values)
    return example.SerializeToString()


@dataclass(frozen=True, kw_only=True)
class Parser:
    """Turns records into the features of a batch.

    Args: see `record_batches.RecordBatches`; `has_dropout` adds dropout's seeds.
    """

    config: ExamplesConfig
    vocabulary: masking.MaskingVocabulary
    seed: int
    attention: Attention
    has_dropout: bool

    def __call__(
        self, epochs: tf.Tensor, numbers: tf.Tensor, records: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Features of records.

        Args:
            epochs: `(rows,)` int64.
            numbers: `(rows,)` int64.
            records: `(rows,)` bytes.
        """
        if self.config.pack_instances and self.config.masking == "dynamic":
            parsed = self._masked_rows(epochs, numbers, records)
        else:
            parsed = self._parsed(records, epochs, numbers)
            if self.config.pack_instances:
                numbers = self._numbers_of_slots(numbers)
                epochs = epochs[:, tf.newaxis]
            if self.has_dropout:
                seeds = dropout_seeds(self.seed, epochs, numbers)
                parsed[features.DROPOUT_SEEDS] = seeds
        if self.attention == "left_to_right":
            parsed |= next_tokens(parsed)
        return {
            name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
            for name, value in parsed.items()
        }

    def _parsed(
        self, records: tf.Tensor, epochs: tf.Tensor, numbers: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        parsed = self._stored(records)
        if self.config.masking == "dynamic":
            parsed |= self._completed(parsed.pop("input_ids"), epochs, numbers)
        elif self.attention == "left_to_right":
            parsed["input_ids"] = _unmasked(parsed)
        return parsed

    def _masked_rows(
        self, epochs: tf.Tensor, numbers: tf.Tensor, records: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Rows of packed records that are masked here, instance by instance."""
        parsed = self._stored(records, pads=False)
        ids = parsed.pop("input_ids")
        starts = tf.where(ids.flat_values == self.vocabulary.cls_id)[:, 0]
        row_of = tf.cast(tf.gather(ids.value_rowids(), starts), tf.int64)
        rows = tf.range(epochs.shape[0], dtype=tf.int64)
        first_slots = tf.searchsorted(row_of, rows, out_type=tf.int64)
        slots = tf.range(tf.size(row_of, out_type=tf.int64))
        slots -= tf.gather(first_slots, row_of)
        numbers = tf.gather_nd(
            self._numbers_of_slots(numbers), tf.stack([row_of, slots], axis=1)
        )
        of_instance = tf.gather(epochs, row_of)
        if "next_sentence_labels" in parsed:
            labels = parsed["next_sentence_labels"].flat_values
            tf.debugging.assert_equal(
                tf.size(labels),
                tf.size(row_of),
                message="a packed record has not one label for each [CLS]",
            )
            parsed["next_sentence_labels"] = labels[:, tf.newaxis]
        instances = tf.RaggedTensor.from_row_starts(ids.flat_values, starts)
        parsed |= self._completed(instances, of_instance, numbers)
        return self._joined(parsed, of_instance, numbers, row_of, rows=epochs.shape[0])

    def _numbers_of_slots(self, numbers: tf.Tensor) -> tf.Tensor:
        """A number for each slot of packed records: `(rows, slots)`."""
        num_slots = instances_per_row(self.config.max_seq_length)
        return numbers[:, tf.newaxis] * num_slots + tf.range(num_slots, dtype=tf.int64)

    def _joined(
        self,
        parsed: dict[str, tf.Tensor],
        epochs: tf.Tensor,
        numbers: tf.Tensor,
        row_of: tf.Tensor,
        *,
        rows: int,
    ) -> dict[str, tf.Tensor]:
        """Rows of instances: see `packing.join_rows`."""
        config = self.config
        if self.has_dropout:
            seeds = dropout_seeds(self.seed, epochs, numbers)
            parsed[features.DROPOUT_SEEDS] = seeds
        given = sorted(parsed)
        num_slots = instances_per_row(config.max_seq_length)
        lengths = {f.name: f.length for f in features.batch_features(config)}
        lengths[features.DROPOUT_SEEDS] = num_slots
        made = [name for name in lengths if name in parsed or name == "instance_ids"]

        def join(row_of: np.ndarray, *columns: np.ndarray) -> list[np.ndarray]:
            instances = dict(zip(given, columns, strict=True))
            joined = packing.join_rows(instances, row_of, config)
            return [
                joined[name].astype(np.float32 if "weights" in name else np.int32)
                for name in made
            ]

        types = [tf.float32 if "weights" in name else tf.int32 for name in made]
        arrays = tf.numpy_function(
            join, [row_of, *(parsed[name] for name in given)], types
        )
        return {
            name: tf.ensure_shape(array, [rows, lengths[name]])
            for name, array in zip(made, arrays, strict=True)
        }

    def _stored(self, records: tf.Tensor, *, pads: bool = True) -> dict[str, Any]:
        """Stored features by the names that the model knows.

        Labels of packed records are padded, or ragged.
        """
        stored = tf.io.parse_example(records, feature_spec(self.config))
        parsed = {}
        for feature in features.batch_features(self.config):
            stored_name = features.stored_name(feature.name, self.config)
            if stored_name in stored:
                parsed[feature.name] = stored[stored_name]
        num_slots = instances_per_row(self.config.max_seq_length)
        limits = {
            "input_ids": (self.vocabulary.size, "vocabulary"),
            "masked_lm_ids": (self.vocabulary.size, "vocabulary"),
            "masked_lm_positions": (self.config.max_seq_length, "sequence"),
            "segment_ids": (_NUM_SEGMENTS, "pair"),
            "instance_ids": (num_slots + 1, "row"),
        }
        for name in sorted(parsed.keys() & limits.keys()):
            limit, whole = limits[name]
            message = f"{name} beyond the {whole} of {limit}"
            _check_below(limit, parsed[name], message)
        if pads and self.config.pack_instances and "next_sentence_labels" in parsed:
            parsed["next_sentence_labels"] = parsed["next_sentence_labels"].to_tensor(
                NO_LABEL, shape=[records.shape[0], num_slots]
            )
        return parsed

    def _completed(
        self, input_ids: tf.RaggedTensor, epochs: tf.Tensor, numbers: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Pads plain sequences and masks them unless attention is `left_to_right`."""
        config = self.config.model_copy(update={"pack_instances": False})
        is_masked = self.attention == "bidirectional"
        wanted = [
            feature
            for feature in features.batch_features(config)
            if feature.name in dynamic_masking.PLAIN_FEATURES
            or (is_masked and feature.name.startswith("masked_lm"))
        ]

        def complete(ids, lengths, epochs, numbers) -> list[np.ndarray]:
            seeds = dynamic_masking.record_seeds(self.seed, epochs, numbers)
            make = (
                functools.partial(dynamic_masking.mask_examples, seeds=seeds)
                if is_masked
                else dynamic_masking.plain_examples
            )
            made = make(ids, lengths, vocabulary=self.vocabulary, config=config)
            return [made[feature.name] for feature in wanted]

        lengths = tf.cast(input_ids.row_lengths(), tf.int64)
        tf.debugging.assert_positive(lengths, message="a record holds no input_ids")
        tf.debugging.assert_less_equal(
            lengths,
            tf.constant(config.max_seq_length, tf.int64),
            message=f"a record of more than {config.max_seq_length} input_ids",
        )
        padded = input_ids.to_tensor(shape=[None, config.max_seq_length])
        padded = tf.cast(padded, tf.int32)
        types = [tf.int32 if f.dtype == "int64" else tf.float32 for f in wanted]
        arrays = tf.numpy_function(complete, [padded, lengths, epochs, numbers], types)
        return {
            feature.name: tf.ensure_shape(array, [epochs.shape[0], feature.length])
            for feature, array in zip(wanted, arrays, strict=True)
        }


def _check_below(limit: int, ids: tf.Tensor | tf.RaggedTensor, message: str) -> None:
    # Nothing complains later: a GPU reads row 0 for an id past the table, a position
    # past the sequence is one of the next example, a third segment has no vector.
    values = ids.flat_values if isinstance(ids, tf.RaggedTensor) else ids
    tf.debugging.assert_less(values, tf.constant(limit, tf.int64), message=message)
    tf.debugging.assert_non_negative(values, message=message)


def _unmasked(parsed: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """`input_ids` with the true ids where tokens were masked."""
    slots = tf.where(parsed["masked_lm_weights"] > 0)
    columns = tf.gather_nd(parsed["masked_lm_positions"], slots)
    return tf.tensor_scatter_nd_update(
        parsed["input_ids"],
        tf.stack([slots[:, 0], columns], axis=1),
        tf.gather_nd(parsed["masked_lm_ids"], slots),
    )


def next_tokens(parsed: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Predictions of a left-to-right model: at each place the token after it.

    Args:
        parsed: `input_ids`, nothing masked, and `input_mask`, or of packed rows
            `instance_ids`; `(n, L)` integers each.

    Returns:
        `masked_lm_positions`: `(n, L - 1)`, each row 0 to L - 2.
        `masked_lm_ids`: `(n, L - 1)`, the tokens at 1 to L - 1.
        `masked_lm_weights`: `(n, L - 1)` float32, 1.0 for a token, 0.0 for padding and
            for the first token of another instance.
    """
    next_ids = parsed["input_ids"][:, 1:]
    mask = parsed["instance_ids" if "instance_ids" in parsed else "input_mask"]
    is_next = (mask[:, 1:] > 0) & (mask[:, 1:] == mask[:, :-1])
    positions = tf.range(next_ids.shape[1], dtype=next_ids.dtype)
    return {
        "masked_lm_positions": tf.broadcast_to(positions, next_ids.shape),
        "masked_lm_ids": next_ids,
        "masked_lm_weights": tf.cast(is_next, tf.float32),
    }


# Dropout is drawn from other numbers than masks are.
_DROPOUT_SALT = 0x64726F706F757473


def dropout_seeds(
    seed: int, epochs: tf.Tensor | np.ndarray, records: tf.Tensor | np.ndarray
) -> tf.Tensor:
    """Seeds of the examples' dropout: the low halves of `dynamic_masking.record_seeds`.

    Operations of TensorFlow, so that any host may compute them.

    Args:
        seed: the run's.
        epochs: `(n,)` integers, from 0.
        records: `(n,)` integers: places of the examples in the data.

    Returns:
        `(n,)` int32.
    """
    first = np.array([(seed ^ _DROPOUT_SALT) % 2**64], np.uint64)
    state = tf.constant(chance.mix(first + chance.INCREMENT))
    for numbers in (epochs, records):
        state = tf.bitwise.bitwise_xor(state, tf.cast(numbers, tf.uint64))
        state = _mix(state + tf.constant(chance.INCREMENT))
    return tf.bitcast(tf.cast(state, tf.uint32), tf.int32)


def _mix(numbers: tf.Tensor) -> tf.Tensor:
    """`chance.mix` as operations of TensorFlow."""
    for shift, factor in chance.MIX_ROUNDS:
        shifted = tf.bitwise.right_shift(numbers, tf.constant(shift))
        numbers = tf.bitwise.bitwise_xor(numbers, shifted) * tf.constant(factor)
    return numbers
