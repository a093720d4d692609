import time

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.training import peak_flops


def test_peak_is_that_of_another_library():
    factor = np.full((1024, 1024), 1e-3, "float32")
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        factor @ factor
        seconds.append(time.perf_counter() - start)
    made = peak_flops.of_strategy(tf.distribute.OneDeviceStrategy("/cpu:0"), "float32")
    assert made.is_estimate
    # The machine may be busy with other things at one time or the other.
    numpy_peak = 2 * 1024**3 / min(seconds)
    assert numpy_peak / 10 < made.flops < numpy_peak * 10


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4e12),
        ("NVIDIA H100 PCIe", "bfloat16", 756e12),
        ("NVIDIA A100-SXM4-40GB", "float32", 156e12),
        ("Tesla V100-SXM2-16GB", "bfloat16", None),
        ("v4-32", "float32", 275e12),
        ("v5litepod-8", "bfloat16", 197e12),
        ("NVIDIA GeForce GTX 1080", "float32", None),
        ("", "float32", None),
    ],
)
def test_data_sheets(name, dtype, expected):
    assert peak_flops.of_device(name, dtype) == expected


def test_replicas_on_one_processor_share_its_peak(monkeypatch):
    monkeypatch.setattr(peak_flops, "_measure", lambda dtype: 7.0)
    mirrored = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    for strategy in (tf.distribute.OneDeviceStrategy("/cpu:0"), mirrored):
        assert peak_flops.of_strategy(strategy, "float32") == (7.0, True)


def test_each_gpu_counts(monkeypatch):
    names = ["NVIDIA A100", "NVIDIA A100"]
    monkeypatch.setattr(peak_flops, "_device_names", lambda strategy: names)
    mirrored = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    found = peak_flops.of_strategy(mirrored, "mixed_bfloat16")
    assert found == (2 * 312e12, False)
