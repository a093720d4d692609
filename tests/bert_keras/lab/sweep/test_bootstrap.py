"""Paired bootstrap of scores, against scikit-learn, SciPy and seqeval."""

import functools
import itertools

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from seqeval.metrics import sequence_labeling

from bert_keras.kinds import registry
from bert_keras.kinds.span import squad_scores
from bert_keras.kinds.text import glue
from bert_keras.lab.sweep import ranking
from bert_keras.labelled import score_sums, similarity

LABELS, BINARY = ("x", "y", "z"), ("0", "1")


def classified(num: int, labels, seed: int, *, right: float = 0.6) -> list[dict]:
    generator = np.random.default_rng(seed)
    truth, is_right = generator.choice(labels, num), generator.random(num) < right
    given = np.where(is_right, truth, generator.choice(labels, num))
    pairs = zip(truth.tolist(), given.tolist(), strict=True)
    return [{"label": label, "prediction": answer} for label, answer in pairs]


def score(records: list[dict], kind: str, metric: str, labels) -> score_sums.ScoreSums:
    return registry.labelled(kind).score(records, metric, labels=labels)


def whole(found: score_sums.ScoreSums) -> float:
    return float(found.score(np.asarray(found.rows.sum(axis=0))))


def check(records: list[dict], kind: str, metric: str, labels, expected) -> None:
    found = whole(score(records, kind, metric, labels))
    assert found == pytest.approx(expected, abs=1e-9)


def test_scores_of_all_kinds():
    for metric, labels, function in (
        ("matthews", LABELS, sklearn.metrics.matthews_corrcoef),
        ("matthews", BINARY, sklearn.metrics.matthews_corrcoef),
        ("accuracy", BINARY, sklearn.metrics.accuracy_score),
        ("f1", BINARY, functools.partial(sklearn.metrics.f1_score, pos_label="1")),
    ):
        records = classified(200, labels, seed=1)
        columns = zip(*((r["label"], r["prediction"]) for r in records), strict=True)
        check(records, "classification", metric, labels, function(*columns))
    for task in glue.TASKS.values():
        kind = registry.labelled("classification" if task.labels else "regression")
        assert task.metrics[0] in kind.resampled
    generator = np.random.default_rng(2)
    numbers = generator.normal(1e4, 1, (100, 2)).round(1)
    for metric, function, unit in (
        ("pearson", scipy.stats.pearsonr, 1),
        ("pearson", scipy.stats.pearsonr, 1e-8),
        ("spearman", scipy.stats.spearmanr, 1),
    ):
        records = [{"label": a, "prediction": b} for a, b in (unit * numbers).tolist()]
        check(records, "regression", metric, (), function(*numbers.T).statistic)
    held = generator.integers(2, size=(2, 50, 3))
    names = [[list(itertools.compress(LABELS, row)) for row in rows] for rows in held]
    several = [{"labels": t, "prediction": p} for t, p in zip(*names, strict=True)]
    expected = sklearn.metrics.f1_score(held[0], held[1], average="macro")
    # A label that no text has and none is given does not count, as in the score.
    for labels in (LABELS, (*LABELS, "w")):
        check(several, "multi_label", "best_macro_f1", labels, expected)
    tags = ["O", "B-X", "I-X", "B-Y"]
    truth, answers = generator.choice(tags, (2, 40, 8)).tolist()
    pairs = zip(truth, answers, strict=True)
    tagged = [{"labels": t, "prediction": p} for t, p in pairs]
    check(tagged, "tagging", "f1", tags, sequence_labeling.f1_score(truth, answers))
    share = np.mean(np.array(truth) == answers)
    check(tagged, "tagging", "accuracy", tags, share)
    chosen = [{"label": n % 4, "prediction": n % 3} for n in range(12)]
    check(chosen, "choice", "accuracy", (), 0.25)


def answered(num: int, *, has_impossible: bool) -> list[dict]:
    """Questions whose answers are of few words, with odds of few values."""
    draw = np.random.default_rng(3)
    texts = ["", "ada", "ada byron", "the lady ada", "byron"]
    odds = draw.integers(-4, 5, num).tolist() if has_impossible else [None] * num
    return [
        {
            "answers": [texts[right]] if right or not has_impossible else [],
            "prediction": texts[given],
            "best_text": texts[best],
            "null_odds": odds[n],
        }
        for n, (right, given, best) in enumerate(draw.integers(5, size=(num, 3)))
    ]


def test_scores_of_questions():
    for has_impossible in (False, True):
        records = answered(300, has_impossible=has_impossible)
        gold, given, best, odds = (
            {str(n): record[key] for n, record in enumerate(records)}
            for key in ("answers", "prediction", "best_text", "null_odds")
        )
        options = {"has_impossible": has_impossible}
        scores = squad_scores.scores(gold, given, **options)
        if has_impossible:
            scores |= squad_scores.best_thresholds(gold, best, odds)
        names = registry.labelled("span").resampled
        checked = [name for name in names if name in scores]
        assert len(checked) == (4 if has_impossible else 2)
        for name in checked:
            check(records, "span", name, (), scores[name])
    # A resample chooses its threshold again; nothing is answered where that is best.
    draw = np.random.default_rng(4).integers(300, size=300)
    again = [records[n] for n in draw]
    silent = [r | {"answers": []} for r in records]
    counts = np.bincount(draw, minlength=300)
    for name in ("best_f1", "best_exact"):
        found = score(records, "span", name, ()).score(counts)
        assert found == pytest.approx(whole(score(again, "span", name, ())))
        check(silent, "span", name, (), 100)


def test_scores_of_vectors():
    ranks = np.random.default_rng(5).integers(1, 30, 50)
    records = [{"rank": int(rank)} for rank in ranks]
    for name, expected in similarity.search_scores(ranks).items():
        check(records, "embedding", name, (), expected)
    numbers = np.random.default_rng(6).normal(size=(60, 2)).round(1)
    records = [{"label": a, "prediction": b} for a, b in numbers.tolist()]
    for name, function in (
        ("pearson", scipy.stats.pearsonr),
        ("spearman", scipy.stats.spearmanr),
    ):
        check(records, "embedding", name, (), function(*numbers.T).statistic)


def test_resamples_spread_like_the_mean_of_the_examples():
    records = classified(400, LABELS, seed=5)
    found = score(records, "classification", "accuracy", LABELS)
    drawn = score_sums.resample({"a": found}, seed=0)["a"]
    share = whole(found)
    assert drawn.mean() == pytest.approx(share, abs=0.002)
    assert drawn.std() == pytest.approx(np.sqrt(share * (1 - share) / 400), rel=0.1)
    again = score_sums.resample({"b": found, "a": found}, seed=0)
    assert np.array_equal(again["a"], drawn) and np.array_equal(again["b"], drawn)


def test_pairs_leave_only_what_differs():
    runs = {}
    for seed in (1, 2, 3):
        good = classified(300, LABELS, seed=seed, right=0.7)
        # The same answers but for 30 that are now wrong.
        wrong = [r | {"prediction": "y" if r["label"] == "x" else "x"} for r in good]
        for model, records in enumerate((good, wrong[:30] + good[30:])):
            found = score(records, "classification", "accuracy", LABELS)
            runs[model, seed] = found
    drawn = score_sums.resample(runs, seed=0, num_resamples=400)
    first, second = (
        {seed: (whole(runs[model, seed]), drawn[model, seed]) for seed in (1, 2, 3)}
        for model in (0, 1)
    )
    difference = functools.partial(ranking.difference, num_examples=300)
    assert difference(first, first) == (0, 0, 0)
    found = difference(first, second)
    assert 0.03 < found.low < found.difference < found.high < 0.13
    assert difference(second, first).high < 0
    wider = difference(first, second, num_comparisons=5)
    assert wider.low < found.low and wider.high > found.high
    # One seed in common is no verdict.
    assert difference(first, {1: second[1]}) is None


def test_the_interval_is_students():
    """Of seeds alone: resamples that are all the same add nothing."""
    values = {1: -1.0, 2: 0.0, 3: 2.0}
    first = {seed: (value, np.full(50, value)) for seed, value in values.items()}
    second = {seed: (0.0, np.zeros(50)) for seed in values}
    for num_comparisons in (1, 10):
        found = ranking.difference(
            first, second, num_examples=300, num_comparisons=num_comparisons
        )
        expected = scipy.stats.ttest_1samp(list(values.values()), 0)
        interval = expected.confidence_interval(1 - 0.05 / num_comparisons)
        assert found == pytest.approx((1 / 3, interval.low, interval.high))


def clear_pages(
    num_pages: int,
    num_models: int,
    num_seeds: int,
    deviation: float,
    num_examples: int,
    *,
    advantage: float = 0.0,
) -> int:
    """Pages that call the best of some models better than another one.

    All models are right on 80 % of the examples in the mean over many seeds, the first
    on `advantage` more; with a seed they deviate. Some examples are hard for all.
    """
    generator = np.random.default_rng([num_models, num_seeds, num_examples])
    shape = (num_models, num_seeds)
    count = 0
    for page in range(num_pages):
        means = np.full(shape, 0.8) + generator.normal(0, deviation, shape)
        means[0] += advantage
        limits = scipy.stats.norm.ppf(np.clip(means, 0.01, 0.99))
        hardness = 0.7 * generator.normal(size=num_examples)
        own = np.sqrt(1 - 0.7**2) * generator.normal(size=(*shape, num_examples))
        right = hardness + own < limits[..., None]
        runs = {
            run: score_sums.ratio(right[run], np.ones(num_examples))
            for run in np.ndindex(shape)
        }
        drawn = score_sums.resample(runs, seed=page, num_resamples=200)
        scores = right.mean(axis=-1)
        first, *others = (
            {s: (scores[m, s], drawn[m, s]) for s in range(num_seeds)}
            for m in np.argsort(-scores.mean(axis=1), kind="stable")
        )
        num_comparisons = num_models * (num_models - 1) // 2
        options = {"num_examples": num_examples, "num_comparisons": num_comparisons}
        count += any(
            ranking.difference(first, other, **options).low > 0 for other in others
        )
    return count


FEW_OR_MANY = [
    pytest.param(models, seeds, deviation, examples, marks=pytest.mark.slow)
    for models in (2, 5)
    for seeds in (2, 3, 5)
    for deviation in (0.005, 0.03, 0.06)
    for examples in (60, 250, 900)
]


@pytest.mark.parametrize(
    ("num_models", "num_seeds", "deviation", "num_examples"),
    [(2, 3, 0.03, 60), (5, 2, 0.06, 250), *FEW_OR_MANY],
)
def test_equal_models_are_rarely_called_different(
    num_models, num_seeds, deviation, num_examples
):
    count = clear_pages(200, num_models, num_seeds, deviation, num_examples)
    # 5 % of 200 and three deviations of that count.
    assert count <= 10 + 3 * np.sqrt(200 * 0.05 * 0.95)


def test_five_points_are_seen():
    """On 900 examples with five seeds that vary by half a point."""
    assert clear_pages(40, 2, 5, 0.005, 900, advantage=0.05) >= 32
