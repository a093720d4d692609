"""Examples given as Python objects."""

import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import config
from bert_keras.kinds import registry
from bert_keras.kinds.choice import swag
from bert_keras.kinds.span import squad
from bert_keras.kinds.tagging import ner
from bert_keras.kinds.text import text

CLASSES = config.Task(kind="classification", labels=("0", "1"))
PAIRS = CLASSES.model_copy(update={"has_text_pair": True})
NUMBERS = config.Task(kind="regression")
TAGS = config.Task(kind="tagging", labels=("O", "B-X", "I-X"))
SPAN = config.Task(kind="span", has_text_pair=True, has_impossible=True)
CHOICE = config.Task(kind="choice", has_text_pair=True)


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
    assert found.sentences == [
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
    assert found.questions == squad.QuestionSet(
        (squad.Question("1", "who?", "me", ()),), True, 0, ()
    )
    found = from_python([("a", list("wxyz")), ("a", "b", tuple("wxyz"))], CHOICE)
    assert found.questions == [
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
        (TAGS, [" "], "example 1: expected a string, or a list of words, got ' '"),
        (SPAN, [("who?",)], "example 1: expected a question and its context, got "),
        (CHOICE, [("a", ["b"])], "if any, four endings, got "),
        (CHOICE, [("a", "b", "c", list("wxyz"))], "if any, four endings, got "),
        (CHOICE, [("a", "wxyz")], "if any, four endings, got "),
        (CHOICE, [3], "if any, four endings, got 3"),
        (CLASSES, [], "expected at least one example, got none"),
    ],
)
def test_examples_of_another_shape_are_refused(task, examples, message):
    with pytest.raises(InputError, match=message):
        from_python(examples, task)
