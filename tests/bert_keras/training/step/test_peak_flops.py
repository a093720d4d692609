import tensorflow as tf

from bert_keras.training.step import peak_flops, replicas


def test_without_a_data_sheet_there_is_no_utilization():
    """A measured peak is none: 1.75 of it was reached once."""
    mirrored = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    for strategy in (tf.distribute.OneDeviceStrategy("/cpu:0"), mirrored):
        assert peak_flops.of_devices(strategy, "float32") is None


def test_each_gpu_counts(monkeypatch):
    monkeypatch.setattr(replicas, "are_gpus", lambda strategy: True)
    mirrored = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    for names, expected in (
        (["NVIDIA A100", "NVIDIA A100"], 2 * 312e12),
        # The faster one waits for the slower one.
        (["NVIDIA H100", "NVIDIA A100"], 2 * 312e12),
        (["NVIDIA A100", "NVIDIA GeForce GTX 1080"], None),
    ):
        monkeypatch.setattr(replicas, "details_of_gpus", lambda *_, of=names: of)
        assert peak_flops.of_devices(mirrored, "mixed_bfloat16") == expected
