import pytest

from bert_keras.core import gpus


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (None, ["0", "1"]),
        ("", []),
        ("-1", []),
        ("3", ["3"]),
        ("3, 1,-1,0", ["3", "1"]),
        ("GPU-8932f937", ["GPU-8932f937"]),
    ],
)
def test_visible(tmp_path, shown, expected):
    for name in ("nvidia0", "nvidia5", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    environment = {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    assert gpus.visible(environment, devices=tmp_path) == expected
    assert gpus.visible({}, devices=tmp_path / "none") == []
