import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from bert_keras.model import fusion, layers, operations, recomputation
from bert_keras.training.step import precision

pytestmark = pytest.mark.skipif(
    bool(tf.config.list_physical_devices("TPU_SYSTEM")),
    reason="tensorflow-tpu has no XLA for processors",
)

ROWS, SIZE = 6, 40


def random(*shape: int, seed: int) -> tf.Tensor:
    values = np.random.default_rng(seed).normal(size=shape)
    return tf.constant(values, tf.float32)


SEEDS = tf.constant([3, -1, 8, 2], tf.int32)
SALT = tf.constant(77, tf.uint32)
TOKENS = random(4, ROWS, SIZE, seed=1)
OTHERS = random(4, ROWS, SIZE, seed=2)
GAMMA, BETA = 1 + random(SIZE, seed=3), random(SIZE, seed=4)
BIAS = tf.constant([0.0, -10000.0] * (SIZE // 2))[None, None, None]

CASES = {
    "gelu": (operations.activate, (TOKENS,), {"activation": "gelu"}),
    "normalize": (operations.normalize, (TOKENS, GAMMA, BETA), {}),
    "add_and_normalize": (
        operations.add_and_normalize,
        (OTHERS, TOKENS, GAMMA, BETA, SEEDS, SALT),
        {"rate": 0.3},
    ),
    "without dropout": (
        operations.add_and_normalize,
        (OTHERS, TOKENS, GAMMA, BETA),
        {"rate": 0.0},
    ),
    "attend": (
        operations.attention_probabilities,
        (TOKENS[:, None], BIAS, SEEDS, SALT),
        {"scale": 0.5, "rate": 0.3},
    ),
}


def output_and_gradients(function, tensors, options, *, training=True):
    floats = [tensor for tensor in tensors if tensor.dtype.is_floating]
    upstream = random(*function(*tensors, **options).shape, seed=9)
    with tf.GradientTape() as tape:
        tape.watch(floats)
        output = fusion.run(function, *tensors, training=training, **options)
    upstream = tf.cast(upstream, output.dtype)
    return output, *tape.gradient(output, floats, upstream)


def in_a_graph(function, tensors, options, *, jit_compile=False):
    """The output and the gradients of a step, in which a chain is compiled."""
    traced = tf.function(
        lambda *tensors: output_and_gradients(function, tensors, options),
        jit_compile=jit_compile,
    )
    assert compiled_functions(traced.get_concrete_function(*tensors).graph)
    return traced(*tensors)


def compiled_functions(graph: tf.Graph) -> list[str]:
    nodes = graph.as_graph_def().node
    return [node.name for node in nodes if node.attr["_XlaMustCompile"].b]


def assert_close(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        if theirs is None:
            assert ours is None
        else:
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "jit_compile"),
    [
        ("attend", False),
        *(
            pytest.param(name, jit_compile, marks=pytest.mark.slow)
            for name in CASES
            for jit_compile in (False, True)
        ),
    ],
)
def test_fused_and_plain_are_the_same(name, jit_compile):
    found = in_a_graph(*CASES[name], jit_compile=jit_compile)
    assert_close(found, output_and_gradients(*CASES[name], training=False))
    if name == "attend":
        # XLA would sum the gradient of the bias over all scores.
        assert found[-1] is None


@pytest.mark.slow
def test_in_mixed_precision_it_computes_in_float32():
    function, (residual, inputs, *rest), options = CASES["add_and_normalize"]
    low = [tf.cast(tensor, tf.bfloat16) for tensor in (residual, inputs)]
    exact = function(*(tf.cast(tensor, tf.float32) for tensor in low), *rest, **options)
    output, *gradients = in_a_graph(function, (*low, *rest), options)
    assert output.dtype == tf.bfloat16
    assert [g.dtype for g in gradients] == [tf.bfloat16] * 2 + [tf.float32] * 2
    # One rounding to 8 bits, of the outcome.
    np.testing.assert_allclose(tf.cast(output, tf.float32), exact, rtol=2**-8)


@pytest.mark.parametrize(
    ("training", "shape"), [(False, TOKENS.shape), (True, [None, ROWS, SIZE])]
)
def test_neither_inference_nor_unknown_shapes_are_compiled(training, shape):
    @tf.function(input_signature=[tf.TensorSpec(shape)])
    def activated(tokens):
        return fusion.run(
            operations.activate, tokens, training=training, activation="gelu"
        )

    graph = activated.get_concrete_function().graph
    assert not compiled_functions(graph)
    exact = operations.activate(TOKENS, activation="gelu")
    np.testing.assert_allclose(activated(TOKENS), exact, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recompute"), [("gelu", False), ("attend", True)])
def test_within_xla_only_what_is_asked_for_is_set_apart(name, recompute):
    function, tensors, options = CASES[name]
    options = options | {"recompute": recompute}

    @tf.function(jit_compile=True)
    def whole(*tensors):
        with recomputation.compiled_whole():
            with tf.GradientTape() as tape:
                tape.watch(tensors[0])
                output = fusion.run(function, *tensors, training=True, **options)
            return tape.gradient(output, tensors[0])

    graph = whole.get_concrete_function(*tensors).graph
    assert not compiled_functions(graph)
    program = whole.experimental_get_compiler_ir(*tensors)(stage="hlo")
    assert (" opt-barrier(" in program) == recompute


@pytest.mark.slow
def test_replicas_on_one_machine_share_what_is_compiled():
    case = CASES["add_and_normalize"]
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
    strategy = tf.distribute.MirroredStrategy(devices[:2])

    @tf.function
    def on_all_replicas():
        return strategy.run(lambda: output_and_gradients(*case))

    assert compiled_functions(on_all_replicas.get_concrete_function().graph)
    per_replica = map(strategy.experimental_local_results, on_all_replicas())
    for found in zip(*per_replica, strict=True):
        assert_close(found, output_and_gradients(*case, training=False))


def feed_forward(dtype: str, activation: str = "gelu") -> layers.FeedForward:
    layer = layers.FeedForward(
        *(SIZE, 4 * SIZE), hidden_act=activation, initializer_range=0.2, dtype=dtype
    )
    layer.build()
    return layer


@pytest.mark.parametrize(
    ("dtype", "activation", "within_xla", "computed_in"),
    [
        ("mixed_bfloat16", "gelu", False, tf.bfloat16),
        ("bfloat16", "gelu", False, tf.bfloat16),
        # TensorFlow does not put these into the product.
        ("bfloat16", "gelu", True, tf.float32),
        ("bfloat16", "gelu_tanh", False, tf.float32),
        ("float16", "gelu", False, tf.float32),
        ("float32", "gelu", False, tf.float32),
    ],
)
def test_an_activation_is_in_float32_unless_it_joins_the_product(
    dtype, activation, within_xla, computed_in
):
    layer = feed_forward(dtype, activation)
    tokens = tf.cast(TOKENS, layer.compute_dtype)
    with recomputation.compiled_whole(within_xla):
        graph = tf.function(layer).get_concrete_function(tokens).graph
    operation = {"gelu": "Erf", "gelu_tanh": "Tanh"}[activation]
    (found,) = (op for op in graph.get_operations() if op.type == operation)
    assert found.inputs[0].dtype == computed_in


@pytest.mark.skipif(
    not precision.processor_multiplies_in_bfloat16(),
    reason="products of other processors take no activation in bfloat16",
)
@pytest.mark.parametrize(
    ("activation", "name"), [("gelu", "GeluExact"), ("relu", "Relu")]
)
def test_in_bfloat16_tensorflow_puts_the_activation_into_the_product(activation, name):
    layer = feed_forward("bfloat16", activation)
    tokens = tf.cast(TOKENS, tf.bfloat16)
    context.enable_run_metadata()
    try:
        traced = tf.function(lambda x: tf.identity(layer(x), name="of_this_test"))
        output = traced(tokens)
        graphs = context.export_run_metadata().function_graphs
    finally:
        context.disable_run_metadata()
    fused = [
        [operation.decode() for operation in node.attr["fused_ops"].list.s]
        for graph in graphs
        # Others of this process may be among them.
        if any(
            "of_this_test" in node.name for node in graph.pre_optimization_graph.node
        )
        for node in graph.post_optimization_graph.node
        if node.op.startswith("_") and node.op.endswith("FusedMatMul")
    ]
    assert fused == [["BiasAdd", name], ["BiasAdd"]]
    exact = feed_forward("float32", activation)
    for ours, theirs in zip(exact.weights, layer.weights, strict=True):
        ours.assign(tf.cast(theirs, tf.float32))
    errors = [
        np.std(tf.cast(found, tf.float32) - exact(tf.cast(tokens, tf.float32)))
        # Outside of graphs, the activation is computed in float32 by itself.
        for found in (output, layer(tokens))
    ]
    assert 0 < errors[0] < 1.02 * errors[1]
