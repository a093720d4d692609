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

Row = tuple[steps.Step, compiling.Compiled]
"""A step of a run, and the compiler's figures for it on one chip."""

_MAX_REFUSED = 3
"""Operations that are listed: often each layer has the same one."""


def report(device: chips.Device, rows: Sequence[Row]) -> dict[str, Any]:
    """Returns the rows for programs."""
    return {
        "device": device.name,
        "num_chips": device.num_chips,
        "num_hosts": device.num_hosts,
        "steps": [
            {
                "step": step.name,
                "batch_size": step.batch_size,
                "num_chips": step.num_chips,
                "max_seq_length": step.max_seq_length,
                "fits": compiled.fits(device.chip),
                "needed_bytes": compiled.memory,
                "usable_bytes": device.chip.usable_memory,
                "least_seconds": max(compiled.least_seconds(device.chip)),
                **dataclasses.asdict(compiled),
            }
            for step, compiled in rows
        ],
    }


def _gigabytes(number: float) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e7 else f"{number / 1e6:.3f} MB"


def _figures(compiled: compiling.Compiled, chip: chips.Chip) -> dict[str, str]:
    """Returns what a table says of a step; empty: the compiler did not tell it."""
    by_arithmetic, by_memory = compiled.least_seconds(chip)
    arguments = max(compiled.argument_bytes, compiled.state_bytes)
    figures = {
        "compiles": "no" if compiled.refused else "yes",
        "fits": "yes" if compiled.fits(chip) else "NO",
        "memory of a chip, needed": _gigabytes(compiled.memory),
        "  variables and batch": _gigabytes(arguments),
        "  activations, temporaries": _gigabytes(compiled.temporary_bytes),
        "  program": _gigabytes(compiled.code_bytes),
        "memory of a chip, usable": _gigabytes(chip.usable_memory),
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


def lines(device: chips.Device, rows: Sequence[Row]) -> Iterator[str]:
    """Yields a heading, a table of the steps, and the operations that were refused."""
    step, compiled = rows[0]
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
    columns = [["", *_figures(compiled, device.chip)]]
    for step, compiled in rows:
        columns.append([step.name, *_figures(compiled, device.chip).values()])
    widths = [max(map(len, column)) for column in columns]
    for number, (name, *cells) in enumerate(zip(*columns, strict=True)):
        if any(cells):
            line = [name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]
            yield "  ".join(line).rstrip()
        if number == 0:
            yield "-" * (sum(widths) + 2 * (len(widths) - 1))
    for step, compiled in rows:
        for one in compiled.refused[:_MAX_REFUSED]:
            yield ""
            yield f"{step.name}: {one.operation} in {one.scope}: {one.reason}"
        if num_more := len(compiled.refused[_MAX_REFUSED:]):
            yield f"and {num_more} more"
