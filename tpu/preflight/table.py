"""What `preflight` found, as a table for people."""

from collections.abc import Iterator, Sequence

from bert_keras import progress
from bert_keras.tpu import preflight
from bert_keras.tpu.preflight import steps

_METHODS = {
    "compiled": "Compiled by libtpu for this chip, which was not there.",
    "extrapolated": "Extrapolated from six and eight layers, compiled by libtpu.",
    "estimated": "An estimate by our own count: nothing was compiled.",
}


def lines(report: preflight.Report) -> Iterator[str]:
    """A heading, a table with a column for each step, and what follows from it."""
    device, step = report.request.device, report.steps[0].step
    hosts = f" on {device.num_hosts} hosts" if device.num_hosts > 1 else ""
    chips_ = "1 chip" if device.num_chips == 1 else f"{device.num_chips} chips"
    yield (
        f"{device.name}: {chips_}{hosts}; {_examples(step)} of {step.max_seq_length} "
        f"tokens a chip; {step.num_layers} layers of {step.bert_config.hidden_size}; "
        f"{step.precision}"
    )
    yield _METHODS[report.method]
    yield ""
    yield from table([*report.steps, *report.remedies], method=report.method)
    for one in report.steps:
        yield from _refusals(one)
    yield from _conclusions(report)


_MAX_REFUSED = 3
"""Operations that are named: the same one is often in each layer."""


def _refusals(one: preflight.Checked) -> Iterator[str]:
    refused = one.compiled.refused
    for found in refused[:_MAX_REFUSED]:
        yield ""
        yield f"{one.step.name}: {found.operation} in {found.scope}: {found.reason}"
    if len(refused) > _MAX_REFUSED:
        yield f"and {len(refused) - _MAX_REFUSED} more"


def _examples(step: steps.Step) -> str:
    parts = f" in {step.num_parts} parts" if step.num_parts > 1 else ""
    return f"{step.batch_size} examples{parts}"


def _conclusions(report: preflight.Report) -> Iterator[str]:
    training = report.steps[0]
    if training.compiled.refused:
        return
    if not training.fits:
        yield ""
        how = [one.settings for one in report.remedies]
        yield (
            f"It does not fit. With {' or with '.join(how)} it does."
            if how
            else "It does not fit in any number of parts: take a chip with more memory "
            "or a smaller model."
        )
    if report.request.largest_batch:
        yield ""
        if report.largest is None:
            yield "Not even one example of a chip fits."
            return
        largest = report.largest.step
        together = largest.batch_size * largest.num_chips
        yield (
            f"The largest batch that fits: {_examples(largest)} a chip, {together} in "
            f"all: {gigabytes(report.largest.compiled.memory)}, "
            f"{max(report.largest.seconds) * 1e3:.1f} ms at least."
        )


def table(
    checked: Sequence[preflight.Checked], *, method: str = "compiled"
) -> Iterator[str]:
    """A column for each step."""
    names = _names()
    columns = [["", *names]]
    columns += [[_title(one), *_values(one, method)] for one in checked]
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


def _title(one: preflight.Checked) -> str:
    return one.settings or one.step.name


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


def _values(one: preflight.Checked, method: str) -> list[str]:
    compiled = one.compiled
    if compiled.refused:
        return ["no", *([""] * (len(_names()) - 1))]
    compute, memory = one.seconds
    unknown = compiled.is_too_large
    is_counted = method == "estimated"
    figures = [
        f"{compiled.flops / 1e12:.3f}",
        "" if is_counted else f"{compiled.moved_bytes / 1e9:.2f}",
        f"{compute * 1e3:.2f} ms",
        "" if is_counted else f"{memory * 1e3:.2f} ms",
        f"{compiled.num_all_reduces:.0f}",
        gigabytes(compiled.all_reduced_bytes),
    ]
    return [
        "" if is_counted else "yes",
        "yes" if one.fits else "NO",
        gigabytes(compiled.memory),
        gigabytes(max(compiled.argument_bytes, compiled.state_bytes)),
        gigabytes(compiled.temporary_bytes),
        "" if unknown or is_counted else gigabytes(compiled.code_bytes),
        gigabytes(one.chip.usable_memory),
        *([""] * len(figures) if unknown else figures),
        "" if is_counted else progress.duration(compiled.seconds),
    ]


def gigabytes(number: float) -> str:
    """Bytes for people."""
    return f"{number / 1e9:.2f} GB" if number >= 1e7 else f"{number / 1e6:.3f} MB"
