"""Pictures of answers to questions: what is drawn is what was counted."""

import functools

import numpy as np
import pytest

from bert_keras.kinds.span import null_odds, pictures, squad_scores
from bert_keras.pages import drawing
from tests.bert_keras.pages.test_pictures import HUGE, texts_of


@pytest.mark.parametrize(("first", "second"), HUGE)
def test_odds_that_hardly_fit_a_float_are_drawn(first, second):
    curve = null_odds.threshold_curve(
        {"a": ["x"], "b": []}, {"a": "x", "b": "y"}, {"a": first, "b": second}
    )
    draw = functools.partial(
        pictures.draw_null_odds, curve, best_threshold=max(first, second)
    )
    assert drawing.as_png(draw, dpi=10).startswith(b"\x89PNG")


def test_groups_of_questions():
    groups = [
        squad_scores.GroupScore("who", 1200, 50.0, 62.5),
        squad_scores.GroupScore("how many", 3, 0.0, 100.0),
    ]
    (plot,) = pictures.draw_groups("title", groups).axes
    f1, exact = plot.containers
    assert [bar.get_width() for bar in f1] == [62.5, 100]
    assert [bar.get_width() for bar in exact] == [50, 0]
    assert [bar.get_y() + bar.get_height() / 2 for bar in f1] == [-0.2, 0.8]
    assert texts_of(plot.get_yticklabels()) == ["who (1,200)", "how many (3)"]
    assert texts_of(plot.texts) == ["62.5", "100.0", "50.0", "0.0"]


def test_the_curve_of_the_threshold():
    gold = {"a": ("x",), "b": ("x",), "c": ()}
    odds = {"a": -1.0, "b": 3.0, "c": 0.5}
    curve = null_odds.threshold_curve(gold, dict.fromkeys(gold, "x"), odds)
    (plot,) = pictures.draw_null_odds(curve, best_threshold=-1.0).axes
    lines = {line.get_label(): line.get_xydata() for line in plot.get_lines()}
    third = 100 / 3
    np.testing.assert_allclose(
        lines["F1"], [[-2, third], [-1, 2 * third], [0.5, third], [3, 2 * third]]
    )
    np.testing.assert_allclose(lines["F1 without"][:, 1], [100, 100, 0, 0])
    np.testing.assert_allclose(lines["F1 with an answer"][:, 1], [0, 50, 50, 100])
    assert lines["best F1"][0, 0] == -1
    low, high = plot.get_xlim()
    assert low < -1.9 and high > 2.9


def test_odds_far_from_all_others_do_not_squeeze_the_curve():
    gold = {str(n): ("x",) for n in range(300)}
    odds = {id: float(id) / 100 for id in gold} | {"299": 1e6}
    curve = null_odds.threshold_curve(gold, dict.fromkeys(gold, "x"), odds)
    (plot,) = pictures.draw_null_odds(curve, best_threshold=2.0).axes
    assert plot.get_xlim()[1] < 4
