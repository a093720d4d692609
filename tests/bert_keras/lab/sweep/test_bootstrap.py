"""Paired bootstrap of scores, against scikit-learn, SciPy and seqeval."""

import itertools

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from seqeval.metrics import sequence_labeling

from bert_keras.core.settings import tasks
from bert_keras.kinds import registry
from bert_keras.kinds.text import glue, text, text_forms
from bert_keras.lab.sweep import bootstrap
from bert_keras.labelled import score_sums

LABELS = ("x", "y", "z")


def classified(num: int, labels, seed: int, *, right: float = 0.6) -> list[dict]:
    generator = np.random.default_rng(seed)
    truth = generator.choice(labels, num)
    given = np.where(
        generator.random(num) < right, truth, generator.choice(labels, num)
    )
    return [
        {"label": str(t), "prediction": str(g)}
        for t, g in zip(truth, given, strict=True)
    ]


def score(records: list[dict], kind: str, metric: str, labels) -> score_sums.ScoreSums:
    return registry.labelled(kind).score(records, metric, labels=labels)


def whole(found: score_sums.ScoreSums) -> float:
    return float(found.score(np.asarray(found.rows.sum(axis=0))))


@pytest.mark.parametrize("labels", [LABELS, LABELS[:2]])
def test_scores_of_classes_are_those_of_scikit_learn(labels):
    records = classified(200, labels, seed=1)
    truth = [record["label"] for record in records]
    given = [record["prediction"] for record in records]
    expected = {
        "accuracy": sklearn.metrics.accuracy_score(truth, given),
        "matthews": sklearn.metrics.matthews_corrcoef(truth, given),
    }
    if len(labels) == 2:
        expected["f1"] = sklearn.metrics.f1_score(truth, given, pos_label="y")
    for metric, value in expected.items():
        found = score(records, "classification", metric, labels)
        assert whole(found) == pytest.approx(value, abs=1e-12)


def check(records: list[dict], kind: str, metric: str, labels, expected) -> None:
    assert whole(score(records, kind, metric, labels)) == pytest.approx(
        expected, abs=1e-9
    )


def test_scores_of_other_kinds():
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
    tagged = [
        {"labels": t, "prediction": p} for t, p in zip(truth, answers, strict=True)
    ]
    check(tagged, "tagging", "f1", tags, sequence_labeling.f1_score(truth, answers))
    share = np.mean(np.array(truth) == answers)
    check(tagged, "tagging", "accuracy", tags, share)
    chosen = [{"label": n % 4, "prediction": n % 3} for n in range(12)]
    check(chosen, "choice", "accuracy", (), 0.25)


@pytest.mark.parametrize("name", sorted(n for n in glue.TASKS if glue.TASKS[n].dev))
def test_the_metric_of_every_task_of_glue(name):
    task = glue.TASKS[name]
    width = len(task.labels or "1")
    logits = np.random.default_rng(4).normal(size=(60, width)).astype(np.float32)
    rows = [
        text.LabelledText("a", None, task.labels[n % width] if width > 1 else f"{n}", n)
        for n in range(60)
    ]
    kind = "classification" if task.labels else "regression"
    described = tasks.Task(kind=kind, name=name, labels=task.labels)
    data = text_forms.TextDataset(
        path="dev.tsv", rows=rows, has_labels=True, kind=kind, name=name
    )
    answers = data.answers_of(logits, described)
    metric = task.metrics[0]
    records = [record.model_dump() for record in answers.records()]
    found = score(records, kind, metric, task.labels or ())
    assert metric in registry.labelled(kind).resampled
    assert whole(found) == pytest.approx(answers.scores()[metric], abs=1e-6)


def by_seed(records: list[list[dict]], *, seeds=(1, 2, 3)) -> list[dict]:
    """For `difference`, of several models, each with a run for each seed."""
    runs = {
        (model, seed): score(run, "classification", "accuracy", LABELS)
        for model, those in enumerate(records)
        for seed, run in zip(seeds, those, strict=True)
    }
    drawn = bootstrap.resample(runs, seed=0, num_resamples=400)
    return [
        {seed: (whole(runs[model, seed]), drawn[model, seed]) for seed in seeds}
        for model in range(len(records))
    ]


def test_resamples_spread_like_the_mean_of_the_examples():
    records = classified(400, LABELS, seed=5)
    found = score(records, "classification", "accuracy", LABELS)
    drawn = bootstrap.resample({"a": found}, seed=0)["a"]
    share = whole(found)
    assert drawn.mean() == pytest.approx(share, abs=0.002)
    assert drawn.std() == pytest.approx(np.sqrt(share * (1 - share) / 400), rel=0.1)
    again = bootstrap.resample({"b": found, "a": found}, seed=0)
    assert np.array_equal(again["a"], drawn) and np.array_equal(again["b"], drawn)


def test_pairs_leave_only_what_differs():
    good = [classified(300, LABELS, seed=s, right=0.7) for s in (1, 2, 3)]
    # The same answers but for 30 that are now wrong.
    worse = [
        [
            {**r, "prediction": "x" if r["label"] != "x" else "y"} if n < 30 else r
            for n, r in enumerate(run)
        ]
        for run in good
    ]
    first, second = by_seed([good, worse])
    same = bootstrap.difference(first, first, num_examples=300)
    assert same == (0, 0, 0)
    found = bootstrap.difference(first, second, num_examples=300)
    assert 0.03 < found.low < found.difference < found.high < 0.13
    assert bootstrap.difference(second, first, num_examples=300).high < 0
    wider = bootstrap.difference(first, second, num_examples=300, num_comparisons=5)
    assert wider.low < found.low and wider.high > found.high
    others = by_seed([[classified(300, LABELS, seed=9)]], seeds=(9,))
    assert bootstrap.difference(first, others[0], num_examples=300) is None


def test_a_difference_that_only_some_seeds_have_is_not_clear():
    base = [classified(300, LABELS, seed=s, right=0.7) for s in (1, 2, 3)]
    lucky = [
        [{**r, "prediction": r["label"]} for r in base[0]],
        *(
            [{**r, "prediction": "x"} if n < 40 else r for n, r in enumerate(run)]
            for run in base[1:]
        ),
    ]
    first, second = by_seed([lucky, base])
    found = bootstrap.difference(first, second, num_examples=300)
    assert found.low < 0 < found.difference
    # One seed is no verdict.
    assert bootstrap.difference({1: first[1]}, {1: second[1]}, num_examples=300) is None


def test_the_interval_is_students():
    """Of seeds alone: resamples that are all the same add nothing."""
    values = {1: -1.0, 2: 0.0, 3: 2.0}
    first = {seed: (value, np.full(50, value)) for seed, value in values.items()}
    second = {seed: (0.0, np.zeros(50)) for seed in values}
    for num_comparisons in (1, 10):
        found = bootstrap.difference(
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
        drawn = bootstrap.resample(runs, seed=page, num_resamples=200)
        scores = right.mean(axis=-1)
        first, *others = (
            {s: (scores[m, s], drawn[m, s]) for s in range(num_seeds)}
            for m in np.argsort(-scores.mean(axis=1), kind="stable")
        )
        num_comparisons = num_models * (num_models - 1) // 2
        options = {"num_examples": num_examples, "num_comparisons": num_comparisons}
        count += any(
            bootstrap.difference(first, other, **options).low > 0 for other in others
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
