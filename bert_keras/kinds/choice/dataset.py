"""The best of four endings: files of SWAG's shape, model inputs and answers.

A `.csv` or `.parquet` file has the columns of SWAG, of which `sent1`, `sent2`,
`ending0` to `ending3` and `label` are read. No TensorFlow.
"""

# Labels are None only in files without any, which are not asked for them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.special

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.kinds.choice import ChosenEnding
from bert_keras.labelled import (
    answers,
    dataset,
    logit_scores,
    reading,
    tables,
    tokenized,
)

NUM_ENDINGS = 4
LABELS = tuple(str(number) for number in range(NUM_ENDINGS))
"""Numbers of the endings, as classes in tables of answers."""

_ENDINGS = tuple(f"ending{number}" for number in range(NUM_ENDINGS))


class Question(NamedTuple):
    """One row of a file; the fields are those of `ChosenEnding`."""

    text: str
    """May be empty."""
    beginning: str
    """Beginning of the next sentence; may be empty."""
    endings: tuple[str, ...]
    """Four, each of which goes on with `beginning`."""
    label: int | None
    """Number of the right ending, from 0."""
    line: int
    """First line of the row in its file, from 1."""


def read(path: str | Path, *, has_label: bool = True) -> list[Question]:
    """Reads all rows of a file. Without `has_label`, `label` is `None`."""
    path = files.path(path)
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(
            f"{path}: expected a file named .csv or .parquet with the columns of SWAG, "
            f"got {path.suffix or 'no suffix'}"
        )
    expected = ["sent1", "sent2", *_ENDINGS] + ["label"] * has_label
    questions = []
    for row in reading.read_rows(path):
        # 1. The columns, the same in every row.
        values = [row.value(name, key=None) for name in expected]
        endings = {name for name in row.cells if re.fullmatch("ending[0-9]+", name)}
        if more := sorted(endings - set(_ENDINGS)):
            raise InputError(
                f"{path}: expected {NUM_ENDINGS} endings, but there is a column "
                f"{more[0]!r}"
            )
        # 2. The cells.
        first, second, *endings = (row.string(n, key=None) for n in expected[:6])
        if not (first + second).strip():
            raise row.error(
                "`sent1` and `sent2` are both empty: expected a text to be ended"
            )
        # Numbers in Parquet.
        if has_label and str(values[-1]) not in LABELS:
            raise row.error(
                f"expected a label from 0 to {NUM_ENDINGS - 1}, the number of the "
                f"right ending, got {values[-1]!r}"
            )
        label = int(values[-1]) if has_label else None
        questions.append(Question(first, second, tuple(endings), label, row.line))
    return reading.at_least_one(path, questions)


@dataclass(frozen=True, kw_only=True)
class ChoiceDataset(dataset.Dataset):
    """Rows of `Question`."""

    def keys(self) -> list[str]:
        return [f"{row.text}\0{row.beginning}" for row in self.rows]

    def contents(self) -> dataset.Contents:
        labels = [row.label for row in self.rows]
        return dataset.Contents(
            [(row.text, row.beginning, *row.endings) for row in self.rows],
            labels,
            labels=labels if self.has_labels else (),
            # An ending may follow one of the two parts before it.
            needs_all_texts=False,
        )

    def files(self, answers, *, suffix, decision=tasks.LIKELIEST) -> dict[str, str]:
        columns = logit_scores.prediction_columns(answers.logits, LABELS)
        rows = (row.cells for row in reading.read_rows(self.path))
        return {"predictions": tables.joined(rows, columns, suffix=suffix)}

    def describe(self) -> tasks.Task:
        return tasks.Task(kind="choice", name=self.name, has_text_pair=True)

    def encode(self, task, tokenizer, settings) -> tokenized.LabelledInputs:
        """Makes the inputs `[CLS] sentence [SEP] beginning ending [SEP]` of each ending
        (section 4.4 of the paper)."""
        pairs = (
            (row.text, f"{row.beginning} {ending}")
            for row in self.rows
            for ending in row.endings
        )
        length = settings.max_seq_length
        texts = tokenized.tokenize(pairs, tokenizer, max_seq_length=length)
        ids = np.arange(len(texts)).reshape(-1, NUM_ENDINGS)
        labels = {}
        if self.has_labels:
            labels["label_ids"] = np.array([q.label for q in self.rows], np.int32)
        groups = tokenized.GroupedTexts(texts=texts, ids=ids)
        return tokenized.LabelledInputs(texts=groups, labels=labels)

    def answer(self, outputs, inputs, task, settings) -> "ChoiceAnswers":
        return ChoiceAnswers(questions=self.rows, logits=outputs)


@dataclass(frozen=True, kw_only=True)
class ChoiceAnswers(dataset.Answers):
    """Endings that a model chooses."""

    questions: Sequence[Question]
    logits: np.ndarray
    """`(num_questions, 4)` float32."""

    def scores(self, *, decision=tasks.LIKELIEST) -> dict[str, float]:
        label_ids = np.array([question.label for question in self.questions])
        values = logit_scores.scores(self.logits, label_ids)
        return {name: values[name] for name in ("loss", "accuracy")}

    def records(self, *, decision=tasks.LIKELIEST) -> Iterator[answers.Record]:
        probabilities = scipy.special.softmax(self.logits.astype(float), axis=-1)
        for question, probs in zip(self.questions, probabilities, strict=True):
            yield ChosenEnding(
                **question._asdict(),
                prediction=int(probs.argmax()),
                probabilities=tuple(probs.tolist()),
            )
