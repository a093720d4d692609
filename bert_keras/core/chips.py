"""Accelerators: data sheets, the slices that TPUs are rented in, this machine's GPUs.

Bandwidth and speed of a TPU's chip: Google's pages on v4, v5e, v5p and v6e
(docs.cloud.google.com/tpu/docs, read November 2026); speed of a GPU: NVIDIA's data
sheets (dense products, the SXM form unless the name says PCIe). `usable_memory` is what
the compiler of libtpu 0.0.42.1 says that a program may use.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path

from bert_keras.core.errors import InputError, nearest


@dataclasses.dataclass(frozen=True)
class Chip:
    name: str
    """As devices are named in options: `v5e`."""
    device_name: str
    """Part of the name, in capitals, that the machine gives it."""
    flops: float
    """Highest speed, in operations a second: TPUs multiply float32 in bfloat16, too."""
    usable_memory: float
    """Bytes that a program may use."""
    bandwidth: float
    """Bytes a second between the chip and its memory."""
    slices: Mapping[int, str]
    """Chips of each slice that can be rented, and how they are connected."""
    chips_per_host: int = 8
    """Most chips of one machine."""
    cores_in_names: int = 1
    """Cores of a chip that names of slices count: `v4-8` has four chips of two."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    name: str
    chip: Chip
    num_chips: int

    @property
    def num_hosts(self) -> int:
        """The number of machines; several have four chips each."""
        if self.num_chips <= self.chip.chips_per_host:
            return 1
        return -(-self.num_chips // 4)

    @property
    def topology(self) -> str:
        """The arrangement of the chips, such as `2x4`."""
        return self.chip.slices[self.num_chips]


_FLAT = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8"}
_FLAT |= {128: "8x16", 256: "16x16"}
_CUBES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4"}
_CUBES |= {128: "4x4x8", 256: "4x8x8", 512: "8x8x8", 1024: "8x8x16", 2048: "8x16x16"}
_GIB = 2**30

CHIPS = (
    Chip("v4", "V4-", 275e12, 30.75 * _GIB, 1200e9, _CUBES, 4, cores_in_names=2),
    Chip("v5e", "V5LITEPOD-", 197e12, 15.75 * _GIB, 819e9, _FLAT),
    Chip("v5p", "V5P-", 459e12, 95.74 * _GIB, 2765e9, _CUBES, 4, cores_in_names=2),
    Chip("v6e", "V6E-", 918e12, 31.25 * _GIB, 1640e9, _FLAT),
)

_OF_TPUS = ("float32", "bfloat16")
_HOPPER = {"float32": 494.7, "float16": 989.4, "bfloat16": 989.4}
_AMPERE = {"float32": 156.0, "float16": 312.0, "bfloat16": 312.0}
_SPEEDS: Mapping[str, Mapping[str, float]] = {
    **{chip.device_name: {d: chip.flops / 1e12 for d in _OF_TPUS} for chip in CHIPS},
    "H200": _HOPPER,
    "H100 PCIE": {"float32": 378.0, "float16": 756.0, "bfloat16": 756.0},
    "H100": _HOPPER,
    "A100": _AMPERE,
    "L40S": {"float32": 183.0, "float16": 362.0, "bfloat16": 362.0},
    "V100": {"float32": 15.7, "float16": 125.0},
    "TESLA T4": {"float32": 8.1, "float16": 65.0},
    # Of a core, half of a chip.
    "V3-": dict.fromkeys(_OF_TPUS, 61.5),
    "V2-": dict.fromkeys(_OF_TPUS, 22.5),
}
"""Highest speed by the factors' dtype, in 10^12 operations a second (float32: TF32
where a GPU has it). The first that is part of the name, in capitals, is it."""


def peak_flops(device_name: str, dtype: str) -> float | None:
    """Returns the highest operations a second of a device, a GPU by its driver's name
    or a TPU's chip (before v4 a core) by a type such as `v4-32`, with factors of
    `dtype`; `None`: no data sheet has it."""
    name = device_name.upper()
    for part, teraflops in _SPEEDS.items():
        if part in name:
            return teraflops[dtype] * 1e12 if dtype in teraflops else None
    return None


def parse_device(name: str) -> Device:
    """Returns the device of an option, a TPU slice as Google names it: `v5e-8` or
    `v5litepod-8` has the number of chips, on v4 and v5p that of cores."""
    lowered = name.lower().replace("v5litepod-", "v5e-")
    for chip in CHIPS:
        if not (match := re.fullmatch(rf"{chip.name}-(\d+)", lowered)):
            continue
        count = int(match[1])
        sizes = [size * chip.cores_in_names for size in chip.slices]
        if count not in sizes:
            raise InputError(
                f"device {name!r}: {chip.name} comes in slices of "
                + ", ".join(f"{chip.name}-{size}" for size in sizes)
            )
        return Device(name=lowered, chip=chip, num_chips=count // chip.cores_in_names)
    known = [f"{chip.name}-8" for chip in CHIPS]
    raise InputError(
        f"no device {name!r}{nearest(lowered, known)}; expected a TPU slice such as "
        f"v5e-8 (known: {', '.join(chip.name for chip in CHIPS)})"
    )


def visible_gpus(
    environment: Mapping[str, str] = os.environ, *, devices: Path = Path("/dev")
) -> list[str]:
    """Returns NVIDIA's GPUs that a process may use, as `CUDA_VISIBLE_DEVICES` has them.
    The driver's device files, `nvidia0` and so on, are in `devices`."""
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is not None:
        names = [name.strip() for name in text.split(",")]
        # CUDA ignores what follows a name of no device.
        end = next((i for i, n in enumerate(names) if n in ("", "-1")), len(names))
        return names[:end]
    names = os.listdir(devices) if devices.is_dir() else []
    count = sum(1 for name in names if re.fullmatch("nvidia[0-9]+", name))
    # CUDA numbers those that are there from 0.
    return [str(number) for number in range(count)]
