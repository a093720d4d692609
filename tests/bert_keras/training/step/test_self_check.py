"""Devices that add up wrong are found before a training trusts them."""

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.core.errors import InputError
from bert_keras.training.step import self_check
from tests import make


class Faulty(tf.distribute.ReductionToOneDevice):
    """Sums in which a value of each replica counts as often as `times` says."""

    def __init__(self, *times, min_size=0):
        super().__init__()
        self.times, self.min_size = times, min_size

    def batch_reduce_implementation(self, reduce_op, pairs, options):
        changed = []
        for value, destinations in pairs:
            values = list(value.values)
            if values[0].shape.num_elements() >= self.min_size:
                values = [v * n for v, n in zip(values, self.times, strict=True)]
            changed.append((type(value)(values), destinations))
        return super().batch_reduce_implementation(reduce_op, changed, options)


def mirrored(*times, **options):
    return tf.distribute.MirroredStrategy(
        [f"/cpu:{number}" for number in range(len(times))],
        cross_device_ops=Faulty(*times, **options),
    )


def test_right_sums_pass_and_are_said(caplog):
    caplog.set_level("INFO", logger="bert_keras")
    self_check.check(mirrored(1.0, 1.0))
    assert "2 devices add up right and train as one does" in caplog.text


@pytest.mark.parametrize(
    ("times", "options", "message"),
    [
        ((1, 0, 1), {}, "wrong: device 0 gets nothing of 1, device 1 gets nothing"),
        ((1, 1, 2), {}, "wrong: device 0 gets twice the numbers of 2, device 1"),
        ((0.5, 1), {}, r"gets wrong numbers of 0.*\(device 0 is CPU:0, device 1"),
        ((1, float("nan")), {}, "device 0 gets wrong numbers of 1"),
        ((1, 0), {"min_size": 10_000}, "over 2 devices is wrong: device 0 gets noth"),
    ],
)
def test_a_wrong_sum_is_named(times, options, message):
    with pytest.raises(InputError, match=message):
        self_check.check_sums(mirrored(*map(float, times), **options))


def test_the_device_that_gets_a_wrong_sum_is_named():
    known = np.array([1.0, 2.0, 3.0])
    rows = known * [[1], [2], [3]]
    assert list(self_check._faults(rows, known)) == []
    rows[2, 1] += 1
    assert list(self_check._faults(rows, known)) == ["wrong numbers of 2"]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ((1.0, 0.0), "two training steps on 2 devices are not"),
        pytest.param((1.0, 2.0), "are not those of one", marks=pytest.mark.slow),
        pytest.param((1.0, float("nan")), "their loss is nan", marks=pytest.mark.slow),
        # One of many that is missing.
        pytest.param(
            (1.0, 1.0, 1.0, 0.0),
            "the update of the weights is off by",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_steps_that_are_not_those_of_one_device(times, message):
    with pytest.raises(InputError, match=message):
        self_check.check_steps(mirrored(*times))


def test_it_is_made_where_several_gpus_or_processes_train(monkeypatch):
    two = mirrored(1.0, 1.0)
    assert not self_check.is_due(two)  # several logical processors
    monkeypatch.setattr(self_check.replicas, "are_gpus", lambda strategy: True)
    assert self_check.is_due(two)
    assert not self_check.is_due(tf.distribute.OneDeviceStrategy("/cpu:0"))


def test_a_training_does_not_begin(tiny_examples, tmp_path, monkeypatch):
    monkeypatch.setattr(self_check, "is_due", lambda strategy: True)
    with pytest.raises(InputError, match="device 0 gets nothing of 1"):
        strategy = mirrored(1.0, 0.0)
        make.pretrain([tiny_examples], tmp_path / "run", strategy=strategy)
    assert not (tmp_path / "run" / "checkpoints").exists()
