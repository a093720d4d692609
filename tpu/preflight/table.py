"""What `preflight` found, as a table for people."""

from collections.abc import Iterator, Sequence

from bert_keras.core import chips
from bert_keras.tpu import preflight


def lines(device: chips.Device, checked: Sequence[preflight.Checked]) -> Iterator[str]:
    """A heading, a table with a column for each step, and the refused operations."""
    step = checked[0].step
    hosts = f" on {device.num_hosts} hosts" if device.num_hosts > 1 else ""
    chips_ = "1 chip" if device.num_chips == 1 else f"{device.num_chips} chips"
    parts = f" in {step.num_parts} parts" if step.num_parts > 1 else ""
    yield (
        f"{device.name}: {chips_}{hosts}; {step.batch_size} examples{parts} of "
        f"{step.max_seq_length} tokens a chip; {step.num_layers} layers of "
        f"{step.bert_config.hidden_size}; {step.precision}"
    )
    yield "Compiled by libtpu for this chip, which was not there."
    yield ""
    yield from table(checked)
    for one in checked:
        yield from _refusals(one)


_MAX_REFUSED = 3
"""Operations that are named: the same one is often in each layer."""


def _refusals(one: preflight.Checked) -> Iterator[str]:
    refused = one.compiled.refused
    for found in refused[:_MAX_REFUSED]:
        yield ""
        yield f"{one.step.name}: {found.operation} in {found.scope}: {found.reason}"
    if len(refused) > _MAX_REFUSED:
        yield f"and {len(refused) - _MAX_REFUSED} more"


def table(checked: Sequence[preflight.Checked]) -> Iterator[str]:
    """A column for each step."""
    names = _names()
    columns = [["", *names]]
    columns += [[one.step.name, *_values(one)] for one in checked]
    widths = [max(map(len, column)) for column in columns]
    for number, row in enumerate(zip(*columns, strict=True)):
        if not any(row[1:]):
            continue
        cells = [
            cell.ljust(width) if n == 0 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
        if number == 0:
            yield "-" * (sum(widths) + 2 * (len(widths) - 1))


def _names() -> list[str]:
    return [
        "compiles",
        "fits",
        "memory of a chip, needed",
        "  variables and batch",
        "  activations, temporaries",
        "  program",
        "memory of a chip, usable",
        "TFLOP",
        "GB moved",
        "least time by arithmetic",
        "least time by memory",
        "all-reduces",
        "  of together",
    ]


def _values(one: preflight.Checked) -> list[str]:
    compiled = one.compiled
    if compiled.refused:
        return ["no", *([""] * (len(_names()) - 1))]
    compute, memory = one.seconds
    unknown = compiled.is_too_large
    figures = [
        f"{compiled.flops / 1e12:.3f}",
        f"{compiled.moved_bytes / 1e9:.2f}",
        f"{compute * 1e3:.2f} ms",
        f"{memory * 1e3:.2f} ms",
        f"{compiled.num_all_reduces:.0f}",
        gigabytes(compiled.all_reduced_bytes),
    ]
    return [
        "yes",
        "yes" if one.fits else "NO",
        gigabytes(compiled.memory),
        gigabytes(max(compiled.argument_bytes, compiled.state_bytes)),
        gigabytes(compiled.temporary_bytes),
        "" if unknown else gigabytes(compiled.code_bytes),
        gigabytes(one.chip.usable_memory),
        *([""] * len(figures) if unknown else figures),
    ]


def gigabytes(number: float) -> str:
    """Bytes for people."""
    return f"{number / 1e9:.2f} GB" if number >= 1e7 else f"{number / 1e6:.3f} MB"
