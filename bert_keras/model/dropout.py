"""Dropout as a function of the example, without a random state.

A hash of three things decides whether an element is dropped: the seed of its example,
the salt of the layer, and the element's place in the example. So an example gets the
same masks on one device or many, in a whole batch or a part of it, in a row of its own
or a packed row, in a first run or a resumed one, and no random state has to be saved.
`keras` and `keras.ops` only.
"""

import math
import random
from typing import Any

import keras
from keras import ops

from bert_keras.model import fusion

# The golden ratio, and two rounds (shift, factor) of a well-tested integer hash.
_STEP = 0x9E3779B9
_ROUNDS = ((16, 0x7FEB352D), (15, 0x846CA68B))


@keras.saving.register_keras_serializable(package="bert_keras")
class Dropout(keras.layers.Layer):
    """Sets a fraction of each example to 0 in training and scales the rest up.

    Args:
        rate: the fraction, in `[0, 1)`.
        seed: the layer's salt: layers with different seeds drop different elements of
            the same example; `None` for a random salt.

    Call arguments:
        inputs: `(batch_size, ..., size)` float.
        dropout_seeds: `(batch_size,)` int32, a seed for each example, or for packed
            rows `packed_rows.token_seeds`; required in training unless the rate is 0.
    """

    def __init__(self, rate: float, *, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"`rate` must be at least 0 and below 1, got {rate}")
        self.rate = rate
        self.seed = seed
        self.salt = random.getrandbits(32) if seed is None else seed % 2**32

    def call(self, inputs, dropout_seeds=None, training=None):
        rate, *seeds = self.arguments(dropout_seeds, training=training)
        return fusion.run(drop, inputs, *seeds, training=training, rate=rate)

    def arguments(self, dropout_seeds, *, training: bool | None) -> tuple:
        """Returns the arguments of `drop` besides its inputs, for dropout inside a
        larger function: rate, seeds and salt, or only a rate of 0 for no dropout."""
        if not training or self.rate == 0:
            return (0.0,)
        if dropout_seeds is None:
            raise ValueError(
                f"{self.name}: dropout in training needs `dropout_seeds`, an int32 for "
                "each example; call the layer with training=False or a rate of 0 to do "
                "without"
            )
        return self.rate, ops.cast(dropout_seeds, "int32"), _uint32(self.salt)


def drop(inputs, dropout_seeds=None, salt=None, *, rate: float):
    """Sets elements of `(batch_size, ..., size)` to 0 with probability `rate`, in `[0,
    1)`, and divides the rest by `1 - rate`. A rate of 0 needs no seeds and no salt."""
    if rate == 0:
        return inputs
    keep = keep_mask(dropout_seeds, ops.shape(inputs)[1:], rate=rate, salt=salt)
    # In float32: 1 / 0.9 has an error of 0.2 % in bfloat16.
    scaled = ops.cast(inputs, "float32") * (1.0 / (1.0 - rate))
    return ops.cast(ops.where(keep, scaled, 0.0), inputs.dtype)


def keep_mask(dropout_seeds, shape: tuple, *, rate: float, salt):
    """Returns the mask of kept elements, `(batch_size, *shape)` bool.

    Args:
        dropout_seeds: `(batch_size,)` int32; for packed rows `(batch_size, length, 2)`:
            for each token the seed of its example and its place in the example. A
            packed row is `(length, size)`, numbers of each token, or `(heads, length,
            length)`, numbers of pairs of tokens; each example's mask is the mask it has
            alone in such a row.
        shape: shape of a row; memory runs along its last axis.
        rate: the probability of False.
        salt: an integer in `[0, 2 ** 32)`, or a uint32 scalar.
    """
    *row_shape, size = shape
    if len(dropout_seeds.shape) == 1:
        examples = _examples(dropout_seeds, salt)
        rows = _hash(examples[:, None] + _multiples(math.prod(row_shape)))
        rows = ops.reshape(rows, (-1, *row_shape, 1))
        columns = _multiples(size)
    else:
        examples = _examples(dropout_seeds[..., 0], salt)
        places = ops.cast(dropout_seeds[..., 1], "uint32") * _uint32(_STEP)
        if len(row_shape) == 1:
            rows, columns = _hash(examples + places)[..., None], _multiples(size)
        else:
            num_heads, length = row_shape
            heads = _multiples(num_heads) * ops.cast(length, "uint32")
            rows = examples[:, None] + heads[:, None] + places[:, None]
            rows, columns = _hash(rows)[..., None], places[:, None, None]
    # The hash is uniform: a fraction `rate` of all values lies below this one.
    return _hash(rows + columns) >= _uint32(round(rate * 2**32))


def _examples(seeds, salt):
    return _hash(ops.bitwise_xor(ops.cast(seeds, "uint32"), _uint32(salt)))


def _multiples(count):
    """Returns `(count,)` uint32, all different and spread over every bit."""
    return ops.cast(ops.arange(count, dtype="int32"), "uint32") * _uint32(_STEP)


def _hash(values):
    """Permutes uint32 so that near values are far apart; products wrap around."""
    for shift, factor in _ROUNDS:
        shifted = ops.right_shift(values, _uint32(shift))
        values = ops.bitwise_xor(values, shifted) * _uint32(factor)
    return values


def _uint32(value):
    return ops.convert_to_tensor(value, dtype="uint32")


def seeds_of_parts(dropout_seeds, num_parts):
    """Returns dropout seeds for parts of examples, `(batch_size * num_parts,)` int32.

    The first part has the example's own seed. The other seeds are far from it and from
    those of other examples, whose seeds may be consecutive numbers; sums wrap around.
    """
    seeds = ops.cast(dropout_seeds, "uint32")[:, None] + _multiples(num_parts)
    return ops.cast(ops.reshape(seeds, (-1,)), "int32")
