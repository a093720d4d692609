import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from bert_keras.model import encoder, recomputation

VALUES = tf.constant(np.random.default_rng(0).normal(size=(4, 8)), tf.float32)
ROWS = tf.constant([2, 0], tf.int32)


def chosen(values, rows):
    return tf.gather(tf.nn.softmax(values), rows)


def gradient(values, call, function=chosen):
    with tf.GradientTape() as tape:
        tape.watch(values)
        # The gradient needs what was computed.
        loss = tf.reduce_sum(tf.square(call(function, values, ROWS)))
    return loss, tape.gradient(loss, values)


def plain(function, *tensors):
    return function(*tensors)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_same_result_and_gradient(is_compiled):
    @tf.function(jit_compile=is_compiled)
    def both(values):
        with recomputation.compiled_whole(is_compiled):
            again = gradient(values, recomputation.recomputed)
        return again, gradient(values, plain)

    again, once = both(VALUES)
    for ours, theirs in zip(again, once, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def num_softmax(call, scope):
    """Counts the softmaxes that TensorFlow leaves when it merges equal operations."""

    def of_this_call(values, rows):
        with tf.name_scope(scope):
            return chosen(values, rows)

    function = tf.function(lambda values: gradient(values, call, of_this_call)[1])
    context.enable_run_metadata()
    try:
        function(VALUES)
        graphs = context.export_run_metadata().function_graphs
    finally:
        context.disable_run_metadata()
    # Functions of earlier tests and calls may be among them.
    nodes = [node for graph in graphs for node in graph.post_optimization_graph.node]
    names = {node.name for node in nodes if node.op == "Softmax"}
    return sum(scope in name for name in names)


def test_tensorflow_does_not_merge_the_two_computations():
    """Merged, the first would be kept in memory for the second."""
    assert num_softmax(plain, "computed_once") == 1
    assert num_softmax(recomputation.recomputed, "computed_twice") == 2


def test_xla_is_told_to_keep_the_two_computations_apart():
    @tf.function(jit_compile=True)
    def compiled(values):
        with recomputation.compiled_whole():
            return gradient(values, recomputation.recomputed)[1]

    program = compiled.experimental_get_compiler_ir(VALUES)(stage="hlo")
    before, after = program.split(" opt-barrier(")
    assert before.count(" exponential(") == after.count(" exponential(") == 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_an_encoder_computes_the_same_bits(tiny_config, make_batch, dtype):
    model = encoder.BertEncoder(tiny_config, seed=3, dtype=dtype)
    batch = make_batch(tiny_config) | {"dropout_seeds": np.arange(4, dtype="int32")}
    model(batch)

    def outputs_and_gradients(recompute):
        model.recompute = recompute

        @tf.function
        def compute():
            with tf.GradientTape() as tape:
                outputs = model(batch, training=True)
                total = tf.add_n(
                    [tf.reduce_sum(tf.sin(x)) for x in tf.nest.flatten(outputs)]
                )
            return outputs, tape.gradient(total, model.trainable_variables)

        return [keras.ops.convert_to_numpy(x) for x in tf.nest.flatten(compute())]

    expected = outputs_and_gradients("none")
    for recompute in ("attention", "layers"):
        for ours, theirs in zip(
            outputs_and_gradients(recompute), expected, strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)
