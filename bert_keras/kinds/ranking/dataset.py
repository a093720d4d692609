"""Files of questions with the passages to rank for each, and the rankings of a model.

A row has a question, a passage and the passage's relevance, a number from 0; or, as the
triples of MS MARCO, a question with a right passage and a wrong one. The rows of a
question may be anywhere in the file.

A model scores all candidates of a question, one pair at a time. It learns from at most
`num_candidates` of them in a step, which each epoch draws anew: a right one, a less
relevant one, and others at random. No TensorFlow.
"""

# Relevances are None only in files without labels, which are not compared.
# pyright: reportArgumentType=false

import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.data import features
from bert_keras.kinds import splits
from bert_keras.kinds.ranking import RankedPassages, SureRanking, scores
from bert_keras.labelled import answers, dataset, reading, shapes, tables, tokenized

logger = logging.getLogger(__name__)

MAX_RELEVANCE = 1e6
"""Greater ones would leave float32 too few digits for the others."""

QUESTION_ID = "question_id"
"""Column that tells apart questions with the same words."""

TRIPLE = ("positive", "negative")
"""Columns of a right passage and a wrong one."""


class Candidate(NamedTuple):
    passage: str
    relevance: float | None
    """A float32 number, above 0: right; `None`: unknown."""
    row: int
    """Number of its row in the file, from 0."""
    line: int
    """First line of that row, from 1."""


class Question(NamedTuple):
    """A question and its candidates, in the order of the file."""

    text: str
    candidates: Sequence[Candidate]

    @property
    def relevances(self) -> list[float]:
        return [candidate.relevance or 0.0 for candidate in self.candidates]

    @property
    def can_be_learnt(self) -> bool:
        """Returns whether one candidate is more relevant than another."""
        relevances = self.relevances
        return min(relevances) < max(relevances)


def read_questions(
    path: str | Path,
    columns: finetuning.TextColumns | None = None,
    *,
    has_labels: bool = True,
) -> list[Question]:
    """Reads all questions of a file.

    A row has a passage with its relevance; or a right passage and maybe a wrong one.
    Rows belong together if they have the same `question_id`, or the same question where
    there is no such column. With labels, a passage that comes again for its question
    counts once, with its highest relevance.

    Args:
        path: `.tsv`, `.csv`, `.jsonl` or `.parquet`, see `text.read_texts`.
        columns: names of the columns; those that are not set are `question`, `passage`
            and `relevance`, or `question`, `positive` and `negative`. `None`: these
            names, and errors recommend no setting.
        has_labels: whether to read relevances and triples.
    """
    path, names = files.path(path), columns or finetuning.TextColumns()
    passages: Mapping[str, tuple[str, float | None]] = {}
    relevance_name = None
    questions: dict[str, tuple[str, dict[Any, Candidate]]] = {}
    differing = []
    for number, row in enumerate(reading.read_rows(path)):
        # The first row says which columns there are.
        if not passages:
            passages, relevance_name = _columns(names, row.cells, has_labels=has_labels)
        # `text` is the default of the setting: nobody has named a column.
        name = "question" if names.text == "text" else names.text
        asked = row.string(name, key=columns and "text")
        if not asked.strip():
            raise row.error(f"{name!r} is empty: expected a question")
        group = str(row.cells.get(QUESTION_ID, asked))
        first_asked, candidates = questions.setdefault(group, (asked, {}))
        if first_asked != asked:
            line = next(iter(candidates.values())).line
            raise row.error(
                f"{QUESTION_ID} {group!r} is that of another question in line "
                f"{line}: expected an id for each question"
            )
        for key, (name, relevance) in passages.items():
            passage = row.string(name, key=columns and key)
            if not passage.strip():
                raise row.error(f"{name!r} is empty: expected a passage")
            if relevance_name is not None:
                relevance = _relevance(row, relevance_name, key=columns and "label")
            candidate = Candidate(passage, relevance, number, row.line)
            # Without labels every row has an answer.
            first = candidates.setdefault(passage if has_labels else number, candidate)
            if candidate.relevance != first.relevance:
                differing.append(row.line)
                best = max(candidate.relevance, first.relevance)
                candidates[passage] = first._replace(relevance=best)
    if differing:
        logger.warning(
            "%s: %d passages come again for their question with another relevance, "
            "such as line %d: the highest one counts",
            *(path, len(differing), differing[0]),
        )
    every = (Question(asked, tuple(c.values())) for asked, c in questions.values())
    return reading.at_least_one(path, every)


def _relevance(row: reading.Row, name: str, *, key: str | None) -> float:
    value = row.value(name, key=key)
    relevance = reading.as_number(value)
    if not 0 <= relevance <= MAX_RELEVANCE:
        raise row.error(
            f"{name!r}: expected a number from 0, not relevant, to "
            f"{MAX_RELEVANCE:,.0f}, got {value!r}"
        )
    # The loss compares float32 numbers: 1 and 1.00000001 are the same.
    return float(np.float32(relevance))


def _columns(
    names: finetuning.TextColumns, row: Mapping[str, Any], *, has_labels: bool
) -> tuple[Mapping[str, tuple[str, float | None]], str | None]:
    """Returns the columns of passages by their keys in `columns`, with the relevance
    that the column of a triple says; and the column of relevances, if there is one."""
    label = names.label if isinstance(names.label, str) else "label"
    relevance = "relevance" if label == "label" else label
    if has_labels and relevance not in row and row.keys() & {*TRIPLE}:
        passages = {"text_pair": (names.text_pair or "positive", 1.0)}
        if "negative" in row:
            passages["negative"] = "negative", 0.0
        return passages, None
    passages = {"text_pair": (names.text_pair or "passage", None)}
    return passages, relevance if has_labels else None


@dataclass(frozen=True, kw_only=True)
class CandidateLists(dataset.Inputs):
    """Model inputs to learn from: each is a question with some of its candidates."""

    pairs: tokenized.TokenizedTexts
    """A question and a candidate each, question after question."""
    counts: np.ndarray
    """`(num_questions,)` int64: candidates of each."""
    relevances: np.ndarray
    """`(num_pairs,)` float32."""
    question_seeds: np.ndarray
    """`(num_questions,)` uint64."""
    settings: finetuning.RankingConfig
    seed: int
    epoch: int = 0

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        """Returns the first pair of each question, `(num_questions,)`."""
        return np.cumsum(self.counts) - self.counts

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Returns `(num_questions,)` int64 tokens of each question's longest pair."""
        return np.maximum.reduceat(self.pairs.lengths, self._starts)

    @property
    def whole_lengths(self) -> np.ndarray:
        return self.pairs.whole_lengths

    def of_epoch(self, epoch: int) -> "CandidateLists":
        """Returns the inputs of an epoch, counted from 0."""
        return dataclasses.replace(self, epoch=epoch)

    def draw(self, question: int) -> np.ndarray:
        """Returns the pairs of a question to learn from, ascending: all, or a function
        of (seed, question, epoch) with one pair that is more relevant than another, one
        that is less relevant, and others."""
        places = self._starts[question] + np.arange(self.counts[question])
        if len(places) <= self.settings.num_candidates:
            return places
        place = [self.seed & (2**64 - 1), self.question_seeds[question], self.epoch]
        order = np.random.default_rng(place).permutation(places)
        relevances = self.relevances[order]
        # The first such place in a random order.
        right = np.argmax(relevances > relevances.min())
        less = np.argmax(relevances < relevances[right])
        others = np.delete(order, [right, less])[: self.settings.num_candidates - 2]
        return np.sort([order[right], order[less], *others])

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns some questions, each with as many candidates.

        `input_ids`, `input_mask` and `segment_ids` are int32, `(len(rows),
        num_candidates, length)`, padded to the longest of all candidates of these
        questions, drawn or not. `label_ids` are `(len(rows), num_candidates)` float32
        relevances, below 0 where a question has no more candidates and its first one
        stands again. For the listwise loss, `label_targets` are shares of the
        relevance, the same shape.
        """
        width = min(self.settings.num_candidates, int(self.counts.max()))
        drawn = [self.draw(row) for row in rows]
        pairs = np.stack([shapes.pad_rows(places, width) for places in drawn])
        counts = np.array([len(places) for places in drawn])
        is_there = np.arange(width) < counts[:, None]
        relevances = np.where(is_there, self.relevances[pairs], np.float32(-1))
        texts = tokenized.GroupedTexts(texts=self.pairs, ids=pairs)
        batch = texts.batch(np.arange(len(rows)))
        # Shapes of batches are planned from `lengths`, before candidates are drawn.
        batch = shapes.padded(batch, int(self.lengths[rows].max()))
        batch["label_ids"] = relevances
        if self.settings.loss == "listwise":
            gains = np.maximum(relevances, 0)
            batch[features.LABEL_TARGETS] = gains / gains.sum(axis=1, keepdims=True)
        return batch


@dataclass(frozen=True, kw_only=True)
class RankingDataset(dataset.Dataset):
    """Rows that are questions, each with any number of candidates."""

    is_training: bool = False

    def keys(self) -> list[str]:
        return [question.text for question in self.rows]

    def contents(self) -> dataset.Contents:
        """Returns every pair of a question and a candidate."""
        pairs = [(q.text, c) for q in self.rows for c in q.candidates]
        relevances = [c.relevance for _, c in pairs]
        return dataset.Contents(
            [(asked, candidate.passage) for asked, candidate in pairs],
            relevances,
            labels=[f"{value:g}" for value in relevances] if self.has_labels else (),
        )

    def _comparable(self) -> list[Question]:
        """Returns the questions with a right passage and a less relevant one, or raises
        an `InputError` if there are none."""
        if questions := [q for q in self.rows if q.can_be_learnt]:
            return questions
        raise InputError(
            f"{self.path}: expected a right passage (relevance above 0) and a less "
            f"relevant one for a question, found none for {len(self)} questions: "
            "`bert-keras negatives` looks for wrong passages"
        )

    def for_training(self) -> "RankingDataset":
        questions = self._comparable()
        if missing := len(self) - len(questions):
            logger.warning(
                "%s: %d of %d questions have no right passage, or none that is less "
                "relevant: nothing is learnt from these",
                *(self.path, missing, len(self)),
            )
        return dataclasses.replace(self, rows=questions, is_training=True)

    def files(self, answers, *, suffix, decision=tasks.LIKELIEST) -> dict[str, str]:
        """Returns the rows of each question, the best first."""
        rows, in_order, values = list(reading.read_rows(self.path)), [], []
        sure, is_answer = answers.sure(decision), []
        for place, question in enumerate(self.rows):
            found = answers.scores_of[place]
            order = scores.ranking(found)
            in_order += [rows[question.candidates[n].row].cells for n in order]
            values += [*found[order]]
            if sure:
                is_answer += [int(sure[place]["is_sure"]), *[0] * (len(order) - 1)]
        # Nine digits: float32, so that no two scores become equal.
        columns = {"score": tables.Column(values, ".9g")}
        if sure:
            columns["is_answer"] = tables.Column(is_answer)
        return {"predictions": tables.joined(in_order, columns, suffix=suffix)}

    def describe(self) -> tasks.Task:
        return tasks.Task(kind="ranking", has_text_pair=True)

    def encode(self, task, tokenizer, settings):
        if self.has_labels:
            # Of right passages alone every order scores 1.
            self._comparable()
        pairs = tokenized.tokenize(
            ((q.text, c.passage) for q in self.rows for c in q.candidates),
            tokenizer,
            max_seq_length=settings.max_seq_length,
            keeps_tail=settings.long_texts == "head_tail",
        )
        if not self.is_training:
            return tokenized.LabelledInputs(texts=pairs, labels={})
        relevances = np.concatenate([question.relevances for question in self.rows])
        seeds = [splits.number_of(question.text) for question in self.rows]
        return CandidateLists(
            pairs=pairs,
            counts=np.array([len(question.candidates) for question in self.rows]),
            relevances=relevances.astype(np.float32),
            question_seeds=np.array(seeds, np.uint64),
            settings=settings.ranking,
            seed=settings.seed,
        )

    def answer(self, outputs, inputs, task, settings) -> "RankingAnswers":
        counts = [len(question.candidates) for question in self.rows]
        return RankingAnswers(
            questions=self.rows,
            scores_of=np.split(outputs[:, 0], np.cumsum(counts)[:-1]),
            has_labels=self.has_labels,
        )

    def explained(self, outputs, inputs, task, settings, *, label=None):
        """Returns the score of every passage."""
        pairs = zip(self.contents().texts, outputs[:, 0].tolist(), strict=True)
        return [
            dataset.Explained(f"{score:.6g}", texts, row, np.ones(1))
            for row, (texts, score) in enumerate(pairs)
        ]


@dataclass(frozen=True, kw_only=True)
class RankingAnswers(dataset.Answers):
    """Scores of the candidates of questions."""

    questions: Sequence[Question]
    scores_of: Sequence[np.ndarray]
    """`(num_candidates,)` float32 of each question."""
    has_labels: bool

    def candidates(self) -> dataset.Candidates:
        shape = len(self.questions), max(map(len, self.scores_of))
        logits, is_right = np.full(shape, -np.inf), np.zeros(shape, bool)
        for row, (question, found) in enumerate(
            zip(self.questions, self.scores_of, strict=True)
        ):
            logits[row, : len(found)] = found
            is_right[row, : len(found)] = np.array(question.relevances, float) > 0
        places = np.array([scores.ranking(found)[0] for found in self.scores_of])
        return dataset.Candidates(logits, is_right, places)

    def sure(self, decision: tasks.Decision) -> list[dict[str, Any]]:
        """Returns fields of `SureRanking`, which judge the first passage of each
        question; [] without a promise."""
        if not decision.is_promise:
            return []
        shares = self.candidates().answered(decision.temperature).probabilities
        is_sure = decision.is_given(shares)
        pairs = zip(shares.tolist(), is_sure.tolist(), strict=True)
        return [{"probability": share, "is_sure": given} for share, given in pairs]

    def scores(self, *, decision=tasks.LIKELIEST) -> dict[str, float]:
        relevances = [question.relevances for question in self.questions]
        return scores.mean_scores(zip(relevances, self.scores_of, strict=True))

    def records(self, *, decision=tasks.LIKELIEST) -> Iterator[answers.Record]:
        sure = self.sure(decision)
        form = SureRanking if sure else RankedPassages
        for row, question in enumerate(self.questions):
            found = self.scores_of[row]
            yield form(
                question=question.text,
                passages=tuple(c.passage for c in question.candidates),
                line=question.candidates[0].line,
                relevances=tuple(question.relevances) if self.has_labels else None,
                prediction=tuple(scores.ranking(found).tolist()),
                scores=tuple(found.tolist()),
                **(sure[row] if sure else {}),
            )
