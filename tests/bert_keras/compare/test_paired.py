"""Paired bootstrap of scores, against scikit-learn, SciPy and seqeval."""

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from seqeval.metrics import sequence_labeling

from bert_keras import config
from bert_keras.compare import paired
from bert_keras.tasks import glue, text, text_forms

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


def whole(found: paired.Statistics) -> float:
    return float(found.score(np.asarray(found.rows.sum(axis=0))))


@pytest.mark.parametrize("labels", [LABELS, LABELS[:2]])
def test_scores_of_classes_are_those_of_scikit_learn(labels):
    records = classified(200, labels, seed=1)
    truth = [record["label"] for record in records]
    given = [record["prediction"] for record in records]
    f1 = {"average": "macro"} if len(labels) > 2 else {"pos_label": "y"}
    expected = {
        "accuracy": sklearn.metrics.accuracy_score(truth, given),
        "f1": sklearn.metrics.f1_score(truth, given, **f1),
        "matthews": sklearn.metrics.matthews_corrcoef(truth, given),
    }
    for metric, value in expected.items():
        found = paired.statistics(
            records, kind="classification", metric=metric, labels=labels
        )
        assert whole(found) == pytest.approx(value, abs=1e-12)
    # A class that neither occurs nor is answered does not count.
    found = paired.statistics(
        records, kind="classification", metric="f1", labels=(*labels, "w")
    )
    if len(labels) > 2:
        assert whole(found) == pytest.approx(expected["f1"])


def test_scores_of_other_kinds():
    generator = np.random.default_rng(2)
    numbers = generator.normal(1e4, 1, (100, 2)).round(1)
    for metric, function, unit in (
        ("pearson", scipy.stats.pearsonr, 1),
        ("pearson", scipy.stats.pearsonr, 1e-8),
        ("spearman", scipy.stats.spearmanr, 1),
    ):
        records = [{"label": a, "prediction": b} for a, b in (unit * numbers).tolist()]
        found = paired.statistics(records, kind="regression", metric=metric, labels=())
        assert whole(found) == pytest.approx(function(*numbers.T).statistic, abs=1e-9)
    held = generator.integers(2, size=(2, 50, 3))
    several = [
        {
            "labels": [n for n, is_true in zip(LABELS, true, strict=True) if is_true],
            "prediction": [n for n, given in zip(LABELS, found, strict=True) if given],
        }
        for true, found in zip(*held, strict=True)
    ]
    found = paired.statistics(
        several, kind="multi_label", metric="best_macro_f1", labels=LABELS
    )
    assert whole(found) == pytest.approx(
        sklearn.metrics.f1_score(held[0], held[1], average="macro")
    )
    # A label that no text has and none is given does not count, as in the score.
    found = paired.statistics(
        several, kind="multi_label", metric="best_macro_f1", labels=(*LABELS, "w")
    )
    assert whole(found) == pytest.approx(
        sklearn.metrics.f1_score(held[0], held[1], average="macro")
    )
    tags = ["O", "B-X", "I-X", "B-Y"]
    tagged = [
        {key: generator.choice(tags, 8).tolist() for key in ("labels", "prediction")}
        for _ in range(40)
    ]
    truth, given = ([r[key] for r in tagged] for key in ("labels", "prediction"))
    found = paired.statistics(tagged, kind="tagging", metric="f1", labels=tags)
    assert whole(found) == pytest.approx(sequence_labeling.f1_score(truth, given))
    found = paired.statistics(tagged, kind="tagging", metric="accuracy", labels=tags)
    assert whole(found) == pytest.approx(np.mean(np.array(truth) == given))


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
    described = config.Task(kind=kind, name=name, labels=task.labels)
    data = text_forms.TextDataset(
        path="dev.tsv", rows=rows, has_labels=True, kind=kind, glue_task=name
    )
    answers = data.answers_of(logits, described)
    found = paired.statistics(
        [record.model_dump() for record in answers.records()],
        kind=kind,
        metric=task.main_metric,
        labels=task.labels or (),
    )
    assert paired.can_resample(kind, task.main_metric)
    assert whole(found) == pytest.approx(answers.scores()[task.main_metric], abs=1e-6)


def by_seed(records: list[list[dict]], *, seeds=(1, 2, 3)) -> list[dict]:
    """For `difference`, of several models, each with a run for each seed."""
    runs = {
        (model, seed): paired.statistics(
            run, kind="classification", metric="accuracy", labels=LABELS
        )
        for model, those in enumerate(records)
        for seed, run in zip(seeds, those, strict=True)
    }
    drawn = paired.resample(runs, seed=0, num_resamples=400)
    return [
        {seed: (whole(runs[model, seed]), drawn[model, seed]) for seed in seeds}
        for model in range(len(records))
    ]


def test_resamples_spread_like_the_mean_of_the_examples():
    records = classified(400, LABELS, seed=5)
    found = paired.statistics(
        records, kind="classification", metric="accuracy", labels=LABELS
    )
    drawn = paired.resample({"a": found}, seed=0)["a"]
    share = whole(found)
    assert drawn.mean() == pytest.approx(share, abs=0.002)
    assert drawn.std() == pytest.approx(np.sqrt(share * (1 - share) / 400), rel=0.1)
    again = paired.resample({"b": found, "a": found}, seed=0)
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
    same = paired.difference(first, first, seed=0)
    assert same == (0, 0, 0) and not same.is_clear
    found = paired.difference(first, second, seed=0)
    assert found.is_clear and 0.03 < found.low < found.difference < found.high < 0.13
    assert paired.difference(second, first, seed=0).is_clear
    wider = paired.difference(first, second, seed=0, num_comparisons=5)
    assert wider.low < found.low and wider.high > found.high
    others = by_seed([[classified(300, LABELS, seed=9)]], seeds=(9,))
    assert paired.difference(first, others[0], seed=0) is None


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
    found = paired.difference(first, second, seed=0)
    assert found.difference > 0 and not found.is_clear
    alone = paired.difference({1: first[1]}, {1: second[1]}, seed=0)
    assert alone.is_clear


def test_the_spread_over_seeds_is_that_of_new_seeds():
    values = {1: -1.0, 2: 0.0, 3: 1.0}
    first = {seed: (value, np.full(5000, value)) for seed, value in values.items()}
    second = {seed: (0.0, np.zeros(5000)) for seed in values}
    # Their deviation is 1. All draws the same, one time in 27, is beyond the tails.
    found = paired.difference(first, second, seed=0)
    assert found == pytest.approx((0, -np.sqrt(3 / 2), np.sqrt(3 / 2)))
