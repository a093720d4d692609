import math

import pytest

from bert_keras.core import chips
from bert_keras.core.errors import InputError


@pytest.mark.parametrize(
    ("name", "num_chips", "num_hosts", "topology"),
    [
        ("v5e-1", 1, 1, "1x1"),
        ("v5litepod-8", 8, 1, "2x4"),
        # A slice of several machines has four chips on each.
        ("v5e-16", 16, 4, "4x4"),
        ("v6e-256", 256, 64, "16x16"),
        # Google counts the cores of v4 and v5p, two of a chip.
        ("v4-8", 4, 1, "2x2x1"),
        ("v5p-64", 32, 8, "2x4x4"),
    ],
)
def test_devices(name, num_chips, num_hosts, topology):
    device = chips.parse_device(name)
    found = (device.num_chips, device.num_hosts, device.topology)
    assert found == (num_chips, num_hosts, topology)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v5e-3", "v5e comes in slices of v5e-1, v5e-4, v5e-8,"),
        ("v4-4", "v4 comes in slices of v4-8, v4-16,"),
        ("v7e-8", "no device 'v7e-8'; did you mean"),
        ("v5e-8x", "expected a TPU slice such as v5e-8"),
    ],
)
def test_devices_that_are_not_there(name, message):
    with pytest.raises(InputError, match=message):
        chips.parse_device(name)


@pytest.mark.parametrize("chip", chips.CHIPS, ids=lambda chip: chip.name)
def test_data_sheets_are_of_one_unit(chip):
    """Bytes and operations a second, not GB or TFLOP/s."""
    assert 14e9 < chip.usable_memory < 1.1e11
    assert 3e11 < chip.bandwidth < 1e13
    assert 6e13 < chip.flops < 1e15
    for num_chips, topology in chip.slices.items():
        assert math.prod(map(int, topology.split("x"))) == num_chips


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4e12),
        ("NVIDIA H100 PCIe", "bfloat16", 756e12),
        ("NVIDIA A100-SXM4-40GB", "float32", 156e12),
        ("Tesla V100-SXM2-16GB", "bfloat16", None),
        ("v4-32", "float32", 275e12),
        ("v5litepod-8", "bfloat16", 197e12),
        # Of a core.
        ("v3-8", "bfloat16", 61.5e12),
        ("v2-8", "float16", None),
        ("NVIDIA GeForce GTX 1080", "float32", None),
        ("", "float32", None),
    ],
)
def test_data_sheets(name, dtype, expected):
    assert chips.peak_flops(name, dtype) == expected


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
def test_visible_gpus(tmp_path, shown, expected):
    for name in ("nvidia0", "nvidia5", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    environment = {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    assert chips.visible_gpus(environment, devices=tmp_path) == expected
    assert chips.visible_gpus({}, devices=tmp_path / "none") == []
