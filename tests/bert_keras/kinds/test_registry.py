"""The protocol of kinds: examples in Python, metrics, features of a batch."""

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.kinds import registry
from bert_keras.kinds.choice import dataset as choice_dataset
from bert_keras.kinds.choice import swag
from bert_keras.kinds.kind import Metric
from bert_keras.kinds.span import squad
from bert_keras.kinds.tagging import ner
from bert_keras.kinds.text import multi_label, text
from bert_keras.labelled import logit_scores

CLASSES = tasks.Task(kind="classification", labels=("0", "1"))
PAIRS = CLASSES.model_copy(update={"has_text_pair": True})
NUMBERS = tasks.Task(kind="regression")
TAGS = tasks.Task(kind="tagging", labels=("O", "B-X", "I-X"))
SPAN = tasks.Task(kind="span", has_text_pair=True, has_impossible=True)
CHOICE = tasks.Task(kind="choice", has_text_pair=True)
RANKING = tasks.Task(kind="ranking", has_text_pair=True)


def from_python(examples, task):
    return registry.labelled(task.kind).from_python(examples, task)


def test_examples_of_every_kind():
    found = from_python(iter(["a b", ""]), CLASSES)
    assert found.rows == [
        text.LabelledText("a b", None, None, 1),
        text.LabelledText("", None, None, 2),
    ]
    assert (len(found), found.has_labels, found.kind) == (2, False, "classification")
    found = from_python([["a", "b"]], PAIRS)
    assert found.rows == [text.LabelledText("a", "b", None, 1)]
    assert from_python(["a"], NUMBERS).kind == "regression"
    found = from_python([["it's", "so"], "it's so"], TAGS)
    assert found.rows == [
        ner.Sentence(("it's", "so"), None, 1, 1),
        ner.Sentence(
            ("it", "'", "s", "so"),
            None,
            2,
            2,
            text="it's so",
            places=[(0, 2), (2, 3), (3, 4), (5, 7)],
        ),
    ]
    found = from_python([("who?", "me")], SPAN)
    assert found.rows == [squad.Question("1", "who?", "me", ())]
    assert found.has_impossible
    found = from_python([("q", ["a", "b"]), ("q", ("c",))], RANKING)
    passages = [[c.passage for c in question.candidates] for question in found.rows]
    assert passages == [["a", "b"], ["c"]]
    found = from_python([("a", list("wxyz")), ("a", "b", tuple("wxyz"))], CHOICE)
    assert found.rows == [
        swag.Question("a", "", ("w", "x", "y", "z"), None, 1),
        swag.Question("a", "b", ("w", "x", "y", "z"), None, 2),
    ]


@pytest.mark.parametrize(
    ("task", "examples", "message"),
    [
        (CLASSES, ["a", ("a", "b")], r"example 2: expected a string, got \('a', 'b'\)"),
        (CLASSES, [None], "example 1: expected a string, got None"),
        (PAIRS, ["ab"], "example 1: expected a pair of strings, got 'ab'"),
        (PAIRS, [("a", "b", "c")], "example 1: expected a pair of strings, got "),
        (PAIRS, [("a", 1)], r"example 1: expected a pair of strings, got \('a', 1\)"),
        (TAGS, [[]], r"example 1: expected a string, or a list of words, got \[\]"),
        (SPAN, [("who?",)], "example 1: expected a question and its context, got "),
        (CHOICE, [("a", ["b"])], "if any, four endings, got "),
        (CHOICE, [("a", "b", "c", list("wxyz"))], "if any, four endings, got "),
        (CHOICE, [("a", "wxyz")], "if any, four endings, got "),
        (CHOICE, [3], "if any, four endings, got 3"),
        *(
            (RANKING, [wrong], "example 1: expected a question, and a list of passages")
            for wrong in (("q", []), ("q", "a"), (1, ["a"]), ("q",), ("q", ["a", None]))
        ),
        (CLASSES, [], "expected at least one example, got none"),
    ],
)
def test_examples_of_another_shape_are_refused(task, examples, message):
    with pytest.raises(InputError, match=message):
        from_python(examples, task)


def test_a_kind_knows_its_metrics():
    """Of every key, also of a second dev file and of a label with a blank."""
    expected = {
        ("pretraining", "masked_lm_loss"): "less",
        ("pretraining", "masked_lm_perplexity"): "less",
        ("pretraining", "next_sentence_accuracy"): "more",
        ("classification", "loss"): "less",
        ("classification", "dev_2_accuracy"): "more",
        ("classification", "f1 of loss"): "more",
        ("tagging", "recall"): "more",
        ("tagging", "words"): None,
        ("span", "HasAns_f1"): "more",
        ("span", "best_f1_thresh"): None,
        ("span", "NoAns_total"): None,
        ("span", "num_unknown"): None,
        ("embedding", "recall_at_10"): "more",
        ("encoder", "loss"): None,
    }
    actual = {
        (kind, key): registry.find(kind).metric(key).better for kind, key in expected
    }
    assert actual == expected
    assert registry.find("span").metric("dev-v2.0_f1") == Metric("f1", "%")


def test_every_score_has_a_metric():
    logits = np.eye(3, dtype=np.float32)
    scores = {
        "classification": [
            *text.own_scores(
                logits,
                np.arange(3),
                tasks.Task(kind="classification", labels=("a", "b", "c")),
            ),
            *text.own_scores(logits[:, :2], np.array([0, 1, 1]), CLASSES),
        ],
        "multi_label": multi_label.scores(logits, logits, np.full(3, 0.5)),
        "regression": logit_scores.scores(logits[:, :1], np.arange(3)),
        "choice": choice_dataset.ChoiceAnswers(
            questions=(), logits=np.eye(4), label_ids=np.arange(4)
        ).scores(),
    }
    for kind, keys in scores.items():
        for key in keys:
            metric = registry.find(kind).metric(key)
            assert metric.better == ("less" if key == "loss" else "more"), (kind, key)
