"""GLUE: every file read as it is, official scores, files for the leaderboard."""

import csv
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.kinds.text import glue, text_forms
from bert_keras.labelled import logit_scores
from tests.bert_keras.kinds import kind_data

# Rows that ../shared/data holds. Of QQP, MNLI and QNLI it is not all that is official.
ROWS = {
    "CoLA": {"train": 8551, "dev": 1043, "test": 1063},
    "SST-2": {"train": 67_349, "dev": 872, "test": 1821},
    "MRPC": {"train": 3668, "dev": 408, "test": 1725},
    "STS-B": {"train": 5749, "dev": 1500, "test": 1379},
    "RTE": {"train": 2490, "dev": 277, "test": 3000},
    "WNLI": {"train": 635, "dev": 71, "test": 146},
    "QNLI": {"train": 9999, "dev": 5463, "test": 5463},
    "QQP": {"train": 8999, "dev": 1000},
    "MNLI": {"train": 8999, "dev_matched": 1000},
    "AX": {"diagnostic": 1104},
}
# By place, counted from the end where files differ in the columns before.
PLACES = {
    **{"CoLA": (3, None, 1), "SST-2": (0, None, 1), "MRPC": (3, 4, 0)},
    **{"STS-B": (7, 8, 9), "QQP": (3, 4, 5), "MNLI": (8, 9, -1)},
    **dict.fromkeys(("QNLI", "RTE", "WNLI"), (1, 2, 3)),
}
TEST_PLACES = {
    **{"CoLA": (1, None), "SST-2": (1, None), "MRPC": (3, 4), "STS-B": (7, 8)},
    **dict.fromkeys(("QNLI", "RTE", "WNLI", "AX"), (1, 2)),
}


def write(directory: Path, name: str, content: str | bytes) -> Path:
    """Writes one file, as `MRPC/dev.tsv`, and returns the folder of all tasks."""
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    kind_data.write(path, content)
    return directory


@pytest.mark.parametrize(
    ("name", "split"),
    [(name, split) for name, splits in ROWS.items() for split in splits],
)
def test_every_file_is_read_to_its_last_row(shared_data, name, split):
    task = glue.TASKS[name]
    examples = glue.read(shared_data / "glue", name, split)
    assert len(examples) == ROWS[name][split]
    path = shared_data / "glue" / (task.folder or name) / f"{split}.tsv"
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    has_names = name != "CoLA" or split == "test"
    is_test = split in task.submissions
    first, second, label = (*TEST_PLACES[name], None) if is_test else PLACES[name]
    assert [tuple(example) for example in examples] == [
        (
            row[first],
            None if second is None else row[second],
            None if label is None else row[label],
            line,
        )
        for line, row in enumerate(rows[has_names:], start=1 + has_names)
    ]
    if is_test:
        assert len(examples) == task.submissions[split].num_rows


def test_files_of_cola_have_no_names_but_the_test_file_has(tmp_path):
    write(tmp_path, "CoLA/dev.tsv", "\ufeffgj04\t1\t\tIt rains.\r\nb\t0\t*\t\"A 'b")
    write(tmp_path, "CoLA/test.tsv", "index\tsentence\n0\tIt rains.\n")
    assert glue.read(tmp_path, "CoLA", "dev") == [
        ("It rains.", None, "1", 1),
        ("\"A 'b", None, "0", 2),
    ]
    assert glue.read(tmp_path, "CoLA", "test") == [("It rains.", None, None, 2)]


def test_gold_label_is_the_last_column_of_12_or_16(tmp_path):
    before = "index promptID pairID genre a b c d sentence1 sentence2".split()
    for num_annotators in (1, 5):
        annotators = [f"label{number + 1}" for number in range(num_annotators)]
        names = [*before, *annotators, "gold_label"]
        row = [*"01234567", "s", "t", *["neutral"] * num_annotators, "entailment"]
        content = "\t".join(names) + "\n\n" + "\t".join(row)
        write(tmp_path, "MNLI/dev_mismatched.tsv", content)
        rows = glue.read(tmp_path, "MNLI", "dev_mismatched")
        assert rows == [("s", "t", "entailment", 3)]


RTE = "index\tsentence1\tsentence2\tlabel\n"


@pytest.mark.parametrize(
    ("task", "split", "content", "message"),
    [
        ("RTE", "dev", RTE, r"RTE/dev.tsv: holds no rows, expected at least one"),
        *(
            (name, "dev", "", f"{name}/dev.tsv: holds no rows")
            for name in ("CoLA", "RTE")
        ),
        (
            *("RTE", "dev", RTE + "0\ta\tb\tentailment\n1\ta\tb\tneutral\n"),
            "dev.tsv: line 3: expected a label that is one of entailment, "
            "not_entailment, got 'neutral'$",
        ),
        ("CoLA", "train", "a\t2\t\tb\n", "train.tsv: line 1: .*one of 0, 1, got '2'"),
        (
            *("RTE", "train", RTE + "0\ta\tb\n"),
            r"RTE/train.tsv: line 2: expected 4 columns \(index, sentence1, sentence2, "
            r"label\), got 3$",
        ),
        ("CoLA", "train", "a\t1\tb\n", r"line 1: expected 4 columns \(source, label"),
        (
            *(
                "RTE",
                "train",
                RTE.replace("sentence2", "other") + "0\ta\tb\tentailment\n",
            ),
            r"train.tsv: no column 'sentence2' \(there: index, sentence1, other, label"
            r"\); did you mean 'sentence1'\?; rename it$",
        ),
        ("RTE", "train", b"index\n\xff", "RTE/train.tsv: line 2: not UTF-8"),
    ],
)
def test_bad_files_are_named(tmp_path, task, split, content, message):
    write(tmp_path, f"{task}/{split}.tsv", content)
    with pytest.raises(InputError, match=message):
        glue.read(tmp_path, task, split)


def test_scores_of_stsb_are_numbers_from_0_to_5(tmp_path):
    names = "index genre filename year old_index source1 source2 sentence1 sentence2"
    header = "\t".join([*names.split(), "score"])

    def read(label):
        row = "\t".join([*"0123456", "a", "b", label])
        write(tmp_path, "STS-B/train.tsv", f"{header}\n{row}\n")
        return glue.read(tmp_path, "STS-B", "train")

    assert read("5.000") == [("a", "b", "5.000", 2)]
    for label in ("5.2", "-1", "nan", "1e0", "", "high"):
        with pytest.raises(
            InputError, match="line 2: expected a label that is a number"
        ):
            read(label)


def test_missing_files_are_all_named(tmp_path):
    write(tmp_path, "MNLI/train.tsv", "")
    with pytest.raises(
        InputError,
        match="MNLI: no dev_matched.tsv, dev_mismatched.tsv: expected the folder of "
        "GLUE as it is unpacked, with MNLI in it$",
    ):
        glue.find_files(tmp_path, "MNLI")
    found = glue.find_files(tmp_path, "MNLI", ["train"])
    assert found == {"train": tmp_path / "MNLI" / "train.tsv"}
    assert glue.find_files(tmp_path, "AX") == {}
    with pytest.raises(InputError, match="diagnostic: no diagnostic.tsv: .*diagnostic"):
        glue.read(tmp_path, "AX", "diagnostic")
    with pytest.raises(InputError, match="MNLI: no dev.tsv"):
        glue.read(tmp_path, "MNLI", "dev")


def test_scores_are_the_official_ones_of_all():
    rng = np.random.default_rng(3)
    for name, metrics in (
        ("CoLA", ["loss", "matthews"]),
        ("MRPC", ["loss", "f1", "accuracy"]),
        ("MNLI", ["loss", "accuracy"]),
        ("STS-B", ["loss", "spearman", "pearson"]),
    ):
        width = len(glue.TASKS[name].labels or "1")
        logits = rng.normal(size=(50, width)).astype(np.float32)
        true = rng.integers(0, width + (width == 1) * 5, 50)
        kind = "classification" if glue.TASKS[name].labels else "regression"
        task = tasks.Task(kind=kind, name=name, labels=glue.TASKS[name].labels)
        found = text_forms.TextAnswers(
            rows=(), logits=logits, targets=true, task=task
        ).scores()
        assert list(found) == metrics
        assert found.items() <= logit_scores.scores(logits, true).items()


def test_submissions_spell_labels_as_the_training_files_do():
    for names, spelled in (
        (("MNLI", "AX"), ("contradiction", "entailment", "neutral")),
        (("QNLI", "RTE"), ("entailment", "not_entailment")),
        (("CoLA", "SST-2", "MRPC", "QQP", "WNLI"), ("0", "1")),
    ):
        lines = "".join(f"{row}\t{label}\n" for row, label in enumerate(spelled[::-1]))
        logits = np.eye(len(spelled), dtype=np.float32)[::-1]
        for name in names:
            table = glue.submission_tsv(name, logits)
            assert table == f"index\tprediction\n{lines}"
    # Numbers are from 0 to 5.
    numbers = np.float32([[-0.2], [2.34567], [5.4]])
    table = "index\tprediction\n0\t0.000\n1\t2.346\n2\t5.000\n"
    assert glue.submission_tsv("STS-B", numbers) == table


FILES = (
    *("CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv"),
    *("MNLI-mm.tsv", "QNLI.tsv", "RTE.tsv", "WNLI.tsv", "AX.tsv"),
)


@pytest.fixture(scope="module")
def tables() -> dict[str, str]:
    """Answers to every test file, in no special order."""
    return {
        submission.file_name: glue.submission_tsv(
            name, np.ones((submission.num_rows, len(task.labels or "1")))
        )
        for name, task in reversed(glue.TASKS.items())
        for submission in task.submissions.values()
    }


def test_the_archive_holds_all_files_and_no_trace_of_when(tables):
    archive = glue.submission_zip(tables)
    assert archive == glue.submission_zip(dict(sorted(tables.items())))
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        assert tuple(file.namelist()) == FILES
        assert {name: file.read(name).decode() for name in FILES} == tables
        for entry in file.infolist():
            assert (entry.date_time, entry.create_system) == ((1980, 1, 1, 0, 0, 0), 3)


def test_an_archive_that_would_be_refused_is_not_made(tables):
    short = tables["RTE.tsv"].removesuffix("2999\tentailment\n")
    with pytest.raises(
        InputError,
        match="RTE.tsv: 2,999 rows, but the official test file has 3,000: predict that",
    ):
        glue.submission_zip({**tables, "RTE.tsv": short})
