"""Curves of a run as pictures, one for each metric."""

# matplotlib's types are narrower than what it takes.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import axes, figure, ticker

from bert_keras.pages import drawing
from bert_keras.report import event_log, facts


@dataclasses.dataclass(frozen=True)
class Metric:
    title: str
    axis: str
    """Label of the y axis, with the unit."""
    _: dataclasses.KW_ONLY
    spans_decades: bool = False
    """Whether the axis may be logarithmic, where the values span decades."""
    begins_at_zero: bool = False
    """Whether the axis begins at 0; a metric that is always 0 is then not drawn."""
    is_smoothed: bool = True


METRICS = {
    "loss": Metric("loss", "loss (nats)"),
    "masked_lm_loss": Metric("masked-LM loss", "cross entropy per masked token (nats)"),
    "masked_lm_accuracy": Metric("masked-LM accuracy", "share of masked tokens found"),
    "next_sentence_loss": Metric(
        "next-sentence loss", "cross entropy per example (nats)"
    ),
    "next_sentence_accuracy": Metric(
        "next-sentence accuracy", "share of examples told right"
    ),
    "accuracy": Metric("accuracy", "share of examples told right"),
    "f1": Metric("F1", "F1"),
    "macro_f1": Metric("F1", "mean F1 of the labels"),
    "precision": Metric("precision", "share of answers that are right"),
    "recall": Metric("recall", "share of right answers found"),
    "exact_match": Metric("exact match", "percent"),
    "exact": Metric("exact match", "percent"),
    "matthews": Metric("Matthews correlation", "correlation"),
    "pearson": Metric("Pearson correlation", "correlation"),
    "spearman": Metric("Spearman correlation", "correlation"),
    "learning_rate": Metric(
        "learning rate", "learning rate", is_smoothed=False, begins_at_zero=True
    ),
    "gradient_norm": Metric(
        "gradient norm", "global norm before clipping", spans_decades=True
    ),
    "sequences_per_second": Metric(
        "speed", "sequences per second", begins_at_zero=True
    ),
    "tokens_per_second": Metric(
        "speed in tokens", "tokens per second", begins_at_zero=True
    ),
    "real_tokens_per_second": Metric(
        "speed in tokens without padding", "tokens per second", begins_at_zero=True
    ),
    "model_flop_utilization": Metric(
        "model FLOP utilization", "share of the device's peak", begins_at_zero=True
    ),
    "input_wait_share": Metric(
        "waiting for data", "share of the time", begins_at_zero=True
    ),
    "skipped_steps": Metric(
        "skipped steps", "steps skipped so far", is_smoothed=False, begins_at_zero=True
    ),
    "loss_scale": Metric(
        "loss scale", "factor of the loss", spans_decades=True, is_smoothed=False
    ),
}
"""Pictures of a run, by the last part of the metric's tag."""


def draw_curves(run: facts.Facts, directory: Path) -> list[tuple[str, str]]:
    """Draws every metric that was logged, as `<metric>.png`; returns the title and file
    name of each, in the order of `METRICS`."""
    titles = {name: metric.title for name, metric in METRICS.items()}
    # F1 of one of two labels, such as `f1 of fraud`.
    names = (tag.partition("/")[2] for tag in run.eval.scalars)
    titles |= {name: name for name in names if name.startswith("f1 of ")}
    drawn = []
    with matplotlib.rc_context(drawing.STYLE):
        for name, title in titles.items():
            picture = draw_metric(run, name)
            if picture is not None:
                # A label may hold what no file name can.
                file = f"{name if name in METRICS else 'f1'}.png"
                picture.savefig(directory / file, dpi=150)
                drawn.append((title, file))
    return drawn


def draw_metric(run: facts.Facts, name: str) -> figure.Figure | None:
    """Draws a metric in training and evaluation; `None`: it has no values to draw."""
    metric = METRICS.get(name) or Metric(name, "F1")
    train = _finite(facts.find_curve(run.train, name))
    evaluation = _finite(facts.find_curve(run.eval, name))
    values = [c.values for c in (train, evaluation) if c is not None]
    if not values or (metric.begins_at_zero and not np.any(np.concatenate(values))):
        return None
    picture, plot = drawing.new_plot(f"{run.name}: {metric.title}")
    plot.set(xlabel="step", ylabel=metric.axis)
    if train is not None:
        _draw_training(plot, train, metric)
    if evaluation is not None:
        plot.plot(
            *evaluation,
            color=drawing.VERMILION,
            marker="o",
            markersize=5 if len(evaluation.steps) <= 60 else 2.5,
            linewidth=1.5,
            label="evaluation",
            zorder=4,
        )
    baseline = run.baseline.get(name)
    if isinstance(baseline, float) and np.isfinite(baseline):
        plot.axhline(
            drawing.placeable(baseline),
            color=drawing.GREEN,
            linestyle="-.",
            label="baseline",
            linewidth=1.5,
        )
    _scale_axes(plot, metric)
    _mark_steps(plot, run.phase_ends, label="next phase", linestyle="--")
    _mark_steps(plot, run.train.restarts, label="restart", linestyle=":")
    drawing.add_legend(picture)
    return picture


def _finite(curve: event_log.Curve | None) -> event_log.Curve | None:
    """Removes values that cannot be drawn, such as a skipped step's loss."""
    if curve is None or not (finite := np.isfinite(curve.values)).any():
        return None
    values = drawing.placeable(curve.values[finite])
    return event_log.Curve(curve.steps[finite], values)


def _draw_training(plot: axes.Axes, curve: event_log.Curve, metric: Metric) -> None:
    steps, values = curve
    if not metric.is_smoothed or len(steps) < 60:
        plot.plot(steps, values, color=drawing.BLUE, linewidth=1.8, label="training")
        return
    plot.plot(steps, values, color=drawing.BLUE, linewidth=0.7, alpha=0.35)
    plot.plot(
        steps,
        moving_mean(values, max(5, len(steps) // 40)),
        color=drawing.BLUE,
        linewidth=2,
        label="training, smoothed",
        zorder=3,
    )


def moving_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Returns means over `window` neighbours, half on each side; fewer at the ends."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    first = np.maximum(index - window // 2, 0)
    last = np.minimum(index + window // 2 + 1, len(values))
    return (sums[last] - sums[first]) / (last - first)


def _mark_steps(
    plot: axes.Axes, steps: Sequence[int], *, label: str, linestyle: str
) -> None:
    for number, step in enumerate(steps):
        plot.axvline(
            step,
            color=drawing.GREY,
            linestyle=linestyle,
            linewidth=1.5,
            label=label if number == 0 else None,
        )


def _scale_axes(plot: axes.Axes, metric: Metric) -> None:
    plot.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, nbins=8))
    plot.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    values = np.concatenate([line.get_ydata() for line in plot.get_lines()])
    lowest, highest = values.min(), values.max()
    if metric.spans_decades and 0 < 20 * lowest < highest:
        plot.set_yscale("log")
        subs = (1, 2, 5) if highest < 1000 * lowest else (1,)
        plot.yaxis.set_major_locator(ticker.LogLocator(subs=subs))
        plot.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        plot.yaxis.set_minor_formatter(ticker.NullFormatter())
    elif highest < 1e-2:
        plot.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
    elif highest >= 1000:
        # A hundred digits would leave no room for the curve.
        shown = "{x:,.0f}" if highest - lowest < 1e9 else "{x:g}"
        plot.yaxis.set_major_formatter(ticker.StrMethodFormatter(shown))
    if metric.begins_at_zero:
        plot.set_ylim(bottom=0)
