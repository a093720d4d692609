"""Curves of a run as pictures, one for each metric."""

# matplotlib's types are narrower than what it takes.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import axes, figure, ticker

from bert_keras.pages import drawing, pictures
from bert_keras.report import facts, scalar_log

METRICS = {
    "loss": ("loss", "loss (nats)"),
    "masked_lm_loss": ("masked-LM loss", "cross entropy per masked token (nats)"),
    "masked_lm_accuracy": ("masked-LM accuracy", "share of masked tokens found"),
    "next_sentence_loss": ("next-sentence loss", "cross entropy per example (nats)"),
    "next_sentence_accuracy": (
        "next-sentence accuracy",
        "share of examples told right",
    ),
    "minimal_pairs_accuracy": ("minimal pairs", "share of pairs told right, mean"),
    "accuracy": ("accuracy", "share of examples told right"),
    "f1": ("F1", "F1"),
    "macro_f1": ("F1", "mean F1 of the labels"),
    "precision": ("precision", "share of answers that are right"),
    "recall": ("recall", "share of right answers found"),
    "exact_match": ("exact match", "percent"),
    "exact": ("exact match", "percent"),
    "matthews": ("Matthews correlation", "correlation"),
    "pearson": ("Pearson correlation", "correlation"),
    "spearman": ("Spearman correlation", "correlation"),
    "learning_rate": ("learning rate", "learning rate"),
    "gradient_norm": ("gradient norm", "global norm before clipping"),
    "sequences_per_second": ("speed", "sequences per second"),
    "tokens_per_second": ("speed in tokens", "tokens per second"),
    "real_tokens_per_second": ("speed in tokens without padding", "tokens per second"),
    "model_flop_utilization": ("model FLOP utilization", "share of the device's peak"),
    "input_wait_share": ("waiting for data", "share of the time"),
    "skipped_steps": ("skipped steps", "steps skipped so far"),
    "loss_scale": ("loss scale", "factor of the loss"),
}
"""Pictures of a run, by the last part of the metric's tag: the title, and the label of
the y axis with the unit."""

_BEGIN_AT_ZERO = ("learning_rate", "sequences_per_second", "tokens_per_second")
_BEGIN_AT_ZERO += ("real_tokens_per_second", "model_flop_utilization")
_BEGIN_AT_ZERO += ("input_wait_share", "skipped_steps")
"""Metrics whose axis begins at 0; one that is always 0 is not drawn."""
_SPAN_DECADES = ("gradient_norm", "loss_scale")
"""Metrics whose axis may be logarithmic, where the values span decades."""
_NOT_SMOOTHED = ("learning_rate", "skipped_steps", "loss_scale")


def draw_curves(run: facts.Facts, directory: Path) -> list[tuple[str, str]]:
    """Draws every metric that was logged, as `<metric>.png`; returns the title and file
    name of each, in the order of `METRICS`."""
    titles = {name: title for name, (title, _) in METRICS.items()}
    # F1 of one of two labels, such as `f1 of fraud`.
    names = map(facts.name_of, run.eval.scalars)
    titles |= {name: name for name in names if name.startswith("f1 of ")}
    drawn = []
    with matplotlib.rc_context(drawing.STYLE):
        for name, title in titles.items():
            if picture := draw_metric(run, name):
                # A label may hold what no file name can.
                file = f"{name if name in METRICS else 'f1'}.png"
                picture.savefig(directory / file, dpi=150)
                drawn.append((title, file))
        if groups := facts.group_curves(run.eval):
            file = "minimal_pairs_by_group.png"
            draw_groups(run.name, groups).savefig(directory / file, dpi=150)
            drawn.append(("minimal pairs by group", file))
    return drawn


def draw_groups(name: str, groups: Mapping[str, scalar_log.Curve]) -> figure.Figure:
    """Draws the accuracy of each group at each evaluation as a field of colours."""
    rows = sorted(groups, key=lambda group: -groups[group].values[-1])
    steps = sorted({int(step) for curve in groups.values() for step in curve.steps})
    field = np.full((len(rows), len(steps)), np.nan)
    for row, group in enumerate(rows):
        field[row, np.searchsorted(steps, groups[group].steps)] = groups[group].values
    title = f"{name}: minimal pairs by group"
    picture, plot = drawing.new_plot(title, height=1.8 + 0.22 * len(rows))
    image = plot.imshow(field, vmin=0, vmax=1, cmap="RdBu", aspect="auto")
    pictures.name_rows(plot, drawing.drawable(rows))
    plot.tick_params(axis="y", labelsize=9)
    shown = np.unique(np.linspace(0, len(steps) - 1, 6).astype(int))
    plot.set_xticks(shown, [f"{steps[column]:,}" for column in shown])
    plot.set(xlabel="step")
    plot.grid(visible=False)
    picture.colorbar(image, label="share of pairs told right", format="{x:.0%}")
    return picture


def draw_metric(run: facts.Facts, name: str) -> figure.Figure | None:
    """Draws a metric in training and evaluation; `None`: it has no values to draw."""
    title, axis = METRICS.get(name) or (name, "F1")
    train = _finite(facts.find_curve(run.train, name))
    evaluation = _finite(facts.find_curve(run.eval, name))
    values = [c.values for c in (train, evaluation) if c is not None]
    if not values or (name in _BEGIN_AT_ZERO and not np.any(np.concatenate(values))):
        return None
    picture, plot = drawing.new_plot(f"{run.name}: {title}")
    plot.set(xlabel="step", ylabel=axis)
    if train is not None:
        steps, values = train
        is_smoothed = name not in _NOT_SMOOTHED and len(steps) >= 60
        raw = {"linewidth": 0.7, "alpha": 0.35}
        look = raw if is_smoothed else {"linewidth": 1.8, "label": "training"}
        plot.plot(steps, values, color=drawing.BLUE, **look)
        if is_smoothed:
            means = moving_mean(values, max(5, len(steps) // 40))
            look = {"linewidth": 2, "label": "training, smoothed", "zorder": 3}
            plot.plot(steps, means, color=drawing.BLUE, **look)
    if evaluation is not None:
        size = 5 if len(evaluation.steps) <= 60 else 2.5
        look = {"marker": "o", "markersize": size, "linewidth": 1.5, "zorder": 4}
        plot.plot(*evaluation, color=drawing.VERMILION, label="evaluation", **look)
    baseline = run.baseline.get(name)
    if isinstance(baseline, float) and np.isfinite(baseline):
        look = {"color": drawing.GREEN, "linestyle": "-.", "linewidth": 1.5}
        plot.axhline(drawing.placeable(baseline), label="baseline", **look)
    _scale_axes(plot, name)
    for steps, label, style in (
        (run.phase_ends, "next phase", "--"),
        (run.train.restarts, "restart", ":"),
    ):
        look = {"color": drawing.GREY, "linestyle": style, "linewidth": 1.5}
        for number, step in enumerate(steps):
            plot.axvline(step, label=None if number else label, **look)
    drawing.add_legend(picture)
    return picture


def _finite(curve: scalar_log.Curve | None) -> scalar_log.Curve | None:
    """Removes values that cannot be drawn, such as a skipped step's loss."""
    if curve is None or not (finite := np.isfinite(curve.values)).any():
        return None
    values = drawing.placeable(curve.values[finite])
    return scalar_log.Curve(curve.steps[finite], values)


def moving_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Returns means over `window` neighbours, half on each side; fewer at the ends."""
    ones = np.ones(2 * (window // 2) + 1)
    counts = np.convolve(np.ones(len(values)), ones, "same")
    return np.convolve(values, ones, "same") / counts


def _scale_axes(plot: axes.Axes, name: str) -> None:
    plot.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, nbins=8))
    plot.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    values = np.concatenate([line.get_ydata() for line in plot.get_lines()])
    lowest, highest = values.min(), values.max()
    if name in _SPAN_DECADES and 0 < 20 * lowest < highest:
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
    if name in _BEGIN_AT_ZERO:
        plot.set_ylim(bottom=0)
