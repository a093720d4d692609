"""A plan as a table for people, as JSON, and as a drawing of cost against time."""

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_keras import files
from bert_keras.tpu import plan


def lines(made: plan.Plan) -> Iterator[str]:
    """The lines of a plan."""
    work = made.work
    yield f"{work.title}: {work.num_weights / 1e6:,.1f} million weights"
    for stage in work.stages:
        yield (
            f"{stage.name}: {stage.num_steps:,} steps of {stage.batch_size:,} examples "
            f"of {stage.max_seq_length} tokens: {stage.num_examples:,} examples, "
            f"{_flops(stage.flops)}"
        )
    yield (
        f"checkpoint: {_bytes(work.checkpoint_bytes)}, every "
        f"{work.save_checkpoint_steps:,} steps"
    )
    if made.data is not None:
        yield from _data_lines(made, made.data)
    yield (
        f"storage: {_bytes(made.bytes)}, {_dollars(made.storage_dollars)} a month "
        f"(prices of {made.prices.date})"
    )
    yield ""
    yield from _offer_lines(made)


def _data_lines(made: plan.Plan, data: plan.data.Data) -> Iterator[str]:
    for stage, examples in zip(made.work.stages, data.examples, strict=True):
        epochs = stage.num_examples / max(examples.number, 1)
        yield (
            f"data of {stage.name}: {examples.number:,} examples, "
            f"{_bytes(examples.bytes)}: {epochs:.2g} times each"
        )
    hours = ", ".join(f"{verb} {value:.1f}" for verb, value in data.core_hours.items())
    yield (
        f"data: {data.num_words:,.0f} words, documents {_bytes(data.document_bytes)}; "
        f"{sum(data.core_hours.values()):.1f} core-hours ({hours}), "
        f"{_dollars(made.data_dollars)}"
    )


def _offer_lines(made: plan.Plan) -> Iterator[str]:
    head = ("on", "TFLOP/s", "hours", "on demand", "spot", "lost", "speed")
    rows = [head]
    for offer in made.offers:
        rate = made.work.flops / offer.hours / 3600 / 1e12
        rows.append(
            (
                offer.device,
                f"{rate:,.3g}",
                f"{offer.hours:,.1f}" if offer.hours >= 1 else f"{offer.hours:.2g}",
                _dollars(offer.on_demand),
                _dollars(offer.spot),
                f"{offer.lost:.0%}",
                offer.speed.reason,
            )
        )
    widths = [max(len(row[n]) for row in rows) for n in range(len(head) - 1)]
    for row in rows:
        cells = (f"{cell:>{width}}" for cell, width in zip(row, widths, strict=False))
        yield "  ".join((*cells, row[-1]))
    yield ""
    yield (
        "lost: share of the time that one preemption an hour costs; spot: hours and "
        "dollars with that many"
    )


def facts(made: plan.Plan) -> dict[str, Any]:
    """The plan for programs."""
    work, data = made.work, made.data
    stages = [
        {
            "name": stage.name,
            "max_seq_length": stage.max_seq_length,
            "num_steps": stage.num_steps,
            "batch_size": stage.batch_size,
            "num_examples": stage.num_examples,
            "flops": stage.flops,
        }
        for stage in work.stages
    ]
    offers = [
        {
            "device": offer.device,
            "flops_per_second": work.flops / offer.hours / 3600,
            "speed": offer.speed.reason,
            "hours": offer.hours,
            "on_demand_dollars": offer.on_demand,
            "spot_dollars": offer.spot,
            "spot_hours": offer.spot_hours,
            "lost_to_a_preemption_an_hour": offer.lost,
        }
        for offer in made.offers
    ]
    return {
        "title": work.title,
        "num_weights": work.num_weights,
        "checkpoint_bytes": work.checkpoint_bytes,
        "flops": work.flops,
        "stages": stages,
        "data": data
        and {
            "num_words": data.num_words,
            "document_bytes": data.document_bytes,
            "examples": [vars(examples) for examples in data.examples],
            "core_hours": data.core_hours,
            "dollars": made.data_dollars,
        },
        "bytes": made.bytes,
        "storage_dollars_a_month": made.storage_dollars,
        "prices_of": made.prices.date.isoformat(),
        "offers": offers,
    }


def draw(made: plan.Plan, path: str | Path) -> None:
    """Writes a picture of cost against time, both logarithmic.

    A device is a filled point at its price on demand, and a hollow one at that of spot.
    """
    # Not at the top: a plan without a picture needs no matplotlib.
    from matplotlib import figure

    picture = figure.Figure(figsize=(7, 4.5), layout="constrained")
    axes = picture.add_subplot()
    for number, offer in enumerate(made.offers):
        color = f"C{number % 10}"
        if offer.on_demand is not None:
            point = (offer.hours, offer.on_demand)
            axes.plot(*point, "o", color=color, label=offer.device)
        if offer.spot is not None and math.isfinite(offer.spot_hours):
            ends = [(offer.hours, offer.spot_hours), (offer.on_demand, offer.spot)]
            axes.plot(ends[0], ends[1], ":", color=color, linewidth=1)
            axes.plot(offer.spot_hours, offer.spot, "o", color=color, fillstyle="none")
    axes.set(xscale="log", yscale="log", xlabel="hours", ylabel="US dollars")
    axes.set_title(
        f"{made.work.title}\nfilled: on demand; hollow: spot, one preemption an hour; "
        f"prices of {made.prices.date}",
        fontsize=9,
    )
    axes.legend()
    axes.grid(alpha=0.3, which="both")
    data = io.BytesIO()
    picture.savefig(data, format="png", dpi=120)
    files.write_atomically(path, data.getvalue())


def _flops(number: float) -> str:
    return _with_unit(number, {"EFLOP": 1e18, "PFLOP": 1e15, "TFLOP": 1e12})


def _bytes(number: float) -> str:
    return _with_unit(number, {"TB": 1e12, "GB": 1e9, "MB": 1e6})


def _with_unit(number: float, sizes: dict[str, float]) -> str:
    """In the largest unit that it has one of, or the smallest."""
    fitting = [unit for unit, size in sizes.items() if number >= size]
    unit = (fitting or list(sizes)[-1:])[0]
    return f"{number / sizes[unit]:,.3g} {unit}"


def _dollars(number: float | None) -> str:
    if number is None:
        return "?"
    if math.isinf(number):
        return "never"
    return f"${number:,.2f}" if number < 100 else f"${number:,.0f}"
