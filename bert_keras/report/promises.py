"""The promise of a calibrated run, for people: see `bert-keras calibrate`."""

# matplotlib's types are narrower than what it takes.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import math
from collections.abc import Iterator

import numpy as np
from matplotlib import figure, ticker

from bert_keras.core.settings import tasks
from bert_keras.pages import drawing, markdown, pictures, sections


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
    each = "of each label " if promise.by_label else ""
    return (
        f"{asked} {count:,}, and {each}at most {wrong:.3g} of 100 {answers} are wrong "
        f"({sure:.3g} % sure)."
    )


def facts(promise: tasks.Calibration) -> str:
    if promise.half_width is not None:
        return (
            f"Of {promise.num_rows:,} rows that were not trained on, "
            f"{promise.num_wrong:,} have their number farther from the answer."
        )
    bins = promise.before, promise.after
    before, after = map(pictures.calibration_error, bins)
    below, rows, got, most = "is empty", "rows", "got an answer", ""
    if promise.several is not None:
        below, rows, got = "is left out", promise.several, "were given"
    if promise.most_counted > 1:
        most = (
            f" More than {promise.most_counted} answers to one text count as so many."
        )
    limit = f"a probability of {promise.threshold:.6g}"
    if promise.by_label:
        limit = "a threshold of its label"
    return (
        f"An answer is given from {limit} on, else it {below}. Of {promise.num_rows:,} "
        f"{rows} that were neither trained on nor used for the temperature, "
        f"{promise.num_answered:,} {got}, of which {promise.num_wrong:,} are "
        f"wrong.{most} The temperature is {promise.temperature:.3g}: the expected "
        f"calibration error was {markdown.percent(before)} before and is "
        f"{markdown.percent(after)}."
    )


def by_label(promise: tasks.Calibration) -> list[list[str]]:
    """Returns the table of a promise for each label, the header first; no rows of any
    other promise."""
    rows, limits = [], promise.thresholds_of(promise.by_label)
    for (label, counts), limit in zip(promise.by_label.items(), limits, strict=True):
        from_limit = f"{limit:.6g}" if limit < math.inf else "never"
        rows.append([label, from_limit, *(f"{count:,}" for count in counts)])
    header = ["label", "given from", promise.several or "rows", "given", "wrong"]
    return [header, *rows] if rows else []


def label_table(promise: tasks.Calibration) -> Iterator[str]:
    """Yields the same in Markdown, if there is a table."""
    for header, *rows in filter(None, [by_label(promise)]):
        yield markdown.table(header, [[markdown.literal(r[0]), *r[1:]] for r in rows])


def section(promise: tasks.Calibration) -> sections.Section:
    text = (
        f"**{sentence(promise)}**\n\n{facts(promise)}\n\nThe promise is about "
        f"{promise.examples} of the same origin as those rows, and about no others."
    )
    text = "\n\n".join([text, *label_table(promise)])
    picture = drawing.as_png(draw, promise) if promise.curve else None
    return sections.Section("When it answers", "promise", text, picture)


def draw(promise: tasks.Calibration) -> figure.Figure:
    """Draws precision against the share answered, and the reliability."""
    picture = figure.Figure(figsize=(8.5, 4), layout="constrained")
    left, right = picture.subplots(1, 2)
    # 1. Other thresholds, and the one chosen.
    left.plot(*zip(*promise.curve, strict=True), color=drawing.BLUE, linewidth=2)
    style = {"color": drawing.GREY, "linestyle": "--"}
    left.axhline(promise.precision, label="promised precision", **style)
    chosen = promise.num_answered / promise.num_rows
    precision = 1 - promise.num_wrong / promise.num_answered
    style = {"color": drawing.VERMILION, "markersize": 9}
    left.plot(chosen, precision, "o", label="the threshold chosen", **style)
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
