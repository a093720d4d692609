"""Tags of a model, and their scores."""

import itertools

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.kinds.tagging import dataset, ner

LABELS = ("O", "B-A", "I-A", "B-b", "I-b")


def sentence(tags: str, *, line: int = 1) -> ner.Sentence:
    tags = tuple(tags.split())
    return ner.Sentence(tuple("w" for _ in tags), tags, line, line)


def test_labels_have_numbers():
    ids = dataset.label_ids(
        [sentence("O B-b O"), sentence("B-A I-A")], LABELS, path="f"
    )
    assert (ids.tolist(), ids.dtype) == ([0, 3, 0, 1, 2], np.int32)


def test_tags_that_a_model_does_not_know():
    others = ("O", "B-a", "I-a", "E-a", "S-a")
    for tags, labels, message in (
        (
            *("O B-a", LABELS),
            r"f: sentence of line 9: tag 'B-a' was not in the training data \(known: "
            r"O, B-A, I-A, B-b, I-b\); did you mean ",
        ),
        (
            "B-a I-a O",
            others,
            "its tags are IOB, those of the training data BIOES: conv",
        ),
    ):
        with pytest.raises(InputError, match=message):
            dataset.label_ids([sentence(tags, line=9)], labels, path="f")
        assert not dataset.label_ids([sentence("O O")], labels, path="f").any()


def test_answers_are_decoded_and_scored():
    labels = ("O", "B-A", "I-A")
    sentences = [sentence("B-A I-A"), sentence("O"), sentence("O B-A")]
    logits = np.log(0.1 + 0.7 * np.eye(3)[[2, 2, 0, 0, 0]])
    answers = dataset.TaggingAnswers(
        sentences=sentences, word_logits=logits, labels=labels
    )
    assert answers.tags() == [("B-A", "I-A"), ("O",), ("O", "O")]
    assert answers.scores() == pytest.approx(
        {
            "loss": -np.log([0.1, 0.8, 0.8, 0.8, 0.1]).mean(),
            "accuracy": 3 / 5,
            "precision": 1.0,
            "recall": 0.5,
            "f1": 2 / 3,
        }
    )


def test_plain_tags_are_scored_word_by_word():
    labels, sentences = ("-LRB-", "DT", "NN", "O"), [sentence("DT NN O NN NN -LRB-")]
    logits = np.log(np.eye(4)[[1, 2, 3, 2, 1, 0]] + 0.1)
    answers = dataset.TaggingAnswers(
        sentences=sentences, word_logits=logits, labels=labels
    )
    assert answers.tags() == [("DT", "NN", "O", "NN", "DT", "-LRB-")]
    scores = answers.scores()
    assert scores.keys() == {"loss", "accuracy"}
    assert scores["accuracy"] == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    ("true", "predicted", "num_right", "num_predicted", "num_true"),
    [
        # Predicted entities that begin with I-, at the start, after O, after another;
        # the strict mode of seqeval would not count them.
        ("B-A I-A O", "I-A I-A O", 1, 1, 1),
        ("O B-A I-A", "O I-A I-A", 1, 1, 1),
        ("B-A B-B I-B", "B-A I-B I-B", 2, 2, 2),
        ("B-A I-A B-B", "B-A I-B I-A", 0, 3, 2),
        # Other bounds, another type, nothing at all.
        ("B-A I-A I-A", "B-A B-A I-A", 0, 2, 1),
        ("B-A I-A", "B-B I-B", 0, 1, 1),
        ("O O", "B-A O", 0, 1, 0),
        ("B-A O", "O O", 0, 0, 1),
        ("O O", "O O", 0, 0, 0),
        # IOB1 in the data, BIOES, BILOU, and the end of a sentence.
        ("I-A I-A B-A O", "B-A I-A B-A O", 2, 2, 2),
        ("B-a I-a E-a S-b", "B-a E-a S-a S-b", 1, 3, 2),
        ("B-a I-a L-a U-b", "B-a L-a U-a U-b", 1, 3, 2),
        ("O B-A | I-A O", "O B-A | I-A O", 2, 2, 2),
    ],
)
def test_entities_are_counted_as_by_conlleval(
    true, predicted, num_right, num_predicted, num_true
):
    true, predicted = (
        [of_sentence.split() for of_sentence in tags.split("|")]
        for tags in (true, predicted)
    )
    labels = sorted({"O", *itertools.chain(*true, *predicted)})
    places = [labels.index(tag) for tag in itertools.chain(*predicted)]
    scores = dataset.TaggingAnswers(
        sentences=[ner.Sentence(tags, tags, 0, 1) for tags in true],
        word_logits=np.eye(len(labels), dtype=np.float32)[places],
        labels=tuple(labels),
    ).scores()
    del scores["loss"], scores["accuracy"]
    assert scores == pytest.approx(
        {
            "precision": num_right / max(num_predicted, 1),
            "recall": num_right / max(num_true, 1),
            "f1": 2 * num_right / max(num_predicted + num_true, 1),
        }
    )
