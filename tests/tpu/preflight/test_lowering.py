import dataclasses

import pytest
import tensorflow as tf

from bert_keras.core import chips
from bert_keras.core.settings import architecture
from bert_keras.model import flops, layers
from bert_keras.tpu.preflight import compiling, hlo, lowering
from tests import make
from tests.tpu.preflight import test_preflight

SMALL = architecture.ModelConfig(**make.small_config(30522).model_dump())


def small(device="v5e-1", **changes):
    settings = test_preflight.TINY.model_copy(update={"model": SMALL})
    values = {"settings": settings, "max_seq_length": 16, "global_batch_size": 16}
    return test_preflight.plan(device, **(values | changes))


def plant(monkeypatch, operation):
    """Puts an operation into the feed-forward part of each layer."""
    call = layers.FeedForward.call

    def planted(self, inputs, *args, **kwargs):
        outputs = call(self, inputs, *args, **kwargs)
        return outputs + tf.cast(operation(outputs), outputs.dtype)

    monkeypatch.setattr(layers.FeedForward, "call", planted)


def on_the_host(outputs):
    result = tf.py_function(lambda values: values, [outputs], outputs.dtype)
    result.set_shape(outputs.shape)
    return result


def uniques(outputs):
    flat = tf.reshape(tf.cast(outputs, tf.int32), [-1])
    return tf.reduce_sum(tf.unique(flat)[0])


def of_dynamic_shape(outputs):
    return tf.reduce_sum(tf.ones([tf.cast(tf.reduce_max(outputs), tf.int32)]))


@pytest.mark.parametrize(
    ("operation", "name", "reason"),
    [
        (on_the_host, "EagerPyFunc", "would run on the host"),
        pytest.param(of_dynamic_shape, "Fill", "known only", marks=pytest.mark.slow),
    ],
)
def test_a_planted_operation_is_named(monkeypatch, operation, name, reason):
    plant(monkeypatch, operation)
    found = lowering.lower(small()[1])
    assert isinstance(found, tuple)
    assert found[0].operation == name
    assert "/layer_0" in found[0].scope
    assert "/feed_forward" in found[0].scope
    assert reason in found[0].reason


def test_operations_in_loops_are_looked_at(monkeypatch):
    plant(monkeypatch, uniques)
    step = dataclasses.replace(small()[1], num_parts=2)
    refused = lowering.lower(step)
    assert {found.operation for found in refused} == {"Unique"}
    assert "known only when it runs" in refused[0].reason


@pytest.mark.slow
def test_a_step_of_several_chips_sums_over_them():
    devices = ("v5e-1", "v5e-8")
    alone, of_eight = (lowering.lower(small(device)[0]).text for device in devices)
    assert "all_reduce" not in alone
    assert "all_reduce" in of_eight
    assert "dense<[[0, 1, 2, 3, 4, 5, 6, 7]]>" in of_eight
    # A chip's share of 16 examples.
    assert "tensor<2x16xi32>" in of_eight


@pytest.mark.slow
def test_what_is_computed_again_stays_apart_from_the_first_time():
    """As on a TPU, where elementwise chains are computed again in any case."""
    step = small()[0]
    counts = [
        lowering.lower(made).text.count("optimization_barrier")
        for made in (step, dataclasses.replace(step, recompute="layers"))
    ]
    assert 0 < counts[0] < counts[1]


@pytest.mark.parametrize("purpose", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_what_is_lowered_is_whole(purpose):
    step = small()[purpose]
    found = lowering.lower(step)
    # Weights and two moments of each, and a few counters.
    weights = flops.num_weights(step.bert_config, heads=True)
    counters = found.state_bytes - 3 * 4 * weights
    assert 0 < counters < 100
    # No island that is compiled by itself, as processors have.
    assert "custom_call" not in found.text


@pytest.mark.slow
def test_tiny_compiles_for_a_tpu_that_is_not_there(monkeypatch):
    try:
        python = compiling.find_compiler(compiling.cache_directory())
    except compiling.InputError as error:
        pytest.skip(str(error))
    device = chips.parse_device("v5e-8")
    step = small("v5e-8")[0]
    found = compiling._compile(lowering.lower(step).text, step, device, python=python)
    assert not found.is_too_large
    weights = hlo.bytes_of_shapes("f32[30522,16]")
    assert found.argument_bytes > 3 * weights
    # The gradients of all weights, and the losses.
    assert found.num_all_reduces > 0
    assert weights < found.all_reduced_bytes < 1.5 * weights
    assert found.flops > 2 * 2 * 3 * 30522 * 16
