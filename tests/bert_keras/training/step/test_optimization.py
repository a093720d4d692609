import functools
import types

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.core.settings import pretraining
from bert_keras.training.step import optimization

NUM_STEPS = 10
SHAPES = {
    "dense/kernel": (8, 3),
    "dense/bias": (3,),
    "layer_norm/gamma": (3,),
    "pooler/kernel": (3, 3),
}
DECAYED = {"dense/kernel", "pooler/kernel"}
# As float32 holds them, which is how the update is computed.
BETA_1, BETA_2 = float(np.float32(0.9)), float(np.float32(0.999))
EVERY_OPTIMIZER = [
    {"name": "adamw", "adamw_mode": "google"},
    {"name": "adamw", "adamw_mode": "corrected"},
    {"name": "lamb"},
    {"name": "muon"},
]
SLOW_BUT_THE_FIRST = [
    EVERY_OPTIMIZER[0],
    *(pytest.param(f, marks=pytest.mark.slow) for f in EVERY_OPTIMIZER[1:]),
]
RANDOM = np.random.default_rng(0)
INITIAL = {path: RANDOM.normal(size=shape) for path, shape in SHAPES.items()}
GRADIENTS = [
    {path: RANDOM.normal(size=shape) for path, shape in SHAPES.items()}
    for _ in range(NUM_STEPS)
]


def make_optimizer(**fields):
    settings = pretraining.OptimizerConfig(
        learning_rate=0.01, warmup_steps=3, weight_decay_rate=0.1, **fields
    )
    return optimization.build_optimizer(settings, num_train_steps=NUM_STEPS)


def make_variables():
    variables = []
    for path, value in INITIAL.items():
        scope, name = path.split("/")
        with keras.name_scope(scope):
            variables.append(keras.Variable(value.astype("float32"), name=name))
    return variables


def tensors(gradients):
    return [tf.constant(gradient, tf.float32) for gradient in gradients.values()]


def apply_within_replica(optimizer, gradients):
    optimizer.apply_in_replica(tensors(gradients), num_updates=optimizer.iterations)
    optimizer.iterations.assign_add(1)


def trained(optimizer, *, apply=apply_within_replica):
    variables = make_variables()
    optimizer.build(variables)
    for gradients in GRADIENTS:
        apply(optimizer, gradients)
    return {variable.path: variable.numpy() for variable in variables}


def learning_rate(step):
    return 0.01 * (step / 3 if step < 3 else 1 - step / NUM_STEPS)


def numpy_adam(path, *, corrected=True, epsilon=1e-6, rescaled=False):
    """BERT's Adam as the paper's code has it, or with the bias corrected; `rescaled`:
    algorithm 2 of LAMB's paper."""
    weights, m, v = INITIAL[path], 0, 0
    for step, gradients in enumerate(GRADIENTS):
        m = BETA_1 * m + (1 - BETA_1) * gradients[path]
        v = BETA_2 * v + (1 - BETA_2) * gradients[path] ** 2
        m_hat = m / (1 - BETA_1 ** (step + 1)) if corrected else m
        v_hat = v / (1 - BETA_2 ** (step + 1)) if corrected else v
        update, rate = m_hat / (np.sqrt(v_hat) + epsilon), learning_rate(step)
        if path in DECAYED:
            update = update + 0.1 * weights
            if rescaled:
                rate *= np.sqrt((weights**2).sum() / (update**2).sum())
        weights = weights - rate * update
    return weights


def newton_schulz(x, *, rounded=lambda x: x):
    """Jordan et al.'s reference code; `rounded` is applied to each result."""
    x = rounded(x / np.linalg.norm(x))
    for _ in range(5):
        a = rounded(x @ x.T)
        b = rounded(rounded(-4.775 * a) + rounded(2.0315 * rounded(a @ a)))
        x = rounded(rounded(3.4445 * x) + rounded(b @ x))
    return x


def numpy_muon(path):
    """Jordan et al.'s updates, scaled as Moonlight; in float64."""
    if path not in DECAYED:
        return numpy_adam(path)
    weights, momentum = INITIAL[path], 0
    for step, gradients in enumerate(GRADIENTS):
        momentum = 0.95 * momentum + gradients[path]
        x = newton_schulz(gradients[path] + 0.95 * momentum)
        update = 0.2 * max(x.shape) ** 0.5 * x + 0.1 * weights
        weights = weights - learning_rate(step) * update
    return weights


def assert_weights(weights, expected, **tolerance):
    for path, value in weights.items():
        np.testing.assert_allclose(value, expected[path], err_msg=path, **tolerance)


def check_against(compute, tolerance, **fields):
    expected = {path: compute(path) for path in SHAPES}
    weights = trained(make_optimizer(**fields))
    assert_weights(weights, expected, rtol=tolerance, atol=tolerance)


# The larger one counts beside the root, and so shows what it is added to.
@pytest.mark.parametrize("epsilon", [1e-6, 0.1])
def test_adamw_and_lamb_equal_a_numpy_recomputation(epsilon):
    options = {"epsilon": epsilon}
    for fields, how in (
        ({"adamw_mode": "google"}, {"corrected": False}),
        ({"adamw_mode": "corrected"}, {}),
        ({"name": "lamb"}, {"rescaled": True}),
    ):
        compute = functools.partial(numpy_adam, **how, **options)
        check_against(compute, 1e-6, **fields, **options)


def test_muon_equals_a_numpy_recomputation():
    check_against(numpy_muon, 2e-5, name="muon")


def test_muon_takes_query_key_and_value_for_three_matrices():
    """One that is 1,000 times as steep moves as far as the others."""
    gradient = np.random.default_rng(1).normal(size=(4, 12))
    gradient[:, :4] *= 1000
    with keras.name_scope("query_key_value"):
        variable = keras.Variable(np.zeros((4, 12), "float32"), name="kernel")
    optimizer = optimization.Muon(1.0, weight_decay_rate=0.0)
    optimizer.build([variable])
    optimizer.apply_in_replica([tf.constant(gradient, tf.float32)], num_updates=0)
    for third in np.split(variable.numpy(), 3, axis=1):
        singular = np.linalg.svd(third, compute_uv=False) / (0.2 * 4**0.5)
        assert 0.6 < singular.min() and singular.max() < 1.3


def test_muon_multiplies_in_bfloat16_where_the_model_does():
    """Singular values are as near 1 as in float32, directions within five degrees."""
    muon = pretraining.OptimizerConfig(name="muon")
    for precision, products in (
        ("float32", "float32"),
        ("mixed_float16", "float32"),
        ("mixed_bfloat16", "bfloat16"),
    ):
        made = optimization.build_optimizer(
            muon, num_train_steps=20_000, precision=precision
        )
        assert made.get_config()["products"] == products
    matrix = tf.constant(np.random.default_rng(2).normal(size=(96, 64)), tf.float32)
    exact, rounded = (
        optimization.orthogonalized(matrix, products).numpy()
        for products in ("float32", "bfloat16")
    )
    assert rounded.dtype == np.float32
    assert not np.array_equal(exact, rounded)
    singular = np.linalg.svd(rounded, compute_uv=False)
    assert 0.6 < singular.min() and singular.max() < 1.3
    cosine = (exact * rounded).sum() / np.sqrt((exact**2).sum() * (rounded**2).sum())
    assert cosine > np.cos(np.deg2rad(5))


@pytest.mark.parametrize("shape", [(64, 256), (256, 64)])
@pytest.mark.parametrize("last", [0.0, -2.0, -4.0])
def test_few_products_with_a_long_matrix_are_as_exact_as_many(shape, last):
    """Compared with the reference code in float64, whose own error in bfloat16 is not
    smaller: of equal singular values, and of values down to a 10,000th."""
    random = np.random.default_rng(3)
    left, _, right = np.linalg.svd(random.normal(size=shape), full_matrices=False)
    matrix = left * np.logspace(0, last, min(shape)) @ right
    expected = newton_schulz(matrix)

    def error(values):
        return np.linalg.norm(values - expected) / np.linalg.norm(expected)

    def computed(products):
        tensor = tf.constant(matrix, tf.float32)
        return optimization.orthogonalized(tensor, products).numpy()

    def bfloat16(x):
        return x.astype(ml_dtypes.bfloat16).astype(np.float32)

    assert error(computed("float32")) < 3e-5
    plain = newton_schulz(matrix.astype(np.float32), rounded=bfloat16)
    assert error(computed("bfloat16")) < error(plain)


@pytest.mark.parametrize("fields", EVERY_OPTIMIZER)
def test_keras_own_apply_makes_the_same_updates(fields):
    weights = trained(
        make_optimizer(**fields),
        apply=lambda optimizer, gradients: optimizer.apply(tensors(gradients)),
    )
    assert_weights(weights, trained(make_optimizer(**fields)), rtol=0, atol=0)


@pytest.mark.parametrize("fields", SLOW_BUT_THE_FIRST)
def test_keras_own_apply_sums_the_gradients_of_two_replicas(fields):
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    with strategy.scope():
        optimizer = make_optimizer(**fields)

        @tf.function
        def run(gradients):
            # Divided within the replica, for the halves to have its device.
            strategy.run(lambda: optimizer.apply([g / 2 for g in gradients]))

        weights = trained(optimizer, apply=lambda _, gradients: run(tensors(gradients)))
    expected = trained(make_optimizer(**fields))
    assert_weights(weights, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fields", EVERY_OPTIMIZER)
@pytest.mark.parametrize(
    "is_compiled", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_updates_without_a_branch(is_compiled, fields):
    """The same as with one, and not a bit changes where there is none."""
    optimizer = make_optimizer(**fields)
    num_updates = tf.Variable(0.0)

    def run(gradients, is_finite):
        optimizer.apply_in_replica(
            gradients, num_updates=num_updates, only_if=is_finite
        )

    if is_compiled:
        run = tf.function(run, jit_compile=True)

    def apply(_, gradients):
        before = [variable.numpy() for variable in optimizer.variables]
        run([np.nan * gradient for gradient in tensors(gradients)], tf.constant(False))
        after = [variable.numpy() for variable in optimizer.variables]
        np.testing.assert_equal(after, before)
        run(tensors(gradients), tf.constant(True))
        optimizer.iterations.assign_add(1)
        num_updates.assign_add(1.0)

    weights = trained(optimizer, apply=apply)
    expected = trained(make_optimizer(**fields))
    assert_weights(weights, expected, rtol=1e-6, atol=1e-6)


def test_what_is_refused():
    with pytest.raises(ValueError, match='"google" or "corrected", got \'adam\''):
        optimization.BertAdamW(0.1, mode="adam")
    for kind in (optimization.BertAdamW, optimization.Lamb, optimization.Muon):
        with pytest.raises(TypeError, match="weight_decay"):
            kind(0.1, weight_decay=0.01)
    optimizer = make_optimizer()
    optimizer.build(make_variables())
    with pytest.raises(ValueError, match="3 gradients for 4 variables"):
        optimizer.apply_in_replica(tensors(GRADIENTS[0])[:3], num_updates=0)


def test_trust_ratio_of_lamb():
    for weights, update, ratio in (
        ([3.0, 4.0], [0.0, 10.0], 0.5),
        ([0.0, 0.0], [1.0, 0.0], 1),
        ([1.0], [0.0], 1),
    ):
        assert float(optimization.trust_ratio(weights, update)) == ratio


def test_moments_are_named_after_their_variables():
    optimizer = make_optimizer()
    optimizer.build(make_variables())
    variables = ("dense_kernel", "dense_bias", "layer_norm_gamma", "pooler_kernel")
    moments = [f"bert_adamw/{name}_{m}" for name in variables for m in ("m", "v")]
    assert [v.path for v in optimizer.variables] == ["bert_adamw/iteration", *moments]


@pytest.mark.parametrize(
    ("path", "is_decayed", "is_hidden"),
    [
        ("bert_pretrainer/encoder/embeddings/word_embeddings", True, False),
        ("bert_pretrainer/encoder/embeddings/layer_norm/gamma", False, False),
        ("encoder/layer_0/self_attention/query_key_value/kernel", True, True),
        ("encoder/layer_0/self_attention/query_key_value/bias", False, False),
        ("encoder/layer_0/attention_layer_norm/beta", False, False),
        ("masked_lm_head/output_bias", False, False),
        ("bert_pretrainer/masked_lm_head/transform/kernel", True, True),
        ("bert_pretrainer/next_sentence_head/classifier/kernel", True, False),
        ("encoder/pooler/kernel", True, True),
    ],
)
def test_what_is_decayed_and_what_muon_moves(path, is_decayed, is_hidden):
    assert optimization.BertAdamW().decays(path) is is_decayed
    variable = types.SimpleNamespace(path=path)
    assert optimization.Muon().is_hidden(variable) is is_hidden


def small_model(first_layer, optimizer):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            first_layer,
            keras.layers.LayerNormalization(name="layer_norm"),
            keras.layers.Dense(2, name="dense"),
        ]
    )
    # Eager: to trace a step takes longer than to make it.
    model.compile(optimizer=optimizer, loss="mse", run_eagerly=True)
    return model


@pytest.mark.parametrize("fields", SLOW_BUT_THE_FIRST)
def test_repeated_rows_of_an_embedding_are_summed_in_fit(fields):
    ids, targets = RANDOM.integers(0, 3, 64), RANDOM.normal(size=(64, 2))
    table = keras.initializers.Constant(RANDOM.normal(size=(3, 5)))
    # Muon leaves tables and the matrices of this name to Adam.
    name = "classifier"
    layers = {
        "sparse": keras.layers.Embedding(3, 5, embeddings_initializer=table, name=name),
        "dense": keras.layers.Dense(
            5, use_bias=False, kernel_initializer=table, name=name
        ),
    }
    weights = {}
    for kind, inputs in (("sparse", ids), ("dense", np.eye(3)[ids])):
        model = small_model(layers[kind], make_optimizer(**fields))
        model.fit(inputs, targets, batch_size=8, shuffle=False, verbose=0)
        weights[kind] = model.get_weights()
    for value, expected in zip(weights["sparse"], weights["dense"], strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fields", SLOW_BUT_THE_FIRST)
def test_a_loaded_model_trains_on_as_the_saved_one(fields, tmp_path):
    optimizer = make_optimizer(decay_power=2.0, end_learning_rate=1e-3, **fields)
    optimizer.not_decayed = ("dense/kernel",)
    model = small_model(keras.layers.Dense(5, name="first"), optimizer)
    inputs, targets = RANDOM.normal(size=(8, 4)), RANDOM.normal(size=(8, 2))
    model.fit(inputs, targets, epochs=5, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is type(optimizer)
    assert loaded.optimizer.get_config() == optimizer.get_config()
    assert loaded.optimizer.not_decayed == ("dense/kernel",)
    for each in (model, loaded):
        each.fit(inputs, targets, epochs=5, verbose=0)
    weights = zip(loaded.get_weights(), model.get_weights(), strict=True)
    for value, expected in weights:
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # The kink of the original: 10e-5 is never reached, step 10 is back at 9e-5.
        ({}, [0, 5e-5, 9e-5, 9e-5, 5e-5, 0, 0]),
        ({"power": 2.0}, [0, 5e-5, 9e-5, 8.1e-5, 2.5e-5, 0, 0]),
        (
            {"power": 0.5, "end": 2e-5},
            [0, 5e-5, 9e-5, 9.58947e-5, 7.65685e-5, 2e-5, 2e-5],
        ),
        ({"warmup_steps": 0}, [1e-4, 9.5e-5, 9.1e-5, 9e-5, 5e-5, 0, 0]),
        ({"decay_steps": 80}, [0, 5e-5, 9e-5, 1e-4, 6.25e-5, 0, 0]),
        ({"decay_steps": 50}, [0, 5e-5, 9e-5, 1e-4, 1e-4, 0, 0]),
        (
            {"decay_steps": 80, "power": 2.0, "end": 2e-5},
            [0, 5e-5, 9e-5, 1e-4, 5.125e-5, 2e-5, 2e-5],
        ),
    ],
)
def test_learning_rate_at_literal_steps(settings, expected):
    schedule = optimization.WarmupDecay(
        1e-4, **{"warmup_steps": 10, "num_train_steps": 100, **settings}
    )
    for each in (schedule, optimization.WarmupDecay.from_config(schedule.get_config())):
        rates = [float(each(step)) for step in (0, 5, 9, 10, 50, 100, 200)]
        np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-12)


def test_the_settings_decide_when_the_rate_falls():
    for decay_steps in (None, 4):
        made = make_optimizer(decay_steps=decay_steps).get_config()["learning_rate"]
        assert made["config"]["decay_steps"] == decay_steps


@pytest.mark.parametrize("branches", [True, False])
def test_clipping_by_global_norm(branches):
    gradients = [tf.constant([3.0, 0.0]), tf.constant([4.0])]
    clip = functools.partial(optimization.clip_by_global_norm, branches=branches)
    clipped, norm = clip(gradients, 1.0)
    assert float(norm) == 5.0
    np.testing.assert_allclose(clipped[0], [0.6, 0.0], rtol=1e-6)
    np.testing.assert_allclose(clipped[1], [0.8], rtol=1e-6)
    for max_norm in (5.0, 10.0, None):
        kept, norm = clip(gradients, max_norm)
        np.testing.assert_array_equal(kept[0], [3.0, 0.0])
        np.testing.assert_array_equal(kept[1], [4.0])
        assert float(norm) == 5.0


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e30])
def test_the_norm_tells_of_gradients_that_are_of_no_use(value):
    gradients = [tf.constant([1.0, value]), tf.constant([4.0])]
    _, norm = optimization.clip_by_global_norm(gradients, 1.0)
    assert not np.isfinite(norm)
