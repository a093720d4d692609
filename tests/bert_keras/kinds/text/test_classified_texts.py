"""Classes of texts: what the page says of them."""

import pytest

from bert_keras.core.errors import InputError
from bert_keras.kinds.text import classified_texts
from bert_keras.kinds.text.records import ClassifiedText
from bert_keras.pages import sections


def text(label: str, prediction: str, confidence: float = 0.75, **others):
    """A record; what the answer leaves is given to the label "rest"."""
    values = {"text": f"{label} {prediction}", "line": 2} | others
    probabilities = {label: 0.0, "rest": 1 - confidence, prediction: confidence}
    return ClassifiedText(
        label=label, prediction=prediction, probabilities=probabilities, **values
    )


def test_the_worst_are_wrong_and_sure():
    records = [
        text("a", "b", 0.6, line=1),
        text("a", "a", 0.99, line=2),
        text("a", "b", 0.7, line=3),
        text("b", "a", 0.6, line=4),
    ]
    assert [r.line for r in sections.most_confident_mistakes(records)] == [3, 1, 4]


def test_the_parts_of_the_page():
    records = [
        text("no", "no", 1.0),
        text("no", "y|s", 0.75, line=7, text="a *bad*\n| film"),
        text("y|s", "y|s", 0.75),
        text("y|s", "y|s", 0.5),
    ]
    labels = ("no", "y|s", "rest")
    matrix, scores, calibration, mistakes = classified_texts.describe(records, labels)
    assert (
        matrix.text
        == """\
The commonest confusions:

| right | answered | how often | share of the row |
| --- | --- | --- | --- |
| no | y&#124;s | 1 | 50.0 % |"""
    )
    assert (
        scores.text
        == """\
| label | precision | recall | F1 | in the file | answered |
| --- | --- | --- | --- | --- | --- |
| no | 100.0 % | 50.0 % | 66.7 % | 2 | 1 |
| y&#124;s | 66.7 % | 100.0 % | 80.0 % | 2 | 3 |
| rest | – | – | – | 0 | 0 |"""
    )
    # One of two is right at 75 %; at 50 and 100 % all are.
    assert calibration.text == (
        "The model gives its answers a probability of 75.0 % on average, and 75.0 % of "
        "them are right. Expected calibration error, in 15 bins: 25.0 %."
    )
    assert (
        mistakes.text
        == """\
1 of 4 answers are wrong; the 1 most confident:

| line | right | answered | probability | text |
| --- | --- | --- | --- | --- |
| 7 | no | y&#124;s | 75.0 % | a &#42;bad&#42; &#124; film |"""
    )
    parts = (matrix, scores, calibration, mistakes)
    assert [(part.name, part.picture is not None) for part in parts] == [
        ("confusion_matrix", True),
        ("scores_by_label", True),
        ("calibration", True),
        ("worst_mistakes", False),
    ]


def test_two_classes_have_no_list_of_confusions():
    parts = classified_texts.describe([text("a", "b"), text("b", "b")], ("a", "b"))
    assert parts[0].text == ""


def test_twenty_mistakes_of_pairs_are_shown():
    records = [
        text("a", "b", 0.9 - 0.01 * n, line=n, text=f"<{n}>", text_pair=pair)
        for n, pair in enumerate([None, "", *["c"] * 28])
    ]
    *_, mistakes = classified_texts.describe(records, ("a", "b"))
    found, _, header, _, *rows = mistakes.text.splitlines()
    assert found == "30 of 30 answers are wrong; the 20 most confident:"
    assert header == "| line | right | answered | probability | text | second text |"
    assert len(rows) == sections.NUM_MISTAKES
    assert rows[0] == "| 0 | a | b | 90.0 % | &#60;0&#62; |  |"
    assert rows[1] == "| 1 | a | b | 89.0 % | &#60;1&#62; | <em>empty</em> |"
    assert rows[19] == "| 19 | a | b | 71.0 % | &#60;19&#62; | c |"


def test_nothing_wrong():
    *_, mistakes = classified_texts.describe([text("a", "a")], ("a", "b"))
    assert mistakes.text == "0 of 1 answers are wrong."


def test_labels_that_pictures_number_are_in_the_table():
    labels = ("日本", "b")
    _, scores, *_ = classified_texts.describe([text("日本", "b")], labels)
    assert scores.text.splitlines()[0].startswith("| in pictures | label |")
    assert scores.text.splitlines()[2].startswith("| &#35;1 | 日本 |")
    assert scores.text.splitlines()[3].startswith("| b | b |")
    _, scores, *_ = classified_texts.describe([text("#a", "b")], ("#a", "b"))
    assert scores.text.splitlines()[0].startswith("| label |")


def test_very_many_labels():
    labels = tuple(f"label {n}" for n in range(300))
    matrix, scores, *_ = classified_texts.describe(
        [text("label 7", "label 8"), text("label 8", "label 8")], labels
    )
    assert matrix.text.startswith("Of 300 classes the picture has those with most")
    found = scores.text.splitlines()
    assert found[0] == "The first 200 of 300:"
    assert len(found) == 2 + 2 + sections.MAX_LISTED_CLASSES


def test_answers_of_another_run_are_refused():
    with pytest.raises(InputError, match="expected labels of the run's task.json, got"):
        classified_texts.describe([text("a", "c")], ("a", "b"))
