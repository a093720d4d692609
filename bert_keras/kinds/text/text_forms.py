"""Texts and pairs of texts with labels or numbers, and the answers to them."""

# Labels are None only in files without any, which are not asked for them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportOptionalIterable=false, reportOptionalMemberAccess=false

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.special

from bert_keras.core.errors import InputError, check_choice
from bert_keras.core.settings import finetuning, tasks
from bert_keras.kinds.text import (
    ClassifiedText,
    MultiLabelText,
    RatedText,
    glue,
    multi_label,
    text,
)
from bert_keras.labelled import (
    answers,
    dataset,
    logit_scores,
    reading,
    tables,
    text_windows,
    tokenized,
)

logger = logging.getLogger(__name__)

KINDS: tuple[tasks.TaskKind, ...] = ("classification", "multi_label", "regression")
"""Kinds of tasks on texts."""


@dataclass(frozen=True, kw_only=True)
class TextDataset(dataset.Dataset):
    """Rows of `text.LabelledText`, with a class, several or a number each."""

    kind: tasks.TaskKind
    """One of `KINDS`."""
    columns: finetuning.TextColumns = finetuning.TextColumns()
    positive_label: str | None = None
    """See `FinetuningConfig.positive_label`."""

    def keys(self) -> list[str]:
        return [f"{row.text}\0{row.text_pair or ''}" for row in self.rows]

    def contents(self) -> dataset.Contents:
        num_texts = 1 if self.rows[0].text_pair is None else 2
        texts = [row[:num_texts] for row in self.rows]
        labels = [row.label for row in self.rows]
        if not self.has_labels:
            return dataset.Contents(texts, labels)
        if self.kind == "classification":
            return dataset.Contents(texts, labels, labels=labels)
        if self.kind == "regression":
            # 1 and 1.0 are the same answer.
            numbers = [*map(float, labels)]
            return dataset.Contents(texts, numbers, numbers=numbers)
        each = [label for several in labels for label in several or (dataset.NO_LABEL,)]
        return dataset.Contents(texts, [*map(frozenset, labels)], labels=each)

    def files(self, answers, *, suffix, threshold=None) -> dict[str, str]:
        rows = reading.cells_of(self.path)
        if self.name is not None:
            rows = glue.cells_of(self.path, self.name)
        columns = answers.columns(threshold=threshold)
        separator = self.columns.label_separator
        content = tables.joined(rows, columns, suffix=suffix, separator=separator)
        return {"predictions": content}

    def describe(self) -> tasks.Task:
        labels = positive_label = None
        if self.name is not None:
            labels = glue.TASKS[self.name].labels
        elif self.kind == "classification":
            labels = text.sorted_labels({row.label for row in self.rows})
            if len(labels) < 2:
                raise InputError(
                    f"{self.path}: every row is labelled {labels[0]!r}: expected two "
                    "labels or more to tell apart"
                )
            if self.positive_label is not None:
                check_choice("`positive_label`", self.positive_label, labels)
            if len(labels) == 2:
                # The F1 is that of the rarer label, or of the second.
                counts = Counter(row.label for row in self.rows)
                rarer = min(reversed(labels), key=counts.__getitem__)
                positive_label = self.positive_label or rarer
        elif self.kind == "multi_label":
            labels = text.sorted_labels(
                {label for row in self.rows for label in row.label}
            )
            if not labels:
                raise InputError(
                    f"{self.path}: no row has a label, expected at least one"
                )
            if not isinstance(self.columns.label, str):
                for never in sorted({*self.columns.label} - {*labels}):
                    logger.warning("%s: no text has the label %r", self.path, never)
                labels = self.columns.label
        return tasks.Task(
            kind=self.kind,
            name=self.name,
            labels=labels,
            positive_label=positive_label,
            has_text_pair=self.rows[0].text_pair is not None,
        )

    def encode(
        self, task, tokenizer, settings
    ) -> tokenized.LabelledInputs | text_windows.WindowedInputs:
        labels = {}
        if self.has_labels:
            form = multi_label if task.kind == "multi_label" else text
            labels = form.label_features(self.targets(task), task.labels, settings)
        if tasks.reads_windows(settings.long_texts):
            return text_windows.cut(
                (row.text for row in self.rows),
                tokenizer,
                max_seq_length=settings.max_seq_length,
                stride=settings.window_stride,
                labels=labels,
            )
        texts = tokenized.tokenize(
            (row[:2] for row in self.rows),
            tokenizer,
            max_seq_length=settings.max_seq_length,
            keeps_tail=settings.long_texts == "head_tail",
        )
        return tokenized.LabelledInputs(texts=texts, labels=labels)

    def answer(self, outputs, inputs, task, settings) -> dataset.Answers:
        if isinstance(inputs, text_windows.WindowedInputs):
            outputs = inputs.pool(outputs, settings.long_texts)
        return self.answers_of(outputs, task)

    def answers_of(self, logits: np.ndarray, task: tasks.Task) -> dataset.Answers:
        """Makes answers of logits `(num_rows, num_labels)`."""
        form = MultiLabelAnswers if task.kind == "multi_label" else TextAnswers
        targets = self.targets(task) if self.has_labels else None
        return form(rows=self.rows, logits=logits, targets=targets, task=task)

    def targets(self, task: tasks.Task) -> np.ndarray:
        """Returns right answers as `text.label_ids` does; for several labels
        `(num_rows, num_labels)` float32, 1 where a label holds, else 0."""
        if task.kind == "multi_label":
            rows = [(row.line, row.label) for row in self.rows]
            found = np.zeros((len(rows), len(task.labels)), np.float32)
            each = text.label_places(rows, task.labels, path=self.path)
            for row, places in enumerate(each):
                found[row, places] = 1
            return found
        return text.label_ids(self.rows, task.labels, path=self.path)


@dataclass(frozen=True, kw_only=True)
class TextAnswers(dataset.Answers):
    rows: Sequence[text.LabelledText]
    logits: np.ndarray
    """`(num_rows, num_labels)` float32."""
    targets: np.ndarray | None
    """From `TextDataset.targets`; `None`: unknown."""
    task: tasks.Task

    def scores(self, *, threshold=None) -> dict[str, float]:
        """Returns official scores of GLUE, or those of `logit_scores.scores`: there the
        F1 of two classes has the name of the positive one, as `f1 of LABEL`; that of
        more classes is `macro_f1`."""
        name, labels = self.task.name, self.task.labels
        if name is not None:
            found = logit_scores.scores(self.logits, self.targets)
            return {key: found[key] for key in ("loss", *glue.TASKS[name].metrics)}
        f1_name, positive = "macro_f1", 1
        if labels is not None and len(labels) == 2:
            label = self.task.positive_label or labels[1]
            f1_name, positive = f"f1 of {label}", labels.index(label)
        found = logit_scores.scores(self.logits, self.targets, positive=positive)
        return {f1_name if key == "f1" else key: v for key, v in found.items()}

    def columns(self, *, threshold=None) -> dict[str, tables.Column]:
        return logit_scores.prediction_columns(self.logits, self.task.labels)

    def records(self, *, threshold=None) -> Iterator[answers.Record]:
        labels = self.task.labels
        probabilities = scipy.special.softmax(self.logits.astype(float), axis=-1)
        for row, logits, probs in zip(
            self.rows, self.logits, probabilities, strict=True
        ):
            example = row._asdict()
            if labels is None:
                if row.label is not None:
                    example["label"] = float(row.label)
                yield RatedText(**example, prediction=float(logits[0]))
            else:
                yield ClassifiedText(
                    **example,
                    prediction=labels[logits.argmax()],
                    probabilities=dict(zip(labels, probs.tolist(), strict=True)),
                )


@dataclass(frozen=True, kw_only=True)
class MultiLabelAnswers(TextAnswers):
    """Labels, any number of them, that a model predicts for texts. `threshold` is by
    label; `None`: `multi_label.THRESHOLD`."""

    def best_threshold(self) -> dict[str, float]:
        labels = np.array(self.task.labels)
        for label in labels[~self.targets.any(axis=0)].tolist():
            logger.warning(
                "no text of the dev file has the label %r: its threshold stays %g",
                *(label, multi_label.THRESHOLD),
            )
        given = multi_label.probabilities(self.logits)
        best = multi_label.best_thresholds(given, self.targets)
        return dict(zip(labels.tolist(), best.tolist(), strict=True))

    def scores(self, *, threshold=None) -> dict[str, float]:
        row = multi_label.threshold_row(threshold, self.task.labels)
        return multi_label.scores(self.logits, self.targets, row)

    def columns(self, *, threshold=None) -> dict[str, tables.Column]:
        probabilities = multi_label.probabilities(self.logits)
        columns = logit_scores.probability_columns(probabilities, self.task.labels)
        return {"prediction": tables.Column(self._predicted(threshold)), **columns}

    def records(self, *, threshold=None) -> Iterator[answers.Record]:
        probabilities = multi_label.probabilities(self.logits).tolist()
        every = zip(self.rows, self._predicted(threshold), probabilities, strict=True)
        for row, labels, probs in every:
            yield MultiLabelText(
                text=row.text,
                text_pair=row.text_pair,
                line=row.line,
                labels=row.label,
                prediction=labels,
                probabilities=dict(zip(self.task.labels, probs, strict=True)),
            )

    def _predicted(
        self, threshold: Mapping[str, float] | None
    ) -> list[tuple[str, ...]]:
        """Returns the labels that each text is given."""
        thresholds = multi_label.threshold_row(threshold, self.task.labels)
        names = np.array(self.task.labels)
        holds = multi_label.probabilities(self.logits) >= thresholds
        return [tuple(names[row].tolist()) for row in holds]
