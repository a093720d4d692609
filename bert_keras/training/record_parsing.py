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

from bert_keras.config import ExamplesConfig
from bert_keras.data import chance, dynamic_masking, features, masking

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
        elif feature.name == "input_mask":
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
        """Features of records; the arguments are `(rows,)` each."""
        parsed = self._stored(records)
        if self.config.masking == "dynamic":
            parsed |= self._completed(parsed.pop("input_ids"), epochs, numbers)
        elif self.attention == "left_to_right":
            parsed["input_ids"] = _unmasked(parsed)
        if self.attention == "left_to_right":
            parsed |= next_tokens(parsed["input_ids"], parsed["input_mask"])
        if self.has_dropout:
            seeds = dropout_seeds(self.seed, epochs, numbers)
            parsed[features.DROPOUT_SEEDS] = seeds
        return {
            name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
            for name, value in parsed.items()
        }

    def _stored(self, records: tf.Tensor) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        """Stored features by the names that the model knows."""
        stored = tf.io.parse_example(records, feature_spec(self.config))
        parsed = {}
        for feature in features.batch_features(self.config):
            stored_name = features.stored_name(feature.name, self.config)
            if stored_name in stored:
                parsed[feature.name] = stored[stored_name]
        limits = {
            "input_ids": (self.vocabulary.size, "vocabulary"),
            "masked_lm_ids": (self.vocabulary.size, "vocabulary"),
            "masked_lm_positions": (self.config.max_seq_length, "sequence"),
            "segment_ids": (_NUM_SEGMENTS, "pair"),
        }
        for name in sorted(parsed.keys() & limits.keys()):
            limit, whole = limits[name]
            message = f"{name} beyond the {whole} of {limit}"
            _check_below(limit, parsed[name], message)
        return parsed

    def _completed(
        self, input_ids: tf.RaggedTensor, epochs: tf.Tensor, numbers: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Pads plain sequences and masks them unless attention is `left_to_right`."""
        config = self.config
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


def next_tokens(input_ids: tf.Tensor, input_mask: tf.Tensor) -> dict[str, tf.Tensor]:
    """Predictions of a left-to-right model: at each place the token after it.

    Args:
        input_ids: `(n, L)` integers, nothing masked.
        input_mask: `(n, L)` integers, 1 for a token.

    Returns:
        `masked_lm_positions`: `(n, L - 1)`, each row 0 to L - 2.
        `masked_lm_ids`: `(n, L - 1)`, the tokens at 1 to L - 1.
        `masked_lm_weights`: `(n, L - 1)` float32, 1.0 for a token, 0.0 for padding.
    """
    next_ids = input_ids[:, 1:]
    positions = tf.range(next_ids.shape[1], dtype=next_ids.dtype)
    return {
        "masked_lm_positions": tf.broadcast_to(positions, next_ids.shape),
        "masked_lm_ids": next_ids,
        "masked_lm_weights": tf.cast(input_mask[:, 1:], tf.float32),
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
