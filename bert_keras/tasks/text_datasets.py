"""Classes and numbers as tasks: one or two texts, and one of several endings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.special

from bert_keras import config
from bert_keras.data import tokenization
from bert_keras.tasks import dataset, glue, swag, text


@dataclass(frozen=True, kw_only=True)
class LabelledInputs:
    """Inputs that each have one row of outputs."""

    texts: text.TokenizedTexts | swag.TokenizedQuestions
    label_ids: np.ndarray | None
    """`(num_inputs,)`; `None` where labels were not read."""

    @property
    def lengths(self) -> np.ndarray:
        return self.texts.lengths

    @property
    def num_answers(self) -> int:
        return len(self.texts)

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        batch = self.texts.batch(rows)
        if self.label_ids is not None:
            batch["label_ids"] = self.label_ids[rows]
        return batch

    def places(self, rows: np.ndarray) -> dataset.Places:
        return dataset.Places(rows, (np.arange(len(rows)),))


@dataclass(frozen=True, kw_only=True)
class TextDataset(dataset.Dataset):
    """Texts, or pairs of them, with a class or a number each."""

    path: Path
    rows: Sequence[text.LabelledText]
    has_labels: bool
    regression: bool
    glue_task: str | None = None
    """The name of the GLUE task that the file belongs to."""

    def __len__(self) -> int:
        return len(self.rows)

    def describe(self) -> config.Task:
        labels = None
        if self.glue_task is not None:
            labels = glue.find_task(self.glue_task).labels
        elif not self.regression:
            labels = text.distinct_labels(self.rows, path=self.path)
        return config.Task(
            kind="classification" if labels else "regression",
            name=self.glue_task,
            labels=labels,
            has_text_pair=self.rows[0].text_pair is not None,
        )

    def encode(
        self,
        task: config.Task,
        tokenizer: tokenization.Tokenizer,
        settings: config.FinetuningConfig,
    ) -> LabelledInputs:
        label_ids = None
        if self.has_labels:
            label_ids = text.label_ids(self.rows, task.labels, path=self.path)
        texts = text.tokenize(
            self.rows, tokenizer, max_seq_length=settings.max_seq_length
        )
        return LabelledInputs(texts=texts, label_ids=label_ids)

    def answer(self, outputs, inputs, task, settings) -> "TextAnswers":
        return TextAnswers(
            rows=self.rows, logits=outputs, label_ids=inputs.label_ids, task=task
        )


@dataclass(frozen=True, kw_only=True)
class TextAnswers(dataset.Answers):
    """Classes or numbers that a model gave to texts."""

    rows: Sequence[text.LabelledText]
    logits: np.ndarray
    """`(num_rows, num_labels)` float32."""
    label_ids: np.ndarray | None
    task: config.Task

    def scores(self, *, threshold: float | None = None) -> dict[str, float]:
        if self.task.name is not None:
            return glue.scores(self.task.name, self.logits, self.label_ids)
        return text.scores(self.logits, self.label_ids)

    def files(self, *, threshold: float | None = None) -> dict[str, str]:
        return {"predictions.tsv": text.predictions_tsv(self.logits, self.task.labels)}

    def records(self, *, threshold: float | None = None) -> Iterator[dict[str, Any]]:
        labels = self.task.labels
        probabilities = scipy.special.softmax(self.logits.astype(float), axis=-1)
        for row, logits, probs in zip(
            self.rows, self.logits, probabilities, strict=True
        ):
            example = {
                "text": row.text,
                "text_pair": row.text_pair,
                "line": row.line,
            }
            if labels is None:
                answer = {"label": float(row.label), "prediction": float(logits[0])}
            else:
                answer = {
                    "label": row.label,
                    "prediction": labels[logits.argmax()],
                    "probabilities": dict(zip(labels, probs.tolist(), strict=True)),
                }
            yield {**example, **answer}


@dataclass(frozen=True, kw_only=True)
class ChoiceDataset(dataset.Dataset):
    """Questions with four endings each."""

    path: Path
    questions: Sequence[swag.Question]
    has_labels: bool
    name: str | None = None
    """Of the data set."""

    def __len__(self) -> int:
        return len(self.questions)

    def describe(self) -> config.Task:
        return config.Task(kind="choice", name=self.name, has_text_pair=True)

    def encode(
        self,
        task: config.Task,
        tokenizer: tokenization.Tokenizer,
        settings: config.FinetuningConfig,
    ) -> LabelledInputs:
        return LabelledInputs(
            texts=swag.tokenize(
                self.questions, tokenizer, max_seq_length=settings.max_seq_length
            ),
            label_ids=swag.label_ids(self.questions) if self.has_labels else None,
        )

    def answer(self, outputs, inputs, task, settings) -> "ChoiceAnswers":
        return ChoiceAnswers(
            questions=self.questions, logits=outputs, label_ids=inputs.label_ids
        )


@dataclass(frozen=True, kw_only=True)
class ChoiceAnswers(dataset.Answers):
    """Endings that a model chose."""

    questions: Sequence[swag.Question]
    logits: np.ndarray
    """`(num_questions, 4)` float32."""
    label_ids: np.ndarray | None

    def scores(self, *, threshold: float | None = None) -> dict[str, float]:
        return swag.scores(self.logits, self.label_ids)

    def files(self, *, threshold: float | None = None) -> dict[str, str]:
        return {"predictions.tsv": text.predictions_tsv(self.logits, swag.LABELS)}

    def records(self, *, threshold: float | None = None) -> Iterator[dict[str, Any]]:
        probabilities = scipy.special.softmax(self.logits.astype(float), axis=-1)
        for question, probs in zip(self.questions, probabilities, strict=True):
            yield {
                "text": question.sentence,
                "beginning": question.beginning,
                "endings": list(question.endings),
                "line": question.line,
                "label": question.label,
                "prediction": int(probs.argmax()),
                "probabilities": probs.tolist(),
            }
