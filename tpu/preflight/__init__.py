"""Checks without a TPU whether our steps compile for it and fit, and their least time.

Each step of a run (training, evaluation; of pre-training or of a task) is lowered as
one chip of the slice would run it and compiled by libtpu for that chip. Figures are the
compiler's; times are lower limits that follow from them and the chip's data sheet.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bert_keras.core import chips
from bert_keras.tpu.preflight import compiling, steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A step of a run, and the compiler's figures for it on one chip."""

    step: steps.Step
    compiled: compiling.Compiled
    chip: chips.Chip

    @property
    def fits(self) -> bool:
        """Whether the step compiles into the chip's memory."""
        compiled = self.compiled
        return not (compiled.refused or compiled.is_too_large) and (
            compiled.memory <= self.chip.usable_memory
        )

    @property
    def seconds(self) -> tuple[float, float]:
        """The least time of a step, by its arithmetic and by the bytes moved."""
        return (
            self.compiled.flops / self.chip.flops,
            self.compiled.moved_bytes / self.chip.bandwidth,
        )

    def facts(self) -> dict[str, Any]:
        return {
            "step": self.step.name,
            "batch_size": self.step.batch_size,
            "num_chips": self.step.num_chips,
            "max_seq_length": self.step.max_seq_length,
            "fits": self.fits,
            "needed_bytes": self.compiled.memory,
            "usable_bytes": self.chip.usable_memory,
            "least_seconds": max(self.seconds),
            **dataclasses.asdict(self.compiled),
        }


def check(request: steps.Request) -> list[Row]:
    device = request.device
    return [
        Row(step=s, compiled=compiling.compile_step(s, device), chip=device.chip)
        for s in steps.plan(request)
    ]


def report(device: chips.Device, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "device": device.name,
        "num_chips": device.num_chips,
        "num_hosts": device.num_hosts,
        "steps": [row.facts() for row in rows],
    }
