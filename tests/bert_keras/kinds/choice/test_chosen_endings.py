"""The best of several endings: what the page says."""

from bert_keras.kinds.choice import ChosenEnding, chosen_endings


def chosen(label: int, prediction: int, confidence: float, **others):
    values = {
        "text": "He sat.",
        "beginning": "Then he",
        "endings": ("ate", "slept", "f|ew"),
        "line": 2,
    } | others
    probabilities = [(1 - confidence) / 2] * 3
    probabilities[prediction] = confidence
    return ChosenEnding(
        label=label, prediction=prediction, probabilities=probabilities, **values
    )


def test_the_parts_of_the_page():
    records = [
        chosen(0, 0, 0.5, line=1),
        chosen(0, 2, 0.75, line=2, text="", beginning="*He*"),
        chosen(2, 1, 1.0, line=3),
        chosen(2, 2, 0.75, line=4, beginning=""),
    ]
    places, calibration, mistakes = chosen_endings.describe(records)
    expected = """\
| place | is right | answered | accuracy where it is right |
| --- | --- | --- | --- |
| ending0 | 2 | 1 | 50.0 % |
| ending1 | 0 | 1 | – |
| ending2 | 2 | 2 | 50.0 % |"""
    assert places.text == expected
    # At 50 % one is right, at 75 % one of two, at 100 % none.
    assert calibration.text == (
        "The model gives its answers a probability of 75.0 % on average, and 50.0 % of "
        "them are right. Expected calibration error, in 15 bins: 50.0 %."
    )
    expected = """\
2 of 4 answers are wrong; first those most confident:

| line | probability | text | right ending | answered |
| --- | --- | --- | --- | --- |
| 3 | 100.0 % | He sat. Then he | f&#124;ew | slept |
| 2 | 75.0 % | &#42;He&#42; | ate | f&#124;ew |"""
    assert mistakes.text == expected
    parts = (places, calibration, mistakes)
    names = ["places", "calibration", "worst_mistakes"]
    assert [part.name for part in parts] == names
    assert [part.picture is not None for part in parts] == [True, True, False]
