"""Numbers: what the page says of them."""

import numpy as np
import pytest

from bert_keras.kinds.text import RatedText, pages


def rated(label: float, prediction: float, **others) -> RatedText:
    values = {"text": "a", "line": 2} | others
    return RatedText(label=label, prediction=prediction, **values)


def test_the_errors_are_those_of_the_definition():
    rng = np.random.default_rng(1)
    right, answered = rng.normal(size=(2, 50))
    pairs = zip(right, answered, strict=True)
    found = pages.errors([rated(*pair) for pair in pairs])
    assert found == {
        "mean error": pytest.approx(np.mean(answered - right)),
        "mean absolute error": pytest.approx(np.mean(abs(answered - right))),
        "root mean squared error": pytest.approx(
            np.sqrt(np.mean((answered - right) ** 2))
        ),
    }


def test_errors_whose_sum_overflows():
    found = pages.errors([rated(0.0, 1e308), rated(0.0, 1.5e308)])
    assert found["mean error"] == found["root mean squared error"] == np.inf


def test_the_parts_of_the_page():
    records = [
        rated(1.0, 1.5, line=1),
        rated(5.0, 2.0, line=2, text="<i>", text_pair="b|c"),
        rated(0.0, 3.0, line=3),
    ]
    scatter, mistakes = pages.describe_numbers(records)
    assert (
        scatter.text
        == """\
|  | all answers |
| --- | --- |
| mean error | 0.1667 |
| mean absolute error | 2.167 |
| root mean squared error | 2.466 |"""
    )
    assert (
        mistakes.text
        == """\
3 answers; the 3 farthest from the right number:

| line | right | answered | error | text | second text |
| --- | --- | --- | --- | --- | --- |
| 2 | 5 | 2 | -3 | &#60;i&#62; | b&#124;c |
| 3 | 0 | 3 | +3 | a |  |
| 1 | 1 | 1.5 | +0.5 | a |  |"""
    )
    assert (scatter.name, scatter.picture[:4]) == ("scatter", b"\x89PNG")
    assert (mistakes.name, mistakes.picture) == ("worst_mistakes", None)
