"""Baselines: answers without a network, and their scores."""

from pathlib import Path

import numpy as np
import pytest

from bert_keras.kinds.tagging import dataset as tagging_data
from bert_keras.kinds.tagging import ner
from bert_keras.kinds.text import text, text_forms
from bert_keras.lab.sweep import baselines

FILE = Path("train.tsv")


def texts(kind, *rows) -> text_forms.TextDataset:
    """Texts and labels; ` / ` divides pairs."""
    labelled = []
    for number, (joined, label) in enumerate(rows, start=2):
        first, second = [*joined.split(" / "), None][:2]
        labelled.append(text.LabelledText(first, second, label, number))
    return text_forms.TextDataset(path=FILE, rows=labelled, has_labels=True, kind=kind)


def scores(name, train, dev) -> dict[str, float]:
    task = train.describe()
    predict = baselines.learn(name, train, task)
    answers = dev.answers_of(predict(dev), task)
    list(answers.records(decision=answers.best_decision()))
    return answers.scores()


def test_classes():
    train = texts(
        "classification",
        *[("a fine film", "good"), ("a lovely plot", "good")] * 3,
        *[("a dull film", "bad"), ("an awful plot", "bad")] * 2,
    )
    rows = ("lovely film", "good"), ("awful", "bad"), ("dull", "bad")
    dev = texts("classification", *rows)
    assert scores(baselines.MOST_COMMON, train, dev)["accuracy"] == pytest.approx(1 / 3)
    found = scores(baselines.LINEAR, train, dev)
    assert found["accuracy"] == 1 and found["loss"] < 0.7


def test_the_most_common_terms_are_counted(monkeypatch):
    train = texts("classification", ("good good rare", "x"), ("bad bad", "y"))
    terms = []
    for limit in (1000, 2):
        monkeypatch.setattr(baselines, "MAX_TERMS", limit)
        (vectorizer,) = baselines._fit_vectorizers(train)
        terms.append({*vectorizer.vocabulary_})
        predict = baselines.learn(baselines.LINEAR, train, train.describe())
        assert predict(train).argmax(axis=1).tolist() == [0, 1]
    more = {"rare", "good good", "good rare", "bad bad"}
    assert terms == [{"good", "bad", *more}, {"good", "bad"}]


def test_words_of_the_two_sides_of_a_pair_differ():
    rows = [("one / two", "x"), ("two / one", "y"), ("a / b", "y")] * 5
    train = texts("classification", *rows)
    assert scores(baselines.LINEAR, train, train)["accuracy"] == 1


@pytest.mark.parametrize("name", [baselines.MOST_COMMON, baselines.LINEAR])
def test_a_share_without_all_labels_still_answers(name):
    whole = texts("classification", ("one", "x"), ("two", "y"), ("three", "z"))
    task = whole.describe()
    for rows in ([0], [0, 1]):
        logits = baselines.learn(name, whole.subset(rows), task)(whole)
        assert logits.shape == (3, 3) and np.isfinite(logits).all()
        assert np.isfinite(whole.answers_of(logits, task).scores()["loss"])
    empty = texts("classification", ("", "x"), ("  ", "y"), ("", "y"))
    assert scores(name, empty, empty)["accuracy"] == pytest.approx(2 / 3)


def test_numbers_and_several_labels():
    rows = [("bad", "1"), ("fine", "2"), ("great", "3")] * 4
    numbers = texts("regression", *rows)
    assert scores(baselines.LINEAR, numbers, numbers)["pearson"] > 0.95
    assert scores(baselines.MOST_COMMON, numbers, numbers)["pearson"] == 0
    rows = [("bad", ("angry",)), ("great fine", ("glad", "calm")), ("it", ())] * 4
    several = texts("multi_label", *rows)
    assert scores(baselines.LINEAR, several, several)["macro_f1"] == 1
    assert scores(baselines.MOST_COMMON, several, several)["macro_f1"] == 0


def test_tags():
    def sentences(*pairs: tuple[str, str]) -> tagging_data.TaggingDataset:
        rows = [
            ner.Sentence(tuple(words.split()), tuple(tags.split()), 1, 1)
            for words, tags in pairs
        ]
        return tagging_data.TaggingDataset(path=FILE, rows=rows, has_labels=True)

    rows = ("in Paris now", "O B-LOC O"), ("Paris left", "B-PER O")
    train = sentences(*rows, ("to Paris", "O B-LOC"))
    assert baselines.NAMES["tagging"] == (baselines.MOST_COMMON, baselines.EACH_WORD)
    assert scores(baselines.MOST_COMMON, train, train)["f1"] == 0
    assert scores(baselines.EACH_WORD, train, train)["f1"] == pytest.approx(2 / 3)
    unknown = sentences(("by Rome", "O B-LOC"))
    assert scores(baselines.EACH_WORD, train, unknown)["f1"] == 0
