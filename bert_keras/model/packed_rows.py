"""Rows that hold several instances, each computed as in a row of its own.

`instance_ids`, `(batch_size, sequence_length)` int32, describe a row: 1, 2, ... for the
tokens of its instances in order, then 0 for padding. The layers compute the rest from
these numbers on the device. `keras` and `keras.ops` only.
"""

from keras import ops

from bert_keras.core.settings.pipelines import instances_per_row
from bert_keras.model import operations

# In comments: B batch, S sequence, K slots for instances.


def positions(instance_ids):
    """Returns each token's place in its instance, from 0, shaped as `instance_ids`."""
    length = ops.shape(instance_ids)[1]
    ids = ops.cast(instance_ids, "int32")
    is_same = ops.equal(ids[:, :, None], ids[:, None, :])  # B, S, S
    places = ops.arange(length, dtype="int32")
    is_before = places[:, None] > places
    return ops.sum(ops.cast(ops.logical_and(is_same, is_before), "int32"), axis=-1)


def token_seeds(dropout_seeds, instance_ids, places):
    """Returns the seed of each token's instance and the token's place in it, see
    `dropout.keep_mask`: `(batch_size, sequence_length, 2)` int32."""
    # Padding has any seed: its results do not count.
    slots = ops.maximum(ops.cast(instance_ids, "int32") - 1, 0)
    seeds = ops.take_along_axis(ops.cast(dropout_seeds, "int32"), slots, axis=1)
    return ops.stack([seeds, places], axis=-1)


def num_slots(features):
    if "dropout_seeds" in features:
        return ops.shape(features["dropout_seeds"])[1]
    return instances_per_row(features["input_ids"].shape[1])


def first_states(hidden_states, instance_ids, num_slots):
    """Returns the state of the first token of each instance, `(batch_size, slots,
    size)`; in an empty slot, the state of another token."""
    length, size = ops.shape(instance_ids)[1], hidden_states.shape[-1]
    ids = ops.cast(instance_ids, "int32")[:, None]  # B, 1, S
    slots = ops.arange(num_slots, dtype="int32")[:, None]  # K, 1
    is_before = ops.logical_and(ids > 0, ids <= slots)
    firsts = ops.sum(ops.cast(is_before, "int32"), axis=-1)  # B, K
    states = operations.gather_positions(hidden_states, ops.minimum(firsts, length - 1))
    return ops.reshape(states, (-1, num_slots, size))
