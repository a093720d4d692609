"""Pages about texts: of classes, and of numbers."""

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.kinds.text import ClassifiedText, RatedText, pages
from bert_keras.pages import sections


def text(label: str, prediction: str, confidence: float = 0.75, **others):
    """A record; what the answer leaves is given to the label "rest"."""
    values = {"text": f"{label} {prediction}", "line": 2} | others
    probabilities = {label: 0.0, "rest": 1 - confidence, prediction: confidence}
    return ClassifiedText(
        label=label, prediction=prediction, probabilities=probabilities, **values
    )


def test_the_page_of_classes():
    records = [
        text("no", "no", 1.0),
        text("no", "y|s", 0.75, line=7, text="a *bad*\n| film"),
        text("y|s", "y|s", 0.75),
        text("y|s", "y|s", 0.5),
    ]
    labels = ("no", "y|s", "rest")
    matrix, scores, calibration, mistakes = pages.describe_classes(records, labels)
    expected = """\
The commonest confusions:

| right | answered | how often | share of the row |
| --- | --- | --- | --- |
| no | y&#124;s | 1 | 50.0 % |"""
    assert matrix.text == expected
    expected = """\
| label | precision | recall | F1 | in the file | answered |
| --- | --- | --- | --- | --- | --- |
| no | 100.0 % | 50.0 % | 66.7 % | 2 | 1 |
| y&#124;s | 66.7 % | 100.0 % | 80.0 % | 2 | 3 |
| rest | – | – | – | 0 | 0 |"""
    assert scores.text == expected
    # One of two is right at 75 %; at 50 and 100 % all are.
    assert calibration.text == (
        "The model gives its answers a probability of 75.0 % on average, and 75.0 % of "
        "them are right. Expected calibration error, in 15 bins: 25.0 %."
    )
    expected = """\
1 of 4 answers are wrong; first those most confident:

| line | right | answered | probability | text |
| --- | --- | --- | --- | --- |
| 7 | no | y&#124;s | 75.0 % | a &#42;bad&#42; &#124; film |"""
    assert mistakes.text == expected
    parts = (matrix, scores, calibration, mistakes)
    names = ["confusion_matrix", "scores_by_label", "calibration", "worst_mistakes"]
    assert [part.name for part in parts] == names
    has_picture = [part.picture is not None for part in parts]
    assert has_picture == [True, True, True, False]


@pytest.fixture
def without_pictures(monkeypatch):
    """Pictures take seconds; the page above has them."""
    monkeypatch.setattr(sections.drawing, "as_png", lambda *_: b"")


def test_twenty_mistakes_of_pairs_are_shown(without_pictures):
    records = [
        text("a", "b", 0.9 - 0.01 * n, line=n, text=f"<{n}>", text_pair=pair)
        for n, pair in enumerate([None, "", *["c"] * 28])
    ]
    matrix, *_, mistakes = pages.describe_classes(records, ("a", "b"))
    assert matrix.text == "", "two classes have no list of confusions"
    found, _, header, _, *rows = mistakes.text.splitlines()
    assert found == "30 of 30 answers are wrong; the 20 most confident:"
    assert header == "| line | right | answered | probability | text | second text |"
    assert len(rows) == sections.NUM_MISTAKES
    assert rows[:2] + rows[19:] == [
        "| 0 | a | b | 90.0 % | &#60;0&#62; |  |",
        "| 1 | a | b | 89.0 % | &#60;1&#62; | <em>empty</em> |",
        "| 19 | a | b | 71.0 % | &#60;19&#62; | c |",
    ]
    *_, mistakes = pages.describe_classes([text("a", "a")], ("a", "b"))
    assert mistakes.text == "0 of 1 answers are wrong."


def test_labels_that_pictures_number_are_in_the_table(without_pictures):
    labels = ("日本", "b")
    _, scores, *_ = pages.describe_classes([text("日本", "b")], labels)
    header, _, first, second = scores.text.splitlines()
    assert header.startswith("| in pictures | label |")
    assert (first[:15], second[:9]) == ("| &#35;1 | 日本 |", "| b | b |")
    _, scores, *_ = pages.describe_classes([text("#a", "b")], ("#a", "b"))
    assert scores.text.startswith("| label |")


def test_very_many_labels(without_pictures):
    labels = tuple(f"label {n}" for n in range(300))
    matrix, scores, *_ = pages.describe_classes(
        [text("label 7", "label 8"), text("label 8", "label 8")], labels
    )
    assert matrix.text.startswith("Of 300 classes the picture has those with most")
    first, *others = scores.text.splitlines()
    assert first == "The first 200 of 300:"
    assert len(others) == 1 + 2 + sections.MAX_LISTED_CLASSES


def test_answers_of_another_run_are_refused():
    with pytest.raises(InputError, match="expected labels of the run's task.json, got"):
        pages.describe_classes([text("a", "c")], ("a", "b"))


def rated(label: float, prediction: float, **others) -> RatedText:
    values = {"text": "a", "line": 2} | others
    return RatedText(label=label, prediction=prediction, **values)


def test_errors_whose_sum_overflows():
    found = pages.errors([rated(0.0, 1e308), rated(0.0, 1.5e308)])
    assert found["mean error"] == found["root mean squared error"] == np.inf


def test_the_page_of_numbers():
    records = [
        rated(1.0, 1.5, line=1),
        rated(5.0, 2.0, line=2, text="<i>", text_pair="b|c"),
        rated(0.0, 3.0, line=3),
    ]
    scatter, mistakes = pages.describe_numbers(records, None)
    expected = """\
|  | all answers |
| --- | --- |
| mean error | 0.1667 |
| mean absolute error | 2.167 |
| root mean squared error | 2.466 |"""
    assert scatter.text == expected
    expected = """\
3 answers; first those farthest from the right number:

| line | right | answered | error | text | second text |
| --- | --- | --- | --- | --- | --- |
| 2 | 5 | 2 | -3 | &#60;i&#62; | b&#124;c |
| 3 | 0 | 3 | +3 | a |  |
| 1 | 1 | 1.5 | +0.5 | a |  |"""
    assert mistakes.text == expected
    assert (scatter.name, scatter.picture[:4]) == ("scatter", b"\x89PNG")
    assert (mistakes.name, mistakes.picture) == ("worst_mistakes", None)
