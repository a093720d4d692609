"""Answers to questions: by groups, by the threshold, and the worst."""

import random
import re

import numpy as np
import pytest

from bert_keras.kinds.span import AnsweredQuestion, answered_questions, squad_scores
from bert_keras.pages import drawing
from tests.bert_keras.pages.test_pictures import HUGE, texts_of


def question(prediction: str, right: list[str], **others) -> AnsweredQuestion:
    values = {
        **{"id": "q", "question": "Who?", "context": "Anna saw Bert."},
        **{"probability": 0.5, "null_odds": None, "best_text": prediction or "Anna"},
    }
    return AnsweredQuestion(prediction=prediction, answers=right, **(values | others))


def rows_of(table: str) -> list[list[str]]:
    """The cells of a table's rows, of those after the header."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def test_the_worst_have_the_lowest_f1_then_the_highest_probability():
    records = [
        question("Anna", ["Bert"], id="b", probability=0.5),
        question("Anna", ["Anna"], id="right", probability=0.9),
        question("Anna", ["Bert"], id="a", probability=0.5),
        question("Anna Bert", ["Bert"], id="half", probability=1.0),
        question("Anna", ["Bert"], id="sure", probability=0.8),
    ]
    *_, mistakes = answered_questions.describe(records, has_impossible=False)
    rows = [(row[2], row[3], row[4]) for row in rows_of(mistakes.text)]
    assert rows == [
        ("Anna", "0.0", "80.0 %"),
        ("Anna", "0.0", "50.0 %"),
        ("Anna", "0.0", "50.0 %"),
        ("Anna Bert", "66.7", "100.0 %"),
    ]


def test_the_parts_of_the_page_for_1_1():
    records = [
        question("Bert", ["Anna"], question="Who | saw?"),
        question("the Anna", ["Anna", "anna", "Anna saw"], question="How  many?"),
        question("saw Bert", ["Bert", "the bert.", "Bert"], question="How many *saw*?"),
    ]
    length, word, mistakes = answered_questions.describe(records, has_impossible=False)
    expected = """\
| group | questions | exact match | F1 |
| --- | --- | --- | --- |
| 1 | 3 | 33.3 | 55.6 |"""
    assert length.text == expected
    assert rows_of(word.text) == [
        ["how many", "2", "50.0", "83.3"],
        ["who", "1", "0.0", "0.0"],
    ]
    expected = """\
2 of 3 answers are not exact; first those of the lowest F1, the most probable of them:

| question | right | answered | F1 | probability | context |
| --- | --- | --- | --- | --- | --- |
| Who &#124; saw? | Anna | Bert | 0.0 | 50.0 % | <strong>Anna</strong> saw \
<em>Bert</em>. |
| How many &#42;saw&#42;? | Bert | saw Bert | 66.7 | 50.0 % | Anna <em>saw </em>\
<em><strong>Bert</strong></em>. |

In the context the right answer is bold, the given one italic."""
    assert mistakes.text == expected


def test_the_parts_of_the_page_for_2_0():
    records = [
        question("", [], null_odds=3.0),
        question("", ["Bert"], null_odds=1.0, best_text="Bert"),
        question("Anna", [], null_odds=-1.0),
        question("Anna", ["Anna"], null_odds=-2.0),
    ]
    length, _, threshold, mistakes = answered_questions.describe(
        records, has_impossible=True
    )
    assert rows_of(length.text) == [
        ["none", "2", "50.0", "50.0"],
        ["1", "2", "50.0", "50.0"],
    ]
    assert rows_of(threshold.text) == [
        ["F1", "75.00", "-2.0000"],
        ["exact match", "75.00", "-2.0000"],
    ]
    assert [row[1:3] for row in rows_of(mistakes.text)] == [
        ["Bert", "no answer"],
        ["no answer", "Anna"],
    ]


def test_groups_of_answers_and_questions():
    asked = {
        "Who was it?": "who",
        "In which year did it end, and why?": "which",
        "How  many were there?": "how many",
        "How did they do?": "how",
        "Whose was it?": "whose",
        "What's that?": "what",
        "Name the show.": "other",
    }
    records = [question("x", ["x " * n, "y"]) for n in (0, 1, 2, 3, 4, 5, 6, 10, 11)]
    records += [question("x", [], question=text) for text in asked]
    length, word, _ = answered_questions.describe(records, has_impossible=False)
    lengths = {"none": 8, "1": 1, "2": 1, "3": 1, "4-5": 2, "6-10": 2, "11+": 1}
    words = {"who": 10} | dict.fromkeys(sorted({*asked.values()} - {"who"}), 1)
    for part, totals in ((length, lengths), (word, words)):
        rows = [(name, int(total)) for name, total, *_ in rows_of(part.text)]
        assert rows == [*totals.items()]


def test_without_odds_there_is_no_threshold():
    right = question("Anna", ["Anna"])
    names = [p.name for p in answered_questions.describe([right], has_impossible=True)]
    assert names == ["by_answer_length", "by_question_word", "worst_mistakes"]


def excerpt(context: str, right: list[str], prediction: str) -> str:
    record = question(prediction, right, context=context)
    return answered_questions.context_excerpt(record)


def test_the_context_is_shown_around_the_answers():
    filler = "word " * 300
    found = excerpt(
        f"{filler}in 1912 there {filler}by 1913 then {filler}", ["1912"], "1913"
    )
    assert re.fullmatch(
        r"… (word )+in <strong>1912</strong> there (word )+"
        r"… (word )+by <em>1913</em> then (word )+…",
        found,
    )
    assert len(found) < 400
    # Only one of them, or none, is in the text.
    assert "<em>1913</em>" in excerpt(f"{filler}1913{filler}", [], "1913")
    assert "<strong>x</strong>" in excerpt(f"{filler}x {filler}", ["x"], "")
    assert excerpt(filler, ["x"], "y").startswith("word word")


def test_of_several_places_those_near_each_other_are_shown():
    assert excerpt("10 a, 10 bb, 7 c, 10 d", ["10"], "7") == (
        "10 a, 10 bb, <em>7</em> c, <strong>10</strong> d"
    )
    # Whole words before parts of them.
    assert excerpt("cat at", ["at"], "") == "cat <strong>at</strong>"
    assert excerpt("$18m", ["18"], "") == "&#36;<strong>18</strong>m"
    # So many places that not every pair can be looked at.
    assert "<strong>" in excerpt("a " * 50_000, ["a"], "a a")


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
    thresholds, curves = answered_questions.threshold_curves(gold, texts, odds)
    assert thresholds.tolist() == [min(odds.values()) - 1, *sorted(set(odds.values()))]
    for place, threshold in enumerate(thresholds):
        predictions = {
            id: "" if odds[id] > threshold else text for id, text in texts.items()
        }
        expected = squad_scores.scores(gold, predictions, has_impossible=True)
        names = ("f1", "exact", "HasAns_f1", "NoAns_f1")
        scores = [values[place] for values in curves.values()]
        assert scores == pytest.approx([expected[name] for name in names])


def test_questions_that_all_have_answers():
    thresholds, curves = answered_questions.threshold_curves(
        {"a": ("x",)}, {"a": "x"}, {"a": 2.0}
    )
    assert thresholds.tolist() == [1.0, 2.0]
    assert curves["F1"].tolist() == curves["F1 with an answer"].tolist() == [0.0, 100.0]
    assert np.isnan(curves["F1 without"]).all()


def plot_of(gold, texts, odds, *, best_threshold: float):
    curves = answered_questions.threshold_curves(gold, texts, odds)
    (plot,) = answered_questions.draw_null_odds(
        *curves, best_threshold=best_threshold
    ).axes
    return plot


@pytest.mark.parametrize(("first", "second"), HUGE)
def test_odds_that_hardly_fit_a_float_are_drawn(first, second):
    answers = {"a": ["x"], "b": []}, {"a": "x", "b": "y"}, {"a": first, "b": second}
    draw = lambda: plot_of(*answers, best_threshold=max(first, second)).figure  # noqa: E731
    assert drawing.as_png(draw, dpi=10).startswith(b"\x89PNG")


def test_groups_of_questions():
    groups = {"who": (50.0, 62.5, 1200), "how many": (0.0, 100.0, 3)}
    (plot,) = answered_questions.draw_groups("title", groups).axes
    f1, exact = plot.containers
    assert [bar.get_width() for bar in f1] == [62.5, 100]
    assert [bar.get_width() for bar in exact] == [50, 0]
    assert [bar.get_y() + bar.get_height() / 2 for bar in f1] == [-0.2, 0.8]
    assert texts_of(plot.get_yticklabels()) == ["who (1,200)", "how many (3)"]
    assert texts_of(plot.texts) == ["62.5", "100.0", "50.0", "0.0"]


def test_the_curve_of_the_threshold():
    gold = {"a": ("x",), "b": ("x",), "c": ()}
    odds = {"a": -1.0, "b": 3.0, "c": 0.5}
    plot = plot_of(gold, dict.fromkeys(gold, "x"), odds, best_threshold=-1.0)
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
    # Odds far from all others do not squeeze the curve.
    gold = {str(n): ("x",) for n in range(300)}
    odds = {id: float(id) / 100 for id in gold} | {"299": 1e6}
    plot = plot_of(gold, dict.fromkeys(gold, "x"), odds, best_threshold=2.0)
    assert plot.get_xlim()[1] < 4
