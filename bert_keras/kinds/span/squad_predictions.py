"""Answers from a model's scores of tokens, as run_squad.py makes them.

Answers are cut out of the context as it was written, by the places of their characters.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.special

from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.kinds.span import squad, squad_scores


class Candidate(NamedTuple):
    """One of the best answers to a question; an empty text says that there is none."""

    text: str
    probability: float
    """Probability among the candidates of this question."""
    start_logit: float
    end_logit: float


class Predictions(NamedTuple):
    n_best: dict[str, list[Candidate]]
    """Most probable first, all texts different."""
    null_odds: dict[str, float] | None
    """Score of "no answer" less that of the best answer; `None` if every question has
    an answer."""

    def best_texts(self) -> dict[str, str]:
        """Returns the best answers that are not empty; empty only without any text."""
        return {
            id: next((c.text for c in candidates if c.text), "")
            for id, candidates in self.n_best.items()
        }

    def answers(self, *, null_score_diff_threshold: float = 0.0) -> dict[str, str]:
        """Returns the answers: an empty one where its odds are above the threshold."""
        texts = self.best_texts()
        if self.null_odds is None:
            return texts
        return {
            id: "" if self.null_odds[id] > null_score_diff_threshold else text
            for id, text in texts.items()
        }

    def to_files(self, *, null_score_diff_threshold: float = 0.0) -> dict[str, str]:
        """Returns the files that run_squad.py writes: from name to content."""
        answers = self.answers(null_score_diff_threshold=null_score_diff_threshold)
        n_best = {
            id: [candidate._asdict() for candidate in candidates]
            for id, candidates in self.n_best.items()
        }
        contents = {"predictions.json": answers, "nbest_predictions.json": n_best}
        if self.null_odds is not None:
            contents["null_odds.json"] = self.null_odds
        # In ASCII, as the original's: half of a surrogate pair can be written too.
        return {
            name: json.dumps(content, indent=4) + "\n"
            for name, content in contents.items()
        }


def predict(
    questions: Sequence[squad.Question],
    windows: squad.Windows,
    settings: finetuning.SpanConfig,
    *,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    has_impossible: bool,
) -> Predictions:
    """Finds the best answers.

    The `n_best_size` best first tokens of each window are combined with as many best
    last tokens. As only tokens of the context are ranked (in the original all are, and
    those of the question are thrown out later), no answer of the original is missed.

    Args:
        windows: of just these questions, from `squad.featurize`.
        start_logits: `(num_tokens,)`, end to end as in `windows.texts`; so are
            `end_logits`.
        has_impossible: whether "no answer" is an answer (SQuAD 2.0); its score is that
            of `[CLS]` in the window where it is lowest.
    """
    n_best_size = settings.n_best_size
    logits = np.stack([start_logits, end_logits]).astype(np.float64)
    if not np.isfinite(logits).all():
        raise InputError(
            "the model's scores are not finite numbers: its training has failed"
        )
    n_best, null_odds = {}, {}
    for rows in _blocks(windows.questions):
        spans = _best_spans(windows, rows, logits, settings)
        for number, of_question in spans:
            question = questions[number]
            entries = _distinct(question.context, of_question, n_best_size)
            if has_impossible:
                null = _null_entry(windows, rows, number, logits)
                null_odds[question.id] = _odds(null, entries)
                entries = _with_null(entries, null, n_best_size)
            n_best[question.id] = _candidates(entries)
    return Predictions(n_best, null_odds if has_impossible else None)


_WINDOWS_PER_BLOCK = 1024
"""Some 50 MB for windows of 384 tokens and the 20 best of each end."""


def _blocks(questions: np.ndarray) -> Iterator[np.ndarray]:
    """Yields rows of windows, cut between questions."""
    start = 0
    while start < len(questions):
        last = questions[min(start + _WINDOWS_PER_BLOCK, len(questions)) - 1]
        end = int(np.searchsorted(questions, last, side="right"))
        yield np.arange(start, end)
        start = end


_Span = tuple[int, int, float, float]
"""First character, the one after the last, start logit and end logit."""


def _best_spans(
    windows: squad.Windows,
    rows: np.ndarray,
    logits: np.ndarray,
    settings: finetuning.SpanConfig,
) -> Iterator[tuple[int, Iterator[_Span]]]:
    """Yields each question of some windows with its possible answers, if any, best
    first."""
    tokens, mask = windows.texts.tokens(rows)
    is_context = mask & (windows.char_ends[tokens] > 0)
    may_begin = mask & windows.has_max_context[tokens]
    first, first_logits = _top(logits[0][tokens], may_begin, settings.n_best_size)
    last, last_logits = _top(logits[1][tokens], is_context, settings.n_best_size)
    length = last[:, None, :] - first[:, :, None] + 1
    is_span = (length >= 1) & (length <= settings.max_answer_length)
    is_span &= np.isfinite(first_logits)[:, :, None]
    is_span &= np.isfinite(last_logits)[:, None, :]
    row, begin, end = np.nonzero(is_span)
    scores = first_logits[row, begin] + last_logits[row, end]
    # Stable: among equals the first window, then the better first token.
    order = np.lexsort((-scores, windows.questions[rows[row]]))
    row, begin, end = row[order], begin[order], end[order]
    columns = (
        windows.char_starts[tokens[row, first[row, begin]]],
        windows.char_ends[tokens[row, last[row, end]]],
        first_logits[row, begin],
        last_logits[row, end],
    )
    numbers = np.unique(windows.questions[rows])
    of_spans = windows.questions[rows[row]]
    bounds = np.searchsorted(of_spans, [*numbers, numbers[-1] + 1])
    for number, (start, stop) in zip(numbers, itertools.pairwise(bounds), strict=True):
        spans = zip(*(column[start:stop].tolist() for column in columns), strict=True)
        yield int(number), spans


def _top(
    logits: np.ndarray, may_be: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns columns of each row's best tokens, and their logits; -inf for none."""
    logits = np.where(may_be, logits, -np.inf)
    columns = np.argsort(-logits, axis=1, kind="stable")[:, :count]
    return columns, np.take_along_axis(logits, columns, axis=1)


class _Entry(NamedTuple):
    text: str
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


def _distinct(context: str, spans: Iterator[_Span], n_best_size: int) -> list[_Entry]:
    """Returns the best of each text, which may be in more than one place."""
    entries: dict[str, _Entry] = {}
    for char_start, char_end, start_logit, end_logit in spans:
        if len(entries) == n_best_size:
            break
        text = context[char_start:char_end]
        entries.setdefault(text, _Entry(text, start_logit, end_logit))
    return list(entries.values())


def _null_entry(
    windows: squad.Windows, rows: np.ndarray, number: int, logits: np.ndarray
) -> _Entry:
    of_question = rows[windows.questions[rows] == number]
    start_logits, end_logits = logits[:, windows.texts.starts[of_question]]
    lowest = np.argmin(start_logits + end_logits)
    return _Entry("", float(start_logits[lowest]), float(end_logits[lowest]))


def _odds(null: _Entry, entries: list[_Entry]) -> float:
    if not entries:
        # More than any difference of logits: a context of spaces has no answer.
        return 1e6
    return null.score - entries[0].start_logit - entries[0].end_logit


def _with_null(entries: list[_Entry], null: _Entry, n_best_size: int) -> list[_Entry]:
    """Adds "no answer" where it belongs, or last if that is beyond `n_best_size`. So
    its probability is always known, as in the original."""
    place = sum(entry.score >= null.score for entry in entries)
    merged = [*entries[:place], null, *entries[place:]]
    return merged[:n_best_size] if place < n_best_size else merged


def _candidates(entries: list[_Entry]) -> list[Candidate]:
    # The original answers "empty" where there is nothing to choose from.
    entries = entries or [_Entry("", 0.0, 0.0)]
    probabilities = scipy.special.softmax([entry.score for entry in entries]).tolist()
    return [
        Candidate(text, probability, *logits)
        for (text, *logits), probability in zip(entries, probabilities, strict=True)
    ]


def score_file(path: str | Path, predictions: str | Path) -> dict[str, float]:
    """Scores a `predictions.json` of any system as `squad_scores.scores` does. The file
    `path` has SQuAD's layout, with answers; an empty prediction is "no answer"."""
    questions = squad.read_squad(path)
    return squad_scores.scores(
        questions.gold_answers(),
        squad.load_predictions(predictions),
        has_impossible=questions.has_impossible,
    )
