"""Answers to questions: by groups, by the threshold, and the worst."""

import json
import re

import pytest

from bert_keras.kinds.span import answered_questions, squad, squad_scores
from bert_keras.kinds.span.records import AnsweredQuestion


def question(prediction: str, right: list[str], **others) -> AnsweredQuestion:
    values = {
        "id": "q",
        "question": "Who?",
        "context": "Anna saw Bert.",
        "probability": 0.5,
        "null_odds": None,
        "best_text": prediction or "Anna",
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
    scores = [squad_scores.score_answer(r.prediction, r.answers) for r in records]
    worst = answered_questions.worst(records, scores)
    assert [mistake.record.id for mistake in worst] == ["sure", "a", "b", "half"]
    assert [mistake.f1 for mistake in worst] == [0, 0, 0, pytest.approx(2 / 3)]


def test_the_parts_of_the_page_for_1_1():
    records = [
        question("Bert", ["Anna"], question="Who | saw?"),
        question("the Anna", ["Anna", "anna", "Anna saw"], question="How  many?"),
        question("saw Bert", ["Bert", "the bert.", "Bert"], question="How many *saw*?"),
    ]
    length, word, mistakes = answered_questions.describe(records, has_impossible=False)
    assert (
        length.text
        == """\
| group | questions | exact match | F1 |
| --- | --- | --- | --- |
| 1 | 3 | 33.3 | 55.6 |"""
    )
    assert rows_of(word.text) == [
        ["how many", "2", "50.0", "83.3"],
        ["who", "1", "0.0", "0.0"],
    ]
    assert (
        mistakes.text
        == """\
2 of 3 answers are not exact; the 2 of the lowest F1, the most probable of them:

| question | right | answered | F1 | probability | context |
| --- | --- | --- | --- | --- | --- |
| Who &#124; saw? | Anna | Bert | 0.0 | 50.0 % | <strong>Anna</strong> saw \
<em>Bert</em>. |
| How many &#42;saw&#42;? | Bert | saw Bert | 66.7 | 50.0 % | Anna <em>saw </em>\
<em><strong>Bert</strong></em>. |

In the context the right answer is bold, the answer that was given italic."""
    )


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


def test_without_odds_there_is_no_threshold():
    names = [
        part.name
        for part in answered_questions.describe(
            [question("Anna", ["Anna"])], has_impossible=True
        )
    ]
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


@pytest.mark.slow
def test_groups_of_a_published_system_add_up_to_its_score(shared_data):
    folder = shared_data / "squad/eval_reference"
    gold = squad.read_squad(shared_data / "squad/v1.1/dev-v1.1.json")
    (path,) = (folder / "v1.1").glob("predictions_*bert*.json")
    predictions = json.loads(path.read_text())
    records = [
        question(
            predictions[q.id],
            [answer.text for answer in q.answers],
            context=q.context,
            question=q.question,
        )
        for q in gold.questions
    ]
    *groups, mistakes = answered_questions.describe(records, has_impossible=False)
    for part in groups:
        rows = rows_of(part.text)
        counts = [int(row[1].replace(",", "")) for row in rows]
        assert sum(counts) == 10_570
        for column, score in ((2, 86.206), (3, 92.196)):
            weighted = zip(rows, counts, strict=True)
            total = sum(float(row[column]) * count for row, count in weighted)
            assert total / 10_570 == pytest.approx(score, abs=0.05)
    assert mistakes.text.startswith("1,458 of 10,570 answers are not exact")
