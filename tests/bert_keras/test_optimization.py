import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras import config, optimization

SETTINGS = config.OptimizerConfig(learning_rate=0.01, warmup_steps=3)
PATHS = ("dense/kernel", "dense/bias", "layer_norm/gamma")


def numpy_updates(values, gradients, *, num_train_steps):
    """BERT's Adam as the paper's code has it, step by step."""
    means = [np.zeros_like(value) for value in values]
    squares = [np.zeros_like(value) for value in values]
    for step, step_gradients in enumerate(gradients):
        rate = 0.01 * (step / 3 if step < 3 else 1 - step / num_train_steps)
        for i, gradient in enumerate(step_gradients):
            means[i] = 0.9 * means[i] + 0.1 * gradient
            squares[i] = 0.999 * squares[i] + 0.001 * gradient**2
            update = means[i] / (np.sqrt(squares[i]) + 1e-6)
            if PATHS[i] == "dense/kernel":
                update = update + 0.01 * values[i]
            values[i] = values[i] - rate * update
    return values


def test_twenty_updates_equal_a_numpy_recomputation():
    random = np.random.default_rng(0)
    shapes = [(4, 3), (3,), (3,)]
    initial = [random.normal(size=shape) for shape in shapes]
    gradients = [[random.normal(size=s) for s in shapes] for _ in range(20)]
    variables = [
        keras.Variable(value.astype("float32"), name=path.split("/")[1])
        for value, path in zip(initial, PATHS, strict=True)
    ]
    for variable, path in zip(variables, PATHS, strict=True):
        variable._path = path
    optimizer = optimization.build_optimizer(SETTINGS, num_train_steps=20)
    for step_gradients in gradients:
        tensors = [tf.constant(g, tf.float32) for g in step_gradients]
        optimizer.apply(tensors, variables)
    expected = numpy_updates(initial, gradients, num_train_steps=20)
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-5, atol=1e-6)


def test_learning_rate_has_the_kink_of_the_original():
    schedule = optimization.WarmupLinearDecay(
        1e-4, warmup_steps=10, num_train_steps=100
    )
    rates = [float(schedule(step)) for step in (0, 5, 9, 10, 50, 100, 200)]
    expected = [0, 5e-5, 9e-5, 9e-5, 5e-5, 0, 0]
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-12)


def test_learning_rate_without_warmup():
    schedule = optimization.WarmupLinearDecay(1.0, warmup_steps=0, num_train_steps=4)
    assert [float(schedule(step)) for step in range(5)] == [1, 0.75, 0.5, 0.25, 0]


@pytest.mark.parametrize(
    ("path", "is_decayed"),
    [
        ("bert_pretrainer/encoder/embeddings/word_embeddings", True),
        ("bert_pretrainer/encoder/embeddings/layer_norm/gamma", False),
        ("encoder/layer_0/self_attention/query_key_value/kernel", True),
        ("encoder/layer_0/self_attention/query_key_value/bias", False),
        ("encoder/layer_0/attention_layer_norm/beta", False),
        ("masked_lm_head/output_bias", False),
        ("encoder/pooler/kernel", True),
    ],
)
def test_what_is_decayed(path, is_decayed):
    assert optimization.BertAdamW().decays(path) == is_decayed


def test_exclusions_survive_saving():
    made = optimization.BertAdamW(0.1, not_decayed=("x$",), weight_decay_rate=0.5)
    again = optimization.BertAdamW.from_config(made.get_config())
    assert again.not_decayed == ("x$",)
    assert again.weight_decay_rate == 0.5


def test_clipping_by_global_norm():
    gradients = [tf.constant([3.0, 0.0]), tf.constant([4.0])]
    clipped, norm = optimization.clip_by_global_norm(gradients, 1.0)
    assert float(norm) == 5.0
    np.testing.assert_allclose(clipped[0], [0.6, 0.0], rtol=1e-6)
    np.testing.assert_allclose(clipped[1], [0.8], rtol=1e-6)
    kept, _ = optimization.clip_by_global_norm(gradients, 10.0)
    np.testing.assert_array_equal(kept[0], [3.0, 0.0])
    kept, norm = optimization.clip_by_global_norm(gradients, None)
    assert kept is gradients and float(norm) == 5.0
