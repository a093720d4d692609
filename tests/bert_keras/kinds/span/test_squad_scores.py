"""Scores of answers: the official ones of real systems, and the rules by hand."""

import json
import random

import pytest

from bert_keras.kinds.span import squad, squad_scores

SYSTEMS = {
    "v1.1": (
        *("predictions_bert_ensemble", "predictions_match_lstm_ensemble"),
        "predictions_logistic_regression_baseline",
    ),
    "v2.0": ("predictions_bert_single", "predictions_bidaf_selfattention_elmo"),
}


@pytest.mark.parametrize(
    "version", [pytest.param("v1.1", marks=pytest.mark.slow), "v2.0"]
)
def test_official_scores(shared_data, version):
    folder = shared_data / "squad"
    reference = folder / "eval_reference"
    expected = json.loads((reference / "expected_scores.json").read_text())[version]
    assert {name.removesuffix(".json") for name in expected} == set(SYSTEMS[version])
    for name, official in expected.items():
        gold = squad.read_squad(folder / official.pop("dataset"))
        predictions = squad.load_predictions(reference / version / name)
        found = squad_scores.scores(
            squad.gold_answers(gold.questions),
            predictions,
            has_impossible=gold.has_impossible,
        )
        if "unanswered" in official:
            assert official.pop("predictions") == len(predictions)
            assert found["num_unanswered"] == official.pop("unanswered")
        num_known = len(gold.questions) - found["num_unanswered"]
        assert found["num_unknown"] == len(predictions) - num_known
        if "baseline" in name:
            assert found["num_unknown"] == 28
        for key, value in official.items():
            assert found[key] == pytest.approx(value, abs=1e-9), (name, key)


def test_normalization():
    for answer, normalized in (
        ("The  Cat's\tA-team!", "cats ateam"),
        ("theatre an ", "theatre"),
        ("“Été” — 東京", "“été” — 東京"),
        ("U.S.A", "usa"),
        ("the\u00a0a\u3000an x", "x"),
        *((nothing, "") for nothing in ("The", "a.n")),
    ):
        assert squad_scores.normalize_answer(answer) == normalized


@pytest.mark.parametrize(
    ("version", "prediction", "answers", "exact", "f1"),
    [
        (1, "the cat", ["Cat!"], 1, 1),
        (1, "black cat sat", ["cat", "a cat sat on"], 0, 2 * 2 / (3 + 3)),
        (1, "cat cat", ["cat"], 0, 2 / 3),
        (1, "", ["cat"], 0, 0),
        (1, "dog", ["cat"], 0, 0),
        # Equal, but without a word in common.
        (1, "the", ["a"], 1, 0),
        (2, "the cat", ["dog", "Cat!"], 1, 1),
        (2, "cat sat", ["cat"], 0, 2 / 3),
        (2, "", [], 1, 1),
        (2, "the", [], 1, 1),
        (2, "cat", [], 0, 0),
        (2, "", ["cat"], 0, 0),
        (2, "", ["the", "cat"], 0, 0),
        (2, "the", ["a"], 1, 1),
        (2, "cat", ["the", "cat"], 1, 1),
    ],
)
def test_rules_of_both_versions(version, prediction, answers, exact, f1):
    score = squad_scores.score_answer(prediction, answers, has_impossible=version == 2)
    assert score == (exact, pytest.approx(f1))


def test_a_question_without_prediction_counts():
    gold = {"a": ["x"], "b": ["y"], "c": ["z"], "d": []}
    predictions = {"a": "x", "b": "", "new": "?"}
    counts = {"num_unanswered": 2, "num_unknown": 1}
    assert squad_scores.scores(gold, predictions, has_impossible=True) == {
        **{"exact": 25.0, "f1": 25.0, "total": 4},
        **{"HasAns_exact": 100 / 3, "HasAns_f1": 100 / 3, "HasAns_total": 3},
        **{"NoAns_exact": 0.0, "NoAns_f1": 0.0, "NoAns_total": 1},
        **counts,
    }
    del gold["d"]
    counts["num_unanswered"] = 1
    assert squad_scores.scores(gold, predictions, has_impossible=False) == {
        **{"exact_match": 100 / 3, "f1": 100 / 3, "total": 3},
        **counts,
    }
    assert "NoAns_f1" not in squad_scores.scores(gold, predictions, has_impossible=True)


@pytest.mark.parametrize("seed", range(3))
def test_the_best_thresholds_are_the_best(seed):
    """Against trying every threshold, with some equal odds."""
    choose = random.Random(seed)
    words = ("x", "x y", "y")
    ids = [str(number) for number in range(30)]
    gold = {id: choose.choice(([], [choose.choice(words)])) for id in ids}
    texts = {id: choose.choice((*words, "x")) for id in ids}
    odds = {id: choose.choice((choose.gauss(0, 3), 1.0)) for id in ids}

    def score(threshold: float, name: str) -> float:
        answers = {id: "" if odds[id] > threshold else texts[id] for id in ids}
        return squad_scores.scores(gold, answers, has_impossible=True)[name]

    found = squad_scores.best_thresholds(gold, texts, odds)
    for name in ("exact", "f1"):
        every = [score(t, name) for t in (*odds.values(), -1e9, 1e9)]
        assert found[f"best_{name}"] == pytest.approx(max(every))
        threshold = found[f"best_{name}_thresh"]
        assert score(threshold, name) == pytest.approx(max(every))


def test_thresholds_by_hand():
    # It is best to answer nothing.
    found = squad_scores.best_thresholds(
        {"a": [], "b": ["x"]}, {"a": "y", "b": "y"}, {"a": -4.0, "b": 2.0}
    )
    assert found == {
        **{"best_exact": 50.0, "best_exact_thresh": -5.0},
        **{"best_f1": 50.0, "best_f1_thresh": -5.0},
    }
    # A text that is missing is wrong at any threshold.
    found = squad_scores.best_thresholds(
        {"a": [], "b": ["x"], "c": []}, {"b": "x", "c": ""}, {"b": 2.0, "c": 1e6}
    )
    assert (found["best_f1"], found["best_f1_thresh"]) == (pytest.approx(200 / 3), 2.0)
