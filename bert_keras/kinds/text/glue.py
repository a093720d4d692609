"""GLUE: the official folder in, scores and files for its leaderboard out. The eleven
data sets of gluebenchmark.com are read as they are unpacked. No TensorFlow."""

# A column of GLUE has one name; a first text is never missing.
# pyright: reportArgumentType=false

import io
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings.finetuning import TextColumns
from bert_keras.kinds.text import text
from bert_keras.labelled import reading

_SENTENCES = TextColumns(text="sentence1", text_pair="sentence2")


class Submission(NamedTuple):
    file_name: str
    num_rows: int
    """Rows of the official test file."""


@dataclass(frozen=True, kw_only=True)
class GlueTask:
    """A data set. Splits are named as their files, without `.tsv`."""

    folder: str | None = None
    """`None`: the name of the data set."""
    columns: TextColumns = _SENTENCES
    labels: tuple[str, ...] | None = ("0", "1")
    """Classes in the order of `run_classifier.py`; `None`: numbers from 0 to 5."""
    metrics: tuple[str, ...] = ("accuracy",)
    """Official metrics, as `logit_scores.scores` names them; the paper's first."""
    train: str | None = "train"
    """Split to train on; `None`: use the model of `same_model_as`."""
    dev: tuple[str, ...] = ("dev",)
    submissions: Mapping[str, Submission]
    """By test split."""
    same_model_as: str | None = None
    column_names: tuple[str, ...] | None = None
    """Columns of `train` and `dev`, if those files have no header."""


_ENTAILMENT = ("entailment", "not_entailment")
_MNLI_LABELS = ("contradiction", "entailment", "neutral")

TASKS: Mapping[str, GlueTask] = {
    "CoLA": GlueTask(
        columns=TextColumns(text="sentence"),
        metrics=("matthews",),
        submissions={"test": Submission("CoLA.tsv", 1063)},
        column_names=("source", "label", "mark", "sentence"),
    ),
    "SST-2": GlueTask(
        columns=TextColumns(text="sentence"),
        submissions={"test": Submission("SST-2.tsv", 1821)},
    ),
    "MRPC": GlueTask(
        columns=TextColumns(text="#1 String", text_pair="#2 String", label="Quality"),
        metrics=("f1", "accuracy"),
        submissions={"test": Submission("MRPC.tsv", 1725)},
    ),
    "STS-B": GlueTask(
        columns=_SENTENCES.model_copy(update={"label": "score"}),
        labels=None,
        metrics=("spearman", "pearson"),
        submissions={"test": Submission("STS-B.tsv", 1379)},
    ),
    "QQP": GlueTask(
        columns=TextColumns(
            text="question1", text_pair="question2", label="is_duplicate"
        ),
        metrics=("f1", "accuracy"),
        submissions={"test": Submission("QQP.tsv", 390_965)},
    ),
    "MNLI": GlueTask(
        # Files have 12 columns or, with the labels of five annotators, 16.
        columns=_SENTENCES.model_copy(update={"label": "gold_label"}),
        labels=_MNLI_LABELS,
        dev=("dev_matched", "dev_mismatched"),
        submissions={
            "test_matched": Submission("MNLI-m.tsv", 9796),
            "test_mismatched": Submission("MNLI-mm.tsv", 9847),
        },
    ),
    "QNLI": GlueTask(
        columns=TextColumns(text="question", text_pair="sentence"),
        labels=_ENTAILMENT,
        submissions={"test": Submission("QNLI.tsv", 5463)},
    ),
    "RTE": GlueTask(
        labels=_ENTAILMENT, submissions={"test": Submission("RTE.tsv", 3000)}
    ),
    "WNLI": GlueTask(submissions={"test": Submission("WNLI.tsv", 146)}),
    "AX": GlueTask(
        folder="diagnostic",
        labels=_MNLI_LABELS,
        metrics=("matthews",),
        train=None,
        dev=(),
        submissions={"diagnostic": Submission("AX.tsv", 1104)},
        same_model_as="MNLI",
    ),
}


def find_files(
    directory: str | Path, name: str, splits: Iterable[str] | None = None
) -> dict[str, Path]:
    """Finds the files of some splits of a task; `None`: those to train and to evaluate
    on. The official `directory` holds one folder for each task."""
    task = TASKS[name]
    if splits is None:
        splits = [*([task.train] if task.train else []), *task.dev]
    folder = files.path(directory) / (task.folder or name)
    paths = {split: folder / f"{split}.tsv" for split in splits}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        raise InputError(
            f"{folder}: no {', '.join(missing)}: expected the folder of GLUE as it is "
            f"unpacked, with {folder.name} in it"
        )
    return paths


def read(directory: str | Path, name: str, split: str) -> list[text.LabelledText]:
    """Reads all rows of a split; rows of a test split have no label."""
    task = TASKS[name]
    path = find_files(directory, name, [split])[split]
    columns = task.columns
    label_name = None if split in task.submissions else columns.label
    wanted = columns.text, columns.text_pair, label_name
    examples = []
    for row in read_rows(path, name):
        first, second, label = (
            c if c is None else row.value(c, key=None) for c in wanted
        )
        if label is not None:
            if task.labels is None:
                known = "a number from 0 to 5"
                is_number = re.fullmatch(r"[0-9]+(\.[0-9]*)?", label)
                is_known = is_number and float(label) <= 5
            else:
                known = f"one of {', '.join(task.labels)}"
                is_known = label in task.labels
            if not is_known:
                raise row.error(f"expected a label that is {known}, got {label!r}")
        examples.append(text.LabelledText(first, second, label, row.line))
    return reading.at_least_one(path, examples)


def read_rows(path: Path, name: str) -> Iterator[reading.Row]:
    """Yields the rows of a task's file with all columns; quotes are ordinary."""
    task, split = TASKS[name], path.stem
    lines = reading.read_lines(path)
    has_names = task.column_names is None or split in task.submissions
    names = lines[0].split("\t") if has_names else list(task.column_names or ())
    for number, line in enumerate(lines, start=1):
        fields = line.split("\t")
        if (number > 1 or not has_names) and fields != [""]:
            yield reading.make_row(path, number, names, fields)


def submission_tsv(name: str, logits: np.ndarray) -> str:
    """Returns the table of answers to a test file for the leaderboard.

    `logits` are `(num_rows, num_labels)`, in the order of the file. After the line
    `index`, `prediction`, each row has its number, from 0, and the label as the
    training file spells it; for STS-B the number, within 0 to 5.
    """
    labels = TASKS[name].labels
    if labels is None:
        answers = [f"{number:.3f}" for number in np.clip(logits[:, 0], 0.0, 5.0)]
    else:
        answers = [labels[place] for place in logits.argmax(axis=-1)]
    lines = [f"{index}\t{answer}\n" for index, answer in enumerate(answers)]
    return "index\tprediction\n" + "".join(lines)


_SUBMISSIONS = {
    submission.file_name: (submission.num_rows, task.same_model_as or name)
    for name, task in TASKS.items()
    for submission in task.submissions.values()
}
"""Rows of each file of a submission, and the task of the model that answers it."""


def check_is_whole(model_tasks: Collection[str | None]) -> None:
    """Refuses models of these tasks if a file of a submission has none."""
    missing = {n: t for n, (_, t) in _SUBMISSIONS.items() if t not in model_tasks}
    if missing:
        raise InputError(
            f"a submission to GLUE has {len(_SUBMISSIONS)} files, missing: "
            f"{', '.join(missing)}: give runs on "
            f"{', '.join(dict.fromkeys(missing.values()))} too"
        )


def submission_zip(tables: Mapping[str, str]) -> bytes:
    """Returns the archive to upload; equal bytes for equal answers. `tables` are the
    `submission_tsv` of every `Submission`, by file name."""
    archive = io.BytesIO()
    # Not compressed: releases of zlib differ in their bytes.
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
        for name, (expected, _) in _SUBMISSIONS.items():
            num_rows = tables[name].count("\n") - 1
            if num_rows != expected:
                raise InputError(
                    f"{name}: {num_rows:,} rows, but the official test file has "
                    f"{expected:,}: predict that one"
                )
            entry = zipfile.ZipInfo(name)
            # By default an entry names the system that wrote it.
            # 3 is Unix, with permissions in the upper half; the date is 1980-01-01.
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            file.writestr(entry, tables[name])
    return archive.getvalue()
