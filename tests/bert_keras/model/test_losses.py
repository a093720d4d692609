import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.model import losses

RANDOM = np.random.default_rng(0)
LOGITS = (30 * RANDOM.standard_normal((6, 11))).astype("float32")
LABELS = np.array([0, 10, 3, 3, 7, 1], "int32")


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
def test_cross_entropy_equals_kerass_with_its_gradient(shift):
    logits = tf.constant(LOGITS + np.float32(shift))
    upstream = tf.constant([1.0, 2.0, 0.0, -1.0, 0.5, 3.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        ours = losses.cross_entropy(logits, LABELS)
        theirs = keras.losses.sparse_categorical_crossentropy(
            LABELS, logits, from_logits=True
        )
        ours_sum = tf.reduce_sum(ours * upstream)
        theirs_sum = tf.reduce_sum(theirs * upstream)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-3 if shift else 1e-5)
    np.testing.assert_allclose(
        tape.gradient(ours_sum, logits), tape.gradient(theirs_sum, logits), atol=1e-5
    )


def test_right_is_what_argmax_says():
    expected = np.argmax(LOGITS, axis=-1) == LABELS
    np.testing.assert_array_equal(losses.is_right(LOGITS, LABELS), expected)
    best = np.argmax(LOGITS, axis=-1)
    np.testing.assert_array_equal(losses.is_right(LOGITS, best), np.ones(6))


def test_a_tie_is_wrong():
    logits = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]], "float32")
    np.testing.assert_array_equal(losses.is_right(logits, np.array([0, 0])), [0, 1])


def test_terms_count_by_weight():
    logits = np.array([[[9.0, 0.0], [9.0, 0.0]], [[0.0, 9.0], [0.0, 0.0]]], "float32")
    labels = np.array([[0, 1], [1, 0]])
    weights = np.array([[1.0, 0.5], [1.0, 0.0]], "float32")
    terms = losses.classification_terms(logits, labels, weights)
    small, large = np.log1p(np.exp(-9)), np.log1p(np.exp(9))
    np.testing.assert_allclose(terms["loss"], [2 * small + 0.5 * large, 2.5], rtol=1e-5)
    np.testing.assert_allclose(terms["accuracy"], [2.0, 2.5])
