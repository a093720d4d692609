"""Texts and pairs of texts with labels or numbers, and the answers to them."""

# Labels are None only in files without any, which are not asked for them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalIterable=false, reportOptionalMemberAccess=false, reportOptionalOperand=false

import functools
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
import sklearn.metrics

from bert_keras.core.errors import InputError, check_choice, nearest
from bert_keras.core.settings import finetuning, tasks
from bert_keras.kinds.text import (
    ClassifiedText,
    MultiLabelText,
    RatedInterval,
    RatedText,
    glue,
    text,
)
from bert_keras.labelled import (
    answers,
    dataset,
    logit_scores,
    reading,
    tables,
    tokenized,
)

logger = logging.getLogger(__name__)

KINDS: tuple[tasks.TaskKind, ...] = ("classification", "multi_label", "regression")
"""Kinds of tasks on texts."""

THRESHOLD = 0.5
"""Probability from which on a label holds, where none was chosen."""


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

    def _source(self) -> Iterator[reading.Row]:
        """Returns the rows of the file with all columns."""
        if self.name is not None:
            return glue.read_rows(self.path, self.name)
        return reading.read_rows(self.path)

    def files(self, answers, *, suffix, decision=tasks.LIKELIEST) -> dict[str, str]:
        content = tables.joined(
            (row.cells for row in self._source()),
            answers.columns(decision=decision),
            suffix=suffix,
            separator=self.columns.label_separator,
        )
        return {"predictions": content}

    def relabelled(self, changes) -> tuple[str, str]:
        columns = glue.TASKS[self.name].columns if self.name else self.columns
        rows: list[Any] = [row.cells for row in self._source()]
        for place, labels in changes.items():
            if labels is None:
                rows[place] = None
            elif isinstance(columns.label, str):
                is_one = self.kind == "classification"
                rows[place][columns.label] = labels[0] if is_one else labels
            else:
                rows[place] |= {name: int(name in labels) for name in columns.label}
        suffix = self.path.suffix.lower()
        suffix = suffix if suffix in (".tsv", ".csv") else ".jsonl"
        options = {"suffix": suffix, "separator": columns.label_separator}
        return suffix, tables.joined(filter(None, rows), {}, **options)

    def describe(self) -> tasks.Task:
        labels = positive_label = None
        if self.name is not None:
            labels = glue.TASKS[self.name].labels
        elif self.kind == "classification":
            labels = text.sorted_labels({row.label for row in self.rows})
            if len(labels) < 2:
                raise InputError(
                    f"{self.path}: every row is labelled {self.rows[0].label!r}: "
                    "expected two labels or more to tell apart"
                )
            if self.positive_label is not None:
                check_choice("`positive_label`", self.positive_label, labels)
            if len(labels) == 2:
                # The F1 is that of the rarer label, or of the second.
                counts = Counter(row.label for row in self.rows)
                rarer = min(reversed(labels), key=counts.__getitem__)
                positive_label = self.positive_label or rarer
        elif self.kind == "multi_label":
            every = {label for row in self.rows for label in row.label}
            labels = text.sorted_labels(every)
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
    ) -> tokenized.LabelledInputs | tokenized.WindowedInputs:
        labels = {}
        if self.has_labels:
            labels = text.label_features(self.targets(task), task.labels, settings)
        if tasks.reads_windows(settings.long_texts):
            return tokenized.cut(
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
        if isinstance(inputs, tokenized.WindowedInputs):
            outputs = inputs.pool(outputs, settings.long_texts)
        return self.answers_of(outputs, task)

    def explained(self, outputs, inputs, task, settings, *, label=None):
        """The score is the label's logit, or a number itself. If one label alone is
        right, it is the logit less the mean of the others: of two labels the log odds.
        Of several windows, the one with the highest score is explained."""
        answers, counts = outputs, np.ones(len(self), int)
        if isinstance(inputs, tokenized.WindowedInputs):
            answers, counts = inputs.pool(outputs, settings.long_texts), inputs.counts
        windows = np.split(np.arange(len(outputs)), np.cumsum(counts)[:-1])
        step = tasks.window_stride(settings.max_seq_length, settings.window_stride)
        labels, found, examples = task.labels, [], self.contents().texts
        for texts, rows, logits in zip(examples, windows, answers, strict=True):
            place = labels.index(label) if labels and label else int(logits.argmax())
            weights = np.eye(len(logits))[place]
            if task.kind == "classification":
                weights = (len(weights) * weights - 1) / (len(weights) - 1)
            window = int((outputs[rows] @ weights).argmax())
            answer = labels[place] if labels else f"{logits[0]:.6g}"
            where = (int(rows[window]), weights, step * window)
            found.append(dataset.Explained(answer, texts, *where))
        return found

    def answers_of(self, logits: np.ndarray, task: tasks.Task) -> dataset.Answers:
        """Makes answers of logits `(num_rows, num_labels)`."""
        form = MultiLabelAnswers if task.kind == "multi_label" else TextAnswers
        targets = self.targets(task) if self.has_labels else None
        return form(rows=self.rows, logits=logits, targets=targets, task=task)

    def targets(self, task: tasks.Task) -> np.ndarray:
        """Returns the right answers: int32 places in the task's labels, `(num_rows,)`;
        of several labels `(num_rows, num_labels)` float32, 1 where a label holds, else
        0; or float32 numbers, `(num_rows,)`."""
        if task.labels is None:
            return np.array([self._number(row) for row in self.rows], np.float32)
        places = {label: place for place, label in enumerate(task.labels)}
        is_one = task.kind == "classification"
        targets = []
        for row in self.rows:
            labels = (row.label,) if is_one else row.label
            if unknown := [label for label in labels if label not in places]:
                known = ", ".join(task.labels[:20])
                known += ", ..." if len(task.labels) > 20 else ""
                raise InputError(
                    f"{self.path}: line {row.line}: label {unknown[0]!r} was not in "
                    f"the training data (known: {known})"
                    f"{nearest(unknown[0], task.labels)}"
                )
            targets.append([places[label] for label in labels])
        if is_one:
            return np.array(targets, np.int32).reshape(-1)
        holds = np.zeros((len(targets), len(places)), np.float32)
        for row, of_row in zip(holds, targets, strict=True):
            row[of_row] = 1
        return holds

    def _number(self, row: text.LabelledText) -> float:
        number = reading.as_number(row.label)
        # NaN fails this too.
        if not abs(number) <= float(np.finfo(np.float32).max):
            raise InputError(
                f"{self.path}: line {row.line}: with `regression` a label is a number, "
                f"got {row.label!r}"
            )
        return number


@dataclass(frozen=True, kw_only=True)
class TextAnswers(dataset.Answers):
    rows: Sequence[text.LabelledText]
    logits: np.ndarray
    """`(num_rows, num_labels)` float32."""
    targets: np.ndarray | None
    """From `TextDataset.targets`; `None`: unknown."""
    task: tasks.Task

    def candidates(self) -> dataset.Candidates | None:
        if self.task.labels is None:
            return None
        classes = dataset.Candidates.of_classes(self.logits, self.targets)
        return classes._replace(labels=np.array(self.task.labels)[classes.answers])

    def judged_labels(self) -> dataset.JudgedLabels:
        names, rows = np.array(self.task.labels, object), np.arange(len(self.rows))
        return dataset.JudgedLabels(
            rows=rows,
            labels=self.targets,
            probabilities=scipy.special.softmax(self.logits.astype(float), axis=-1),
            names=np.broadcast_to(names, self.logits.shape),
            parts=np.full(len(rows), ""),
            groups=0 * rows,
        )

    def distances(self) -> np.ndarray | None:
        if self.task.labels is not None:
            return None
        return np.abs(self.logits[:, 0].astype(float) - self.targets)

    def scores(self, *, decision=tasks.LIKELIEST) -> dict[str, float]:
        """Returns official scores of GLUE, or those of `logit_scores.scores`: there the
        F1 of two classes has the name of the positive one, as `f1 of LABEL`; that of
        more classes is `macro_f1`. They are those of the most probable labels, given or
        not."""
        name, labels = self.task.name, self.task.labels
        if name is not None:
            scores = logit_scores.scores(self.logits, self.targets)
            names = ("loss", *glue.TASKS[name].metrics)
            return {key: scores[key] for key in names}
        f1_name, positive = "macro_f1", 1
        if labels is not None and len(labels) == 2:
            label = self.task.positive_label or labels[1]
            f1_name, positive = f"f1 of {label}", labels.index(label)
        scores = logit_scores.scores(self.logits, self.targets, positive=positive)
        return {f1_name if key == "f1" else key: v for key, v in scores.items()}

    def columns(self, *, decision=tasks.LIKELIEST) -> dict[str, tables.Column]:
        labels, width = self.task.labels, decision.half_width
        columns = logit_scores.prediction_columns(
            self.logits, labels, decision=decision
        )
        if width is not None:
            for name, sign in (("low", -1), ("high", 1)):
                values = self.logits[:, 0] + sign * width
                columns[name] = tables.Column(values, ".6g")
        return columns

    def records(self, *, decision=tasks.LIKELIEST) -> Iterator[answers.Record]:
        labels, width = self.task.labels, decision.half_width
        if labels is None:
            for row, answer in zip(self.rows, self.logits[:, 0].tolist(), strict=True):
                example = row._asdict()
                if row.label is not None:
                    example["label"] = float(row.label)
                form = RatedText
                if width is not None:
                    form = RatedInterval
                    example |= {"low": answer - width, "high": answer + width}
                yield form(**example, prediction=answer)
            return
        probabilities, predicted = logit_scores.decided(self.logits, labels, decision)
        parts = self.rows, predicted, probabilities.tolist()
        for row, prediction, shares in zip(*parts, strict=True):
            yield ClassifiedText(
                **row._asdict(),
                prediction=prediction,
                probabilities=dict(zip(labels, shares, strict=True)),
            )


@dataclass(frozen=True, kw_only=True)
class MultiLabelAnswers(TextAnswers):
    """Labels, any number of them, that a model predicts for texts."""

    def probabilities(self, decision: tasks.Decision = tasks.LIKELIEST) -> np.ndarray:
        """Returns each label's own probability, `(num_rows, num_labels)` float32."""
        logits = self.logits.astype(np.float32) / decision.temperature
        return scipy.special.expit(logits)

    def candidates(self) -> dataset.Candidates:
        """Returns the labels that are likelier than not; those of one text depend on
        one another."""
        rows, labels = np.nonzero(self.probabilities() >= THRESHOLD)
        targets = 0 * self.logits if self.targets is None else self.targets
        right = targets[rows, labels] > 0
        logits, names = self.logits[rows, labels], np.array(self.task.labels)[labels]
        return dataset.Candidates.of_several(logits, right, rows)._replace(labels=names)

    def judged_labels(self) -> dataset.JudgedLabels:
        rows, groups = (axis.ravel() for axis in np.indices(self.targets.shape))
        holds = self.probabilities().astype(float).ravel()
        names = np.array(self.task.labels, object)[groups]
        return dataset.JudgedLabels(
            rows=rows,
            labels=self.targets.astype(int).ravel(),
            probabilities=np.stack([1 - holds, holds], axis=-1),
            names=np.stack([np.full(len(names), ""), names], axis=-1),
            parts=np.full(len(rows), ""),
            groups=groups,
        )

    def best_decision(self) -> tasks.Decision:
        labels = np.array(self.task.labels)
        for label in labels[~self.targets.any(axis=0)].tolist():
            logger.warning(
                "no text of the dev file has the label %r: its threshold stays %g",
                *(label, THRESHOLD),
            )
        best = best_thresholds(self.probabilities(), self.targets)
        # The probabilities of a run that diverged reach no threshold.
        best = np.nan_to_num(best, nan=THRESHOLD)
        by_label = dict(zip(labels.tolist(), best.tolist(), strict=True))
        return tasks.Decision(label_thresholds=by_label)

    def scores(self, *, decision=tasks.LIKELIEST) -> dict[str, float]:
        """Returns `loss` (mean binary cross entropy of a label, nats), `accuracy`
        (share of texts of which all labels are right), `micro_f1` (over all labels of
        all texts) and `macro_f1` (mean over labels that occur or are given); and
        `best_micro_f1` and `best_macro_f1` with the thresholds that are best for each
        label on these very texts. Of a promise, they are those of the labels that are
        likelier than not, given or not."""
        logits, targets = self.logits.astype(float), self.targets
        holds = self._holds(tasks.LIKELIEST if decision.is_promise else decision)
        probabilities = self.probabilities()
        best = probabilities >= best_thresholds(probabilities, targets)
        best_scores = _f1_scores(best, targets)
        return {
            # Cross entropy of sigmoids from logits, where no exponential overflows.
            "loss": float((np.logaddexp(0, logits) - logits * targets).mean()),
            "accuracy": float((holds == (targets > 0)).all(axis=1).mean()),
            **_f1_scores(holds, targets),
            **{f"best_{name}": score for name, score in best_scores.items()},
        }

    def columns(self, *, decision=tasks.LIKELIEST) -> dict[str, tables.Column]:
        probabilities = self.probabilities(decision)
        columns = logit_scores.probability_columns(probabilities, self.task.labels)
        return {"prediction": tables.Column(self._predicted(decision)), **columns}

    def records(self, *, decision=tasks.LIKELIEST) -> Iterator[answers.Record]:
        every = self.probabilities(decision).tolist()
        parts = self.rows, self._predicted(decision), every
        for row, labels, probabilities in zip(*parts, strict=True):
            yield MultiLabelText(
                text=row.text,
                text_pair=row.text_pair,
                line=row.line,
                labels=row.label,
                prediction=labels,
                probabilities=dict(zip(self.task.labels, probabilities, strict=True)),
            )

    def _holds(self, decision: tasks.Decision) -> np.ndarray:
        thresholds = threshold_row(decision, self.task.labels)
        return self.probabilities(decision) >= thresholds

    def _predicted(self, decision: tasks.Decision) -> list[tuple[str, ...]]:
        """Returns the labels that each text is given."""
        names = np.array(self.task.labels)
        return [tuple(names[row].tolist()) for row in self._holds(decision)]


def threshold_row(decision: tasks.Decision, labels: Sequence[str]) -> np.ndarray:
    """Returns thresholds in the order of the labels, `(num_labels,)` float32; a promise
    is about labels that are likelier than not."""
    chosen = decision.label_thresholds
    if decision.is_promise:
        limits = zip(labels, decision.thresholds_of(labels), strict=True)
        chosen = {label: max(THRESHOLD, limit) for label, limit in limits}
    return np.array([chosen.get(label, THRESHOLD) for label in labels], np.float32)


def best_thresholds(
    label_probabilities: np.ndarray, true_targets: np.ndarray
) -> np.ndarray:
    """Returns the threshold with the highest F1 for each label, `(num_labels,)`
    float32.

    Both arguments are `(num_examples, num_labels)`: float32, and 1 or 0. Between two
    probabilities the threshold is their middle. Among equally good ones, the one
    nearest to 0.5 is taken; 0.5 where no example has the label.
    """
    thresholds = np.full(len(true_targets.T), THRESHOLD, np.float32)
    for label in np.flatnonzero(true_targets.any(axis=0)):
        probabilities, true = label_probabilities[:, label], true_targets[:, label]
        # The label is given to all examples from a value on, the lowest first.
        order = np.argsort(probabilities, kind="stable")
        values, num_below = np.unique(probabilities[order], return_index=True)
        right_below = np.concatenate([[0], np.cumsum(true[order])])[num_below]
        num_given = len(true) - num_below
        # F1 is 2 * true positives / (given + true).
        f1 = 2 * (true.sum() - right_below) / (num_given + true.sum())
        middles = (values[1:].astype(np.float64) + values[:-1]) / 2
        # Between neighbours in float32 there is none.
        middles = middles.astype(np.float32)
        middles = np.where(middles > values[:-1], middles, values[1:])
        candidates = np.concatenate([[values[0] / 2], middles])
        # Up to the lowest value, all thresholds give the label to every example.
        if candidates[0] < THRESHOLD <= values[0]:
            candidates[0] = THRESHOLD
        best = candidates[f1 == f1.max()]
        thresholds[label] = best[np.abs(best - THRESHOLD).argmin()]
    return thresholds


def _f1_scores(given: np.ndarray, true_targets: np.ndarray) -> dict[str, float]:
    is_true = true_targets > 0
    occurs = (given | is_true).any(axis=0)
    if not occurs.any():
        return {"micro_f1": 0.0, "macro_f1": 0.0}
    f1_score = functools.partial(sklearn.metrics.f1_score, zero_division=0.0)
    columns = np.flatnonzero(occurs)
    by_label = [f1_score(is_true[:, c], given[:, c]) for c in columns]
    micro = f1_score(is_true.ravel(), given.ravel())
    return {"micro_f1": float(micro), "macro_f1": float(np.mean(by_label))}
