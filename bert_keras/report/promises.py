"""The promise of a calibrated run, for people: see `bert-keras calibrate`."""

# matplotlib's types are narrower than what it takes.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from collections.abc import Iterable

import numpy as np
from matplotlib import figure, ticker

from bert_keras.core.settings import tasks
from bert_keras.pages import drawing, markdown, sections

Bins = Iterable[tuple[float, float, float]]


def sentence(promise: tasks.Calibration) -> str:
    count = round(1000 * promise.num_answered / promise.num_rows)
    wrong, sure = 100 * (1 - promise.precision), 100 * promise.confidence
    if promise.half_width is not None:
        return (
            f"Of 100 {promise.examples} like these at least {100 - wrong:.3g} have "
            f"their number within {promise.half_width:.6g} of the answer "
            f"({sure:.3g} % sure)."
        )
    asked, answers = f"Of 1,000 {promise.examples} like these it answers", "answers"
    if promise.several is not None:
        answers = promise.several
        asked = f"Of 1,000 {answers} found in {promise.examples} like these it gives"
    return (
        f"{asked} {count:,}, and at most {wrong:.3g} of 100 {answers} are wrong "
        f"({sure:.3g} % sure)."
    )


def facts(promise: tasks.Calibration) -> str:
    if promise.half_width is not None:
        return (
            f"Of {promise.num_rows:,} rows that were not trained on, "
            f"{promise.num_wrong:,} have their number farther from the answer."
        )
    before, after = map(calibration_error, (promise.before, promise.after))
    below, rows, got, most = "is empty", "rows", "got an answer", ""
    if promise.several is not None:
        below, rows, got = "is left out", promise.several, "were given"
    if promise.most_counted > 1:
        most = (
            f" More than {promise.most_counted} answers to one text count as so many."
        )
    return (
        f"An answer is given from a probability of {promise.threshold:.6g} on, else it "
        f"{below}. Of {promise.num_rows:,} {rows} that were neither trained on nor "
        f"used for the temperature, {promise.num_answered:,} {got}, of which "
        f"{promise.num_wrong:,} are wrong.{most} The temperature is "
        f"{promise.temperature:.3g}: the expected calibration error was "
        f"{markdown.percent(before)} before and is {markdown.percent(after)}."
    )


def calibration_error(bins: Bins) -> float:
    return sum(share * abs(right - mean) for mean, right, share in bins)


def section(promise: tasks.Calibration) -> sections.Section:
    text = (
        f"**{sentence(promise)}**\n\n{facts(promise)}\n\nThe promise is about "
        f"{promise.examples} of the same origin as those rows, and about no others."
    )
    picture = drawing.as_png(draw, promise) if promise.curve else None
    return sections.Section("When it answers", "promise", text, picture)


def draw(promise: tasks.Calibration) -> figure.Figure:
    """Draws precision against the share answered, and the reliability."""
    picture = figure.Figure(figsize=(8.5, 4), layout="constrained")
    left, right = picture.subplots(1, 2)
    # 1. Other thresholds, and the one chosen.
    left.plot(*zip(*promise.curve, strict=True), color=drawing.BLUE, linewidth=2)
    left.axhline(
        promise.precision,
        color=drawing.GREY,
        linestyle="--",
        label="promised precision",
    )
    chosen = promise.num_answered / promise.num_rows
    precision = 1 - promise.num_wrong / promise.num_answered
    style = {
        "color": drawing.VERMILION,
        "linestyle": "",
        "marker": "o",
        "markersize": 9,
    }
    left.plot(chosen, precision, label="the threshold chosen", **style)
    lowest = min([promise.precision, *(share for _, share in promise.curve)])
    left.set(xlabel="answered", ylabel="of these, right", title="Precision of answers")
    left.set(xlim=(0, 1), ylim=(max(0, np.floor(20 * lowest - 0.5) / 20), 1.003))
    # 2. Probabilities and shares that are right.
    right.plot([0, 1], [0, 1], "--", color=drawing.GREY)
    for name, colour in (("before", drawing.GREEN), ("after", drawing.BLUE)):
        means, shares, _ = zip(*getattr(promise, name), strict=True)
        right.plot(means, shares, "o-", color=colour, label=f"{name} the temperature")
    right.set(xlabel="probability of the answer", ylabel="share that is right")
    right.set(title="Calibration", xlim=(0, 1), ylim=(0, 1.003))
    for axis in (left.xaxis, left.yaxis, right.xaxis, right.yaxis):
        axis.set_major_formatter(ticker.PercentFormatter(1, decimals=0, symbol=" %"))
    drawing.add_legend(picture)
    return picture
