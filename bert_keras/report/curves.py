"""A run's curves as pictures, one metric each."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import axes, colormaps, figure, ticker

from bert_keras.report import drawing, event_log, facts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """How a metric is drawn."""

    name: str
    """Last part of its tag."""
    title: str
    axis: str
    """Label of the y axis, with the unit."""
    spans_decades: bool = False
    """Drawn logarithmically where it does."""
    begins_at_zero: bool = False
    """Its axis does; and if it never leaves 0, it is not drawn."""
    is_smoothed: bool = True


METRICS = (
    Metric(name="loss", title="loss", axis="loss (nats)"),
    Metric(
        name="masked_lm_loss",
        title="masked-LM loss",
        axis="cross entropy per masked token (nats)",
    ),
    Metric(
        name="masked_lm_accuracy",
        title="masked-LM accuracy",
        axis="share of masked tokens found",
    ),
    Metric(
        name="next_sentence_loss",
        title="next-sentence loss",
        axis="cross entropy per example (nats)",
    ),
    Metric(
        name="next_sentence_accuracy",
        title="next-sentence accuracy",
        axis="share of examples told right",
    ),
    Metric(name="accuracy", title="accuracy", axis="share of examples told right"),
    Metric(name="f1", title="F1", axis="F1"),
    Metric(name="precision", title="precision", axis="share of answers that are right"),
    Metric(name="recall", title="recall", axis="share of right answers found"),
    Metric(name="exact_match", title="exact match", axis="percent"),
    Metric(name="exact", title="exact match", axis="percent"),
    Metric(name="matthews", title="Matthews correlation", axis="correlation"),
    Metric(name="pearson", title="Pearson correlation", axis="correlation"),
    Metric(name="spearman", title="Spearman correlation", axis="correlation"),
    Metric(
        name="learning_rate",
        title="learning rate",
        axis="learning rate",
        is_smoothed=False,
        begins_at_zero=True,
    ),
    Metric(
        name="gradient_norm",
        title="gradient norm",
        axis="global norm before clipping",
        spans_decades=True,
    ),
    Metric(
        name="sequences_per_second",
        title="speed",
        axis="sequences per second",
        begins_at_zero=True,
    ),
    Metric(
        name="tokens_per_second",
        title="speed in tokens",
        axis="tokens per second",
        begins_at_zero=True,
    ),
    Metric(
        name="model_flop_utilization",
        title="model FLOP utilization",
        axis="share of the device's peak",
        begins_at_zero=True,
    ),
    Metric(
        name="input_wait_share",
        title="waiting for data",
        axis="share of the time",
        begins_at_zero=True,
    ),
    Metric(
        name="skipped_steps",
        title="skipped steps",
        axis="steps skipped so far",
        is_smoothed=False,
        begins_at_zero=True,
    ),
    Metric(
        name="loss_scale",
        title="loss scale",
        axis="factor of the loss",
        spans_decades=True,
        is_smoothed=False,
    ),
)


def draw_curves(run: facts.Facts, directory: Path) -> list[tuple[str, str]]:
    """Draws every metric that was logged.

    Args:
        run: its logs are drawn.
        directory: for the files, `<metric>.png`.

    Returns:
        Title and file name of each, in the order of `METRICS`.
    """
    drawn = []
    for metric in METRICS:
        with matplotlib.rc_context(drawing.STYLE):
            picture = draw_metric(run, metric)
            if picture is not None:
                picture.savefig(directory / f"{metric.name}.png", dpi=150)
                drawn.append((metric.title, f"{metric.name}.png"))
    with matplotlib.rc_context(drawing.STYLE):
        picture = draw_update_ratios(run)
        if picture is not None:
            picture.savefig(directory / "update_ratio.png", dpi=150)
            drawn.append(("update ratios", "update_ratio.png"))
    return drawn


def draw_metric(run: facts.Facts, metric: Metric) -> figure.Figure | None:
    """One metric in training and evaluation; `None` if there is nothing to draw."""
    train = _finite(facts.find_curve(run.train, metric.name))
    evaluation = _finite(facts.find_curve(run.eval, metric.name))
    values = [c.values for c in (train, evaluation) if c is not None]
    if not values or (metric.begins_at_zero and not np.any(np.concatenate(values))):
        return None
    picture, plot = drawing.new_plot(f"{run.name}: {metric.title}")
    plot.set(xlabel="step", ylabel=metric.axis)
    if train is not None:
        _draw_training(plot, train, is_smoothed=metric.is_smoothed)
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
    if isinstance(baseline := run.baseline.get(metric.name), float):
        plot.axhline(
            baseline,
            color=drawing.GREEN,
            linestyle="-.",
            label="baseline",
            linewidth=1.5,
        )
    _scale_axes(
        plot,
        spans_decades=metric.spans_decades,
        begins_at_zero=metric.begins_at_zero,
    )
    _mark_steps(plot, run.phase_ends, label="next phase", linestyle="--")
    _mark_steps(plot, run.train.restarts, label="restart", linestyle=":")
    drawing.add_legend(picture)
    return picture


def _finite(curve: event_log.Curve | None) -> event_log.Curve | None:
    """The curve without what cannot be drawn, such as the loss of a skipped step."""
    if curve is None or not (finite := np.isfinite(curve.values)).any():
        return None
    return event_log.Curve(curve.steps[finite], curve.values[finite])


def draw_update_ratios(run: facts.Facts) -> figure.Figure | None:
    """The update of each part of the model relative to its weights; `None`: not there.

    A part that learns much slower or faster than the others stands out.
    """
    prefix = "update_ratio/"
    ratios = {
        tag.removeprefix(prefix): finite
        for tag, curve in run.panels.scalars.items()
        if tag.startswith(prefix) and (finite := _finite(curve)) is not None
    }
    if not ratios:
        return None
    picture, plot = drawing.new_plot(f"{run.name}: update ratios")
    plot.set(xlabel="step", ylabel="norm of the update / norm of the weights")
    colours = colormaps["viridis"](np.linspace(0, 0.9, len(ratios)))
    for (name, curve), colour in zip(ratios.items(), colours, strict=True):
        label = name.replace("_", " ")
        plot.plot(*curve, color=colour, marker="o", markersize=3, label=label)
    _scale_axes(plot, spans_decades=True)
    picture.legend(
        loc="outside right upper",
        frameon=False,
        fontsize=8 if len(ratios) > 12 else 10,
    )
    return picture


def _draw_training(
    plot: axes.Axes, curve: event_log.Curve, *, is_smoothed: bool
) -> None:
    steps, values = curve
    if not is_smoothed or len(steps) < 60:
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
    """Means over `window` neighbours, half on each side; at the ends over fewer."""
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


def _scale_axes(
    plot: axes.Axes, *, spans_decades: bool = False, begins_at_zero: bool = False
) -> None:
    plot.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, nbins=8))
    plot.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    values = np.concatenate([line.get_ydata() for line in plot.get_lines()])
    lowest, highest = values.min(), values.max()
    if spans_decades and 0 < 20 * lowest < highest:
        plot.set_yscale("log")
        subs = (1, 2, 5) if highest < 1000 * lowest else (1,)
        plot.yaxis.set_major_locator(ticker.LogLocator(subs=subs))
        plot.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        plot.yaxis.set_minor_formatter(ticker.NullFormatter())
    elif highest < 1e-2:
        plot.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
    elif highest >= 1000:
        plot.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    if begins_at_zero:
        plot.set_ylim(bottom=0)
