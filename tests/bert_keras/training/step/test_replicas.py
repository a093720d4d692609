import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.training.step import fit, replicas


def test_this_keras_is_the_one_whose_private_name_is_used():
    assert keras.__version__.startswith("3.15.")
    assert callable(keras.Model._maybe_symbolic_build)


def test_a_value_outside_of_replicas_is_itself():
    assert float(replicas.sum_over_replicas(tf.constant(3.0))) == 3.0


def test_what_suits_the_devices():
    strategies = [
        (
            types.SimpleNamespace(extended=types.SimpleNamespace(worker_devices=names)),
            *x,
        )
        for names, *x in (
            (["/device:CPU:0", "/device:CPU:1"], "CPU", 1),
            (["/device:GPU:0", "/device:GPU:1"], "GPU", 10),
            (["/device:CPU:0", "/device:GPU:0"], "GPU", 10),
            # Those of preflight are said to be TPUs.
            (["/device:TPU:0"], "TPU", 10),
        )
    ]
    # A TPU's devices are named by the host's.
    tpu = object.__new__(tf.distribute.TPUStrategy)
    for strategy, kind, num_steps in (*strategies, (tpu, "TPU", 50)):
        assert replicas.kind_of_devices(strategy) == kind
        assert replicas.steps_per_execution(strategy) == num_steps


def workers(monkeypatch, strategy, of_each):
    """Makes sums over workers those of processes with these values."""
    found = []

    def add_up(_, numbers):
        found.append(numbers)
        return numbers

    monkeypatch.setattr(replicas, "_sum_over_workers", add_up)
    for values in of_each:
        replicas.differing(strategy, values)
    total = np.sum(found, axis=0)
    monkeypatch.setattr(replicas, "_sum_over_workers", lambda *_: total)


def test_equal_values_raise_no_alarm(monkeypatch):
    values = {"step": 2**24 - 1, "--init": "ab", "x": None, "fractions": [0.9, 0.1]}
    for num_workers in (1, 2, 33, 1000):
        strategy = types.SimpleNamespace(num_replicas_in_sync=num_workers)
        workers(monkeypatch, strategy, [values] * num_workers)
        assert replicas.differing(strategy, values) == []


def test_one_worker_of_many_that_differs(monkeypatch):
    strategy = types.SimpleNamespace(num_replicas_in_sync=1000)
    values = {"step": 5, "seed": 1, "--init": "ab"}
    others = [values] * 999
    workers(monkeypatch, strategy, [*others, values | {"seed": 2, "--init": "ac"}])
    assert replicas.differing(strategy, values) == ["seed", "--init"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_checksums_see_every_bit_and_the_order(dtype):
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    values = np.array([[1.0, -0.0, np.nan], [0.5, 2.0, 1e-40]], dtype)

    def checksums(array):
        variables = {
            "w": keras.Variable(array, dtype=dtype),
            "step": keras.Variable(7, dtype="int64"),
        }
        return replicas.checksums(strategy, variables)

    expected = checksums(values)
    assert expected == checksums(values.copy())
    assert expected["step"] == [7, 7]
    swapped, flipped = values[::-1], values.copy()
    flipped.view(f"uint{8 * values.itemsize}")[1, 2] ^= 1
    for other in (swapped, flipped, np.abs(values)):
        assert checksums(np.ascontiguousarray(other))["w"] != expected["w"]


def test_a_model_must_be_built_before_fit():
    model = fit.ReplicatedModel()
    with pytest.raises(ValueError, match="build the model inside the strategy's scope"):
        model._maybe_symbolic_build()
