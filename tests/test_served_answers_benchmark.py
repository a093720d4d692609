"""The comparison of exported models with `predict`: what counts, and its page."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.tasks import forms, ner, text, text_forms

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(FOLDER))
try:
    benchmark = importlib.import_module("served_answers")
finally:
    sys.path.remove(str(FOLDER))


@pytest.mark.parametrize(
    ("ours", "theirs", "count"),
    [
        (["a", "b"], ["a", "b"], 0),
        (["a", "b"], ["a", ""], 1),
        ([["O"], ["O", "B-PER"]], [["O"], ["O", "O"]], 1),
        ([1.0, 2.0], [1.0005, 2.002], 1),
    ],
)
def test_what_counts_as_different(ours, theirs, count):
    assert benchmark.num_different(ours, theirs) == count


def test_a_missing_answer_is_an_error():
    with pytest.raises(ValueError, match="shorter"):
        benchmark.num_different(["a", "b"], ["a"])


class Recorded:
    """A signature that keeps what it was asked."""

    def __init__(self, **outputs):
        self.structured_outputs = outputs


def test_documents_are_asked_for_whole():
    sentences = [
        ner.Sentence(words, None, document, 0)
        for words, document in ((("a", "b"), 0), (("c",), 0), (("d",), 1))
    ]
    data = forms.TaggingDataset(path=Path("x"), sentences=sentences, has_labels=False)
    requests, name, read = benchmark._requests(data, {"documents": Recorded()})
    asked = [{k: v.numpy().tolist() for k, v in r.items()} for r in requests]
    assert name == "documents"
    assert asked == [
        {"words": [[b"a", b"b"], [b"c", b""]], "document": [b"0", b"0"]},
        {"words": [[b"d"]], "document": [b"1"]},
    ]
    tags = np.array([[b"O", b"B-PER"], [b"O", b""]], "O")
    assert read({"tags": tags}) == [["O", "B-PER"], ["O"]]


def test_pairs_of_texts_and_numbers():
    rows = [text.LabelledText("a", "b", None, n) for n in range(65)]
    data = text_forms.TextDataset(
        path=Path("x"), rows=rows, has_labels=False, kind="regression"
    )
    signatures = {"serving_default": Recorded(score=tf.constant([0.0]))}
    requests, name, read = benchmark._requests(data, signatures)
    first, last = requests
    assert sorted(first) == ["text", "text_pair"]
    assert (first["text"].shape, last["text"].shape) == ((64,), (1,))
    assert (name, read({"score": np.array([0.5])})) == ("serving_default", [0.5])


def test_the_page(monkeypatch):
    monkeypatch.setattr(benchmark.step, "processor", lambda: "a processor")
    row = {
        "name": "SST-2",
        "num_examples": 1872,
        "num_different": 0,
        "num_changed": 3,
    }
    assert benchmark.render([row]).splitlines()[-3:] == [
        "| task | examples | served otherwise than predicted (float32) "
        "| predicted otherwise in the run's precision |",
        "|---|---|---|---|",
        "| SST-2 | 1,872 | 0 | 3 |",
    ]
