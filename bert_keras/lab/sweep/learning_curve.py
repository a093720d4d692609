"""Scores against the number of labelled examples: a line for each model or setting."""

# matplotlib's types are narrower than what it takes.
# pyright: reportArgumentType=false, reportCallIssue=false

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib import axes, figure, ticker

from bert_keras.lab.sweep import planning, scores
from bert_keras.pages import drawing

KEY = "train_fraction"
"""Setting whose values make a curve."""

MAX_NAME_LENGTH = 40
"""Characters of a line's name."""

_COLOURS = (
    *(drawing.BLUE, drawing.VERMILION, drawing.GREEN, "#CC79A7", "#E69F00"),
    *("#56B4E9", "#B8A600"),
)
_FLOOR_COLOURS = (drawing.GREY, "black")
_MARKERS = "os^Dvp*X"


@dataclass(frozen=True, kw_only=True)
class Line:
    """A model or setting."""

    name: str
    points: tuple[tuple[float, tuple[float, ...]], ...]
    """Number of labelled examples, ascending, and the scores of all seeds."""
    is_floor: bool = False
    """Whether it is something that a model has to beat."""


def lines_of(points: Sequence[scores.Point], keys: Sequence[str]) -> list[Line]:
    """A line for each combination of the other keys; none, without two fractions."""
    if KEY not in keys:
        return []
    place = list(keys).index(KEY)
    varied = [
        i
        for i in range(len(keys))
        if i != place and len({point.values[i] for point in points}) > 1
    ]
    found: dict[str, list[tuple[float, tuple[float, ...]]]] = {}
    for point in points:
        sizes = [o.num_train_examples for o in point.finished if o.num_train_examples]
        if sizes:
            shown = (planning.show(point.values[i]) for i in varied)
            name = " · ".join(shown) or "all runs"
            measured = (statistics.fmean(sizes), tuple(point.scores))
            found.setdefault(name, []).append(measured)
    lines = [Line(name=n, points=tuple(sorted(those))) for n, those in found.items()]
    return lines if any(len(line.points) > 1 for line in lines) else []


def draw(lines: Sequence[Line], *, metric: str, title: str) -> figure.Figure:
    """Means with deviations, and each seed as a dot, over a logarithmic axis."""
    image, plot = drawing.new_plot(title, width=9, height=5.4)
    floors = itertools.cycle(_FLOOR_COLOURS)
    colours = itertools.cycle(_COLOURS)
    names = drawing.drawable([line.name[:MAX_NAME_LENGTH] for line in lines])
    for number, (line, name) in enumerate(zip(lines, names, strict=True)):
        colour = next(floors if line.is_floor else colours)
        marker = _MARKERS[number % len(_MARKERS)]
        _draw_line(plot, line, name, colour=colour, marker=marker)
    sizes = sorted({size for line in lines for size, _ in line.points})
    plot.set_xscale("log")
    plot.set_xticks(_apart(sizes))
    plot.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:,.0f}"))
    plot.xaxis.set_minor_locator(ticker.NullLocator())
    plot.set(xlabel="labelled examples", ylabel=metric)
    if len(lines) > 1:
        drawing.add_legend(image, num_columns=3)
    return image


def _draw_line(
    plot: axes.Axes, line: Line, name: str, *, colour: str, marker: str
) -> None:
    seeds = [
        (size, value)
        for size, values in line.points
        for value in drawing.placeable(values)
        if len(values) > 1
    ]
    if seeds:
        plot.scatter(*zip(*seeds, strict=True), s=14, color=colour, alpha=0.45)
    means = [statistics.fmean(drawing.placeable(values)) for _, values in line.points]
    deviations = [
        statistics.stdev(drawing.placeable(values)) if len(values) > 1 else 0.0
        for _, values in line.points
    ]
    plot.errorbar(
        [size for size, _ in line.points],
        means,
        yerr=deviations,
        color=colour,
        marker=marker,
        markersize=7,
        linestyle="--" if line.is_floor else "-",
        linewidth=2,
        capsize=4,
        label=name,
    )


def _apart(sizes: Sequence[float]) -> list[float]:
    """Returns the ascending sizes whose numbers do not overlap on the axis."""
    if not sizes:
        return []
    nearest = (sizes[-1] / sizes[0]) ** (1 / 12)
    kept: list[float] = [sizes[-1]]
    for size in reversed(sizes[:-1]):
        if kept[-1] / size >= nearest:
            kept.append(size)
    return kept[::-1]
