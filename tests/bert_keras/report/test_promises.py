"""The promise of a calibrated run on its pages."""

import pytest

from bert_keras.checkpoints import run_directory
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.report import model_card, promises, writing
from tests.bert_keras.report import runs, test_model_card

PROMISE = tasks.Calibration(
    data_sha256="ab" * 32,
    examples="texts",
    precision=0.95,
    confidence=0.99,
    temperature=1.71234,
    threshold=0.912345,
    num_rows=3000,
    num_answered=2610,
    num_wrong=99,
    curve=((0.0, 1.0), (0.5, 0.99), (0.87, 0.962), (1.0, 0.91)),
    before=((0.6, 0.5, 0.25), (0.95, 0.9, 0.75)),
    after=((0.55, 0.5, 0.25), (0.9, 0.9, 0.75)),
)
SENTENCE = (
    "Of 1,000 texts like these it answers 870, and at most 5 of 100 answers are wrong "
    "(99 % sure)."
)
FACTS = (
    "An answer is given from a probability of 0.912345 on, else it is empty. Of 3,000 "
    "rows that were neither trained on nor used for the temperature, 2,610 got an "
    "answer, of which 99 are wrong. The temperature is 1.71: the expected calibration "
    "error was 6.2 % before and is 1.3 %."
)


def promised(run, promise=PROMISE):
    """A run with weights of no tensors, and a promise."""
    (run / run_directory.WEIGHTS_NAME).write_bytes((2).to_bytes(8, "little") + b"{}")
    run_directory.write_calibration(run, promise)
    return run


def test_sentences():
    assert promises.sentence(PROMISE) == SENTENCE
    assert promises.facts(PROMISE) == FACTS
    rare = PROMISE.model_copy(update={"precision": 0.999, "num_answered": 1})
    assert "answers 0, and at most 0.1 of 100 answers" in promises.sentence(rare)


def test_a_promise_for_each_label(tmp_path):
    changes = {
        "threshold": 0.0,
        "label_thresholds": {"good": 0.75, "b_d": 0.9},
        "by_label": {
            "b_d": (1200, 1000, 40),
            "good": (1500, 1610, 59),
            "so": (300, 0, 0),
        },
    }
    promise = PROMISE.model_copy(update=changes)
    assert promises.sentence(promise) == SENTENCE.replace(
        "at most", "of each label at most"
    )
    assert promises.facts(promise) == FACTS.replace(
        "a probability of 0.912345", "a threshold of its label"
    )
    rows = [
        ["label", "given from", "rows", "given", "wrong"],
        ["b_d", "0.9", "1,200", "1,000", "40"],
        ["good", "0.75", "1,500", "1,610", "59"],
        ["so", "never", "300", "0", "0"],
    ]
    assert promises.by_label(promise) == rows
    assert promises.by_label(PROMISE) == []
    text = promises.section(promise).text
    assert "| b&#95;d | 0.9 | 1,200 | 1,000 | 40 |" in text
    run = promised(test_model_card.make_run(tmp_path / "run"), promise)
    for form, answer in {
        "onnx": "its label's of `thresholds`",
        "saved_model": "never",
    }.items():
        assert answer in model_card.text(run, name="run", form=form)


def test_the_report_begins_with_it(tmp_path):
    run = promised(runs.finished_run(tmp_path / "run"))
    page = writing.write_report(run)
    text = (page / "report.md").read_text()
    assert "promise.png" in text and (page / "promise.png").stat().st_size > 10_000
    place = text.index(
        f"## When it answers\n\n![When it answers](promise.png)\n\n**{SENTENCE}"
    )
    assert place < text.index("## Answers to the development file")
    assert FACTS in text
    # Weights of another training.
    (run / run_directory.WEIGHTS_NAME).write_bytes((2).to_bytes(8, "little") + b"[]")
    with pytest.raises(InputError, match="was made for other weights than those"):
        writing.write_report(run)
    assert (page / "report.md").read_text() == text


@pytest.mark.parametrize("form", model_card.LIBRARIES)
def test_the_card_of_a_format_that_knows_it(form, tmp_path):
    run = promised(test_model_card.make_run(tmp_path / "run"))
    card = model_card.text(run, name="run", form=form)
    knows_it = form not in ("hugging_face", "sentence_transformers")
    assert (f"## When it answers\n\n{SENTENCE}\n\n{FACTS}" in card) == knows_it
    assert ("divide logits and scores by `temperature`" in card) == (
        form in ("onnx", "litert")
    )
    vectors = model_card.text(run, name="run", form=form, has_answers=False)
    assert "## When it answers" not in vectors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": "high"}, "`threshold`: input should be a valid number"),
        ({"temprature": 1}, "no key 'temprature'; did you mean 'temperature'?"),
    ],
)
def test_a_file_that_was_edited_is_refused(change, message, tmp_path):
    run = promised(runs.finished_run(tmp_path / "run"))
    path = run / run_directory.CALIBRATION_NAME
    values = run_directory.files.read_json(path) | change
    run_directory.files.write_json(path, values)
    with pytest.raises(InputError, match=f"calibration.json: {message}"):
        run_directory.read_calibration(run)
