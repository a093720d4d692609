"""Accuracies of minimal pairs as a table and as a picture. No TensorFlow."""

# matplotlib's types are narrower than what it takes.
# pyright: reportArgumentType=false

from collections.abc import Iterator

import numpy as np
from matplotlib import figure, ticker

from bert_keras.pages import drawing, pictures
from bert_keras.scoring import minimal_pairs

MAX_DRAWN = 200
"""Number of groups that a picture has room for."""


def table(tally: minimal_pairs.Tally) -> Iterator[str]:
    """Yields lines: the accuracy of each group and their mean, with intervals."""
    groups = tally.groups()
    rows = [*groups, tally.mean()] if len(groups) > 1 else [tally.mean()]
    width = max(len("group"), *(len(row.name) for row in rows))
    yield f"{'group':{width}}  {'pairs':>7}  {'right':>6}   95 % interval"
    for row in rows:
        yield (
            f"{row.name:{width}}  {row.num_pairs:7,}  {row.share:6.1%}  "
            f"{row.low:6.1%} - {row.high:6.1%}"
        )


def draw_groups(tally: minimal_pairs.Tally, *, title: str) -> figure.Figure:
    """Draws the accuracy of each group with its interval, the highest above. Draws the
    lowest groups if there are more than `MAX_DRAWN`."""
    groups = sorted(tally.groups(), key=lambda group: -group.share)
    if len(groups) > MAX_DRAWN:
        title += f": the {MAX_DRAWN} lowest of {len(groups):,} groups"
    groups, mean = groups[-MAX_DRAWN:], tally.mean()
    picture, plot = drawing.new_plot(title, height=1.8 + 0.22 * len(groups))
    rows = range(len(groups))
    plot.errorbar(
        [group.share for group in groups],
        rows,
        xerr=np.transpose([(g.share - g.low, g.high - g.share) for g in groups]),
        fmt="o",
        color=drawing.BLUE,
        ecolor=drawing.GREY,
        markersize=5,
    )
    plot.axvline(0.5, color=drawing.VERMILION, label="chance")
    label = f"mean {mean.share:.1%}"
    plot.axvline(mean.share, color="black", linestyle="--", label=label)
    pictures.name_rows(plot, drawing.drawable([group.name for group in groups]))
    plot.tick_params(axis="y", labelsize=9)
    plot.set_xlim(0, 1)
    plot.xaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=0))
    plot.set_xlabel("pairs told right, with the 95 % interval", fontsize=11)
    drawing.add_legend(picture)
    return picture
