"""The protocol of kinds: examples in Python, metrics, features of a batch."""

from bert_keras.core.settings import tasks
from bert_keras.kinds import registry
from bert_keras.kinds.choice import dataset as choice_data
from bert_keras.kinds.kind import Metric
from bert_keras.kinds.span import squad
from bert_keras.kinds.tagging import ner
from bert_keras.kinds.text import text

CLASSES = tasks.Task(kind="classification", labels=("0", "1"))
TAGS = tasks.Task(kind="tagging", labels=("O", "B-X", "I-X"))
SPAN = tasks.Task(kind="span", has_text_pair=True, has_impossible=True)
CHOICE = tasks.Task(kind="choice", has_text_pair=True)


def from_python(examples, task):
    return registry.labelled(task.kind).from_python(examples, task)


def test_examples_of_several_shapes():
    """The laws have an example of each kind."""
    assert from_python(iter(["a b"]), CLASSES).rows == [
        text.LabelledText("a b", None, None, 1)
    ]
    found = from_python([["it's", "so"], "it's so"], TAGS)
    places = [(0, 2), (2, 3), (3, 4), (5, 7)]
    assert found.rows == [
        ner.Sentence(("it's", "so"), None, 1, 1),
        ner.Sentence(("it", "'", "s", "so"), None, 2, 2, text="it's so", places=places),
    ]
    found = from_python([("who?", "me")], SPAN)
    assert found.rows == [squad.Question("1", "who?", "me", ())]
    assert found.has_impossible
    found = from_python([("a", list("wxyz")), ("a", "b", tuple("wxyz"))], CHOICE)
    assert found.rows == [
        choice_data.Question("a", "", ("w", "x", "y", "z"), None, 1),
        choice_data.Question("a", "b", ("w", "x", "y", "z"), None, 2),
    ]


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
