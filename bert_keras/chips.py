"""Data sheets of accelerators, and the slices that they are rented in.

Memory, bandwidth and speed of a TPU's chip: Google's pages on v4, v5e, v5p and v6e
(docs.cloud.google.com/tpu/docs, read November 2026); of a GPU: NVIDIA's data sheets
(dense products, the SXM form unless the name says PCIe). `usable_memory` of a TPU is
what the compiler of libtpu 0.0.42.1 says that a program may use there.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Literal

from bert_keras.errors import InputError, nearest

_GIBI = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """One accelerator: a GPU, or a TPU's chip with all of its cores."""

    name: str
    """As devices are named in options: `v5e`, `h100`."""
    kind: Literal["tpu", "gpu"]
    device_name: str
    """Part of the name, in capitals, that the driver or the machine gives it."""
    teraflops: Mapping[str, float]
    """Highest speed by the factors' dtype, in 10^12 operations a second. TensorFlow
    multiplies float32 in TF32 where a GPU has it, and on TPUs in bfloat16."""
    memory: float
    """Bytes, as sold."""
    usable_memory: float
    """Bytes that a program may use."""
    bandwidth: float
    """Bytes a second between the chip and its memory."""
    chips_per_host: int = 8
    """Most chips of one machine."""
    cores_in_names: int = 1
    """Cores of a chip that names of slices count: `v4-8` has four chips of two."""
    slices: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """Chips of each slice that can be rented, and how they are connected."""

    def flops(self, dtype: str) -> float | None:
        """Operations a second; `None`: it cannot multiply in this dtype."""
        return self.teraflops[dtype] * 1e12 if dtype in self.teraflops else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    """Some chips that train together."""

    name: str
    chip: Chip
    num_chips: int

    @property
    def num_hosts(self) -> int:
        """Machines: a slice of several has four chips on each."""
        if self.num_chips <= self.chip.chips_per_host:
            return 1
        per_host = 4 if self.chip.kind == "tpu" else self.chip.chips_per_host
        return -(-self.num_chips // per_host)

    @property
    def topology(self) -> str | None:
        """How a TPU's chips are connected: `2x4`."""
        return self.chip.slices.get(self.num_chips)


_FLAT = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8"}
_FLAT |= {128: "8x16", 256: "16x16"}
_CUBES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4"}
_CUBES |= {128: "4x4x8", 256: "4x8x8", 512: "8x8x8", 1024: "8x8x16", 2048: "8x16x16"}


def _tpu(
    name: str, teraflops: float, memory: float, usable: float, bandwidth: float, **more
) -> Chip:
    """A TPU's chip; memory in GB, usable memory in GiB, bandwidth in GB/s."""
    return Chip(
        name=name,
        kind="tpu",
        teraflops={"float32": teraflops, "bfloat16": teraflops},
        memory=memory * 1e9,
        usable_memory=usable * _GIBI,
        bandwidth=bandwidth * 1e9,
        **more,
    )


def _gpu(
    name: str, device_name: str, memory: float, bandwidth: float, **teraflops: float
) -> Chip:
    """A GPU; memory in GB and bandwidth in GB/s.

    CUDA, cuDNN and the framework take about a GB.
    """
    return Chip(
        name=name,
        kind="gpu",
        device_name=device_name,
        teraflops=teraflops,
        memory=memory * 1e9,
        usable_memory=(memory - 1) * 1e9,
        bandwidth=bandwidth * 1e9,
    )


_HOPPER = {"float32": 494.7, "float16": 989.4, "bfloat16": 989.4}
_HOPPER_PCIE = {"float32": 378.0, "float16": 756.0, "bfloat16": 756.0}
_AMPERE = {"float32": 156.0, "float16": 312.0, "bfloat16": 312.0}
_ADA = {"float32": 183.0, "float16": 362.0, "bfloat16": 362.0}

CHIPS: tuple[Chip, ...] = (
    _tpu(
        *("v4", 275.0, 32, 30.75, 1200),
        device_name="V4-",
        chips_per_host=4,
        cores_in_names=2,
        slices=_CUBES,
    ),
    _tpu(*("v5e", 197.0, 16, 15.75, 819), device_name="V5LITEPOD-", slices=_FLAT),
    _tpu(
        *("v5p", 459.0, 95, 95.74, 2765),
        device_name="V5P-",
        chips_per_host=4,
        cores_in_names=2,
        slices=_CUBES,
    ),
    _tpu(*("v6e", 918.0, 32, 31.25, 1640), device_name="V6E-", slices=_FLAT),
    _gpu("h200", "H200", 141, 4800, **_HOPPER),
    _gpu("h100-pcie", "H100 PCIE", 80, 2000, **_HOPPER_PCIE),
    _gpu("h100", "H100", 80, 3350, **_HOPPER),
    # Names of drivers: A100-SXM4-40GB, A100-SXM4-80GB, A100 80GB PCIe.
    _gpu("a100-80gb", "A100-SXM4-80GB", 80, 2039, **_AMPERE),
    _gpu("a100", "A100", 40, 1555, **_AMPERE),
    _gpu("l40s", "L40S", 48, 864, **_ADA),
    _gpu("v100", "V100", 16, 900, float32=15.7, float16=125.0),
    _gpu("t4", "TESLA T4", 16, 320, float32=8.1, float16=65.0),
)
"""The first whose `device_name` is part of a device's name is that device."""


def by_device_name(name: str) -> Chip | None:
    """The chip of a name that a driver or a machine gives; `None`: it is not known."""
    return next((chip for chip in CHIPS if chip.device_name in name.upper()), None)


def parse_device(name: str) -> Device:
    """The device of an option.

    Args:
        name: a TPU slice as Google names it, `v5e-8` or `v5litepod-8`, with the number
            of chips, on v4 and v5p of cores; or GPUs of one machine, `h100`, `a100x8`.

    Raises:
        InputError: there is none of that name, or no slice of that size.
    """
    lowered = name.lower().replace("v5litepod-", "v5e-")
    for chip in CHIPS:
        form = (
            rf"{chip.name}-(\d+)" if chip.kind == "tpu" else rf"{chip.name}(?:x(\d+))?"
        )
        if not (found := re.fullmatch(form, lowered)):
            continue
        count = int(found[1] or 1)
        if chip.kind == "gpu":
            if count < 1:
                raise InputError(f"device {name!r}: expected at least one GPU")
            return Device(name=lowered, chip=chip, num_chips=count)
        sizes = [size * chip.cores_in_names for size in chip.slices]
        if count not in sizes:
            raise InputError(
                f"device {name!r}: {chip.name} comes in slices of "
                + ", ".join(f"{chip.name}-{size}" for size in sizes)
            )
        return Device(name=lowered, chip=chip, num_chips=count // chip.cores_in_names)
    known = [chip.name if chip.kind == "gpu" else f"{chip.name}-8" for chip in CHIPS]
    raise InputError(
        f"no device {name!r}{nearest(lowered, known)}; expected a TPU slice such as "
        f"v5e-8, or GPUs such as a100x8 (known: {', '.join(c.name for c in CHIPS)})"
    )
