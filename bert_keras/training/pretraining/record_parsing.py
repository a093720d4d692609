"""Parsing of records into the features of a batch, all of static shape.

The run's seed, the epoch and a record's number decide chance: see `masking`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from bert_keras.core.settings.architecture import Attention
from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import features, masking, packing, seeded_hash, tokenization

NO_LABEL = -1
"""Label of an example that does not count."""


def padding_record(config: ExamplesConfig, cls_id: int) -> bytes:
    """Returns the record of a `[CLS]` alone, in which nothing counts."""
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


def dropout_seeds(
    seed: int, epochs: tf.Tensor | np.ndarray, records: tf.Tensor | np.ndarray
) -> tf.Tensor:
    """Returns `(n,)` int32 seeds: the low halves of `seeded_hash.record_seeds`.

    They are operations of TensorFlow, so that any host may compute them.
    """
    first = np.array([(seed ^ seeded_hash.DROPOUT_SALT) % 2**64], np.uint64)
    state = tf.constant(seeded_hash.mix(first + seeded_hash.INCREMENT))
    for numbers in (epochs, records):
        state = tf.bitwise.bitwise_xor(state, tf.cast(numbers, tf.uint64))
        state += tf.constant(seeded_hash.INCREMENT)
        # `seeded_hash.mix`, by operations of TensorFlow.
        for shift, factor in seeded_hash.MIX_ROUNDS:
            shifted = tf.bitwise.right_shift(state, tf.constant(shift))
            state = tf.bitwise.bitwise_xor(state, shifted) * tf.constant(factor)
    return tf.bitcast(tf.cast(state, tf.uint32), tf.int32)


def unmasked_ids(parsed: Mapping[str, tf.Tensor | np.ndarray]) -> tf.Tensor:
    """Returns `(n, L)` ids with the true ones in place of masks."""
    slots = tf.where(parsed["masked_lm_weights"] > 0)
    columns = tf.gather_nd(parsed["masked_lm_positions"], slots)
    return tf.tensor_scatter_nd_update(
        parsed["input_ids"],
        tf.stack([slots[:, 0], tf.cast(columns, tf.int64)], axis=1),
        tf.gather_nd(parsed["masked_lm_ids"], slots),
    )


@dataclass(frozen=True, kw_only=True)
class Parser:
    """Makes features of records; `seed` is for masks and dropout.

    With `left_to_right` attention nothing is masked and every token is predicted from
    the tokens before it (paper, 5.1).
    """

    config: ExamplesConfig
    vocabulary: tokenization.Vocabulary
    seed: int
    attention: Attention = "bidirectional"

    def parse(
        self,
        epochs: tf.Tensor,
        shares: tf.Tensor,
        numbers: tf.Tensor,
        records: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        """Returns features of `(rows,)` records, `features.DROPOUT_SEEDS` among them.

        Epochs and numbers are `(rows,)` int64, and the shares of tokens to hide
        `(rows,)` float64, for records without masks.
        """
        parsed, num_slots = self._stored(records), self.config.num_slots
        is_packed = self.config.pack_instances
        if is_packed:
            # Each slot of a row has a number, for chance.
            slots = tf.range(num_slots, dtype=tf.int64)
            numbers = numbers[:, tf.newaxis] * num_slots + slots
        seeds = dropout_seeds(
            self.seed, epochs[:, tf.newaxis] if is_packed else epochs, numbers
        )
        if self.config.masking == "dynamic":
            parsed = self._completed(parsed, (epochs, shares, numbers))
        else:
            if is_packed and "next_sentence_labels" in parsed:
                labels = parsed["next_sentence_labels"].to_tensor(
                    NO_LABEL, shape=[records.shape[0], num_slots]
                )
                parsed["next_sentence_labels"] = labels
            if self.attention == "left_to_right":
                parsed["input_ids"] = unmasked_ids(parsed)
        parsed[features.DROPOUT_SEEDS] = seeds
        if self.attention == "left_to_right":
            parsed |= next_tokens(parsed)
        return {
            name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
            for name, value in parsed.items()
        }

    def true_ids(self, records: tf.Tensor) -> tf.Tensor:
        """Returns `(rows, max_seq_length)` int64 ids of records, nothing masked."""
        parsed = self._stored(records)
        if self.config.masking == "static":
            return unmasked_ids(parsed)
        shape = [None, self.config.max_seq_length]
        return parsed["input_ids"].to_tensor(self.vocabulary.pad_id, shape=shape)

    def _stored(self, records: tf.Tensor) -> dict[str, Any]:
        """Returns stored features by the names that the model knows; checks ids."""
        spec = {
            feature.name: tf.io.RaggedFeature(feature.dtype)
            if feature.length is None
            else tf.io.FixedLenFeature([feature.length], feature.dtype)
            for feature in features.record_features(self.config)
        }
        stored = tf.io.parse_example(records, spec)
        names = [feature.name for feature in features.batch_features(self.config)]
        sources = {name: features.stored_name(name, self.config) for name in names}
        parsed = {k: stored[v] for k, v in sources.items() if v in stored}
        limits = {
            "input_ids": (len(self.vocabulary), "vocabulary"),
            "masked_lm_ids": (len(self.vocabulary), "vocabulary"),
            "masked_lm_positions": (self.config.max_seq_length, "sequence"),
            "segment_ids": (2, "pair"),
            "instance_ids": (self.config.num_slots + 1, "row"),
        }
        for name in sorted(parsed.keys() & limits.keys()):
            limit, whole = limits[name]
            # Nothing complains later: a GPU reads row 0 for an id past the table, a
            # position past the sequence is one of the next example, a third segment
            # has no vector.
            ids = parsed[name]
            ids = ids.flat_values if isinstance(ids, tf.RaggedTensor) else ids
            message = f"{name} beyond the {whole} of {limit}"
            tf.debugging.assert_less(ids, tf.constant(limit, tf.int64), message=message)
            tf.debugging.assert_non_negative(ids, message=message)
        return parsed

    def _completed(
        self, parsed: dict[str, Any], chance: tuple[tf.Tensor, ...]
    ) -> dict[str, tf.Tensor]:
        """Pads plain sequences and masks them unless attention is `left_to_right`.

        The instances of a packed row are masked as if each were alone, and joined.
        Epochs, shares and numbers decide chance.
        """
        config, (epochs, shares, numbers) = self.config, chance
        num_rows, is_masked = epochs.shape[0], self.attention == "bidirectional"
        ids, of_packed = parsed.pop("input_ids"), []
        # 1. Packed rows are taken apart: each instance begins with a [CLS].
        if config.pack_instances:
            starts = tf.where(ids.flat_values == self.vocabulary.cls_id)[:, 0]
            row_of = tf.cast(tf.gather(ids.value_rowids(), starts), tf.int64)
            slots = tf.range(tf.size(row_of, out_type=tf.int64))
            slots -= tf.searchsorted(row_of, row_of, out_type=tf.int64)
            numbers = tf.gather_nd(numbers, tf.stack([row_of, slots], axis=1))
            epochs, shares = tf.gather(epochs, row_of), tf.gather(shares, row_of)
            ids = tf.RaggedTensor.from_row_starts(ids.flat_values, starts)
            of_packed.append(row_of)
            if "next_sentence_labels" in parsed:
                labels = parsed.pop("next_sentence_labels").flat_values
                tf.debugging.assert_equal(
                    tf.size(labels),
                    tf.size(row_of),
                    message="a packed record has not one label for each [CLS]",
                )
                of_packed.append(labels[:, tf.newaxis])
        # 2. All sequences are padded.
        lengths = tf.cast(ids.row_lengths(), tf.int64)
        tf.debugging.assert_positive(lengths, message="a record holds no input_ids")
        tf.debugging.assert_less_equal(
            lengths,
            tf.constant(config.max_seq_length, tf.int64),
            message=f"a record of more than {config.max_seq_length} input_ids",
        )
        padded = tf.cast(ids.to_tensor(shape=[None, config.max_seq_length]), tf.int32)
        # 3. Python masks them, and lays out the features of rows.
        columns = [
            feature
            for feature in features.batch_features(config)
            if feature.name not in parsed
            and (is_masked or not feature.name.startswith("masked_lm"))
        ]
        types = [tf.int32 if f.dtype == "int64" else tf.float32 for f in columns]

        def complete(
            ids, lengths, epochs, shares, numbers, *of_packed
        ) -> list[np.ndarray]:
            options: dict[str, Any] = {"vocabulary": self.vocabulary, "config": config}
            arrays = masking.plain_examples(ids, lengths, **options)
            if is_masked:
                seeds = seeded_hash.record_seeds(self.seed, epochs, numbers)
                arrays |= masking.mask_batch(
                    ids, lengths, seeds, shares=shares, **options
                )
            if of_packed:
                row_of, *labels = of_packed
                if labels:
                    [arrays["next_sentence_labels"]] = labels
                arrays = packing.join_rows(arrays, row_of, config)
            return [
                arrays[feature.name].astype(dtype.as_numpy_dtype)
                for feature, dtype in zip(columns, types, strict=True)
            ]

        arrays = tf.numpy_function(
            complete, [padded, lengths, epochs, shares, numbers, *of_packed], types
        )
        return parsed | {
            feature.name: tf.ensure_shape(array, [num_rows, feature.length])
            for feature, array in zip(columns, arrays, strict=True)
        }


def next_tokens(parsed: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Returns the predictions of a left-to-right model: at each place the next token.

    `parsed` has `(n, L)` `input_ids`, nothing masked, and `input_mask`, or
    `instance_ids` of packed rows. All results are `(n, L - 1)`: positions from 0 on,
    the tokens after these, and weights, 0.0 for padding and for the first token of
    another instance.
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
