"""GLUE: every file read as it is, official scores, files for the leaderboard."""

import csv
import io
import logging
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.kinds.text import glue, text

# What ../shared/data holds. Of QQP, MNLI and QNLI it is not all that is official.
ROWS = {
    ("CoLA", "train"): 8551,
    ("CoLA", "dev"): 1043,
    ("CoLA", "test"): 1063,
    ("SST-2", "train"): 67_349,
    ("SST-2", "dev"): 872,
    ("SST-2", "test"): 1821,
    ("MRPC", "train"): 3668,
    ("MRPC", "dev"): 408,
    ("MRPC", "test"): 1725,
    ("STS-B", "train"): 5749,
    ("STS-B", "dev"): 1500,
    ("STS-B", "test"): 1379,
    ("RTE", "train"): 2490,
    ("RTE", "dev"): 277,
    ("RTE", "test"): 3000,
    ("WNLI", "train"): 635,
    ("WNLI", "dev"): 71,
    ("WNLI", "test"): 146,
    ("QNLI", "train"): 9999,
    ("QNLI", "dev"): 5463,
    ("QNLI", "test"): 5463,
    ("QQP", "train"): 8999,
    ("QQP", "dev"): 1000,
    ("MNLI", "train"): 8999,
    ("MNLI", "dev_matched"): 1000,
    ("AX", "diagnostic"): 1104,
}
# By place, counted from the end where files differ in the columns before.
PLACES = {
    "CoLA": (3, None, 1),
    "SST-2": (0, None, 1),
    "MRPC": (3, 4, 0),
    "STS-B": (7, 8, 9),
    "QQP": (3, 4, 5),
    "MNLI": (8, 9, -1),
    "QNLI": (1, 2, 3),
    "RTE": (1, 2, 3),
    "WNLI": (1, 2, 3),
}
TEST_PLACES = {
    **{"CoLA": (1, None), "SST-2": (1, None), "MRPC": (3, 4), "STS-B": (7, 8)},
    **{"QNLI": (1, 2), "RTE": (1, 2), "WNLI": (1, 2), "AX": (1, 2)},
}


def write(directory: Path, name: str, content: str | bytes) -> Path:
    """Writes one file, as `MRPC/dev.tsv`, and returns the folder of all tasks."""
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return directory


@pytest.mark.parametrize(("name", "split"), ROWS)
def test_every_file_is_read_to_its_last_row(shared_data, name, split):
    task = glue.TASKS[name]
    examples = glue.read(shared_data / "glue", name, split)
    assert len(examples) == ROWS[name, split]
    path = shared_data / "glue" / task.folder / f"{split}.tsv"
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
    else:
        text.label_ids(examples, task.labels, path=path)


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


QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
CUT_IN_TWO = '7\t1\t2\t"Is it\nso?\tWhy?\t0\n'


def test_broken_lines_are_left_out_of_qqp_train_alone(tmp_path, caplog):
    content = QQP + "5\t1\t2\ta\tb\t1\n" + CUT_IN_TWO + "8\t1\t2\t\td\t0\n"
    write(tmp_path, "QQP/train.tsv", content)
    with caplog.at_level(logging.WARNING):
        rows = glue.read(tmp_path, "QQP", "train")
    assert rows == [("a", "b", "1", 2), ("", "d", "0", 5)]
    assert "train.tsv: 2 broken lines left out, the first is line 3" in caplog.text
    write(tmp_path, "QQP/dev.tsv", content)
    with pytest.raises(InputError, match="dev.tsv: line 3: expected 6 columns"):
        glue.read(tmp_path, "QQP", "dev")
    write(tmp_path, "QQP/train.tsv", QQP + CUT_IN_TWO * 51)
    with pytest.raises(InputError, match="train.tsv: line 102: expected 6 columns"):
        glue.read(tmp_path, "QQP", "train")


RTE = "index\tsentence1\tsentence2\tlabel\n"


@pytest.mark.parametrize(
    ("task", "split", "content", "message"),
    [
        ("RTE", "dev", RTE, r"RTE/dev.tsv: holds no rows, expected at least one"),
        ("CoLA", "dev", "", "CoLA/dev.tsv: holds no rows"),
        ("RTE", "dev", "", "RTE/dev.tsv: holds no rows"),
        (
            "RTE",
            "dev",
            RTE + "0\ta\tb\tentailment\n1\ta\tb\tneutral\n",
            "dev.tsv: line 3: expected a label that is one of entailment, "
            "not_entailment, got 'neutral'$",
        ),
        ("CoLA", "train", "a\t2\t\tb\n", "train.tsv: line 1: .*one of 0, 1, got '2'"),
        (
            "RTE",
            "train",
            RTE + "0\ta\tb\n",
            r"RTE/train.tsv: line 2: expected 4 columns \(index, sentence1, sentence2, "
            r"label\), got 3$",
        ),
        ("CoLA", "train", "a\t1\tb\n", r"line 1: expected 4 columns \(source, label"),
        (
            "RTE",
            "train",
            "index\tsentence1\tsentence\tlabel\n0\ta\tb\tentailment\n",
            r"train.tsv: no column 'sentence2' \(there: index, sentence1, sentence, "
            r"label\): expected the columns of GLUE",
        ),
        ("RTE", "train", b"index\n\xff", "RTE/train.tsv: line 2: not UTF-8"),
    ],
)
def test_bad_files_are_named(tmp_path, task, split, content, message):
    write(tmp_path, f"{task}/{split}.tsv", content)
    with pytest.raises(InputError, match=message):
        glue.read(tmp_path, task, split)


@pytest.mark.parametrize("label", ["5.2", "-1", "nan", "1e0", "", "high"])
def test_scores_of_stsb_are_numbers_from_0_to_5(tmp_path, label):
    names = "index genre filename year old_index source1 source2 sentence1 sentence2"
    header = "\t".join([*names.split(), "score"])
    for score in ("5.000", label):
        row = "\t".join([*"0123456", "a", "b", score])
        write(tmp_path, "STS-B/train.tsv", f"{header}\n{row}\n")
        if score == "5.000":
            rows = glue.read(tmp_path, "STS-B", "train")
            assert rows == [("a", "b", "5.000", 2)]
    with pytest.raises(InputError, match="line 2: expected a label that is a number "):
        glue.read(tmp_path, "STS-B", "train")


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


def test_unknown_tasks_are_refused():
    with pytest.raises(
        InputError,
        match=r"expected a GLUE task \(CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, "
        r"WNLI, AX\), got 'COLA'",
    ):
        glue.find_task("COLA")
    with pytest.raises(InputError, match=r"got 'MNL'; did you mean 'MNLI'\?"):
        glue.find_task("MNL")


def test_labels_and_metrics_are_the_official_ones():
    yes_no, entailment = ("0", "1"), ("entailment", "not_entailment")
    inference = ("contradiction", "entailment", "neutral")
    assert {n: (t.labels, t.metrics) for n, t in glue.TASKS.items()} == {
        "CoLA": (yes_no, ("matthews",)),
        "SST-2": (yes_no, ("accuracy",)),
        "MRPC": (yes_no, ("f1", "accuracy")),
        "STS-B": (None, ("spearman", "pearson")),
        "QQP": (yes_no, ("f1", "accuracy")),
        "MNLI": (inference, ("accuracy",)),
        "QNLI": (entailment, ("accuracy",)),
        "RTE": (entailment, ("accuracy",)),
        "WNLI": (yes_no, ("accuracy",)),
        "AX": (inference, ("matthews",)),
    }
    main = {name: task.main_metric for name, task in glue.TASKS.items()}
    assert (main["MRPC"], main["STS-B"], main["CoLA"]) == ("f1", "spearman", "matthews")


def answers(labels: np.ndarray, num_labels: int) -> np.ndarray:
    return np.eye(num_labels, dtype=np.float32)[labels]


def test_two_class_scores_are_those_of_the_definitions():
    rng = np.random.default_rng(3)
    true, predicted = rng.integers(0, 2, (2, 200))
    tp, tn = (true & predicted).sum(), ((1 - true) & (1 - predicted)).sum()
    fp, fn = ((1 - true) & predicted).sum(), (true & (1 - predicted)).sum()
    logits = answers(predicted, 2)
    mrpc = glue.scores("MRPC", logits, true)
    assert list(mrpc) == ["loss", "f1", "accuracy"]
    assert mrpc["f1"] == pytest.approx(2 * tp / (2 * tp + fp + fn))
    assert mrpc["accuracy"] == pytest.approx((tp + tn) / 200)
    cola = glue.scores("CoLA", logits, true)
    assert list(cola) == ["loss", "matthews"]
    assert cola["matthews"] == pytest.approx(
        (tp * tn - fp * fn)
        / math.sqrt(float((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))
    )


def test_matthews_of_three_classes_is_that_of_the_definition():
    rng = np.random.default_rng(4)
    true, predicted = rng.integers(0, 3, (2, 300))
    table = np.zeros((3, 3))
    np.add.at(table, (true, predicted), 1)
    t, p = table.sum(axis=1), table.sum(axis=0)
    expected = (table.trace() * 300 - t @ p) / math.sqrt(
        float((300**2 - p @ p) * (300**2 - t @ t))
    )
    scores = glue.scores("AX", answers(predicted, 3), true)
    assert list(scores) == ["loss", "matthews"]
    assert scores["matthews"] == pytest.approx(expected)


def ranks(values: np.ndarray) -> np.ndarray:
    """Ties have the mean of their ranks."""
    below = (values[None, :] < values[:, None]).sum(axis=1)
    equal = (values[None, :] == values[:, None]).sum(axis=1)
    return below + (equal + 1) / 2


def test_correlations_are_those_of_the_definitions():
    rng = np.random.default_rng(5)
    true = np.float32(rng.integers(0, 26, 100) / 5)
    predicted = np.float32(true + rng.normal(size=100)).round(1)
    scores = glue.scores("STS-B", predicted[:, None], true)
    assert list(scores) == ["loss", "spearman", "pearson"]
    assert scores["pearson"] == pytest.approx(np.corrcoef(true, predicted)[0, 1])
    assert scores["spearman"] == pytest.approx(
        np.corrcoef(ranks(true), ranks(predicted))[0, 1]
    )


def test_scores_without_any_variation_are_zero_or_one():
    zeros, mixed = np.zeros(4, int), np.array([0, 1, 0, 1])
    numbers, constant = np.arange(4.0), np.full(4, 2.5)
    for true, predicted in ((zeros, mixed), (mixed, zeros), (zeros, zeros)):
        logits = answers(predicted, 2)
        assert glue.scores("CoLA", logits, true)["matthews"] == 0.0
        assert glue.scores("MRPC", logits, true)["f1"] == 0.0
    assert glue.scores("MRPC", answers(zeros, 2), zeros)["accuracy"] == 1.0
    for true, predicted in ((numbers, constant), (constant, numbers)):
        scores = glue.scores("STS-B", predicted[:, None], true)
        assert (scores["spearman"], scores["pearson"]) == (0.0, 0.0)
    one = glue.scores("STS-B", np.array([[1.0]]), np.array([1.0]))
    assert one == {"loss": 0.0, "spearman": 0.0, "pearson": 0.0}


def test_submissions_spell_labels_as_the_training_files_do():
    places = np.array([2, 0, 1])
    table = "index\tprediction\n0\tneutral\n1\tcontradiction\n2\tentailment\n"
    assert glue.submission_tsv("MNLI", answers(places, 3)) == table
    assert glue.submission_tsv("AX", answers(places, 3)) == table
    table = "index\tprediction\n0\tentailment\n1\tnot_entailment\n"
    for name in ("QNLI", "RTE"):
        assert glue.submission_tsv(name, answers(np.arange(2), 2)) == table
    table = "index\tprediction\n0\t0\n1\t1\n"
    for name in ("CoLA", "SST-2", "MRPC", "QQP", "WNLI"):
        assert glue.submission_tsv(name, answers(np.arange(2), 2)) == table
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
    some = {n: t for n, t in tables.items() if n not in ("AX.tsv", "WNLI.tsv")}
    with pytest.raises(InputError, match="has 11 files, missing: AX.tsv, WNLI.tsv"):
        glue.submission_zip(some)
    with pytest.raises(InputError, match="no files of .* GLUE: MNLI.tsv"):
        glue.submission_zip({**tables, "MNLI.tsv": ""})
    short = tables["RTE.tsv"].removesuffix("2999\tentailment\n")
    with pytest.raises(
        InputError,
        match="RTE.tsv: 2,999 rows, but the official test file has 3,000: predict that",
    ):
        glue.submission_zip({**tables, "RTE.tsv": short})
