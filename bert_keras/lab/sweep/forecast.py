"""The score with twice the labels, from a learning curve.

Errors fall with a power of the number of labels (Hestness et al., 2017). The logarithm
of the error is continued from the mean of the largest size, along the line through the
last three sizes. The interval is Student's, of all runs about the line, so a curve that
bends has a wide one.
"""

import math

import numpy as np
import scipy.stats

from bert_keras.kinds import kind
from bert_keras.lab.sweep import drawings, ranking

NUM_SIZES, MIN_RUNS = 3, 6


def sentence(line: drawings.Line, metric: kind.Metric) -> str | None:
    """Returns the mean score to expect with twice the labels, in words; `None`: the
    line has too few sizes or runs, or a perfect run."""
    perfect, sign = (0.0, 1) if metric.better == "less" else (1.0, -1)
    if metric.unit == "%":
        perfect *= 100
    line = sorted(line)[-NUM_SIZES:]
    x = np.log([size for size, each in line for _ in each])
    scores = np.array([score for _, each in line for score in each])
    errors = sign * (scores - perfect)
    if (
        len({*x}) < NUM_SIZES
        or len(x) < MIN_RUNS
        or not ((errors > 0) & (errors < np.inf)).all()
    ):
        return None
    # The forecast is a weighted sum of the logarithms: the mean of the last ones, and
    # log(2) times the slope.
    y, centred, is_last = np.log(errors), x - x.mean(), x == x.max()
    of_slope = centred / np.square(centred).sum()
    weights = is_last / is_last.sum() + math.log(2) * of_slope
    residuals = y - y.mean() - centred * (of_slope @ y)
    deviation = math.sqrt(np.square(residuals).sum() / (len(x) - 2))
    half = scipy.stats.t.ppf((1 + ranking.CONFIDENCE) / 2, len(x) - 2) * deviation
    half *= np.linalg.norm(weights)
    expected, *ends = perfect + sign * np.exp(weights @ y + np.array([0, half, -half]))
    if sign < 0:
        # Of scores that should be high, those below 0 mean nothing unless they came.
        expected, *ends = np.maximum([expected, *ends], min(0.0, scores.min()))
    (low, high), now, size = sorted(ends), scores[is_last].mean(), 2 * line[-1][0]
    chance = "; no gain at all is possible, too" if low <= now <= high else ""
    return (
        f"With twice the labels ({size:,.0f}) expect {metric.name} {expected:.3f} "
        f"({low:.3f} to {high:.3f}) instead of {now:.3f}{chance}."
    )
