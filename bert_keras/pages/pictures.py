"""Pictures of answers: confusion, scores by class, calibration, scatter."""

# matplotlib's types are narrower than what it takes.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from collections.abc import Sequence

import numpy as np
import scipy.stats
from matplotlib import axes, figure, ticker

from bert_keras.pages import calibration, confusion, drawing, markdown

MAX_MATRIX_CLASSES = 25
"""Classes in a confusion matrix; more would be illegible."""

MAX_ROWS = 40
"""Classes in a picture with a row for each."""

_PERCENT = ticker.PercentFormatter(xmax=1, decimals=0, symbol=" %")


def draw_confusion(title: str, whole: confusion.Confusion) -> figure.Figure:
    """Draws a matrix of counts, with the share of each row as colour. Beyond
    `MAX_MATRIX_CLASSES`, the classes with the fewest mistakes are pooled."""
    names, counts = confusion.pooled(whole, MAX_MATRIX_CLASSES)
    size = len(names)
    cell = 0.9 if size <= 5 else 0.6 if size <= 12 else 0.36
    longest = max(len(name) for name in names)
    labels = 0.6 + 0.1 * longest
    side = cell * size
    picture, plot = drawing.new_plot(
        title, width=max(5.5, side + labels + 2), height=max(4, side + labels + 1.2)
    )
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(totals, 1)
    image = plot.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    _write_counts(plot, counts, shares)
    _name_sides(plot, names, is_flat=size <= 5 and longest <= 10)
    plot.set(xlabel="answered", ylabel="right")
    beside = plot.inset_axes((1 + 0.15 / side, 0, 0.2 / side, 1))
    bar = picture.colorbar(image, cax=beside, format=_PERCENT)
    bar.set_label("share of the row", fontsize=11)
    bar.outline.set_visible(False)
    return picture


def _name_sides(plot: axes.Axes, names: Sequence[str], *, is_flat: bool) -> None:
    """Writes names at the cells of a matrix, and draws lines between the cells."""
    size = len(names)
    small = {"fontsize": 11 if size <= 12 else 9}
    plot.set_xticks(range(size), names, rotation=0 if is_flat else 90, **small)
    plot.set_yticks(range(size), names, **small)
    plot.grid(visible=False)
    for axis in (plot.xaxis, plot.yaxis):
        axis.set_ticks(np.arange(size - 1) + 0.5, minor=True)
    plot.grid(visible=True, which="minor")
    plot.tick_params(which="both", length=0)
    plot.spines[:].set_visible(False)


def _write_counts(plot: axes.Axes, counts: np.ndarray, shares: np.ndarray) -> None:
    size = len(counts)
    fontsize = 12 if size <= 12 else 7.5
    for row, column in np.ndindex(counts.shape):
        # With many classes most cells are empty, and zeros would hide the others.
        if counts[row, column] or size <= 12:
            plot.text(
                column,
                row,
                f"{counts[row, column]:,}",
                ha="center",
                va="center",
                fontsize=fontsize,
                color="white" if shares[row, column] > 0.5 else "black",
                # The text is inside the cell; laying it all out takes many seconds.
                in_layout=False,
            )


def draw_class_scores(
    title: str, scores: Sequence[confusion.ClassScore]
) -> figure.Figure:
    """Draws precision, recall and F1 of the `MAX_ROWS` classes with the lowest F1."""
    if len(scores) > MAX_ROWS:
        scores = sorted(scores, key=lambda s: np.nan_to_num(s.f1, nan=2.0))[:MAX_ROWS]
        title += f": the lowest {MAX_ROWS}"
    picture, plot = drawing.new_plot(title, height=1.8 + 0.32 * len(scores))
    styles = {
        "precision": {"marker": ">", "color": drawing.BLUE, "markersize": 8},
        "recall": {"marker": "<", "color": drawing.VERMILION, "markersize": 8},
        "F1": {"marker": "o", "color": "black", "fillstyle": "none", "markersize": 5},
    }
    for label, style in styles.items():
        values = [getattr(score, label.lower()) for score in scores]
        rows = range(len(values))
        plot.plot(values, rows, linestyle="", label=label, clip_on=False, **style)
    name_rows(plot, [f"{score.name} ({score.num_right:,})" for score in scores])
    # Points, unlike bars, can be compared without a zero.
    lowest = np.nanmin([line.get_xdata() for line in plot.get_lines()])
    plot.set_xlim(max(0, np.floor(10 * lowest - 0.5) / 10), 1)
    plot.xaxis.set_major_formatter(_PERCENT)
    plot.set_xlabel("in brackets: how many are in the file", fontsize=11)
    drawing.add_legend(picture)
    return picture


def name_rows(plot: axes.Axes, names: Sequence[str]) -> None:
    """Writes a name beside each row of a plot, the first row above."""
    plot.set_yticks(range(len(names)), names, fontsize=11)
    plot.set_ylim(len(names) - 0.5, -0.5)
    plot.tick_params(axis="y", length=0, pad=9)
    plot.spines["left"].set_visible(False)


def draw_reliability(bins: Sequence[calibration.Bin]) -> figure.Figure:
    error = calibration.expected_calibration_error(bins)
    picture = figure.Figure(figsize=(6.5, 6.5), layout="constrained")
    picture.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    upper, lower = picture.subplots(2, sharex=True, height_ratios=(3, 1))
    upper.set_title(f"Calibration: expected error {markdown.percent(error)}")
    upper.plot([0, 1], [0, 1], "--", color=drawing.GREY, label="as sure as right")
    _draw_accuracies(upper, bins)
    total = sum(b.num_answers for b in bins)
    lower.bar(
        [b.low for b in bins],
        [b.num_answers / total for b in bins],
        width=[b.high - b.low for b in bins],
        align="edge",
        color=drawing.BLUE,
        edgecolor="white",
    )
    lower.set(xlabel="probability of the answer", ylabel="answers", xlim=(0, 1))
    for axis in (upper.yaxis, lower.yaxis, lower.xaxis):
        axis.set_major_formatter(_PERCENT)
    drawing.add_legend(picture)
    return picture


def _draw_accuracies(plot: axes.Axes, bins: Sequence[calibration.Bin]) -> None:
    """Draws accuracies with intervals, as a bin may have very few answers."""
    accuracies = np.array([b.accuracy for b in bins])
    intervals = [
        scipy.stats.binomtest(b.num_right, b.num_answers).proportion_ci(method="wilson")
        for b in bins
    ]
    reach = np.abs(np.array([(i.low, i.high) for i in intervals]).T - accuracies)
    plot.errorbar(
        [b.confidence for b in bins],
        accuracies,
        yerr=reach,
        color=drawing.BLUE,
        marker="o",
        capsize=3,
        linewidth=1.2,
        label="right, with 95 % interval",
    )
    plot.set(ylabel="share that is right", ylim=(-0.02, 1.02))


def draw_scatter(right: Sequence[float], answered: Sequence[float]) -> figure.Figure:
    picture, plot = drawing.new_plot("Answers and right numbers", width=6.5, height=6.5)
    places = drawing.placeable([right, answered])
    low, high = places.min(), places.max()
    room = 0.04 * (high - low) or max(1.0, abs(high) / 1000)
    limits = (low - room, high + room)
    plot.plot(limits, limits, "--", color=drawing.GREY, label="answer = right number")
    plot.scatter(
        *places,
        s=14,
        alpha=float(np.clip(300 / len(right), 0.03, 0.7)),
        color=drawing.BLUE,
        edgecolors="none",
    )
    plot.set(xlabel="right", ylabel="answered", xlim=limits, ylim=limits)
    plot.set_aspect("equal")
    drawing.add_legend(picture)
    return picture
