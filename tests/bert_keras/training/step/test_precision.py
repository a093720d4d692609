import tensorflow as tf

from bert_keras.training.step import precision, replicas


def test_without_a_data_sheet_there_is_no_utilization():
    """A measured peak is none: 1.75 of it was reached once."""
    mirrored = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    for strategy in (tf.distribute.OneDeviceStrategy("/cpu:0"), mirrored):
        assert precision.peak_flops(strategy, "float32") is None


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
        assert precision.peak_flops(mirrored, "mixed_bfloat16") == expected


def test_the_loss_scale_grows_after_many_good_steps():
    now, scales = (tf.constant(8.0), tf.constant(1998)), []
    for is_finite in (True, True, True, False, True):
        now = precision.next_loss_scale(*now, tf.constant(is_finite))
        scales.append((float(now[0]), int(now[1])))
    assert scales == [(8, 1999), (16, 0), (16, 1), (8, 0), (8, 1)]


def test_the_processor_tells_whether_it_multiplies_in_bfloat16(tmp_path):
    path, tells = tmp_path / "cpuinfo", precision.processor_multiplies_in_bfloat16
    assert not tells(path)
    for flags, expected in (("avx512_bf16 amx_tile", True), ("avx2 avx512f", False)):
        path.write_text(f"flags\t: fpu {flags}\n")
        assert tells(path) == expected
