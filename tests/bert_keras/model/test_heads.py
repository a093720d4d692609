import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.model import heads, operations


def test_gathers_the_positions_of_each_sequence():
    states = np.arange(2 * 4 * 3, dtype="float32").reshape(2, 4, 3)
    gathered = operations.gather_positions(states, np.array([[3, 0], [1, 1]]))
    np.testing.assert_array_equal(
        gathered, [states[0, 3], states[0, 0], states[1, 1], states[1, 1]]
    )


def test_masked_language_model_head_scores_by_likeness_to_the_word_embeddings():
    head = heads.MaskedLanguageModelHead(5, 4, hidden_act="relu")
    head.build()
    head.transform.kernel.assign(np.eye(4))
    head.output_bias.assign([0.0, 0.0, 0.0, 0.0, 7.0])
    states = np.zeros((1, 3, 4), "float32")
    states[0, 2] = [3.0, 1.0, 1.0, -2.0]
    table = np.eye(5, 4, dtype="float32")
    logits = np.array(head(states, np.array([[2, 0]]), table))
    # relu gives [3, 1, 1, 0], of mean 1.25 and standard deviation sqrt(1.1875).
    normed = (np.array([3.0, 1.0, 1.0, 0.0]) - 1.25) / np.sqrt(1.1875)
    np.testing.assert_allclose(logits[0, 0], [*normed, 7.0], rtol=1e-5)
    np.testing.assert_allclose(logits[0, 1], [0, 0, 0, 0, 7], atol=1e-6)


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


def test_next_sentence_head_is_a_linear_map(randomize):
    head = heads.NextSentenceHead(4)
    head.build()
    randomize(head)
    pooled = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    kernel, bias = head.classifier.kernel.numpy(), head.classifier.bias.numpy()
    np.testing.assert_allclose(head(pooled), pooled @ kernel + bias, rtol=1e-5)


def test_classification_head_drops_in_training_only(randomize):
    head = heads.ClassificationHead(64, 3, dropout_rate=0.5, seed=1)
    head.build()
    randomize(head)
    pooled = np.random.default_rng(0).normal(size=(2, 64)).astype("float32")
    kernel, bias = head.classifier.kernel.numpy(), head.classifier.bias.numpy()
    np.testing.assert_allclose(head(pooled), pooled @ kernel + bias, rtol=1e-4)
    trained = np.array(head(pooled, np.arange(2), training=True))
    assert np.abs(trained - (pooled @ kernel + bias)).min() > 1e-3


@pytest.mark.parametrize(
    ("head", "arguments"),
    [
        (
            heads.MaskedLanguageModelHead(5, 4, dtype="mixed_bfloat16"),
            (np.ones((1, 3, 4)), np.zeros((1, 2), "int32"), np.ones((5, 4))),
        ),
        (heads.NextSentenceHead(4, dtype="mixed_bfloat16"), (np.ones((2, 4)),)),
        (heads.ClassificationHead(4, 3, dtype="mixed_bfloat16"), (np.ones((2, 4)),)),
    ],
)
def test_logits_are_float32_in_mixed_precision(head, arguments):
    outputs = head(*arguments)
    assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
    assert head.compute_dtype == "bfloat16"
