"""The part of a report about a run's files."""

import io

import pytest
from PIL import Image

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.labelled import data_report
from bert_keras.report import data_section, facts


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
    section = data_section.describe(report(file_report(), dev))
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
    plots = data_section.draw(made).axes
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
    (labels, _) = data_section.draw(report(file_report(labels=many))).axes
    assert labels.get_title() == "Labels, the commonest 20 of 60"
    assert len(labels.patches) == 20
    numbers = {"least": 0, "mean": 1, "deviation": 1, "greatest": 5}
    made = report(file_report(labels={}, numbers=numbers), kind="regression")
    (lengths,) = data_section.draw(made).axes
    assert lengths.get_title() == "Lengths"


def test_a_run_without_such_a_file_has_no_such_part(tmp_path):
    assert facts.read_data_report(tmp_path) is None
    path = tmp_path / "data_report.json"
    files.write_json(path, report(file_report()).model_dump(mode="json"))
    assert facts.read_data_report(tmp_path) == report(file_report())
    path.write_text('{"kind": "classification"}')
    with pytest.raises(InputError, match="data_report.json"):
        facts.read_data_report(tmp_path)
