"""A temperature, and the lowest threshold above which answers keep a precision.

This is learn-then-test (Angelopoulos et al., 2021) on two parts of the labelled rows,
independent samples of the texts to come. The first part fixes the temperature (Guo et
al., 2017) and a grid of thresholds, each of which is a hypothesis: "of the answers from
this probability on, fewer than `precision` are right". The answers to the second part
are independent, so their mistakes are binomial, and the exact test of Clopper and
Pearson (1934) is valid at any number of rows. The fallback procedure (Wiens and
Dmitrienko, 2005), from strict to lax, keeps the probability of any false rejection, so
of a broken promise, within 1 - confidence. Nothing is assumed of the model.

A text may have several answers, such as labels or entities. They depend on one another,
so that texts are tested, which are independent. Of n answers given to a text, w are
wrong. The hypothesis is E[c (w - (1 - precision) n)] >= 0: of all answers given to
texts to come, too many are wrong (the quotient of both expectations). c is 1, or B / n
for a text with n > B answers, which so counts as much as one with B; the first part
fixes B, such that 99 of 100 of its answers count. Then x = c ((1 - precision) n - w) is
at least -precision B, and for a bet from 0 to 1 / (precision B) the product of
1 + bet x over the texts has under the hypothesis an expectation of at most 1, so that
it reaches 1 / p with a probability of at most p (Markov; betting: Waudby-Smith and
Ramdas, 2024; e-values: Vovk and Wang, 2021). The same holds for the mean of the
products of several bets, weighted by what each earned on the first part.
"""

# scipy has no types of its own, and answers that are tested by texts know their texts.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportOptionalSubscript=false
# pyright: reportCallIssue=false

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

BETS = np.array([0.05, 0.25, 0.5, 0.75, 0.999])
"""Parts of the largest bet, at which B wrong answers to one text lose everything."""

COUNTED = 0.99
"""Share of the answers of the first part that count."""


def fit_temperature(candidates: dataset.Candidates) -> float:
    """Returns the temperature with the greatest likelihood of the right candidates.
    Where no answer is wrong, the likelihood has no maximum, and it is 1."""
    logits, is_right = candidates.logits, candidates.is_right
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


def most_counted(first: dataset.Candidates | dataset.Answered) -> int:
    """Returns the B above: 1 where all answers are independent."""
    if first.texts is None:
        return 1
    # Texts with one answer or more, two or more, and so on.
    sizes = np.bincount(np.bincount(first.texts))[::-1].cumsum()[::-1][1:]
    return 1 + int(np.searchsorted(sizes.cumsum(), COUNTED * len(first.texts)))


def text_p_values(
    first: dataset.Answered,
    second: dataset.Answered,
    thresholds: np.ndarray,
    precision: float,
) -> np.ndarray:
    """Returns p-values of the hypotheses about answers that depend on one another."""
    most, values = most_counted(first), []
    bets = BETS[:, None] / (precision * most)
    for threshold in thresholds:
        earned = []
        for probabilities, is_right, texts in (first, second):
            given = probabilities >= threshold
            sizes = np.bincount(texts[given])
            wrong = np.bincount(texts[given], ~is_right[given])
            scale = np.minimum(1, most / np.maximum(sizes, 1))
            # Most texts are alike; those without answers change nothing.
            gains, counts = np.unique(
                scale * ((1 - precision) * sizes - wrong), return_counts=True
            )
            earned.append(np.log1p(bets * gains) @ counts)
        # What weighs the bets, and their weighted mean times it.
        before, after = map(scipy.special.logsumexp, (earned[0], sum(earned)))
        values.append(math.exp(min(0, before - after)))
    return np.array(values)


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
    start = 2 * fewest_rows(precision, confidence) * most_counted(first)
    weights = np.zeros(NUM_THRESHOLDS)
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
    tests = p_values(num_answered, num_wrong, precision)
    if first.texts is not None:
        tests = text_p_values(first, second, -negative, precision)
    for index, p_value in enumerate(tests):
        level += weights[index]
        if 0 < level and p_value <= level:
            lowest = index
        else:
            level = 0.0
    return Tested(-negative, num_answered, num_wrong, lowest)


def choose_by_label(
    first: dataset.Candidates,
    second: dataset.Candidates,
    temperature: float,
    *,
    precision: float,
    confidence: float,
) -> dict[str, Tested]:
    """Chooses a threshold for each label of the answers in the first part.

    A text has each label once at most, so the answers with one label are independent of
    one another. All verdicts hold together with the probability `confidence`
    (Bonferroni). `texts` of the candidates are not used.
    """
    labels, tested = np.unique(first.labels).tolist(), {}
    for label in labels:
        of_label = (part.take(part.labels == label) for part in (first, second))
        tested[label] = choose_threshold(
            *(part.answered(temperature)._replace(texts=None) for part in of_label),
            precision=precision,
            confidence=1 - (1 - confidence) / len(labels),
        )
    return tested


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
