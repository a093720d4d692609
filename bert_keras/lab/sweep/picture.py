"""The scores of a sweep as a picture."""

# Rows that are drawn have scores.
# pyright: reportArgumentType=false

from collections.abc import Sequence

from matplotlib import axes, figure

from bert_keras.lab.sweep import planning, scores
from bert_keras.pages import drawing

MAX_POINTS = 100
"""Grid points in the picture; of many more it would be too high to be drawn."""


def draw_scores(
    points: Sequence[scores.Point],
    keys: Sequence[str],
    *,
    ruler: scores.Ruler,
    title: str,
) -> figure.Figure:
    """The scores of all runs, a line for each grid point, with mean and deviation.

    Of more than `MAX_POINTS` points, the best.

    Args:
        points: of the grid.
        keys: of the grid; those with several values name the points.
        ruler: metric of the scores, and how one is chosen.
        title: of the picture.
    """
    if len(points) > MAX_POINTS:
        title += f": the best {MAX_POINTS} of {len(points):,} points"
        points = scores.best_points(points, ruler, MAX_POINTS)
    height = 2.2 + 0.36 * len(points)
    image, plot = drawing.new_plot(title, height=height)
    varied = [i for i in range(len(keys)) if len({p.values[i] for p in points}) > 1]
    names = [
        " · ".join(planning.show(point.values[i]) for i in varied) or "all runs"
        for point in points
    ]
    plot.set(xlabel=ruler.metric, ylabel=" · ".join(keys[i] for i in varied))
    plot.set_yticks(range(len(points)), names)
    plot.set_ylim(len(points) - 0.5, -0.5)
    _draw_runs(plot, points)
    _draw_means(plot, points)
    _draw_choice(plot, points, ruler)
    _write_failures(plot, points)
    if plot.get_legend_handles_labels()[0]:
        drawing.add_legend(image, num_columns=4)
    return image


def _draw_runs(plot: axes.Axes, points: Sequence[scores.Point]) -> None:
    for state, label, colour, fill in (
        ("finished", "run", drawing.BLUE, drawing.BLUE),
        ("majority", "at the majority class", drawing.VERMILION, "none"),
    ):
        places = [
            (outcome.score, row)
            for row, point in enumerate(points)
            for outcome in point.finished
            if outcome.state == state
        ]
        if places:
            plot.scatter(
                *zip(*places, strict=True),
                s=36,
                facecolors=fill,
                edgecolors=colour,
                label=label,
                zorder=4,
            )


def _draw_means(plot: axes.Axes, points: Sequence[scores.Point]) -> None:
    rows = [row for row, point in enumerate(points) if point.deviation is not None]
    if rows:
        plot.errorbar(
            [points[row].mean for row in rows],
            rows,
            xerr=[points[row].deviation for row in rows],
            color=drawing.GREY,
            marker="|",
            markersize=14,
            markeredgewidth=2,
            linestyle="none",
            capsize=3,
            label="mean ± deviation",
            zorder=3,
        )


def _draw_choice(
    plot: axes.Axes, points: Sequence[scores.Point], ruler: scores.Ruler
) -> None:
    chosen = scores.choose(points, ruler)
    if chosen is None:
        plot.set_xticks([])
        return
    point, best = chosen
    row = [point.values for point in points].index(point.values)
    plot.axhspan(row - 0.5, row + 0.5, color=drawing.GREEN, alpha=0.12, linewidth=0)
    plot.scatter(
        [best.score],
        [row],
        s=180,
        marker="*",
        color=drawing.GREEN,
        edgecolors="white",
        label="chosen",
        zorder=5,
    )


def _write_failures(plot: axes.Axes, points: Sequence[scores.Point]) -> None:
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
