"""Scores by the threshold on the odds of "no answer", beside the official scores."""

import random

import numpy as np
import pytest

from bert_keras.kinds.span import null_odds, squad_scores


@pytest.fixture(name="questions")
def random_questions():
    rng = random.Random(1)
    gold, texts, odds = {}, {}, {}
    for number in range(60):
        id = str(number)
        gold[id] = () if rng.random() < 0.4 else ("the red lamp", "lamp")
        # "the" is no answer, by the rules of 2.0.
        texts[id] = rng.choice(["a red lamp", "lamp", "red", "the", "", "road"])
        # Rounded, so that some are equal.
        odds[id] = round(rng.gauss(0, 2), 1)
    return gold, texts, odds


def test_every_point_is_the_official_score(questions):
    gold, texts, odds = questions
    curve = null_odds.threshold_curve(gold, texts, odds)
    assert curve.thresholds.tolist() == [
        min(odds.values()) - 1,
        *sorted(set(odds.values())),
    ]
    for place, threshold in enumerate(curve.thresholds):
        predictions = {
            id: "" if odds[id] > threshold else text for id, text in texts.items()
        }
        expected = squad_scores.scores(gold, predictions, has_impossible=True)
        names = ("exact", "f1", "HasAns_f1", "NoAns_f1")
        scores = [values[place] for values in curve[1:]]
        assert scores == pytest.approx([expected[name] for name in names])


def test_the_best_point_is_the_official_one(questions):
    gold, texts, odds = questions
    texts = {id: text or "road" for id, text in texts.items()}
    # The official script counts an answer of an article alone as a mistake there.
    texts = {id: "road" if text == "the" else text for id, text in texts.items()}
    curve = null_odds.threshold_curve(gold, texts, odds)
    best = squad_scores.best_thresholds(gold, texts, odds)
    place = int(np.argmax(curve.f1))
    assert curve.f1[place] == pytest.approx(best["best_f1"])
    assert curve.thresholds[place] == best["best_f1_thresh"]
    assert curve.exact.max() == pytest.approx(best["best_exact"])


def test_questions_that_all_have_answers():
    curve = null_odds.threshold_curve({"a": ("x",)}, {"a": "x"}, {"a": 2.0})
    assert curve.thresholds.tolist() == [1.0, 2.0]
    assert curve.f1.tolist() == curve.has_answer_f1.tolist() == [0.0, 100.0]
    assert np.isnan(curve.no_answer_f1).all()
