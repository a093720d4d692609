"""The temperature, and a threshold that keeps its promise."""

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats

from bert_keras.labelled import dataset
from bert_keras.trust import thresholds


@pytest.mark.parametrize("precision", [0.5, 0.9, 0.95, 0.999])
def test_p_values_are_exact_binomial_sums_and_clopper_and_pearsons(precision):
    for answered, wrong in ((1, 0), (59, 0), (58, 0), (93, 1), (300, 7), (40, 40)):
        q = 1 - Fraction(precision)
        exact = sum(
            math.comb(answered, k) * q**k * (1 - q) ** (answered - k)
            for k in range(wrong + 1)
        )
        actual = thresholds.p_values(np.array(answered), np.array(wrong), precision)
        assert actual == pytest.approx(float(exact), rel=1e-9)
        # The upper bound with confidence 0.95, by the quantile of a beta distribution.
        if wrong < answered:
            bound = scipy.stats.beta.ppf(0.95, wrong + 1, answered - wrong)
            assert (actual <= 0.05) == (bound <= 1 - precision)
    assert thresholds.p_values(np.array(0), np.array(0), precision) == 1


def test_hardly_any_confidence_needs_a_row():
    """With none, `choose_threshold` would not end."""
    assert thresholds.fewest_rows(0.95, 1e-20) == 1


@pytest.mark.parametrize(
    ("precision", "confidence", "rows"),
    [(0.95, 0.95, 59), (0.9, 0.95, 29), (0.99, 0.95, 299), (0.95, 0.99, 90)],
)
def test_so_few_rows_can_keep_a_promise(precision, confidence, rows):
    assert thresholds.fewest_rows(precision, confidence) == rows
    for number, is_enough in ((rows, True), (rows - 1, False)):
        part = dataset.Answered(np.full(number, 0.8), np.ones(number, bool))
        tested = thresholds.choose_threshold(
            part, part, precision=precision, confidence=confidence
        )
        assert (tested.lowest is not None) == is_enough
        # A probability that is the threshold is enough.
        assert tested.thresholds.tolist() == [0.8, 0.0]
        assert tested.num_answered.tolist() == [number, number]


# ---- the promise ------------------------------------------------------------------


def sure_ones_are_right(share):
    """Right answers by how sure they are, from 0 to 1; the share is uniform."""
    return 0.75 + 0.25 * share


def sure_ones_are_wrong(share):
    return np.where(share > 0.9, 0.6, 0.97)


def just_too_often_wrong(share):
    return np.full_like(share, 0.9 - 1e-9)


def with_a_valley(share):
    return np.where((share > 0.5) & (share < 0.7), 0.5, 0.95)


WORLDS = (
    sure_ones_are_right,
    sure_ones_are_wrong,
    just_too_often_wrong,
    with_a_valley,
)
SHARES = np.linspace(0, 1, 2001)


def promise_in(world, rng, num_rows):
    """One calibration in a world: its threshold, if any, and true precision there."""
    share = rng.random(num_rows)
    answers = dataset.Answered(share, rng.random(num_rows) < world(share))
    first = rng.random(num_rows) < 0.25
    parts = [dataset.Answered(*(v[p] for v in answers[:2])) for p in (first, ~first)]
    tested = thresholds.choose_threshold(*parts, precision=0.9, confidence=0.95)
    if tested.lowest is None:
        return None
    threshold = tested.thresholds[tested.lowest]
    return threshold, world(SHARES[SHARES >= threshold]).mean()


@pytest.mark.parametrize("num_rows", [60, 300, 2000])
@pytest.mark.parametrize("world", WORLDS)
def test_a_promise_is_broken_at_most_as_often_as_it_says(world, num_rows):
    rng, repeats = np.random.default_rng(num_rows), 500
    promises = [promise_in(world, rng, num_rows) for _ in range(repeats)]
    broken = sum(p is not None and p[1] < 0.9 for p in promises)
    # Three standard deviations above 5 %.
    assert broken <= repeats * 0.05 + 3 * math.sqrt(repeats * 0.05 * 0.95)


def test_the_simulation_would_notice_a_threshold_of_the_same_rows():
    """The lowest threshold with 90 % right on the rows themselves breaks promises."""
    rng, broken = np.random.default_rng(0), 0
    for _ in range(300):
        share = np.sort(rng.random(300))[::-1]
        is_right = rng.random(300) < just_too_often_wrong(share)
        seen = np.cumsum(is_right) / np.arange(1, 301)
        broken += (seen[28:] >= 0.9).any()
    assert broken > 100


@pytest.mark.parametrize("num_rows", [300, 2000])
def test_no_label_breaks_its_promise_more_often_than_all_may(num_rows):
    rng, repeats, broken = np.random.default_rng(num_rows), 300, 0
    worlds = [sure_ones_are_right, just_too_often_wrong, just_too_often_wrong]
    names = np.array(["a", "b", "c"])
    for _ in range(repeats):
        # A label with a probability from 1 / 2 to 1, of three.
        best, share = rng.integers(0, 3, num_rows), rng.random(num_rows)
        logits = np.full((num_rows, 3), -np.inf)
        logits[np.arange(num_rows), best] = np.log((1 + share) / 2)
        logits[np.arange(num_rows), (best + 1) % 3] = np.log((1 - share) / 2)
        precision = np.choose(best, [world(share) for world in worlds])
        right = np.where(rng.random(num_rows) < precision, best, (best + 1) % 3)
        answers = dataset.Candidates.of_classes(logits, right)
        answers = answers._replace(labels=names[best])
        first = rng.random(num_rows) < 0.25
        tested = thresholds.choose_by_label(
            *(answers.take(part) for part in (first, ~first)),
            *(1.0,),
            precision=0.9,
            confidence=0.95,
        )
        assert [*tested] == ["a", "b", "c"]
        for world, label in zip(worlds, tested.values(), strict=True):
            if label.lowest is not None:
                limit = 2 * label.thresholds[label.lowest] - 1
                if world(SHARES[SHARES >= limit]).mean() < 0.9:
                    broken += 1
                    break
    assert broken <= repeats * 0.05 + 3 * math.sqrt(repeats * 0.05 * 0.95)
    # The two that are too often wrong share half of what all may break.
    assert broken > 0 or num_rows < 1000


def test_many_rows_answer_almost_all_that_can_be_answered():
    rng = np.random.default_rng(1)
    promises = [promise_in(sure_ones_are_right, rng, 20_000) for _ in range(20)]
    # Of the surest 80 %, 90 % are right.
    answered = [1 - p[0] for p in promises if p]
    assert len(answered) == 20 and min(answered) > 0.7
    assert np.mean(answered) > 0.75


@pytest.mark.parametrize("num_rows", [59, 100, 1000])
def test_an_interval_is_too_narrow_at_most_as_often_as_it_says(num_rows):
    rng, repeats, narrow = np.random.default_rng(num_rows), 2000, 0
    for _ in range(repeats):
        width = thresholds.half_width(
            rng.random(num_rows), precision=0.95, confidence=0.95
        )
        # Of uniform distances, `width` is the share within it.
        narrow += width < 0.95
    assert narrow <= repeats * 0.05 + 3 * math.sqrt(repeats * 0.05 * 0.95)
    # With as few rows as can be it is all of 5 %.
    assert narrow > repeats * 0.025
    few = rng.random(58)
    assert thresholds.half_width(few, precision=0.95, confidence=0.95) == math.inf


# ---- answers that depend on one another ---------------------------------------------


def all_or_none(rng, num_groups):
    """Texts whose one to six answers are all right or all wrong."""
    sizes = rng.integers(1, 7, num_groups)
    return sizes, np.repeat(rng.random(num_groups) < 0.9 - 1e-9, sizes)


def long_ones_are_wrong(rng, num_groups):
    """One text in ten has eight answers, which are wrong too often for the others."""
    is_long = rng.random(num_groups) < 0.1
    sizes = np.where(is_long, 8, 2)
    share = np.repeat(np.where(is_long, 0.29, 0.015), sizes)
    # In a long text all are wrong at once.
    drawn = np.repeat(rng.random(num_groups), sizes)
    drawn = np.where(np.repeat(is_long, sizes), drawn, rng.random(sizes.sum()))
    return sizes, drawn >= share


def rarely_all_are_wrong(rng, num_groups):
    """One text in 25 has nine answers, all wrong; the three of the others are right."""
    is_long = rng.random(num_groups) < 0.04
    sizes = np.where(is_long, 9, 3)
    return sizes, ~np.repeat(is_long, sizes)


GROUPED = (all_or_none, long_ones_are_wrong, rarely_all_are_wrong)


def true_precision(world, most):
    """Of groups of more than `most` answers, so many count: see the product."""
    sizes, is_right = world(np.random.default_rng(9), 200_000)
    starts = np.cumsum(sizes) - sizes
    weights, right = np.minimum(sizes, most), np.add.reduceat(is_right, starts)
    return float((weights * right / sizes).sum() / weights.sum())


def grouped_parts(world, rng, num_groups):
    """Answers as sure as chance has it, and whether they are of the first part."""
    sizes, is_right = world(rng, num_groups)
    groups = np.repeat(np.arange(num_groups), sizes)
    answers = dataset.Answered(rng.random(len(groups)), is_right, groups)
    first = (rng.random(num_groups) < 0.25)[groups]
    return [dataset.Answered(*(v[part] for v in answers)) for part in (first, ~first)]


@pytest.mark.parametrize("num_groups", [150, pytest.param(600, marks=pytest.mark.slow)])
@pytest.mark.parametrize("world", GROUPED)
def test_a_promise_about_dependent_answers_is_kept(world, num_groups, monkeypatch):
    """In each world a little less is right than promised, at all thresholds."""
    # A fifth of the thresholds is tested five times as fast.
    monkeypatch.setattr(thresholds, "NUM_THRESHOLDS", 20)
    rng, repeats, broken = np.random.default_rng(num_groups), 500, {True: 0, False: 0}
    truths = functools.cache(functools.partial(true_precision, world))
    assert truths(9) < 0.9
    for _ in range(repeats):
        parts = grouped_parts(world, rng, num_groups)
        most = thresholds.most_counted(parts[0])
        for are_grouped in broken:
            if not are_grouped:
                parts, most = [part._replace(texts=None) for part in parts], 9
            tested = thresholds.choose_threshold(*parts, precision=0.9, confidence=0.95)
            broken[are_grouped] += tested.lowest is not None and truths(most) < 0.9
    assert broken[True] <= repeats * 0.05 + 3 * math.sqrt(repeats * 0.05 * 0.95)
    # The binomial test, for which all answers are independent, breaks it.
    assert broken[False] > repeats * 0.05 + 2 * math.sqrt(repeats * 0.05 * 0.95)


def test_p_values_of_groups_by_their_definition():
    rng = np.random.default_rng(4)
    parts = grouped_parts(long_ones_are_wrong, rng, 60)
    most, precision = thresholds.most_counted(parts[0]), 0.8
    grid = np.array([0.9, 0.5, 0.0])
    actual = thresholds.text_p_values(*parts, grid, precision)
    for threshold, p_value in zip(grid, actual, strict=True):
        products = np.ones((2, len(thresholds.BETS)))
        for product, part in zip(products, parts, strict=True):
            for group in {*part.texts.tolist()}:
                is_in = (part.texts == group) & (part.probabilities >= threshold)
                n, w = is_in.sum(), (is_in & ~part.is_right).sum()
                x = ((1 - precision) * n - w) * (most / n if n > most else 1)
                assert x >= -precision * most - 1e-12
                product *= 1 + thresholds.BETS / (precision * most) * x
        mean = (products[0] * products[1]).sum() / products[0].sum()
        assert p_value == pytest.approx(min(1, 1 / mean), rel=1e-9)
    assert 0 < actual.min() < 1


def test_how_many_answers_of_a_group_count():
    def most_of(sizes):
        groups = np.repeat(np.arange(len(sizes)), sizes)
        ones = np.ones(len(groups))
        return thresholds.most_counted(dataset.Answered(ones, ones > 0, groups))

    assert [most_of(sizes) for sizes in ([], [0], [1, 1], [3], [2, 0, 5])] == [
        *(1, 1, 1, 3, 5)
    ]
    # Of 210 answers, three may be left out.
    assert most_of([2] * 100 + [10]) == 8
    one = dataset.Answered(np.ones(3), np.ones(3, bool))
    assert thresholds.most_counted(one) == 1


@pytest.mark.parametrize("size", [1, 4])
def test_so_many_answers_in_groups_can_keep_a_promise(size):
    """Nearly as few groups, all right, as independent answers."""
    for factor, is_enough in ((0.95, False), (1.15, True)):
        number = round(factor * thresholds.fewest_rows(0.95, 0.95))
        groups = np.repeat(np.arange(number), size)
        right = np.ones(len(groups), bool)
        part = dataset.Answered(np.full(len(groups), 0.8), right, groups)
        tested = thresholds.choose_threshold(
            part, part, precision=0.95, confidence=0.95
        )
        assert (tested.lowest is not None) == is_enough


# ---- the temperature -----------------------------------------------------------------


def drawn_candidates(temperature, *, num_rows, num_labels, seed=0):
    """Logits, and right answers drawn by their softmax at the temperature."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (num_rows, num_labels))
    noise = rng.gumbel(size=logits.shape)
    right = (logits / temperature + noise).argmax(axis=-1)
    return dataset.Candidates.of_classes(logits, right)


@pytest.mark.parametrize("num_labels", [2, 3, 20])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_temperature_of_drawn_answers_is_found(temperature, num_labels):
    drawn = drawn_candidates(temperature, num_rows=20_000, num_labels=num_labels)
    fitted = thresholds.fit_temperature(drawn)
    assert fitted == pytest.approx(temperature, rel=0.1)

    def loss(t):
        scaled = drawn.logits / t
        log_sum = np.log(np.exp(scaled).sum(axis=-1))
        return float((log_sum - scaled[drawn.is_right]).mean())

    assert loss(fitted) <= min(loss(0.99 * fitted), loss(1.01 * fitted))


def test_no_temperature_is_fitted_where_no_answer_is_wrong():
    logits = np.array([[2.0, 1.0], [0.0, 0.1]])
    right = dataset.Candidates.of_classes(logits, logits.argmax(axis=-1))
    assert thresholds.fit_temperature(right) == 1.0


def test_candidates_may_be_absent_and_several_may_be_right():
    logits = np.array([[2.0, 1.0, -np.inf], [0.0, 3.0, 2.0], [5.0, 0.0, 1.0]] * 20)
    is_right = np.array([[0, 1, 0], [0, 1, 1], [0, 0, 0]] * 20, bool)
    places = np.array([0, 2, 0] * 20)
    candidates = dataset.Candidates(logits, is_right, places)
    temperature = thresholds.fit_temperature(candidates)
    # The third has no right one and says nothing of the temperature.
    fewer = candidates.take(np.array([0, 1]))
    assert temperature == pytest.approx(thresholds.fit_temperature(fewer), rel=1e-4)
    answered = candidates.answered(2.0)
    np.testing.assert_allclose(answered.probabilities[0], 1 / (1 + np.exp(-0.5)))
    powers = np.exp([0, 1.5, 1])
    np.testing.assert_allclose(answered.probabilities[1], powers[2] / powers.sum())
    assert answered.is_right[:3].tolist() == [False, True, False]
