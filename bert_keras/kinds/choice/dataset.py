"""Files of texts with endings as data sets, and the endings that a model chooses."""

# Labels are None only in files without any, which are not asked for them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.special

from bert_keras.core.settings import tasks
from bert_keras.kinds.choice import swag
from bert_keras.kinds.choice.records import ChosenEnding
from bert_keras.labelled import answers, dataset, logit_scores, tables, tokenized


@dataclass(frozen=True, kw_only=True)
class ChoiceDataset(dataset.Dataset):
    """Questions with four endings each, `swag.Question`."""

    def keys(self) -> list[str]:
        return [f"{row.sentence}\0{row.beginning}" for row in self.rows]

    def contents(self) -> dataset.Contents:
        labels = [row.label for row in self.rows]
        return dataset.Contents(
            [(row.sentence, row.beginning, *row.endings) for row in self.rows],
            labels,
            labels=labels if self.has_labels else (),
            # An ending may follow one of the two parts before it.
            needs_all_texts=False,
        )

    def files(self, answers, *, suffix, threshold=None) -> dict[str, str]:
        columns = logit_scores.prediction_columns(answers.logits, swag.LABELS)
        rows = swag.read_rows(self.path)
        return {"predictions": tables.joined(rows, columns, suffix=suffix)}

    def describe(self) -> tasks.Task:
        return tasks.Task(kind="choice", name=self.name, has_text_pair=True)

    def encode(self, task, tokenizer, settings) -> tokenized.LabelledInputs:
        labels = {}
        if self.has_labels:
            right = [question.label for question in self.rows]
            labels["label_ids"] = np.array(right, np.int32)
        return tokenized.LabelledInputs(
            texts=swag.tokenize(
                self.rows, tokenizer, max_seq_length=settings.max_seq_length
            ),
            labels=labels,
        )

    def answer(self, outputs, inputs, task, settings) -> "ChoiceAnswers":
        return ChoiceAnswers(
            questions=self.rows,
            logits=outputs,
            label_ids=inputs.labels.get("label_ids"),
        )


@dataclass(frozen=True, kw_only=True)
class ChoiceAnswers(dataset.Answers):
    """Endings that a model chooses."""

    questions: Sequence[swag.Question]
    logits: np.ndarray
    """`(num_questions, 4)` float32."""
    label_ids: np.ndarray | None

    def scores(self, *, threshold=None) -> dict[str, float]:
        values = logit_scores.scores(self.logits, self.label_ids)
        return {name: values[name] for name in ("loss", "accuracy")}

    def records(self, *, threshold=None) -> Iterator[answers.Record]:
        probabilities = scipy.special.softmax(self.logits.astype(float), axis=-1)
        for question, probs in zip(self.questions, probabilities, strict=True):
            yield ChosenEnding(
                text=question.sentence,
                beginning=question.beginning,
                endings=question.endings,
                line=question.line,
                label=question.label,
                prediction=int(probs.argmax()),
                probabilities=tuple(probs.tolist()),
            )
