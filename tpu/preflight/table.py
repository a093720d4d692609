"""The rows of `preflight` as a table for people."""

from collections.abc import Callable, Iterator, Sequence

from bert_keras.core import chips
from bert_keras.tpu import preflight


def lines(device: chips.Device, rows: Sequence[preflight.Row]) -> Iterator[str]:
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
    yield from table(rows)
    for row in rows:
        refused = row.compiled.refused
        for one in refused[:_MAX_REFUSED]:
            yield ""
            yield f"{row.step.name}: {one.operation} in {one.scope}: {one.reason}"
        if len(refused) > _MAX_REFUSED:
            yield f"and {len(refused) - _MAX_REFUSED} more"


_MAX_REFUSED = 3
"""Operations that are listed: often each layer has the same one."""


def table(rows: Sequence[preflight.Row]) -> Iterator[str]:
    columns = [["", *_FIGURES], *([row.step.name, *_figures(row)] for row in rows)]
    widths = [max(map(len, column)) for column in columns]
    for number, (name, *figures) in enumerate(zip(*columns, strict=True)):
        if not any(figures):
            continue
        cells = [name.ljust(widths[0]), *map(str.rjust, figures, widths[1:])]
        yield "  ".join(cells).rstrip()
        if number == 0:
            yield "-" * (sum(widths) + 2 * (len(widths) - 1))


_FIGURES: dict[str, Callable[[preflight.Row], str]] = {
    "compiles": lambda row: "no" if row.compiled.refused else "yes",
    "fits": lambda row: "yes" if row.fits else "NO",
    "memory of a chip, needed": lambda row: gigabytes(row.compiled.memory),
    "  variables and batch": lambda row: gigabytes(
        max(row.compiled.argument_bytes, row.compiled.state_bytes)
    ),
    "  activations, temporaries": lambda row: gigabytes(row.compiled.temporary_bytes),
    "  program": lambda row: gigabytes(row.compiled.code_bytes),
    "memory of a chip, usable": lambda row: gigabytes(row.chip.usable_memory),
    "TFLOP": lambda row: f"{row.compiled.flops / 1e12:.3f}",
    "GB moved": lambda row: f"{row.compiled.moved_bytes / 1e9:.2f}",
    "least time by arithmetic": lambda row: f"{row.seconds[0] * 1e3:.2f} ms",
    "least time by memory": lambda row: f"{row.seconds[1] * 1e3:.2f} ms",
    "all-reduces": lambda row: f"{row.compiled.num_all_reduces:.0f}",
    "  of together": lambda row: gigabytes(row.compiled.all_reduced_bytes),
}
_OF_A_WHOLE_PROGRAM = {"  program", *list(_FIGURES)[7:]}
"""Figures that the compiler does not tell of a program that is too large."""


def _figures(row: preflight.Row) -> Iterator[str]:
    for name, figure in _FIGURES.items():
        is_refused = bool(row.compiled.refused) and name != "compiles"
        is_unknown = row.compiled.is_too_large and name in _OF_A_WHOLE_PROGRAM
        yield "" if is_refused or is_unknown else figure(row)


def gigabytes(number: float) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e7 else f"{number / 1e6:.3f} MB"
