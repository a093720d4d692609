"""Scores of masked words: the rows that are read, and a table's own gradient."""

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.model import operations


def test_gathers_the_positions_of_each_sequence():
    states = np.arange(2 * 4 * 3, dtype="float32").reshape(2, 4, 3)
    gathered = operations.gather_positions(states, np.array([[3, 0], [1, 1]]))
    np.testing.assert_array_equal(
        gathered, [states[0, 3], states[0, 0], states[1, 1], states[1, 1]]
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_in_training_and_their_gradients_are_the_plain_ones(dtype):
    random = np.random.default_rng(0)
    vectors, table = (
        tf.cast(tf.constant(random.standard_normal(s)), dtype)
        for s in [(6, 8), (11, 8)]
    )
    bias = tf.constant(random.standard_normal(11), "float32")
    upstream = tf.constant(random.standard_normal((6, 11)), "float32")

    @tf.function(autograph=False)
    def scores_and_gradients(function):
        with tf.GradientTape() as tape:
            tape.watch([vectors, table, bias])
            scores = function(vectors, table, bias)
        return scores, *tape.gradient(scores, [vectors, table, bias], upstream)

    found = scores_and_gradients(operations.scores_of_rows)
    plain = scores_and_gradients(operations.plain_scores)
    assert found[0].dtype == found[3].dtype == tf.float32
    assert found[1].dtype == found[2].dtype == dtype
    for ours, theirs in zip(found, plain, strict=True):
        tolerance = 1e-6 if ours.dtype == tf.float32 else 2**-7
        np.testing.assert_allclose(
            *(tf.cast(x, tf.float32) for x in (ours, theirs)), tolerance, tolerance
        )
