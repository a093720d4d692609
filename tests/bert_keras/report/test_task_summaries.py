"""Files and answers on the page and in TensorBoard, as `finetune` leaves them."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from PIL import Image

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.kinds import registry
from bert_keras.labelled import data_report
from bert_keras.report import facts, task_summaries, writing
from tests.bert_keras.report import runs

KIND = registry.labelled("classification")
PICTURES = ["confusion_matrix", "scores_by_label", "calibration"]


@pytest.fixture
def run(tmp_path) -> Path:
    return runs.finished_run(tmp_path / "run")


def test_the_page_shows_the_answers(reported):
    output = reported / "classification/report"
    page = (output / "report.md").read_text()
    _, after = page.split("## Answers to the development file\n\n")
    after, rest = after.split("## Curves\n\n")
    assert rest.startswith("![loss](loss.png)\n")
    pictures = re.findall(r"^!\[.+\]\((.+)\.png\)$", after, re.MULTILINE)
    assert pictures == PICTURES
    names = {
        "report.md",
        "report.html",
        "loss.png",
        *(f"{name}.png" for name in pictures),
    }
    assert {path.name for path in output.iterdir()} == names
    for name in pictures:
        with Image.open(output / f"{name}.png") as image:
            assert len(image.convert("RGB").getcolors(1 << 20)) > 10
    titles = re.findall("^### (.+)$", after, re.MULTILINE)
    assert titles[:2] == ["Worst mistakes", "Confusion matrix"]
    assert "<b>" not in after and "&#60;b&#62;" in after
    for line in (
        "Fine-tuning for MRPC, classification, finished at step 7.",
        "bert-keras finetune --task MRPC --train TRAIN --dev DEV --init INIT "
        "--output_dir classification \\\n    --set num_train_epochs=1.0\n```",
        # What is counted is not better or worse.
        "| f1 | 0.5000 | 7 | 0.5000 | 7 |",
        "| best_f1_thresh | -1.5000 | 7 |  |  |",
        "| dev2_total | 3.0000 | 7 |  |  |",
        "| num_unknown | 0.0000 | 7 |  |  |",
    ):
        assert line in page


def test_tensorboard_shows_the_same(run, reported):
    task_summaries.write(KIND, run, step=7)
    texts, images = shown_in(run / "logs/panels")
    assert texts == {
        f"answers/{part.name}/text": (7, f"## {part.title}\n\n{part.text}")
        for part in task_summaries.read_sections(KIND, run)
        if part.text
    }
    assert list(images) == [f"answers/{name}" for name in PICTURES]
    for name in PICTURES:
        with Image.open(reported / f"classification/report/{name}.png") as image:
            step, pixels = images[f"answers/{name}"]
            assert step == 7
            np.testing.assert_array_equal(pixels, np.asarray(image.convert("RGB")))


def shown_in(directory: Path) -> tuple[dict, dict]:
    """Step and text, step and pixels of each picture, read by TensorFlow."""
    (path,) = directory.glob("events.*")
    texts, images = {}, {}
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        event = tf.compat.v1.Event.FromString(record)
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "images":
                # After its width and height.
                png = value.tensor.string_val[2]
                images[value.tag] = event.step, tf.io.decode_png(png).numpy()
            if value.metadata.plugin_data.plugin_name == "text":
                texts[value.tag] = event.step, value.tensor.string_val[0].decode()
    return texts, images


def scored(directory: Path, *, num: int, results: dict) -> str:
    """The sentence about `num` texts, of which three in five are "no" and three in four
    answers are right."""
    settings = finetuning.FinetuningConfig(task="text")
    runs.write_settings(directory, settings, kind="classification", inputs={})
    labels = ["no"] * (3 * num // 5) + ["y|s"] * (num - 3 * num // 5)
    others = {"no": "y|s", "y|s": "no"}
    answer = runs.ANSWER | {"probabilities": dict.fromkeys(others, 0.5)}
    lines = (
        answer
        | {"label": label, "prediction": label if n % 4 else others[label], "line": n}
        for n, label in enumerate(labels, start=1)
    )
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "dev_answers.jsonl").write_text(text)
    return task_summaries.score_sentence(KIND, directory, {"eval": results})


def test_the_score_has_an_interval_and_a_baseline(tmp_path):
    sentence = scored(tmp_path / "run", num=400, results={"accuracy": 0.75})
    assert sentence == (
        "**accuracy 0.750** on the development file, 400 examples; 95 % interval 0.708 "
        "to 0.792, by resampling them. Always answering <em>no</em> scores 0.600."
    )
    # The right answers of 400 follow a binomial distribution.
    expected = scipy.stats.binom.ppf((0.025, 0.975), 400, 0.75) / 400
    found = [float(number) for number in re.findall(r"0\.7\d\d(?= to|,)", sentence)]
    np.testing.assert_allclose(found, expected, atol=0.006)
    # Resamples of few examples are alike, and a score that is missing is not told.
    assert scored(tmp_path / "few", num=10, results={"accuracy": 0.8}) == (
        "**accuracy 0.800** on the development file, 10 examples. "
        "Always answering <em>no</em> scores 0.600."
    )
    assert scored(tmp_path / "none", num=10, results={"accuracy": None}) == ""
    span = registry.labelled("span")
    run = tmp_path / "span"
    settings = finetuning.FinetuningConfig(task="span")
    runs.write_settings(run, settings, kind="span", inputs={})
    names = ("id", "question", "context", "prediction", "best_text")
    answer = dict.fromkeys(names, "x") | {"answers": ["x"], "probability": 1.0}
    for num, interval in ((10, ""), (400, "; 95 % interval 70.5 to 79.0, by resam")):
        text = "".join(
            json.dumps(answer | ({} if n % 4 else {"answers": ["y"]})) + "\n"
            for n in range(num)
        )
        (run / "dev_answers.jsonl").write_text(text)
        sentence = task_summaries.score_sentence(span, run, {"eval": {"f1": 75.0}})
        told = f"**f1 75.0 %** on the development file, {num} examples"
        assert sentence.startswith(told + interval)


def test_the_page_in_html_holds_the_pictures_and_more_mistakes(tmp_path):
    run = runs.finished_run(tmp_path / "run")
    lines = (runs.ANSWER | {"line": n, "text": f"<b>{n}"} for n in range(1, 61))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "dev_answers.jsonl").write_text(text)
    output = writing.write_report(run)
    page, long = (
        (output / "report.md").read_text(),
        (output / "report.html").read_bytes(),
    )
    body = long.decode().partition("<main>")[2].partition("</main>")[0]
    # 1. All pictures, in their order.
    names = re.findall(r"\]\((.+?\.png)\)", page)
    pictures = re.findall('base64,(.+?)"', body)
    files_of = [(output / name).read_bytes() for name in names]
    assert [base64.b64decode(picture) for picture in pictures] == files_of
    # 2. The same headings: the mistakes first, the settings last.
    titles = re.findall("<h[23].*?>(.+?)</h", body)
    assert titles == re.findall("^##+ (.+)$", page, re.MULTILINE)
    assert titles[1] == "Worst mistakes" and titles[-1] == "Model, data and settings"
    # 3. Mistakes to filter, of which the other page has the worst.
    assert "60 of 60 answers are wrong; the 20 most confident:" in page
    assert "60 of 60 answers are wrong; first those most confident:" in body
    assert [f"<td>&lt;b&gt;{n}</td>" in body for n in (1, 60, 61)] == [
        True,
        True,
        False,
    ]
    assert "&#60;b&#62;20" in page and "&#60;b&#62;21" not in page
    # 4. A second time, the same bytes.
    assert (writing.write_report(run) / "report.html").read_bytes() == long


def test_a_run_that_goes_on_shows_no_answers(run):
    (run / "results.json").unlink()
    output = writing.write_report(run)
    page = (output / "report.md").read_text()
    assert "not finished" in page and "Answers" not in page
    assert {path.name for path in output.iterdir()} == {
        "report.md",
        "report.html",
        "loss.png",
    }


def test_answers_that_are_missing_are_told(run):
    (run / "dev_answers.jsonl").unlink()
    page = (writing.write_report(run) / "report.md").read_text()
    told = "`dev_answers.jsonl` is not in the run directory."
    assert f"## Answers to the development file\n\n{told}\n\n## Curves" in page
    with pytest.raises(InputError, match="dev_answers.jsonl: expected a file of texts"):
        task_summaries.write(KIND, run, step=7)


def test_damaged_answers_leave_no_report(tmp_path):
    run = runs.finished_run(tmp_path / "run", label=3)
    with pytest.raises(InputError, match="dev_answers.jsonl: line 1: expected an answ"):
        writing.write_report(run)
    assert not (run / "report").exists()


@pytest.mark.parametrize("number", [float("nan"), None])
def test_a_failed_training_is_told(tmp_path, number):
    probabilities = {"0": number, "1": number}
    run = runs.finished_run(tmp_path / "run", probabilities=probabilities)
    page = (writing.write_report(run) / "report.md").read_text()
    assert "numbers that are not finite, so its answers mean nothing" in page
    assert not (run / "report/confusion_matrix.png").exists()


def test_a_run_is_named_in_any_way(tmp_path):
    run = runs.finished_run(tmp_path / "$x^{$ é")
    assert (writing.write_report(run) / "loss.png").is_file()


# === The files ===


def file_report(name="train.tsv", **changes) -> data_report.FileReport:
    values = {
        "file": name,
        "num_examples": 200,
        "labels": {"good": 150, "bad": 50},
        "lengths": {
            "median": 10,
            "percentile_95": 60,
            "longest": 80,
            "num_long": 30,
            "bin_width": 40,
            "counts": (170, 30),
        },
        "num_empty": 0,
        "num_repeated": 1,
        "num_contradicted": 0,
    }
    return data_report.FileReport.model_validate(values | changes)


def report(*reports: data_report.FileReport, **changes) -> data_report.DataReport:
    values = {"kind": "classification", "max_seq_length": 40, "files": reports}
    return data_report.DataReport(**(values | changes))


def test_problems_come_first_and_counts_in_a_table():
    dev = file_report("a|b.tsv", num_in_training=20, in_training=("a <b>",))
    section = writing.describe_data(report(file_report(), dev))
    problems, table = section.text.split("\n\n")
    assert problems.splitlines()[1].startswith(
        "- a&#124;b.tsv: 20 of 200 (10.0 %) of the texts are in train.tsv too"
    )
    assert "&#60;b&#62;" in problems
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert ["longer than `max_seq_length`", "30 (15.0 %)", "30 (15.0 %)"] in rows
    assert ["text is in the training file", "", "20 (10.0 %)"] in rows
    assert rows[-2:] == [
        ["label good", "150 (75.0 %)", "150 (75.0 %)"],
        ["label bad", "50 (25.0 %)", "50 (25.0 %)"],
    ]
    with Image.open(io.BytesIO(section.picture)) as image:
        assert image.width > image.height


def test_the_picture_has_labels_and_lengths():
    made = report(file_report(), file_report("dev.tsv", labels={"bad": 200}))
    plots = writing.draw_data(made).axes
    labels, lengths = plots
    assert [text.get_text() for text in labels.get_yticklabels()] == ["good", "bad"]
    widths = [bar.get_width() for bar in labels.patches]
    assert widths == [75, 25, 0, 100]
    assert [text.get_text() for text in lengths.texts] == ["max_seq_length 40"]
    line = lengths.lines[0]
    assert line.get_xdata().tolist() == [0, 40, 80]
    assert line.get_ydata().tolist() == [0, 85, 100]


def test_many_labels_are_the_commonest_and_numbers_have_none():
    many = {f"\u202e label {n}": 1000 - n for n in range(60)}
    (labels, _) = writing.draw_data(report(file_report(labels=many))).axes
    assert labels.get_title() == "Labels, the commonest 20 of 60"
    assert len(labels.patches) == 20
    numbers = {"least": 0, "mean": 1, "deviation": 1, "greatest": 5}
    made = report(file_report(labels={}, numbers=numbers), kind="regression")
    (lengths,) = writing.draw_data(made).axes
    assert lengths.get_title() == "Lengths"


def test_a_run_without_such_a_file_has_no_such_part(tmp_path):
    assert facts.read_data_report(tmp_path) is None
    path = tmp_path / "data_report.json"
    files.write_json(path, report(file_report()).model_dump(mode="json"))
    assert facts.read_data_report(tmp_path) == report(file_report())
    path.write_text('{"kind": "classification"}')
    with pytest.raises(InputError, match="data_report.json"):
        facts.read_data_report(tmp_path)
