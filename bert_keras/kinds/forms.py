"""Tagged words, questions on a text, texts with endings: datasets and answers.

Each form of a task's data is a dataset, which makes model inputs, and the answers to
it; those of texts are in `text_forms`.
"""

# Labels are None only in files without any, which are not asked for them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import dataclasses
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.special

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config
from bert_keras.kinds.choice import swag
from bert_keras.kinds.span import squad, squad_predictions, squad_scores
from bert_keras.kinds.tagging import ner, ner_windows
from bert_keras.kinds.text import text, text_forms
from bert_keras.kinds.vectors import embedding
from bert_keras.labelled import answers, dataset, reading, tables

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TaggingDataset(dataset.Dataset):
    """Sentences with a tag for each word."""

    path: Path
    sentences: Sequence[ner.Sentence]
    has_labels: bool
    name: str | None = None
    """Name of the data set; `None`: the user's own."""

    @property
    def reads_text(self) -> bool:
        """Whether the words come from texts, see `character_spans`."""
        return self.sentences[0].text is not None

    def __len__(self) -> int:
        return len(self.sentences)

    def keys(self) -> list[str]:
        """Documents, whose sentences are each other's context; of a file that is one
        document its sentences."""
        words = [" ".join(sentence.words) for sentence in self.sentences]
        documents: dict[int, list[str]] = {}
        for sentence, joined in zip(self.sentences, words, strict=True):
            documents.setdefault(sentence.document, []).append(joined)
        if len(documents) == 1:
            return words
        by_document = {number: "\n".join(lines) for number, lines in documents.items()}
        return [by_document[sentence.document] for sentence in self.sentences]

    def contents(self) -> dataset.Contents:
        texts = [(" ".join(sentence.words),) for sentence in self.sentences]
        return dataset.Contents(texts, [sentence.tags for sentence in self.sentences])

    def subset(self, rows) -> "TaggingDataset":
        sentences = [self.sentences[row] for row in rows]
        return dataclasses.replace(self, sentences=sentences)

    def with_columns(self, answers, *, suffix):
        if self.reads_text:
            if self.path.suffix.lower() != ".jsonl":
                return answers
            rows = (row for _, row in reading.read_jsonl(self.path))
            found = map(json.loads, answers.splitlines())
            return _json_lines(row | a for row, a in zip(rows, found, strict=True))
        return ner.with_columns(self.path, answers, suffix=suffix)

    def describe(self) -> config.Task:
        labels = ner.distinct_labels(self.sentences, path=self.path)
        is_plain = (scheme := ner.scheme_of(labels)) == "plain"
        scored = "by accuracy" if is_plain else "by whole entities"
        logger.info("%s: %s tags, scored %s", self.path, scheme, scored)
        return config.Task(
            kind="tagging", name=self.name, labels=labels, reads_text=self.reads_text
        )

    def encode(self, task, tokenizer, settings) -> ner_windows.TokenizedWords:
        label_ids = None
        if self.has_labels:
            label_ids = ner.label_ids(self.sentences, task.labels, path=self.path)
        return ner_windows.tokenize(
            self.sentences,
            tokenizer,
            max_seq_length=settings.max_seq_length,
            label_ids=label_ids,
            document_context=settings.document_context,
        )

    def answer(self, outputs, inputs, task, settings) -> "TaggingAnswers":
        if not inputs.num_answers:  # only blank texts
            outputs = np.zeros((0, task.num_labels), np.float32)
        return TaggingAnswers(
            sentences=self.sentences, word_logits=outputs, labels=task.labels
        )


def _json_lines(rows: Iterable[Any]) -> str:
    return "".join(files.to_json(row, ensure_ascii=False) + "\n" for row in rows)


@dataclass(frozen=True, kw_only=True)
class TaggingAnswers(dataset.Answers):
    """Tags that a model predicts for words."""

    sentences: Sequence[ner.Sentence]
    word_logits: np.ndarray
    """`(num_words, num_labels)` float32, sentence after sentence."""
    labels: tuple[str, ...]

    def tags(self) -> list[tuple[str, ...]]:
        return ner.decode(self.word_logits, self.labels, self.sentences)

    def scores(self, *, threshold=None) -> dict[str, float]:
        return ner.scores(self.word_logits, self.labels, self.sentences)

    def files(self, *, threshold=None) -> dict[str, str]:
        if any(sentence.text is not None for sentence in self.sentences):
            fields = {"text", "entities"}
            rows = (record.model_dump(include=fields) for record in self.records())
            return {"predictions.jsonl": _json_lines(rows)}
        return {"predictions.txt": ner.predictions_columns(self.sentences, self.tags())}

    def records(self, *, threshold=None) -> Iterator[answers.Record]:
        best = scipy.special.softmax(self.word_logits.astype(float), axis=-1).max(-1)
        end = 0
        for sentence, tags in zip(self.sentences, self.tags(), strict=True):
            begin, end = end, end + len(tags)
            values = {
                "words": sentence.words,
                "line": sentence.line,
                "labels": sentence.tags,
                "prediction": tags,
            }
            if sentence.text is None:
                yield answers.TaggedSentence(**values)
                continue
            entities = tuple(
                answers.FoundEntity(
                    start=sentence.places[first][0],
                    end=sentence.places[last][1],
                    label=label,
                    probability=float(best[begin + first : begin + last + 1].mean()),
                )
                for label, first, last in ner.entities(tags)
            )
            yield answers.TaggedText(**values, text=sentence.text, entities=entities)


@dataclass(frozen=True, kw_only=True)
class SpanDataset(dataset.Dataset):
    """Questions, each with a text that may hold the answer."""

    path: Path
    questions: squad.QuestionSet
    name: str | None = None
    """Name of the data set; `None`: the user's own."""

    def __len__(self) -> int:
        return len(self.questions.questions)

    def keys(self) -> list[str]:
        return [question.context for question in self.questions.questions]

    def contents(self) -> dataset.Contents:
        asked = self.questions.questions
        return dataset.Contents(
            [(question.question, question.context) for question in asked],
            [frozenset(a.text for a in question.answers) for question in asked],
        )

    def subset(self, rows) -> "SpanDataset":
        kept = tuple(self.questions.questions[row] for row in rows)
        return dataclasses.replace(
            self, questions=self.questions._replace(questions=kept)
        )

    def for_training(self) -> "SpanDataset":
        return dataclasses.replace(self, questions=self.questions.for_training())

    def describe(self) -> config.Task:
        return config.Task(
            kind="span",
            name=self.name,
            has_text_pair=True,
            has_impossible=self.questions.has_impossible,
        )

    def encode(self, task, tokenizer, settings) -> squad.Windows:
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
    """Answers that a model finds in texts."""

    questions: squad.QuestionSet
    predictions: squad_predictions.Predictions

    def scores(self, *, threshold=None) -> dict[str, float]:
        """Scores of the official script; for 2.0 also those of the best threshold."""
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

    def files(self, *, threshold=None) -> dict[str, str]:
        return self.predictions.to_files(null_score_diff_threshold=threshold or 0.0)

    def records(self, *, threshold=None) -> Iterator[answers.Record]:
        given = self.predictions.answers(null_score_diff_threshold=threshold or 0.0)
        best_texts = self.predictions.best_texts()
        null_odds = self.predictions.null_odds
        for id, question, context, right in self.questions.questions:
            probabilities = {
                candidate.text: candidate.probability
                for candidate in self.predictions.n_best[id]
            }
            yield answers.AnsweredQuestion(
                id=id,
                question=question,
                context=context,
                answers=tuple(answer.text for answer in right),
                prediction=given[id],
                probability=probabilities.get(given[id], 0.0),
                null_odds=null_odds and null_odds[id],
                best_text=best_texts[id],
            )


@dataclass(frozen=True, kw_only=True)
class ChoiceDataset(dataset.Dataset):
    """Questions with four endings each."""

    path: Path
    questions: Sequence[swag.Question]
    has_labels: bool
    name: str | None = None
    """Name of the data set; `None`: the user's own."""

    def __len__(self) -> int:
        return len(self.questions)

    def keys(self) -> list[str]:
        return [f"{row.sentence}\0{row.beginning}" for row in self.questions]

    def contents(self) -> dataset.Contents:
        asked = self.questions
        return dataset.Contents(
            [(row.sentence, row.beginning, *row.endings) for row in asked],
            [row.label for row in asked],
        )

    def subset(self, rows) -> "ChoiceDataset":
        questions = [self.questions[row] for row in rows]
        return dataclasses.replace(self, questions=questions)

    def with_columns(self, answers, *, suffix):
        return tables.joined(swag.read_rows(self.path), answers, suffix=suffix)

    def describe(self) -> config.Task:
        return config.Task(kind="choice", name=self.name, has_text_pair=True)

    def encode(self, task, tokenizer, settings) -> text_forms.LabelledInputs:
        labels = {}
        if self.has_labels:
            labels["label_ids"] = swag.label_ids(self.questions)
        return text_forms.LabelledInputs(
            texts=swag.tokenize(
                self.questions, tokenizer, max_seq_length=settings.max_seq_length
            ),
            labels=labels,
        )

    def answer(self, outputs, inputs, task, settings) -> "ChoiceAnswers":
        return ChoiceAnswers(
            questions=self.questions,
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
        return swag.scores(self.logits, self.label_ids)

    def files(self, *, threshold=None) -> dict[str, str]:
        return {"predictions.tsv": text.predictions_tsv(self.logits, swag.LABELS)}

    def records(self, *, threshold=None) -> Iterator[answers.Record]:
        probabilities = scipy.special.softmax(self.logits.astype(float), axis=-1)
        for question, probs in zip(self.questions, probabilities, strict=True):
            yield answers.ChosenEnding(
                text=question.sentence,
                beginning=question.beginning,
                endings=question.endings,
                line=question.line,
                label=question.label,
                prediction=int(probs.argmax()),
                probabilities=tuple(probs.tolist()),
            )


def from_python(examples: Iterable[Any], task: config.Task) -> dataset.Dataset:
    """A dataset of examples given as Python objects, to be answered.

    Args:
        examples: one or more. For texts (`text_forms.KINDS`) each is a string
            or, if the model was trained on pairs, `(text, text_pair)`; for `tagging` a
            list of words, or a string, which is split as exported taggers split it; for
            `span` `(question, context)`; for `choice` `(text, endings)` or `(text,
            beginning, endings)` with four endings; for `embedding` a string.
        task: the model's.

    Raises:
        InputError: an example has another shape (with its number, from 1), or there is
            none.
    """
    kind = task.kind
    if kind in text_forms.KINDS:
        kind = "pair" if task.has_text_pair else "text"
    expected, read = _PYTHON_FORMS[kind]
    made = []
    for number, example in enumerate(examples, start=1):
        try:
            made.append(read(example, number))
        except (TypeError, ValueError):
            raise InputError(
                f"example {number}: expected {expected}, got {example!r:.80}"
            ) from None
    if not made:
        raise InputError("expected at least one example, got none")
    path = Path("examples in Python")
    if kind == "tagging":
        return TaggingDataset(path=path, sentences=made, has_labels=False)
    if kind == "embedding":
        return embedding.EmbeddingDataset(path=path, rows=made, has_labels=False)
    if kind == "choice":
        return ChoiceDataset(path=path, questions=made, has_labels=False)
    if kind == "span":
        questions = squad.QuestionSet(tuple(made), task.has_impossible, 0, ())
        return SpanDataset(path=path, questions=questions)
    return text_forms.TextDataset(
        path=path, rows=made, has_labels=False, kind=task.kind
    )


def _text(example: Any, number: int) -> text.LabelledText:
    return text.LabelledText(*_strings([example]), None, None, number)


def _single(example: Any, number: int) -> embedding.Texts:
    return embedding.Texts(*_strings([example]), None, None, None, number)


def _pair(example: Any, number: int) -> text.LabelledText:
    first, second = _strings(example)
    return text.LabelledText(first, second, None, number)


def _sentence(example: Any, number: int) -> ner.Sentence:
    if isinstance(example, str):
        sentence = ner.of_text(example, number, number)
    else:
        sentence = ner.Sentence(_strings(example), None, number, number)
    if not sentence.words:
        raise ValueError
    return sentence


def _question(example: Any, number: int) -> squad.Question:
    question, context = _strings(example)
    return squad.Question(str(number), question, context, ())


def _endings(example: Any, number: int) -> swag.Question:
    sentence, *beginning, endings = example
    sentence, beginning = _strings([sentence, *(beginning or [""])])
    if len(endings := _strings(endings)) != swag.NUM_ENDINGS:
        raise ValueError
    return swag.Question(sentence, beginning, endings, None, number)


def _strings(values: Any) -> tuple[str, ...]:
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise TypeError
    return tuple(values)


_PYTHON_FORMS = {
    "embedding": ("a string", _single),
    "text": ("a string", _text),
    "pair": ("a pair of strings", _pair),
    "tagging": ("a string, or a list of words", _sentence),
    "span": ("a question and its context", _question),
    "choice": ("a text, the beginning of the endings if any, four endings", _endings),
}
"""By form of an example: its description, and a function that reads it or raises a
`TypeError` or `ValueError`."""
