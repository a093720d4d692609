"""Records of answers, as they are read from a run directory."""

import json

import pytest

from bert_keras.core.errors import InputError
from bert_keras.kinds import registry
from bert_keras.labelled import answers

RECORDS = {
    "classification": {
        "text": "a\u2028b\ud800",
        "text_pair": None,
        "line": 2,
        "label": "no",
        "prediction": "yes",
        "probabilities": {"no": 0.25, "yes": 0.75},
    },
    "regression": {
        "text": "a",
        "text_pair": "b",
        "line": 2,
        "label": 1,
        "prediction": 2.5,
    },
    "choice": {
        "text": "a",
        "beginning": "b",
        "endings": ["c", "d"],
        "line": 2,
        "label": 0,
        "prediction": 1,
        "probabilities": [0.25, 0.75],
    },
    "tagging": {
        "words": ["a", "b"],
        "line": 2,
        "labels": ["O", "B-PER"],
        "prediction": ["B-PER", "O"],
    },
    "span": {
        "id": "x",
        "question": "a?",
        "context": "b c",
        "answers": ["b"],
        "prediction": "",
        "probability": 0.5,
        "null_odds": 1.5,
        "best_text": "c",
    },
}


def write(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_is_read_as_it_was_written(tmp_path, kind):
    record = RECORDS[kind]
    path = write(tmp_path / "answers", record, {**record, "of_a_later_version": 1})
    first, second = answers.read_answers(path, registry.labelled(kind).record)
    assert first == second
    assert json.loads(json.dumps(first.model_dump())) == record


def test_what_follows_from_a_record(tmp_path):
    def read(kind):
        (record,) = answers.read_answers(
            write(tmp_path / kind, RECORDS[kind]), registry.labelled(kind).record
        )
        return record

    assert read("classification").confidence == 0.75
    assert read("regression").error == 1.5
    assert read("choice").confidence == 0.75


@pytest.mark.parametrize("kind", ("classification", "regression", "choice", "span"))
def test_numbers_that_are_not_finite_are_told(tmp_path, kind):
    changes = {
        "classification": {"probabilities": {"no": float("nan"), "yes": 1.0}},
        "regression": {"prediction": float("inf")},
        "choice": {"probabilities": [0.5, float("nan")]},
        "span": {"null_odds": float("nan")},
    }
    good, bad = RECORDS[kind], {**RECORDS[kind], **changes[kind]}
    records = answers.read_answers(
        write(tmp_path / "answers", good, bad), registry.labelled(kind).record
    )
    assert answers.are_finite(records[:1])
    assert not answers.are_finite(records)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("classification", {"label": 3}, "`label`: Input should be a valid string"),
        ("classification", {"label": "x"}, "no probability of the label 'x'"),
        ("regression", {"prediction": "x"}, "`prediction`: Input should be a valid n"),
        (
            "choice",
            {"prediction": 2},
            "2 endings, but 2 probabilities, label 0 and pre",
        ),
        ("choice", {"probabilities": [1.0]}, "2 endings, but 1 probabilities, label 0"),
        ("tagging", {"labels": ["O"]}, "2 words, but 1 labels and 2 predictions"),
        ("classification", {"label": None}, "`label`: Field required"),
        ("tagging", {"labels": None}, "`labels`: Field required"),
        ("span", {"answers": "b"}, "`answers`: Input should be a valid tuple"),
    ],
)
def test_a_damaged_record_is_refused(tmp_path, kind, change, message):
    path = write(tmp_path / "answers", RECORDS[kind], {**RECORDS[kind], **change})
    expected = (
        rf"answers: line 2: expected an answer as `finetune` writes it: {message}"
    )
    with pytest.raises(InputError, match=expected):
        answers.read_answers(path, registry.labelled(kind).record)


def test_a_file_that_is_none_is_refused(tmp_path):
    path = tmp_path / "answers"
    with pytest.raises(InputError, match="answers: expected a file of texts, cannot"):
        answers.read_answers(path, registry.labelled("span").record)
    path.write_text("")
    with pytest.raises(InputError, match="expected the answers of a run, found none"):
        answers.read_answers(path, registry.labelled("span").record)
    path.write_text('{"id": "x"')
    with pytest.raises(InputError, match="line 1: not JSON: "):
        answers.read_answers(path, registry.labelled("span").record)
    path.write_bytes(b"\xff\n")
    with pytest.raises(InputError, match="line 1: not UTF-8: "):
        answers.read_answers(path, registry.labelled("span").record)
    path.write_text("[1]\n")
    with pytest.raises(InputError, match="line 1: expected an answer as `finetune` wr"):
        answers.read_answers(path, registry.labelled("span").record)
