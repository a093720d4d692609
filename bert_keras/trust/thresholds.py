"""A temperature, and the lowest threshold above which answers keep a precision.

The two parts of the labelled rows must be independent samples of the texts to come.
The first part fixes everything that is chosen: the temperature (Guo et al., 2017), so
what a probability is, and a grid of thresholds. Given the first part, each threshold is
a hypothesis about the texts to come: "of the answers from this probability on, fewer
than `precision` are right". The rows of the second part that a threshold answers are
independent of one another, so their mistakes are binomial, and the exact test of
Clopper and Pearson (1934) is valid at any number of rows. The thresholds are tested
from strict to lax in the fallback procedure (Wiens and Dmitrienko, 2005), which keeps
the probability of any false rejection, so of a broken promise, within 1 - confidence:
this is learn-then-test (Angelopoulos et al., 2021). Nothing is assumed of the model,
neither that its probabilities are right nor that surer answers are right more often.
"""

# scipy has no types of its own.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

import math
from typing import NamedTuple

import numpy as np
import scipy.optimize
import scipy.special

from bert_keras.labelled import dataset

FIRST_PART = 0.25
"""Share of the rows in the first part."""

NUM_THRESHOLDS = 100
"""Thresholds of the grid, one for each percent of the answers."""

LARGEST_TEMPERATURE = 16.0


def fit_temperature(candidates: dataset.Candidates) -> float:
    """Returns the temperature with the greatest likelihood of the right candidates.
    Where no answer is wrong, the likelihood has no maximum, and it is 1."""
    logits, is_right, _ = candidates
    has_right = is_right.any(axis=-1)
    if candidates.answered(1.0).is_right.all():
        return 1.0
    logits, is_right = logits[has_right], is_right[has_right]
    only_right = np.where(is_right, logits, -np.inf)

    def loss(logarithm: float) -> float:
        scale = math.exp(-logarithm)
        right, all_of_them = (
            scipy.special.logsumexp(scale * values, axis=-1)
            for values in (only_right, logits)
        )
        return float(np.mean(all_of_them - right))

    # The loss is convex in 1 / temperature, so it has one minimum.
    limit = math.log(LARGEST_TEMPERATURE)
    best = scipy.optimize.minimize_scalar(
        loss, bounds=(-limit, limit), method="bounded", options={"xatol": 1e-6}
    )
    return math.exp(best.x)


def p_values(
    num_answered: np.ndarray, num_wrong: np.ndarray, precision: float
) -> np.ndarray:
    """Returns the probabilities of so few mistakes or fewer, if each answer is wrong
    with the probability 1 - precision; at most 1 - confidence means that the upper
    bound of Clopper and Pearson is at most 1 - precision."""
    return scipy.special.bdtr(num_wrong, num_answered, 1 - precision)


class Tested(NamedTuple):
    """Thresholds, the strictest first, and the answers that they give to the rows."""

    thresholds: np.ndarray
    num_answered: np.ndarray
    num_wrong: np.ndarray
    lowest: int | None
    """Index of the last threshold that keeps the promise; `None`: none does."""


def choose_threshold(
    first: dataset.Answered,
    second: dataset.Answered,
    *,
    precision: float,
    confidence: float,
) -> Tested:
    """Tests a grid that the `first` part fixes on the `second`; see above."""
    num_rows = len(second.is_right)
    # 1. A threshold for each percent of the first part, rounded, so that formats that
    # compute in float32 answer alike; the last one answers everything.
    shares = np.arange(1, NUM_THRESHOLDS + 1) / NUM_THRESHOLDS
    grid = np.quantile(first.probabilities, 1 - shares).round(6).clip(max=0.999999)
    grid[-1] = 0.0
    # 2. The starts, each with the same share of 1 - confidence. They are far apart: the
    # first one may fail by one mistake too many, and more of them would be weaker.
    start, weights = 2 * fewest_rows(precision, confidence), np.zeros(NUM_THRESHOLDS)
    weights[np.searchsorted(shares * num_rows, min(start, num_rows))] = 1
    while (start := 3 * start) <= num_rows:
        weights[np.searchsorted(shares * num_rows, start)] = 1
    weights *= (1 - confidence) / weights.sum()
    # Of sure answers, many percents have one threshold.
    negative, places = np.unique(-grid, return_inverse=True)
    weights = np.bincount(places, weights)
    # 3. Answers and mistakes in the second part.
    order = np.argsort(-second.probabilities, kind="stable")
    sorted_negative = -second.probabilities[order]
    num_answered = np.searchsorted(sorted_negative, negative, side="right")
    num_wrong = np.cumsum(np.append(False, ~second.is_right[order]))[num_answered]
    # 4. The tests. A level that was enough for one test goes on to the next.
    level, lowest = 0.0, None
    for index, p_value in enumerate(p_values(num_answered, num_wrong, precision)):
        level += weights[index]
        if 0 < level and p_value <= level:
            lowest = index
        else:
            level = 0.0
    return Tested(-negative, num_answered, num_wrong, lowest)


def half_width(distances: np.ndarray, *, precision: float, confidence: float) -> float:
    """Returns a distance within which the right number is for the share `precision` of
    all texts, with confidence; infinite if there are too few distances.

    It is one of the distances: the k-th smallest is too small only if k or more of them
    are within the quantile of all texts, whose number is binomial (Wilks, 1941; the
    conformal intervals of Vovk, 2012, given the rows). Needs no first part."""
    ranks = np.arange(1, len(distances) + 1)
    tails = scipy.special.bdtrc(ranks - 1, len(distances), precision)
    valid = np.flatnonzero(tails <= 1 - confidence)
    return float(np.sort(distances)[valid[0]]) if len(valid) else math.inf


def fewest_rows(precision: float, confidence: float) -> int:
    """Returns the number of answers, all of them right, that keep the promise."""
    # `log1p`: 1 - confidence may be 1 in floating point, whose logarithm is 0.
    return math.ceil(math.log1p(-confidence) / math.log(precision))
