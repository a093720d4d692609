"""Pictures of answers to questions: scores by group, and by the threshold."""

# matplotlib's types are narrower than what it takes.
# pyright: reportArgumentType=false, reportCallIssue=false

from collections.abc import Sequence

import numpy as np
from matplotlib import figure

from bert_keras.kinds.span import null_odds, squad_scores
from bert_keras.pages import drawing, pictures

_YELLOW = "#E69F00"


def draw_groups(title: str, groups: Sequence[squad_scores.GroupScore]) -> figure.Figure:
    """Draws exact match and F1 of groups of questions, as bars."""
    picture, plot = drawing.new_plot(title, height=1.8 + 0.5 * len(groups))
    rows = np.arange(len(groups))
    bars = (("F1", "f1", drawing.BLUE, -0.2), ("exact match", "exact", _YELLOW, 0.2))
    for label, name, colour, offset in bars:
        values = [getattr(group, name) for group in groups]
        drawn = plot.barh(rows + offset, values, height=0.4, color=colour, label=label)
        plot.bar_label(drawn, fmt="%.1f", padding=3, fontsize=10)
    pictures.name_rows(plot, [f"{g.group} ({g.num_questions:,})" for g in groups])
    plot.set(xlim=(0, 108), xticks=range(0, 101, 20))
    plot.set_xlabel("percent; in brackets: how many questions", fontsize=11)
    plot.grid(visible=False, axis="y")
    drawing.add_legend(picture)
    return picture


def draw_null_odds(curve: null_odds.Curve, *, best_threshold: float) -> figure.Figure:
    """Draws scores against the threshold up to which a question is answered."""
    picture, plot = drawing.new_plot("Threshold of no answer")
    thresholds = drawing.placeable(curve.thresholds)
    best_threshold = float(drawing.placeable(best_threshold))
    lines = (
        ("F1", curve.f1, drawing.BLUE, "-", 2.5),
        ("exact match", curve.exact, _YELLOW, "-", 1.5),
        ("F1 with an answer", curve.has_answer_f1, drawing.GREEN, "--", 1.5),
        ("F1 without", curve.no_answer_f1, drawing.VERMILION, ":", 2),
    )
    for label, values, colour, style, width in lines:
        plot.step(
            thresholds,
            values,
            style,
            where="post",
            color=colour,
            linewidth=width,
            label=label,
        )
    plot.axvline(best_threshold, color=drawing.GREY, linewidth=1, label="best F1")
    # A few odds may be far from the others.
    low, high = np.quantile(thresholds, (0.01, 0.99))
    room = 0.05 * (high - low) or max(1.0, abs(high) / 1000)
    low, high = min(low, best_threshold) - room, max(high, best_threshold) + room
    plot.set(ylabel="percent", xlim=(low, high), ylim=(0, 102))
    plot.set_xlabel("odds of no answer up to which a question is answered")
    drawing.add_legend(picture)
    return picture
