"""Pictures of answers: confusion, scores by class, calibration, scatter.

Calibration: is a model right as often as it is confident (Guo et al., 2017)?
"""

# matplotlib's types are narrower than what it takes; scikit-learn has none.
# pyright: reportAttributeAccessIssue=false
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from collections.abc import Sequence

import numpy as np
import scipy.sparse
import sklearn.calibration
from matplotlib import axes, figure, ticker
from numpy.typing import ArrayLike
from sklearn import metrics

from bert_keras.pages import confusion, drawing, markdown

MAX_MATRIX_CLASSES = 25
"""Classes in a confusion matrix; more would be illegible."""

MAX_ROWS = 40
"""Classes in a picture with a row for each."""

NUM_BINS = 15
"""Bins of equal width from 0 to 1, as in Guo et al."""

_PERCENT = ticker.PercentFormatter(xmax=1, decimals=0, symbol=" %")


def draw_confusion(
    title: str, names: Sequence[str], counts: scipy.sparse.csr_array
) -> figure.Figure:
    """Draws a matrix of counts, with the share of each row as colour. Beyond
    `MAX_MATRIX_CLASSES`, the classes with the fewest mistakes are pooled."""
    names, table = confusion.pooled(names, counts, MAX_MATRIX_CLASSES)
    size, longest = len(names), max(len(name) for name in names)
    cell = 0.9 if size <= 5 else 0.6 if size <= 12 else 0.36
    side = cell * size + 0.1 * longest
    picture, plot = drawing.new_plot(
        title, width=max(5.5, side + 2.6), height=max(4, side + 1.8)
    )
    display = metrics.ConfusionMatrixDisplay(
        table / np.maximum(table.sum(axis=1, keepdims=True), 1), display_labels=names
    )
    display.plot(
        ax=plot,
        cmap="Blues",
        im_kw={"vmin": 0, "vmax": 1},
        text_kw={"fontsize": 12 if size <= 12 else 7.5},
        xticks_rotation=0 if size <= 5 and longest <= 10 else 90,
    )
    for place, text in np.ndenumerate(display.text_):
        # With many classes most cells are empty, and zeros would hide the others.
        text.set_text(f"{table[place]:,}" if table[place] or size <= 12 else "")
        # The text is inside the cell; laying it all out takes many seconds.
        text.set_in_layout(False)
    plot.set(xlabel="answered", ylabel="right")
    plot.tick_params(labelsize=11 if size <= 12 else 9, length=0)
    plot.grid(visible=False)
    display.im_.colorbar.set_label("share of the row")
    display.im_.colorbar.formatter = _PERCENT
    return picture


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


Bins = Sequence[tuple[float, float, float]]
"""Mean probability, share that is right and share of all answers of each bin."""


def reliability_bins(confidences: ArrayLike, is_right: ArrayLike) -> Bins:
    """Returns the bins that are not empty."""
    # Softmax may round a sure answer to a little more than 1.
    values = np.clip(confidences, 0, 1)
    accuracies, means = sklearn.calibration.calibration_curve(
        np.asarray(is_right), values, n_bins=NUM_BINS, pos_label=True
    )
    # A bin includes its upper bound.
    inner_edges = np.linspace(0, 1, NUM_BINS + 1)[1:-1]
    counts = np.bincount(np.searchsorted(inner_edges, values))
    shares = counts[counts > 0] / len(values)
    parts = means.tolist(), accuracies.tolist(), shares.tolist()
    return tuple(zip(*parts, strict=True))


def calibration_error(bins: Bins) -> float:
    """Returns the expected calibration error: the mean distance of probability and
    share that is right, bins weighted by their answers."""
    return sum(share * abs(right - mean) for mean, right, share in bins)


def draw_reliability(
    confidences: Sequence[float], is_right: Sequence[bool]
) -> figure.Figure:
    """Draws how often answers of each confidence are right, and how many they are."""
    reliability = reliability_bins(confidences, is_right)
    means, accuracies, _ = zip(*reliability, strict=True)
    error = markdown.percent(calibration_error(reliability))
    picture = figure.Figure(figsize=(6.5, 6.5), layout="constrained")
    upper, lower = picture.subplots(2, sharex=True, height_ratios=(3, 1))
    upper.set_title(f"Calibration: expected error {error}")
    display = sklearn.calibration.CalibrationDisplay(accuracies, means, confidences)
    display.plot(ax=upper, color=drawing.BLUE)
    upper.set(xlabel=None, ylabel="share that is right")
    upper.get_legend().remove()
    weights = np.full(len(confidences), 1 / len(confidences))
    bins = np.linspace(0, 1, NUM_BINS + 1)
    lower.hist(confidences, bins, weights=weights, color=drawing.BLUE)
    lower.set(xlabel="probability of the answer", ylabel="answers", xlim=(0, 1))
    for axis in (upper.yaxis, lower.yaxis, lower.xaxis):
        axis.set_major_formatter(_PERCENT)
    return picture


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


def draw_ranks(
    ranks: np.ndarray,
    num_searches: int,
    *,
    title: str,
    labels: tuple[str, str],
    cutoff: int,
) -> figure.Figure:
    """Draws the share of searches that find what they look for among the first ones;
    `labels` are those of the axes."""
    picture, plot = drawing.new_plot(title)
    counts = np.unique(np.geomspace(1, max(ranks.max(), 2), 200).round())
    shares = [(ranks <= count).sum() / num_searches for count in counts]
    plot.step(counts, shares, where="post", color=drawing.BLUE, linewidth=2)
    plot.set(xlabel=labels[0], ylabel=labels[1], xscale="log", ylim=(0, 1))
    # The style of these pictures does not typeset powers.
    plot.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    plot.axvline(cutoff, color=drawing.GREY, linestyle="--")
    return picture
