"""Answers on the page and in TensorBoard, from files as `finetune` leaves them."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import yaml
from PIL import Image

from bert_keras import report
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning
from bert_keras.report import event_log, task_summaries
from tests.bert_keras.report import test_report

TASKS = {
    "classification": config.Task(
        kind="classification", name="MRPC", labels=("0", "1")
    ),
    "regression": config.Task(kind="regression"),
    "choice": config.Task(kind="choice"),
    "tagging": config.Task(kind="tagging", labels=("O", "B-X", "I-X")),
    "span": config.Task(kind="span", has_impossible=True),
}
RECORDS = {
    "classification": {
        "text": "a <b> | c",
        "text_pair": "d",
        "line": 2,
        "label": "0",
        "prediction": "1",
        "probabilities": {"0": 0.25, "1": 0.75},
    },
    "regression": {
        "text": "a <b> | c",
        "text_pair": None,
        "line": 2,
        "label": 1.0,
        "prediction": 2.5,
    },
    "choice": {
        "text": "a <b> | c",
        "beginning": "d",
        "endings": ["e", "f"],
        "line": 2,
        "label": 0,
        "prediction": 1,
        "probabilities": [0.25, 0.75],
    },
    "tagging": {
        "words": ["a", "<b>", "|", "c"],
        "line": 2,
        "labels": ["O", "B-X", "I-X", "O"],
        "prediction": ["B-X", "O", "O", "O"],
    },
    "span": {
        "id": "q",
        "question": "a <b> | c",
        "context": "d e",
        "answers": ["d"],
        "prediction": "e",
        "probability": 0.5,
        "null_odds": -1.0,
        "best_text": "e",
    },
}
EVALUATION = {"f1": 0.5, "best_f1_thresh": -1.5, "dev2_total": 3, "num_unknown": 0}
PICTURES = {
    "classification": ["confusion_matrix", "scores_by_label", "calibration"],
    "regression": ["scatter"],
    "choice": ["places", "calibration"],
    "tagging": ["scores_by_type", "confusion_of_types"],
    "span": ["by_answer_length", "by_question_word", "null_odds"],
}


def finished_run(directory: Path, kind: str, **changes) -> Path:
    """A run directory with one curve and one answer."""
    directory.mkdir()
    settings = finetuning.FinetuningConfig(task="MRPC", num_train_epochs=1)
    files = {
        "config.yaml": yaml.safe_dump(settings.model_dump(mode="json")),
        "task.json": json.dumps(TASKS[kind].model_dump(mode="json")),
        "inputs.json": "{}",
        "bert_config.json": "{}",
        "results.json": json.dumps({"steps": 7, "eval": EVALUATION}),
        "dev_answers.jsonl": json.dumps({**RECORDS[kind], **changes}) + "\n",
    }
    for name, content in files.items():
        (directory / name).write_text(content)
    writer = tf.summary.create_file_writer(str(directory / "logs/train"))
    with writer.as_default(7):
        tf.summary.scalar("loss/loss", 0.5)
    writer.close()
    return directory


WITHOUT_TENSORFLOW = """
import sys
from bert_keras import report
for run in sys.argv[1:]:
    report.write_report(run)
sys.exit(bool({"tensorflow", "keras", "apache_beam"} & set(sys.modules)))
"""


@pytest.fixture(scope="module")
def reported(tmp_path_factory) -> Path:
    """A run of each kind with its report, all by one process without TensorFlow."""
    folder = tmp_path_factory.mktemp("reported")
    test_report.pretraining_run(folder / "run", results=test_report.RESULTS)
    for kind in TASKS:
        finished_run(folder / kind, kind)
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW, *sorted(folder.iterdir())]
    subprocess.run(command, check=True)
    return folder


def test_a_page_needs_no_tensorflow(reported):
    page = (reported / "run/report/report.md").read_text()
    assert page == test_report.PAGE


@pytest.mark.parametrize("kind", TASKS)
def test_the_page_shows_the_answers(reported, kind):
    output = reported / kind / "report"
    page = (output / "report.md").read_text()
    before, after = page.split("## Answers to the development file\n\n")
    assert "## Curves\n\n![loss](loss.png)\n" in before
    pictures = re.findall(r"^!\[.+\]\((.+)\.png\)$", after, re.MULTILINE)
    assert pictures == PICTURES[kind]
    assert {path.name for path in output.iterdir()} == {
        "report.md",
        "loss.png",
        *(f"{name}.png" for name in pictures),
    }
    for name in pictures:
        with Image.open(output / f"{name}.png") as image:
            assert len(image.convert("RGB").getcolors(1 << 20)) > 10
    titles = re.findall("^### (.+)$", after, re.MULTILINE)
    assert titles[-1] == "Worst mistakes"
    assert "<b>" not in after and "&#60;b&#62;" in after


def test_the_page_of_a_named_task(tmp_path):
    output = report.write_report(finished_run(tmp_path / "run", "classification"))
    page = (output / "report.md").read_text()
    assert "Fine-tuning for MRPC, classification, finished at step 7." in page
    assert (
        "bert-keras finetune --task MRPC --train TRAIN --dev DEV --init INIT "
        "--output_dir run \\\n    --set num_train_epochs=1.0\n```" in page
    )
    # What is counted is not better or worse.
    assert "| f1 | 0.5000 | 7 | 0.5000 | 7 |" in page
    assert "| best_f1_thresh | -1.5000 | 7 |  |  |" in page
    assert "| dev2_total | 3.0000 | 7 |  |  |" in page
    assert "| num_unknown | 0.0000 | 7 |  |  |" in page


def test_a_run_that_goes_on_shows_no_answers(tmp_path):
    run = finished_run(tmp_path / "run", "classification")
    (run / "results.json").unlink()
    output = report.write_report(run)
    page = (output / "report.md").read_text()
    assert "not finished" in page and "Answers" not in page
    assert {path.name for path in output.iterdir()} == {"report.md", "loss.png"}


def test_answers_that_are_missing_are_told(tmp_path):
    run = finished_run(tmp_path / "run", "classification")
    (run / "dev_answers.jsonl").unlink()
    page = (report.write_report(run) / "report.md").read_text()
    assert page.endswith(
        "## Answers to the development file\n\n"
        "`dev_answers.jsonl` is not in the run directory.\n"
    )
    with pytest.raises(InputError, match="dev_answers.jsonl: expected a file of texts"):
        task_summaries.write(run, step=7)


def test_damaged_answers_leave_no_report(tmp_path):
    run = finished_run(tmp_path / "run", "classification", label=3)
    with pytest.raises(InputError, match="dev_answers.jsonl: line 1: expected an answ"):
        report.write_report(run)
    assert not (run / "report").exists()


@pytest.mark.parametrize("number", [float("nan"), None])
def test_a_failed_training_is_told(tmp_path, number):
    nan = {"0": number, "1": number}
    run = finished_run(tmp_path / "run", "classification", probabilities=nan)
    page = (report.write_report(run) / "report.md").read_text()
    assert "numbers that are not finite, so its answers mean nothing" in page
    assert not (run / "report/confusion_matrix.png").exists()


@pytest.mark.parametrize("kind", TASKS)
def test_tensorboard_shows_the_same(reported, kind):
    run = reported / kind
    task_summaries.write(run, step=7)
    parts = task_summaries.read_sections(run)
    texts = event_log.read_log(run / "logs/panels").texts
    assert texts == {
        f"answers/{part.name}/text": event_log.Text(
            7, f"## {part.title}\n\n{part.text}"
        )
        for part in parts
        if part.text
    }
    images = images_of(run / "logs/panels")
    assert list(images) == [f"answers/{name}" for name in PICTURES[kind]]
    for name in PICTURES[kind]:
        with Image.open(run / f"report/{name}.png") as image:
            step, shown = images[f"answers/{name}"]
            assert step == 7
            np.testing.assert_array_equal(shown, np.asarray(image.convert("RGB")))


def images_of(directory: Path) -> dict[str, tuple[int, np.ndarray]]:
    """Step and pixels of each picture, read by TensorFlow."""
    (path,) = directory.iterdir()
    found = {}
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        event = tf.compat.v1.Event.FromString(record)
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "images":
                # After its width and height.
                png = value.tensor.string_val[2]
                found[value.tag] = event.step, tf.io.decode_png(png).numpy()
    return found


def test_a_run_is_named_in_any_way(tmp_path):
    run = finished_run(tmp_path / "run", "regression")
    strange = Path(shutil.copytree(run, tmp_path / "$x^{$ é"))
    assert (report.write_report(strange) / "loss.png").is_file()
