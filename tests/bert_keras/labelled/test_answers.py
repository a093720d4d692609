"""Records of answers, as they are read from a run directory."""

import json
import math

import pytest

from bert_keras.core.errors import InputError
from bert_keras.kinds import registry
from bert_keras.labelled import answers

RECORDS = {
    "classification": {
        **{"text": "a\u2028b\ud800", "text_pair": None, "line": 2},
        **{"label": "no", "prediction": "yes"},
        "probabilities": {"no": 0.25, "yes": 0.75},
    },
    "regression": {
        **{"text": "a", "text_pair": "b", "line": 2},
        **{"label": 1, "prediction": 2.5},
    },
    "choice": {
        **{"text": "a", "beginning": "b", "endings": ["c", "d"], "line": 2},
        **{"label": 0, "prediction": 1, "probabilities": [0.25, 0.75]},
    },
    "tagging": {
        **{"words": ["a", "b"], "line": 2},
        **{"labels": ["O", "B-PER"], "prediction": ["B-PER", "O"]},
    },
    "span": {
        **{"id": "x", "question": "a?", "context": "b c", "answers": ["b"]},
        **{"prediction": "", "probability": 0.5, "null_odds": 1.5, "best_text": "c"},
    },
}


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_record_of_a_later_version_is_read(tmp_path):
    record = RECORDS["classification"]
    path = write(tmp_path / "answers", record, {**record, "of_a_later_version": 1})
    kind = registry.labelled("classification")
    first, second = answers.read_answers(path, kind.record)
    assert first == second
    assert json.loads(json.dumps(first.model_dump())) == record


def test_what_follows_from_a_record():
    for kind, name, value in (
        ("classification", "confidence", 0.75),
        ("regression", "error", 1.5),
        ("choice", "confidence", 0.75),
    ):
        record = registry.labelled(kind).record.model_validate(RECORDS[kind])
        assert getattr(record, name) == value


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("classification", {"probabilities": {"no": math.nan, "yes": 1.0}}),
        ("regression", {"prediction": math.inf}),
        ("choice", {"probabilities": [0.5, math.nan]}),
        ("span", {"null_odds": math.nan}),
    ],
)
def test_numbers_that_are_not_finite_are_told(kind, change):
    good, bad = (
        registry.labelled(kind).record.model_validate(RECORDS[kind] | more)
        for more in ({}, change)
    )
    assert answers.are_finite([good])
    assert not answers.are_finite([good, bad])


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("classification", {"label": 3}, "`label`: Input should be a valid string"),
        ("classification", {"label": "x"}, "no probability of the label 'x'"),
        ("regression", {"prediction": "x"}, "`prediction`: Input should be a valid n"),
        ("choice", {"prediction": 2}, "2 endings, but 2 probabilities, label 0 and p"),
        ("choice", {"probabilities": [1.0]}, "2 endings, but 1 probabilities, label 0"),
        ("tagging", {"labels": ["O"]}, "2 words, but 1 labels and 2 predictions"),
        ("classification", {"label": None}, "`label`: Field required"),
        ("tagging", {"labels": None}, "`labels`: Field required"),
        ("span", {"answers": "b"}, "`answers`: Input should be a valid tuple"),
    ],
)
def test_a_damaged_record_is_refused(tmp_path, kind, change, message):
    path = write(tmp_path / "answers", RECORDS[kind], {**RECORDS[kind], **change})
    expected = "answers: line 2: expected an answer as `finetune` writes it: "
    with pytest.raises(InputError, match=expected + message):
        answers.read_answers(path, registry.labelled(kind).record)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "answers: expected a file of texts, cannot"),
        (b"", "expected the answers of a run, found none"),
        (b'{"id": "x"', "line 1: not JSON: "),
        (b"\xff\n", "line 1: not UTF-8: "),
        (b"[1]\n", "line 1: expected an answer as `finetune` wr"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, content, message):
    path = tmp_path / "answers"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        answers.read_answers(path, registry.labelled("span").record)
