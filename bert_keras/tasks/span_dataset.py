"""Answers in a text as a task."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_keras import config
from bert_keras.data import tokenization
from bert_keras.tasks import dataset, squad, squad_predictions, squad_scores


@dataclass(frozen=True, kw_only=True)
class SpanDataset(dataset.Dataset):
    """Questions with a text that may hold the answer."""

    path: Path
    questions: squad.QuestionSet
    name: str | None = None
    """Of the data set."""

    def __len__(self) -> int:
        return len(self.questions.questions)

    def describe(self) -> config.Task:
        return config.Task(
            kind="span",
            name=self.name,
            has_text_pair=True,
            has_impossible=self.questions.has_impossible,
        )

    def encode(
        self,
        task: config.Task,
        tokenizer: tokenization.Tokenizer,
        settings: config.FinetuningConfig,
    ) -> squad.Windows:
        return squad.featurize(
            self.questions.questions,
            tokenizer,
            max_seq_length=settings.max_seq_length,
            doc_stride=settings.span.doc_stride,
            max_query_length=settings.span.max_query_length,
        )

    def answer(self, outputs, inputs, task, settings) -> "SpanAnswers":
        predictions = squad_predictions.predict(
            self.questions.questions,
            inputs,
            start_logits=outputs[:, 0],
            end_logits=outputs[:, 1],
            has_impossible=task.has_impossible,
            n_best_size=settings.span.n_best_size,
            max_answer_length=settings.span.max_answer_length,
        )
        return SpanAnswers(questions=self.questions, predictions=predictions)


@dataclass(frozen=True, kw_only=True)
class SpanAnswers(dataset.Answers):
    """Answers that a model found."""

    questions: squad.QuestionSet
    predictions: squad_predictions.Predictions

    def scores(self, *, threshold: float | None = None) -> dict[str, float]:
        """By the official script; of 2.0 also with the best threshold.

        A question that was skipped when the file was read has no prediction and counts
        as wrong, as in the official script.
        """
        gold = self.questions.gold_answers()
        found = squad_scores.scores(
            gold,
            self.predictions.answers(null_score_diff_threshold=threshold or 0.0),
            has_impossible=self.questions.has_impossible,
        )
        if self.predictions.null_odds is not None:
            found |= squad_scores.best_thresholds(
                gold, self.predictions.best_texts(), self.predictions.null_odds
            )
        return found

    def files(self, *, threshold: float | None = None) -> dict[str, str]:
        return self.predictions.to_files(null_score_diff_threshold=threshold or 0.0)

    def records(self, *, threshold: float | None = None) -> Iterator[dict[str, Any]]:
        answers = self.predictions.answers(null_score_diff_threshold=threshold or 0.0)
        best_texts = self.predictions.best_texts()
        null_odds = self.predictions.null_odds
        for question in self.questions.questions:
            probabilities = {
                candidate.text: candidate.probability
                for candidate in self.predictions.n_best[question.id]
            }
            yield {
                "id": question.id,
                "question": question.question,
                "context": question.context,
                "answers": [answer.text for answer in question.answers],
                "prediction": answers[question.id],
                "probability": probabilities.get(answers[question.id], 0.0),
                "null_odds": null_odds and null_odds[question.id],
                "best_text": best_texts[question.id],
            }


def score_file(path: str | Path, predictions: str | Path) -> dict[str, float]:
    """Scores a `predictions.json` of whichever system by the official rules.

    Args:
        path: in the layout of SQuAD 1.1 or 2.0, with answers.
        predictions: a text for each question id, empty for "no answer".

    Returns:
        As `squad_scores.scores`.

    Raises:
        InputError: either is no such file.
    """
    questions = squad.read_squad(path)
    return squad_scores.scores(
        questions.gold_answers(),
        squad.load_predictions(predictions),
        has_impossible=questions.has_impossible,
    )
