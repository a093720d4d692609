"""Checks without a TPU whether our steps compile for it and fit, and their least time.

Each step of a run (training, evaluation; of pre-training or of a task) is lowered as
one chip of the slice would run it and compiled by libtpu for that chip. Figures are the
compiler's; times are lower limits that follow from them and the chip's data sheet.
"""

import dataclasses
from collections.abc import Iterator, Sequence
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


def check(planned: Sequence[steps.Step], device: chips.Device) -> list[Row]:
    return [
        Row(step=s, compiled=compiling.compile_step(s, device), chip=device.chip)
        for s in planned
    ]


def report(device: chips.Device, rows: Sequence[Row]) -> dict[str, Any]:
    """Returns the rows for programs."""
    return {
        "device": device.name,
        "num_chips": device.num_chips,
        "num_hosts": device.num_hosts,
        "steps": [
            {
                "step": row.step.name,
                "batch_size": row.step.batch_size,
                "num_chips": row.step.num_chips,
                "max_seq_length": row.step.max_seq_length,
                "fits": row.fits,
                "needed_bytes": row.compiled.memory,
                "usable_bytes": row.chip.usable_memory,
                "least_seconds": max(row.seconds),
                **dataclasses.asdict(row.compiled),
            }
            for row in rows
        ],
    }


def _gigabytes(number: float) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e7 else f"{number / 1e6:.3f} MB"


def _figures(row: Row) -> dict[str, str]:
    """Returns what a table says of a step; empty: the compiler did not tell it."""
    compiled, (by_arithmetic, by_memory) = row.compiled, row.seconds
    arguments = max(compiled.argument_bytes, compiled.state_bytes)
    figures = {
        "compiles": "no" if compiled.refused else "yes",
        "fits": "yes" if row.fits else "NO",
        "memory of a chip, needed": _gigabytes(compiled.memory),
        "  variables and batch": _gigabytes(arguments),
        "  activations, temporaries": _gigabytes(compiled.temporary_bytes),
        "  program": _gigabytes(compiled.code_bytes),
        "memory of a chip, usable": _gigabytes(row.chip.usable_memory),
        "TFLOP": f"{compiled.flops / 1e12:.3f}",
        "GB moved": f"{compiled.moved_bytes / 1e9:.2f}",
        "least time by arithmetic": f"{by_arithmetic * 1e3:.2f} ms",
        "least time by memory": f"{by_memory * 1e3:.2f} ms",
        "all-reduces": f"{compiled.num_all_reduces:.0f}",
        "  of together": _gigabytes(compiled.all_reduced_bytes),
    }
    if compiled.refused:
        return dict.fromkeys(figures, "") | {"compiles": "no"}
    if compiled.is_too_large:
        return figures | dict.fromkeys(("  program", *list(figures)[7:]), "")
    return figures


_MAX_REFUSED = 3
"""Operations that are listed: often each layer has the same one."""


def lines(device: chips.Device, rows: Sequence[Row]) -> Iterator[str]:
    """Yields a heading, a table of the steps, and the operations that were refused."""
    step = rows[0].step
    hosts = f" on {device.num_hosts} hosts" if device.num_hosts > 1 else ""
    chips_ = "1 chip" if device.num_chips == 1 else f"{device.num_chips} chips"
    parts = f" in {step.num_parts} parts" if step.num_parts > 1 else ""
    yield (
        f"{device.name}: {chips_}{hosts}; {step.batch_size} examples{parts} of "
        f"{step.max_seq_length} tokens a chip; {step.bert_config.num_hidden_layers} "
        f"layers of {step.bert_config.hidden_size}; {step.precision}"
    )
    yield "Compiled by libtpu for this chip, which was not there."
    yield ""
    columns = [["", *_figures(rows[0])]]
    columns += [[row.step.name, *_figures(row).values()] for row in rows]
    widths = [max(map(len, column)) for column in columns]
    for number, (name, *cells) in enumerate(zip(*columns, strict=True)):
        if any(cells):
            line = [name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]
            yield "  ".join(line).rstrip()
        if number == 0:
            yield "-" * (sum(widths) + 2 * (len(widths) - 1))
    for row in rows:
        refused = row.compiled.refused
        for one in refused[:_MAX_REFUSED]:
            yield ""
            yield f"{row.step.name}: {one.operation} in {one.scope}: {one.reason}"
        if len(refused) > _MAX_REFUSED:
            yield f"and {len(refused) - _MAX_REFUSED} more"
