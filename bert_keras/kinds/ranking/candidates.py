"""Files of questions and the passages to rank for each.

A row has a question, a passage and the passage's relevance, a number from 0; or, as the
triples of MS MARCO, a question with a right passage and a wrong one. The rows of a
question may be anywhere in the file. No TensorFlow.
"""

# Relevances are None only in files without labels, which are not compared.
# pyright: reportArgumentType=false

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.core import files
from bert_keras.core.settings import finetuning
from bert_keras.labelled import row_files

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
        path: `.tsv`, `.csv` or `.jsonl`, see `text.read_texts`.
        columns: names of the columns; those that are not set are `question`, `passage`
            and `relevance`, or `question`, `positive` and `negative`. `None`: these
            names, and errors recommend no setting.
        has_labels: whether to read relevances and triples.
    """
    path, names = files.path(path), columns or finetuning.TextColumns()
    passages: Mapping[str, tuple[str, float | None]] = {}
    relevance_name = None
    questions: dict[str, tuple[str, list[Candidate]]] = {}
    for number, row in enumerate(row_files.rows_of(path)):
        # The first row says which columns there are.
        if not passages:
            passages, relevance_name = _columns(names, row.cells, has_labels=has_labels)
        name = "question" if names.text == "text" else names.text
        asked = row.string(name, key=columns and "text")
        if not asked.strip():
            raise row.error(f"{name!r} is empty: expected a question")
        group = str(row.cells.get(QUESTION_ID, asked))
        first, candidates = questions.setdefault(group, (asked, []))
        if first != asked:
            raise row.error(
                f"{QUESTION_ID} {group!r} is that of another question in line "
                f"{candidates[0].line}: expected an id for each question"
            )
        for key, (name, relevance) in passages.items():
            passage = row.string(name, key=columns and key)
            if not passage.strip():
                raise row.error(f"{name!r} is empty: expected a passage")
            if relevance_name is not None:
                relevance = _relevance(row, relevance_name, key=columns and "label")
            candidates.append(Candidate(passage, relevance, number, row.line))
    listed = [Question(*question) for question in questions.values()]
    listed = row_files.at_least_one(path, listed)
    return _without_repeats(path, listed) if has_labels else listed


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


def _relevance(row: row_files.Row, name: str, *, key: str | None) -> float:
    value = row.value(name, key=key)
    try:
        relevance = float(value)
    except (TypeError, ValueError):
        relevance = math.nan
    if not 0 <= relevance <= MAX_RELEVANCE:
        raise row.error(
            f"{name!r}: expected a number from 0, not relevant, to "
            f"{MAX_RELEVANCE:,.0f}, got {value!r}"
        )
    # The loss compares float32 numbers: 1 and 1.00000001 are the same relevance.
    return float(np.float32(relevance))


def _without_repeats(path: Path, questions: Iterable[Question]) -> list[Question]:
    differing, distinct = [], []
    for question in questions:
        by_passage: dict[str, Candidate] = {}
        for candidate in question.candidates:
            first = by_passage.setdefault(candidate.passage, candidate)
            if candidate.relevance != first.relevance:
                differing.append(candidate)
                best = max(candidate.relevance, first.relevance)
                by_passage[candidate.passage] = first._replace(relevance=best)
        distinct.append(Question(question.text, tuple(by_passage.values())))
    if differing:
        logger.warning(
            "%s: %d passages come again for their question with another relevance, "
            "such as line %d: the highest one counts",
            *(path, len(differing), differing[0].line),
        )
    return distinct
