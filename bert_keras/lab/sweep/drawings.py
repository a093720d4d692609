"""Pictures of scores: of the points of a grid, and against the number of labels."""

# matplotlib's types are narrower than what it takes, and points that are drawn have
# scores.
# pyright: reportArgumentType=false, reportCallIssue=false

import itertools
import statistics
from collections.abc import Collection, Mapping, Sequence

from matplotlib import figure, ticker

from bert_keras.lab.sweep import planning, scores
from bert_keras.pages import drawing

MAX_POINTS = 100
"""Grid points in the picture; a picture of many more would be too high to be drawn."""

_COLOURS = (drawing.BLUE, drawing.VERMILION, drawing.GREEN)
_COLOURS += ("#CC79A7", "#E69F00", "#56B4E9", "#B8A600")


def draw_points(
    points: Sequence[scores.Point],
    keys: Sequence[str],
    *,
    criterion: scores.Criterion,
    chosen: tuple[scores.Point, scores.Outcome] | None,
    title: str,
) -> figure.Figure:
    """Draws the scores of all runs by point (the best `MAX_POINTS`), with means."""
    if len(points) > MAX_POINTS:
        title += f": the best {MAX_POINTS} of {len(points):,} points"
        ranked = sorted(points, key=lambda p: p.merit(criterion), reverse=True)
        best = ranked[:MAX_POINTS]
        points = [point for point in points if point in best]
    image, plot = drawing.new_plot(title, height=2.2 + 0.36 * len(points))
    values = [point.values for point in points]
    columns = zip(keys, zip(*values, strict=True), strict=False)
    varied = [key for key, column in columns if len({*column}) > 1]
    plot.set(xlabel=criterion.metric, ylabel=" · ".join(varied))
    plot.set_yticks(range(len(points)), planning.varied_names(values))
    plot.set_ylim(len(points) - 0.5, -0.5)
    # 1. A dot for each run, and the means.
    for state, label, colour, fill in (
        ("finished", "run", drawing.BLUE, drawing.BLUE),
        ("majority", "at the majority class", drawing.VERMILION, "none"),
    ):
        dots = [
            (outcome.score, row)
            for row, point in enumerate(points)
            for outcome in point.finished
            if outcome.state == state
        ]
        if dots:
            look = {"facecolors": fill, "edgecolors": colour, "label": label}
            plot.scatter(*zip(*dots, strict=True), s=36, zorder=4, **look)
    spreads = [
        (point.mean, row, point.deviation)
        for row, point in enumerate(points)
        if point.deviation is not None
    ]
    if spreads:
        means, rows, deviations = zip(*spreads, strict=True)
        look = {"color": drawing.GREY, "linestyle": "none", "capsize": 3, "zorder": 3}
        look |= {"marker": "|", "markersize": 14, "markeredgewidth": 2}
        look["label"] = "mean ± deviation"
        plot.errorbar(means, rows, xerr=deviations, **look)
    # 2. A star for the chosen run.
    if chosen is None:
        plot.set_xticks([])
    else:
        row = values.index(chosen[0].values)
        plot.axhspan(row - 0.5, row + 0.5, color=drawing.GREEN, alpha=0.12, linewidth=0)
        look = {"color": drawing.GREEN, "edgecolors": "white", "label": "chosen"}
        plot.scatter([chosen[1].score], [row], s=180, marker="*", zorder=5, **look)
    # 3. The numbers of failed runs, beside the plot.
    for row, point in enumerate(points):
        if point.num_failed:
            plot.annotate(
                f"{point.num_failed} failed",
                (1, row),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                verticalalignment="center",
                color=drawing.VERMILION,
                fontsize=10,
            )
    if plot.get_legend_handles_labels()[0]:
        drawing.add_legend(image, num_columns=4)
    return image


Line = list[tuple[float, tuple[float, ...]]]
"""Number of labelled examples, ascending, and the scores of all seeds."""


def draw_curve(
    lines: Mapping[str, Line],
    *,
    metric: str,
    title: str,
    baselines: Collection[str] = (),
) -> figure.Figure:
    """Draws means with deviations, and each seed as a dot, over a logarithmic axis."""
    image, plot = drawing.new_plot(title, width=9, height=5.4)
    greys, colours = itertools.cycle((drawing.GREY, "black")), itertools.cycle(_COLOURS)
    markers = itertools.cycle("os^Dvp*X")
    labels = drawing.drawable([name[:40] for name in lines])
    for (name, line), label in zip(lines.items(), labels, strict=True):
        is_baseline = name in baselines
        look = {
            "color": next(greys if is_baseline else colours),
            "marker": next(markers),
            "linestyle": "--" if is_baseline else "-",
            "label": label,
        }
        sizes, values = zip(*line, strict=True)
        values = [drawing.placeable(by_seed) for by_seed in values]
        for size, by_seed in zip(sizes, values, strict=True):
            if len(by_seed) > 1:
                dots = [size] * len(by_seed)
                plot.scatter(dots, by_seed, s=14, color=look["color"], alpha=0.45)
        plot.errorbar(
            sizes,
            list(map(statistics.fmean, values)),
            yerr=[statistics.stdev(v) if len(v) > 1 else 0.0 for v in values],
            markersize=7,
            linewidth=2,
            capsize=4,
            **look,
        )
    sizes = sorted({size for line in lines.values() for size, _ in line})
    plot.set_xscale("log")
    # Of sizes whose numbers would overlap on the axis, only the largest has one.
    ticks: list[float] = []
    for size in reversed(sizes):
        if not ticks or ticks[-1] / size >= (sizes[-1] / sizes[0]) ** (1 / 12):
            ticks.append(size)
    plot.set_xticks(ticks[::-1])
    plot.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:,.0f}"))
    plot.xaxis.set_minor_locator(ticker.NullLocator())
    plot.set(xlabel="labelled examples", ylabel=metric)
    if len(lines) > 1:
        drawing.add_legend(image, num_columns=3)
    return image
