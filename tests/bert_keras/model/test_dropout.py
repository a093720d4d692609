import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.model import dropout

ROWS, SIZE = 64, 512


def dropped(seeds, *, rate=0.1, salt=2**32 - 3, shape=(ROWS, SIZE)) -> np.ndarray:
    """1.0 where an element is dropped."""
    keep = dropout.keep_mask(np.int32(seeds), shape, rate=rate, salt=salt)
    return 1.0 - np.array(keep)


def deviations(samples: np.ndarray, rate: float) -> float:
    """How many standard deviations the mean of 0s and 1s is from `rate`."""
    return (samples.mean() - rate) / np.sqrt(rate * (1 - rate) / samples.size)


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Of 0s and 1s, in the standard deviations that independent ones would have."""
    product = (one - one.mean()) * (other - other.mean())
    return abs(product.mean()) / (one.std() * other.std()) * np.sqrt(product.size)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize(
    "seeds", [range(32), np.arange(32) * 2**26 - 2**31], ids=["near", "far"]
)
def test_drops_the_rate_in_every_part(rate, seeds):
    mask = dropped(seeds, rate=rate)
    assert abs(deviations(mask, rate)) < 4
    # Of each example, of each column, of each row: as scattered as coins are.
    for axes in ((1, 2), (0, 1), (2,)):
        means = mask.mean(axis=axes).ravel()
        expected = rate * (1 - rate) * means.size / mask.size
        spread = means.var() / expected
        assert abs(spread - 1) < 5 * np.sqrt(2 / means.size) + 0.01


def test_neighbours_rows_examples_and_layers_are_independent():
    mask = dropped(range(32), rate=0.5)
    columns = [
        correlation(mask[..., :-lag], mask[..., lag:])
        for lag in itertools.chain(range(1, 20), range(20, SIZE, 37))
    ]
    rows = [correlation(mask[:, :-lag], mask[:, lag:]) for lag in range(1, 20)]
    examples = [correlation(mask[:-lag], mask[lag:]) for lag in range(1, 32, 3)]
    layers = [
        correlation(mask, dropped(range(32), rate=0.5, salt=12345 ^ difference))
        for difference in (1, 2, 3, 2**8, 2**16, 2**30, -1)
    ]
    # Not one of 150 such numbers passes 4.5 by chance in a thousand tests.
    assert max(columns + rows + examples + layers) < 4.5


SEEDS = np.array([7, -8, 2**31 - 1], "int32")
LITERAL_MASK = [
    [[1, 1, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0]],
    [[1, 0, 0, 1, 0, 1], [1, 0, 1, 0, 1, 0]],
    [[1, 0, 0, 1, 1, 0], [1, 0, 1, 0, 1, 0]],
]


def test_the_mask_is_this_one():
    # Literal: a run that is taken up with a newer version must go on as it would have.
    mask = dropped(SEEDS, rate=0.5, shape=(2, 6)).astype(int)
    assert mask.tolist() == LITERAL_MASK


def test_the_seeds_of_parts_are_these():
    seeds = dropout.seeds_of_parts(SEEDS, 3)
    assert np.array(seeds).tolist() == [
        *(7, -1640531520, 1013904249),
        *(-8, -1640531535, 1013904234),
        *(2147483647, 506952120, -1133579407),
    ]
    seeds = np.array(dropout.seeds_of_parts(np.arange(-500, 500), 16))
    assert len(set(seeds.tolist())) == 16000


def test_any_split_of_a_batch_has_the_same_masks():
    seeds = np.random.default_rng(0).integers(-(2**31), 2**31, 12).astype(np.int32)
    inputs = np.random.default_rng(1).normal(size=(12, 3, 5, 8)).astype("float32")
    layer = dropout.Dropout(0.3, seed=2**32 - 5)
    whole = np.array(layer(inputs, seeds, training=True))
    for num_parts in (2, 3, 12):
        parts = [
            layer(part, part_seeds, training=True)
            for part, part_seeds in zip(
                np.split(inputs, num_parts), np.split(seeds, num_parts), strict=True
            )
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    signature = [tf.TensorSpec([None, None, 5, None]), tf.TensorSpec([None], tf.int32)]

    @tf.function(jit_compile=True, input_signature=signature)
    def compiled(inputs, seeds):
        return layer(inputs, seeds, training=True)

    np.testing.assert_array_equal(compiled(inputs, seeds), whole)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-7), ("mixed_bfloat16", 2e-3)]
)
def test_what_stays_is_scaled_so_that_the_mean_stays(dtype, tolerance):
    layer = dropout.Dropout(0.1, seed=3, dtype=dtype)
    outputs = layer(np.ones((4, 600), "float32"), np.arange(4), training=True)
    assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
    values = np.unique(np.float32(outputs))
    np.testing.assert_allclose(values, [0, 1 / 0.9], rtol=tolerance)


def test_does_nothing_outside_training_or_at_rate_0():
    inputs = np.ones((2, 3), "float32")
    np.testing.assert_array_equal(dropout.Dropout(0.5)(inputs), inputs)
    np.testing.assert_array_equal(dropout.Dropout(0.0)(inputs, training=True), inputs)


def test_what_is_refused():
    with pytest.raises(ValueError, match="my_dropout: .* needs `dropout_seeds`"):
        dropout.Dropout(0.5, name="my_dropout")(np.ones((2, 3)), training=True)
    for rate in (-0.1, 1.0):
        with pytest.raises(ValueError, match=f"`rate` must be .* below 1, got {rate}"):
            dropout.Dropout(rate)
