"""What `preflight` found, as a table for people."""

from collections.abc import Iterator, Sequence

from bert_keras import chips, progress
from tpu import preflight


def lines(checked: Sequence[preflight.Checked], device: chips.Device) -> Iterator[str]:
    """A heading and a table with a column for each step."""
    step = checked[0].step
    hosts = f" on {device.num_hosts} hosts" if device.num_hosts > 1 else ""
    chips_ = "1 chip" if device.num_chips == 1 else f"{device.num_chips} chips"
    yield (
        f"{device.name}: {chips_}{hosts}; {step.batch_size} examples of "
        f"{step.max_seq_length} tokens a chip; {step.num_layers} layers of "
        f"{step.bert_config.hidden_size}; {step.precision}"
    )
    yield ""
    columns = [["", *_names()]]
    columns += [[one.step.name, *_values(one)] for one in checked]
    widths = [max(map(len, column)) for column in columns]
    for number, row in enumerate(zip(*columns, strict=True)):
        cells = [
            cell.ljust(width) if n == 0 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
        if number == 0:
            yield "-" * (sum(widths) + 2 * (len(widths) - 1))
    for one in checked:
        for refused in one.compiled.refused:
            yield ""
            yield (
                f"{one.step.name}: {refused.operation} in {refused.scope}: "
                f"{refused.reason}"
            )


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
        "compiled in",
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
        progress.duration(compiled.seconds),
    ]


def gigabytes(number: float) -> str:
    """Bytes for people."""
    return f"{number / 1e9:.2f} GB" if number >= 1e7 else f"{number / 1e6:.3f} MB"
