import pytest
import tensorflow as tf

from bert_keras.training.step import peak_flops, replicas


def test_without_a_data_sheet_there_is_no_utilization():
    """A measured peak is none: 1.75 of it was reached once."""
    mirrored = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    for strategy in (tf.distribute.OneDeviceStrategy("/cpu:0"), mirrored):
        assert peak_flops.of_devices(strategy, "float32") is None


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["NVIDIA A100", "NVIDIA A100"], 2 * 312e12),
        # The faster one waits for the slower one.
        (["NVIDIA H100", "NVIDIA A100"], 2 * 312e12),
        (["NVIDIA A100", "NVIDIA GeForce GTX 1080"], None),
    ],
)
def test_each_gpu_counts(monkeypatch, names, expected):
    monkeypatch.setattr(replicas, "are_gpus", lambda strategy: True)
    monkeypatch.setattr(replicas, "details_of_gpus", lambda name, default: names)
    mirrored = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    assert peak_flops.of_devices(mirrored, "mixed_bfloat16") == expected
