"""Features of batches that TensorFlow computes from other features."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert_keras.data import seeded_hash

# Dropout is drawn from other numbers than masks are.
DROPOUT_SALT = 0x64726F706F757473


def dropout_seeds(
    seed: int, epochs: tf.Tensor | np.ndarray, records: tf.Tensor | np.ndarray
) -> tf.Tensor:
    """Returns `(n,)` int32 seeds: the low halves of `dynamic_masking.record_seeds`.

    They are operations of TensorFlow, so that any host may compute them.
    """
    first = np.array([(seed ^ DROPOUT_SALT) % 2**64], np.uint64)
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
