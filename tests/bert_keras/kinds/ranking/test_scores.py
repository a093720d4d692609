"""Scores of rankings: against scikit-learn, ranx and the sum over all orders."""

import itertools

import numpy as np
import pytest
import sklearn.metrics

from bert_keras.kinds.ranking import scores


def draws(*, num_questions: int, decimals: int | None, seed: int):
    """Relevances and scores of questions; `decimals` make equal scores."""
    rng = np.random.default_rng(seed)
    for _ in range(num_questions):
        count = rng.integers(2, 40)
        values = rng.normal(size=count)
        relevances = rng.integers(0, 4, count) * (rng.random(count) < 0.3)
        yield relevances, values if decimals is None else values.round(decimals)


@pytest.mark.parametrize("decimals", [None, 1, 0])
def test_ndcg_is_that_of_scikit_learn(decimals):
    for both in draws(num_questions=100, decimals=decimals, seed=1):
        relevances, values = both
        expected = sklearn.metrics.ndcg_score([relevances], [values], k=10)
        assert scores.ndcg(*both) == pytest.approx(expected, abs=1e-12)


def test_all_scores_are_those_of_ranx():
    ranx = pytest.importorskip("ranx")
    questions = list(draws(num_questions=100, decimals=None, seed=2))
    assert any(not relevances.any() for relevances, _ in questions)
    qrels, run = (
        {
            f"q{q}": {f"p{p}": value for p, value in enumerate(both[side].tolist())}
            for q, both in enumerate(questions)
        }
        for side in (0, 1)
    )
    names = {"mrr": "mrr", "mrr@10": "mrr_at_10", "ndcg@10": "ndcg_at_10"}
    expected = ranx.evaluate(ranx.Qrels(qrels), ranx.Run(run), list(names))
    found = scores.mean_scores(questions)
    for theirs, ours in names.items():
        assert found[ours] == pytest.approx(expected[theirs], abs=1e-9)


def test_scores_by_hand():
    """Figures of `ranx` 0.3.21 and of pencil and paper."""
    first = [0, 0, 1, 0, 2], [0.9, 0.8, 0.7, 0.6, 0.5]
    gain = 1 / np.log2(4) + 2 / np.log2(6)
    ndcg = gain / (2 + 1 / np.log2(3))
    late = [0] * 11 + [1], np.arange(12, 0, -1)
    none = [0, 0], [1.0, 2.0]
    assert scores.mean_scores([first]) == pytest.approx(
        {"mrr": 1 / 3, "mrr_at_10": 1 / 3, "ndcg_at_10": ndcg}
        | {"mrr_by_chance": 0.4 + 0.3 / 2 + 0.2 / 3 + 0.1 / 4}
    )
    assert scores.mean_scores([late]) == pytest.approx(
        {"mrr": 1 / 12, "mrr_at_10": 0, "ndcg_at_10": 0}
        | {"mrr_by_chance": sum(1 / rank for rank in range(1, 13)) / 12}
    )
    assert set(scores.mean_scores([none]).values()) == {0.0}
    assert scores.mean_scores([first, none])["mrr"] == pytest.approx(1 / 6)


def test_equal_scores_are_not_in_favour_of_the_model():
    relevances = [1, 0, 0, 0]
    assert scores.reciprocal_rank(relevances, [0.5] * 4) == 1 / 4
    assert scores.reciprocal_rank(relevances, [0.5, 0.5, 0.1, 0.9]) == 1 / 3
    discounts = 1 / np.log2(np.arange(2, 6))
    assert scores.ndcg(relevances, [0.5] * 4) == pytest.approx(discounts.mean())
    assert scores.ranking([0.5, 0.9, 0.5, 0.1]).tolist() == [1, 0, 2, 3]


def test_one_candidate_and_scores_that_are_no_numbers():
    assert set(scores.mean_scores([([2], [0.1])]).values()) == {1.0}
    assert set(scores.mean_scores([([0], [0.1])]).values()) == {0.0}
    relevances = [1, 0, 0]
    nan = float("nan")
    assert scores.first_right_rank(relevances, [nan, 1, nan]) == 3
    assert scores.first_right_rank(relevances, [0, nan, float("-inf")]) == 1
    assert scores.ranking([nan, 0, float("inf")]).tolist() == [2, 1, 0]
    assert scores.ndcg(relevances, [nan] * 3) == scores.ndcg(relevances, [0] * 3)


def test_the_score_of_a_random_order_is_the_mean_of_all():
    for relevances in ([1, 0, 0], [1, 2, 0, 0, 0], [1], [0, 0], [1, 1, 1]):
        orders = itertools.permutations(range(len(relevances)))
        mean = np.mean([scores.reciprocal_rank(relevances, order) for order in orders])
        assert scores.by_chance(relevances) == pytest.approx(mean)
