"""What twice the labels would bring."""

import dataclasses
import math
import re

import numpy as np
import pytest

from bert_keras.kinds import kind
from bert_keras.lab.sweep import forecast, summary
from tests.bert_keras.lab.sweep.test_sweep import curve_state, page_of

ACCURACY, LOSS = kind.Metric("accuracy"), kind.LOSS
PERCENT = kind.Metric("f1", "%")


def line_of(sizes, score, num_runs=3):
    return [(n, tuple(score(n) for _ in range(num_runs))) for n in sizes]


def numbers_of(sentence: str) -> list[float]:
    """The score to expect, its interval, the score now."""
    return [float(number) for number in re.findall(r"-?\d+\.\d+", sentence)]


@pytest.mark.parametrize(
    ("metric", "score"),
    [
        (ACCURACY, lambda n: 1 - 2 * n**-0.4),
        (PERCENT, lambda n: 100 - 100 * n**-0.3),
        (LOSS, lambda n: 5 * n**-0.25),
    ],
)
def test_a_power_law_goes_on(metric, score):
    # Sizes before the last three are of another law, and do not count.
    line = [(20, (0.5, 0.5)), *line_of((125, 250, 700), score)]
    expected, now = f"{score(1400):.3f}", f"{score(700):.3f}"
    assert forecast.sentence(line[::-1], metric) == (
        f"With twice the labels (1,400) expect {metric.name} {expected} ({expected} to "
        f"{expected}) instead of {now}."
    )


def test_the_interval_has_the_truth_as_often_as_it_says():
    rng, hits = np.random.default_rng(0), 0

    def score(n):
        # Independent runs, whose errors vary by a twentieth of themselves.
        return 1 - 2 * n**-0.4 * math.exp(0.05 * rng.standard_normal())

    for _ in range(1000):
        line = line_of((100, 300, 1000), score, num_runs=int(rng.integers(2, 6)))
        _, low, high, _ = numbers_of(forecast.sentence(line, ACCURACY))
        hits += low <= 1 - 2 * 2000**-0.4 <= high
    # Of 950, with a deviation of 7.
    assert 925 <= hits <= 975


def test_the_line_is_that_of_polyfit():
    line = [(100, (0.6, 0.63, 0.58)), (300, (0.7, 0.71)), (900, (0.81, 0.78, 0.8))]
    x = np.log([size for size, found in line for _ in found])
    y = np.log([1 - score for _, found in line for score in found])
    (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
    last = np.array(line[-1][1])
    score = 1 - math.exp(np.log(1 - last).mean() + math.log(2) * slope)
    found, low, high, now = numbers_of(forecast.sentence(line, ACCURACY))
    assert (found, now) == (round(score, 3), round(last.mean(), 3))
    # The variance of the mean of the last three, of the slope, and twice what both
    # have in common.
    of_slope = covariance[0, 0]
    noise = of_slope * ((x - x.mean()) ** 2).sum()
    step = math.log(2)
    variance = noise / 3 + step**2 * of_slope + 2 * step * of_slope * (x[-1] - x.mean())
    half = 2.446912 * math.sqrt(variance)  # Student's with 6 degrees
    ends = [round(1 - (1 - score) * math.exp(sign * half), 3) for sign in (1, -1)]
    assert [low, high] == ends


@pytest.mark.parametrize(
    "line",
    [
        line_of((10, 100), lambda n: 1 - 1 / n),
        line_of((10, 20, 40), lambda n: 1 - 1 / n, num_runs=1),
        # A perfect score, one beyond, and a size without any.
        [(10, (0.5, 0.5)), (20, (0.6, 0.6)), (40, (0.9, 1.0))],
        [(10, (0.5, 0.5)), (20, (0.6, 0.6)), (40, (0.9, 1.1))],
        [(10, (0.5, 0.5, 0.5)), (20, ()), (40, (0.9, 0.9, 0.9))],
        [],
    ],
)
def test_curves_that_tell_nothing(line):
    assert forecast.sentence(line, ACCURACY) is None


def test_the_page_says_it():
    state = curve_state((1, 0.1, 0.01), rates=(1e-3, 2e-3))
    for name, outcome in state.ended.items():
        if outcome.run.settings.learning_rate == 2e-3:
            state.ended[name] = dataclasses.replace(outcome, score=outcome.score / 2)
    sentence = forecast.sentence(state.curve["0.001"], ACCURACY)
    assert sentence == (
        "With twice the labels (2,000) expect accuracy 0.600 (0.355 to 0.753) instead "
        "of 0.550; no gain at all is possible, too."
    )
    assert sentence in page_of(state) and summary.lines(state)[-1] == sentence
    few = curve_state((1, 0.1))
    assert few.more_labels == [] and "twice" not in page_of(few)


def test_an_interval_ends_at_the_lowest_score_that_means_something():
    """Scores that vary much leave everything open, but no accuracy is below 0."""
    wild = [(10, (0.9, 0.1)), (20, (0.2, 0.3)), (40, (0.1, 0.1))]
    text = forecast.sentence(wild, ACCURACY)
    assert text is not None and "expect accuracy 0.000 (0.000 to 0." in text
    # Matthews' coefficient is, and this one was.
    below = [(10, (0.9, -0.1)), *wild[1:]]
    text = forecast.sentence(below, kind.Metric("matthews"))
    assert text is not None and "(-0.100 to 0." in text
    # A loss that overflowed foretells nothing.
    assert forecast.sentence([(5, (math.inf, 1.0)), *wild], LOSS) is not None
    assert forecast.sentence([*wild, (80, (math.inf, 1.0))], LOSS) is None
