"""Speed of devices at a model: FLOPs a second, and how it is known."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bert_keras import chips, config

CPU = "cpu"
"""Two cores of a processor that multiplies in bfloat16."""

# Model GFLOP/s of a step of 128 tokens by hidden size, two cores of an AMD EPYC with
# AVX-512 in bfloat16, 2026-11-20: 39,280, 14,612, 5,845 and 1,220 tokens a second of
# tiny, mini, small and BASE. The two hours of benchmarks/long_run.py were another run.
_CPU_GFLOPS = {128: 252.6, 256: 406.8, 512: 546.8, 768: 666.2}
_CPU_LONG = 0.814
"""Speed with 512 tokens to that with 128: BASE, 923 to 1,220 tokens a second."""

# Of LARGE in float16 with 128 and 512 tokens, by the table of NVIDIA's own BERT in
# TensorFlow 2 (DeepLearningExamples 729963d): 485.6 and 96.5 sequences a second on an
# A100, 206.5 and 41.0 on a V100.
_GPU_UTILIZATION = {
    "a100": (0.37, 0.31),
    "a100-80gb": (0.37, 0.31),
    "v100": (0.40, 0.33),
}
_ASSUMED_UTILIZATION = (0.30, 0.25)
"""Of GPUs of which no figure with TensorFlow is known."""

_BYTES_PER_KFLOP, _BYTES_EXPONENT = 14.05, -0.74
"""Bytes that a step moves for 1,000 FLOPs at the width of BASE, and how they change
with the width: by libtpu's compiler, for BASE (64 x 128: 4.52 TFLOP, 63.5 GB) and for
tiny (53 bytes)."""
_REACHED = 0.7
"""Assumed share of the roofline that a TPU reaches: nobody has measured it."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Model FLOPs a second, of all chips together."""

    short: float
    """With 128 tokens or fewer."""
    long: float
    """With 512 or more."""
    reason: str
    """How it is known."""

    def at(self, max_seq_length: int) -> float:
        """Between the two, by the tokens."""
        share = (min(max(max_seq_length, 128), 512) - 128) / 384
        return self.short + share * (self.long - self.short)


def of_device(
    name: str, model: config.BertConfig, measured: Mapping[str, float]
) -> Speed:
    """The speed of a device.

    Args:
        name: `cpu`, or as `chips.parse_device` takes it.
        model: that it trains.
        measured: FLOPs a second by name of the device, for those where they are known.

    Raises:
        InputError: no such device.
    """
    device = None if name == CPU else chips.parse_device(name)
    if name in measured:
        rate = measured[name]
        return Speed(short=rate, long=rate, reason="--rate")
    if device is None:
        rate = _cpu_flops(model.hidden_size)
        reason = "measured on two cores, bfloat16"
        return Speed(short=rate, long=_CPU_LONG * rate, reason=reason)
    chip, count = device.chip, device.num_chips
    peak = chip.flops("bfloat16") or chip.flops("float16") or 0.0
    if chip.kind == "tpu":
        width = (model.hidden_size / 768) ** _BYTES_EXPONENT
        memory = chip.bandwidth / (_BYTES_PER_KFLOP * width) * 1000
        rate = _REACHED * min(peak, memory)
        bound = "memory" if memory < peak else "FLOPs"
        share = f"{rate / peak:.0%} of the peak"
        reason = f"{_REACHED:.0%} of the roofline ({bound}): {share}; assumed"
        return Speed(short=count * rate, long=count * rate, reason=reason)
    short, long = _GPU_UTILIZATION.get(chip.name, _ASSUMED_UTILIZATION)
    known = "NVIDIA's" if chip.name in _GPU_UTILIZATION else "assumed"
    reason = f"{short:.0%} and {long:.0%} of the peak; {known}"
    return Speed(short=count * short * peak, long=count * long * peak, reason=reason)


def _cpu_flops(hidden_size: int) -> float:
    """Between the widths that were measured, by their logarithms."""
    points = [(math.log(w), rate * 1e9) for w, rate in sorted(_CPU_GFLOPS.items())]
    place = min(max(math.log(hidden_size), points[0][0]), points[-1][0])
    for (low, first), (high, last) in zip(points, points[1:], strict=False):
        if place <= high:
            return first + (place - low) / (high - low) * (last - first)
    return points[-1][1]
