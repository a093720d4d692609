import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from bert_keras.model import layers, operations


def test_activations_equal_their_formulas():
    xs = np.linspace(-6, 6, 49).astype("float32")
    exact = [0.5 * x * (1 + math.erf(x / math.sqrt(2))) for x in xs]
    tanh = [
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        for x in xs
    ]
    np.testing.assert_allclose(operations.ACTIVATIONS["gelu"](xs), exact, atol=1e-6)
    np.testing.assert_allclose(operations.ACTIVATIONS["gelu_tanh"](xs), tanh, atol=1e-6)
    np.testing.assert_allclose(operations.ACTIVATIONS["relu"](xs), np.maximum(xs, 0))
    assert np.abs(np.subtract(exact, tanh)).max() > 1e-4


def one_hot_rows(table, ids):
    return ops.matmul(ops.one_hot(ids, table.shape[0]), ops.convert_to_tensor(table))


@pytest.mark.parametrize("in_graph", [False, True])
def test_take_rows_gives_adam_the_sum_over_repeated_ids(in_graph):
    ids = np.array([[0, 3, 3, 3], [3, 1, 1, 0]])
    scale = np.random.default_rng(0).normal(size=(2, 4, 5)).astype("float32")
    start = np.random.default_rng(1).normal(size=(6, 5)).astype("float32")

    def after_adam(rows_of):
        table = keras.Variable(start)
        optimizer = keras.optimizers.Adam(learning_rate=0.01, global_clipnorm=1.0)
        optimizer.build([table])

        def step():
            with tf.GradientTape() as tape:
                loss = ops.sum(scale * ops.square(rows_of(table, ids)))
            optimizer.apply([tape.gradient(loss, table.value)], [table])

        step = tf.function(step) if in_graph else step
        for _ in range(3):
            step()
        return table.numpy()

    ours = after_adam(operations.take_rows)
    np.testing.assert_allclose(ours, after_adam(one_hot_rows), atol=1e-6)
    used = np.array([True, True, False, True, False, False])
    assert (ours[used] != start[used]).all()
    assert (ours[~used] == start[~used]).all()


def test_take_rows_sums_many_bfloat16_gradients_exactly():
    table = tf.ones((2, 3), "bfloat16")
    with tf.GradientTape() as tape:
        tape.watch(table)
        rows = operations.take_rows(table, np.zeros(4096, "int32"))
    gradient = tape.gradient(rows, table)
    assert gradient.dtype == "bfloat16"
    # Added up in bfloat16, ones stop at 256.
    np.testing.assert_array_equal(np.float32(gradient), [[4096.0] * 3, [0.0] * 3])


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_layer_norm_keeps_small_variances_apart_from_epsilon(policy):
    # With Keras' default epsilon, or in bfloat16, the result would be nearly 0.
    x = 1e-4 * np.random.default_rng(0).normal(size=(4, 64)).astype("float32")
    norm = layers.LayerNorm(64, name="norm", dtype=policy)
    norm.build((None, 64))
    given = ops.cast(x, norm.compute_dtype)
    outputs = np.float32(norm(given))
    exact = np.float64(np.float32(given))
    mean, variance = exact.mean(-1, keepdims=True), exact.var(-1, keepdims=True)
    expected = (exact - mean) / np.sqrt(variance + 1e-12)
    tolerance = 1e-5 if policy == "float32" else 2e-2
    np.testing.assert_allclose(outputs, expected, atol=tolerance)
    assert norm(given).dtype == norm.compute_dtype


def test_attention_probabilities_are_those_of_the_scores(randomize):
    attention = layers.SelfAttention(8, 2, dropout_rate=0.5)
    attention.build()
    randomize(attention)
    states = np.random.default_rng(0).normal(size=(1, 4, 8)).astype("float32")
    mask = np.array([[1, 1, 1, 0]])
    _, probabilities = attention(
        states, mask, np.array([5]), training=True, return_attention=True
    )
    fused = attention.query_key_value
    parts = states[0] @ fused.kernel.numpy() + fused.bias.numpy()
    query, key, _ = (part.reshape(4, 2, 4) for part in np.split(parts, 3, axis=-1))
    powers = np.exp(np.einsum("qnh,knh->nqk", query, key) / 2) * mask[0]
    expected = powers / powers.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(probabilities[0], expected, atol=1e-6)


def test_an_unknown_kind_of_attention_is_refused():
    with pytest.raises(ValueError, match="`attention` is one of .*, got 'causal'"):
        layers.SelfAttention(8, 2, attention="causal")


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.Embeddings(9, 8, max_position_embeddings=6, seed=5),
        lambda: layers.SelfAttention(8, 2, attention="left_to_right", seed=5),
        lambda: layers.FeedForward(8, 12, hidden_act="relu", seed=5),
        lambda: layers.TransformerLayer(8, 2, 12, initializer_range=0.5, seed=5),
    ],
)
def test_a_layer_comes_back_from_its_config(make):
    layer = make()
    copy = type(layer).from_config(layer.get_config())
    layer.build()
    copy.build()
    assert copy.get_config() == layer.get_config()
    assert len(layer.weights) > 0
    for weight, copied in zip(layer.weights, copy.weights, strict=True):
        assert copied.path == weight.path
        np.testing.assert_array_equal(copied.numpy(), weight.numpy())


def test_initial_weights_are_truncated_normal_and_zero_biases():
    layer = layers.TransformerLayer(64, 2, 128, initializer_range=0.02, seed=3)
    layer.build()
    kernels = [w.numpy() for w in layer.trainable_weights if w.name == "kernel"]
    assert len(kernels) == 4
    for kernel in kernels:
        assert np.abs(kernel).max() <= 0.04
        # The standard deviation of a normal distribution cut at two of its own.
        assert abs(kernel.std() / (0.02 * 0.87963) - 1) < 0.05
    for weight in layer.trainable_weights:
        if weight.name in ("bias", "beta"):
            np.testing.assert_array_equal(weight.numpy(), np.zeros(weight.shape))
        if weight.name == "gamma":
            np.testing.assert_array_equal(weight.numpy(), np.ones(weight.shape))
