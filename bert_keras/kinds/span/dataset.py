"""Files of questions as data sets: windows of tokens in, answers out.

Answers are chosen as run_squad.py does, and are cut out of the context as it was
written, by the places of their characters.
"""

# Labels are None only in files without any, which are not asked for them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import dataclasses
import functools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.special

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.data import token_offsets
from bert_keras.kinds.span import AnsweredQuestion, squad, squad_scores, triviaqa
from bert_keras.labelled import dataset, tokenized

logger = logging.getLogger(__name__)

_MAX_SHOWN = 10
"""Questions that are skipped to list."""


@dataclass(frozen=True, kw_only=True)
class SpanDataset(dataset.Dataset):
    """Rows of `squad.Question`."""

    has_impossible: bool
    """Whether questions may have no answer."""

    def keys(self) -> list[str]:
        return [question.context for question in self.rows]

    def places(self) -> list[str]:
        return [question.id for question in self.rows]

    def contents(self) -> dataset.Contents:
        return dataset.Contents(
            [(question.question, question.context) for question in self.rows],
            [frozenset(a.text for a in question.answers) for question in self.rows],
            labels=["answer" if q.answers else "no answer" for q in self.rows],
        )

    def files(self, answers, *, suffix, decision=tasks.LIKELIEST) -> dict[str, str]:
        """Returns the files that run_squad.py writes: from name to content."""
        n_best = answers.calibrated(decision).n_best.items()
        contents = {
            "predictions.json": answers.texts(decision=decision),
            "nbest_predictions.json": {
                id: [dict(zip(c._fields, c[:4], strict=False)) for c in candidates]
                for id, candidates in n_best
            },
        }
        if answers.null_odds is not None:
            contents["null_odds.json"] = answers.null_odds
        # In ASCII, as the original's: half of a surrogate pair can be written too.
        return {n: json.dumps(c, indent=4) + "\n" for n, c in contents.items()}

    def relabelled(self, changes) -> tuple[str, str]:
        """Returns a flat list. A new answer has no place: it is learnt if its text is
        in the context once."""
        rows = []
        for row, question in enumerate(self.rows):
            answers = question.answers
            if row in changes:
                answers = [squad.Answer(text, None) for text in changes[row] or ()]
            starts = [-1 if a.start is None else a.start for a in answers]
            answers = {"text": [a.text for a in answers], "answer_start": starts}
            if changes.get(row, ()) is not None:
                rows.append(question._asdict() | {"answers": answers})
        # In ASCII, which can write half of a surrogate pair.
        return ".jsonl", "".join(f"{files.to_json(row)}\n" for row in rows)

    def for_training(self) -> "SpanDataset":
        rows = [question for question in self.rows if question.can_be_learnt]
        return dataclasses.replace(self, rows=rows)

    def describe(self) -> tasks.Task:
        return tasks.Task(
            kind="span",
            name=self.name,
            has_text_pair=True,
            has_impossible=self.has_impossible,
        )

    def encode(self, task, tokenizer, settings) -> "Windows":
        """Cuts each context into overlapping windows, as run_squad.py does.

        The answer is the first one that has a place, from the piece that has its first
        character to the piece that has its last one: where it begins or ends inside a
        piece, the whole piece belongs to it. A window has at most `max_seq_length`
        tokens, with the question.
        """
        max_seq_length = settings.max_seq_length
        max_query_length = settings.span.max_query_length
        if max_seq_length < max_query_length + 4:
            raise InputError(
                f"a window of max_seq_length={max_seq_length} tokens has no room for "
                f"max_query_length={max_query_length} of the question, 3 special "
                "tokens and some of the text: raise the first or lower the second"
            )
        if not self.rows:
            raise InputError("expected at least one question, got none")
        cls_id, sep_id = tokenizer.vocabulary.cls_id, tokenizer.vocabulary.sep_id
        whole_lengths, numbers, values = [], [], []
        # The questions of a paragraph follow each other.
        offset_tokenizer = token_offsets.OffsetTokenizer(tokenizer)
        encode_context = functools.lru_cache(1)(offset_tokenizer.encode)

        def inputs() -> Iterator[tuple[list[int], list[int]]]:
            """Yields ids and segments, so that not all are in lists at once."""
            for number, question in enumerate(self.rows):
                ids, starts, ends = encode_context(question.context)
                query = tokenizer.encode(question.question)
                whole_lengths.append(len(query) + len(ids) + 3)
                head = [cls_id, *query[:max_query_length], sep_id]
                # The first and the last token with a part of the first answer that has
                # a place; the last is before the first without one, or if the answer
                # is control characters only.
                first, last = 0, -1
                for text, start in question.answers:
                    if start is not None:
                        first = np.searchsorted(ends, start, side="right")
                        last = np.searchsorted(starts, start + len(text)) - 1
                        break
                room = max_seq_length - len(head) - 1
                windows = cut_windows(len(ids), room, settings.span.doc_stride)
                for tokens, has_max_context in windows:
                    is_inside = tokens.start <= first <= last < tokens.stop
                    positions = np.array([first, last]) + len(head) - tokens.start
                    numbers.append([number, *positions * is_inside])
                    columns = starts[tokens], ends[tokens], has_max_context
                    # 0 elsewhere: only the context's tokens have `char_ends` above 0.
                    values.append([np.pad(c, (len(head), 1)) for c in columns])
                    tail = [*ids[tokens].tolist(), sep_id]
                    yield head + tail, [0] * len(head) + [1] * len(tail)

        texts = tokenized.TokenizedTexts.join(inputs())
        question_numbers, start_positions, end_positions = np.array(numbers, np.int32).T
        columns = zip(*values, strict=True)
        char_starts, char_ends, has_max_context = map(np.concatenate, columns)
        return Windows(
            texts=texts,
            questions=question_numbers,
            start_positions=start_positions,
            end_positions=end_positions,
            char_starts=char_starts,
            char_ends=char_ends,
            has_max_context=has_max_context,
            whole_lengths=np.array(whole_lengths, np.int64),
        )

    def answer(self, outputs, inputs, task, settings) -> "SpanAnswers":
        """Chooses the best answers. Where the task has questions without an answer,
        "no answer" has the score of `[CLS]` in the window where it is lowest."""
        # (2, num_tokens), in the precision of Python's numbers, as in run_squad.py.
        logits = outputs.T.astype(np.float64)
        if not np.isfinite(logits).all():
            raise InputError(
                "the model's scores are not finite numbers: its training has failed"
            )
        n_best, null_odds = {}, {}
        # Every question has at least one window, also of an empty context.
        first_windows = np.flatnonzero(np.diff(inputs.questions)) + 1
        windows = np.split(np.arange(len(inputs.questions)), first_windows)
        for question, rows in zip(self.rows, windows, strict=True):
            candidates = _best_spans(
                question.context, inputs, rows, logits, settings.span
            )
            cls = inputs.texts.starts[rows]
            if task.has_impossible:
                # (2, num_windows): start and end logits of each window's `[CLS]`.
                nulls = logits[:, cls]
                lowest = nulls.sum(axis=0).argmin()
                tokens = (cls[lowest], cls[lowest])
                null = Candidate("", 0.0, *nulls[:, lowest].tolist(), tokens)
                # Without candidates more than any difference of logits: a context of
                # spaces has no answer.
                null_odds[question.id] = 1e6
                if candidates:
                    best = candidates[0]
                    odds = null.score - best.start_logit - best.end_logit
                    null_odds[question.id] = odds
                # "No answer" stands where it belongs, or last if that is beyond
                # `n_best_size`: its probability is always known, as in the original.
                place = sum(candidate.score >= null.score for candidate in candidates)
                candidates.insert(place, null)
                if place < settings.span.n_best_size:
                    del candidates[settings.span.n_best_size :]
            # The original answers "empty" where there is nothing to choose from.
            nothing = Candidate("", 0.0, 0.0, 0.0, (cls[0], cls[0]))
            n_best[question.id] = candidates or [nothing]
        answers = SpanAnswers(
            questions=self.rows,
            has_impossible=self.has_impossible,
            n_best=n_best,
            null_odds=null_odds if task.has_impossible else None,
        )
        return answers.calibrated(tasks.LIKELIEST)

    def explained(self, outputs, inputs, task, settings, *, label=None):
        """The score is the logit of the answer's first token and that of its last. The
        answer is the best text, also where "no answer" is more probable."""
        best_of = self.answer(outputs, inputs, task, settings).best()
        found, starts = [], inputs.texts.starts
        for number, question in enumerate(self.rows):
            best = best_of[question.id]
            row = int(np.searchsorted(starts, best.tokens[0], side="right")) - 1
            length = inputs.lengths[row]
            weights = np.zeros((length, 2))
            weights[best.tokens - starts[row], [0, 1]] = 1
            # Windows begin so many pieces of the context one after the other.
            segments = inputs.texts.segment_ids[starts[row] :][:length]
            room = settings.max_seq_length - np.count_nonzero(segments == 0) - 1
            step = min(room, settings.span.doc_stride)
            skipped = step * (row - np.searchsorted(inputs.questions, number))
            texts = (question.question, question.context)
            found.append(dataset.Explained(best.text, texts, row, weights, skipped))
        return found


def read(path: Path, name: str | None, *, has_answers: bool) -> SpanDataset:
    """Reads a file of questions in the layout of the data set `name`."""
    if name == "TriviaQA":
        # `path` is `qa/NAME.json`, beside which `evidence/` lies.
        evidence = path.parent.parent / "evidence"
        questions = triviaqa.read_triviaqa(path, evidence, has_answers=has_answers)
    else:
        questions = squad.read_squad(path, has_answers=has_answers)
    if questions.num_repaired_answers:
        logger.warning(
            "%s: %d answers were not where the file says, but in one other place",
            *(path, questions.num_repaired_answers),
        )
    if skipped := questions.skipped:
        lines, more = [*skipped[:_MAX_SHOWN]], len(skipped) - _MAX_SHOWN
        lines += [f"and {more} more"] if more > 0 else []
        logger.warning(
            "%s: %d questions without a text that has the answer, not trained on:%s",
            *(path, len(skipped), "".join(f"\n  {line}" for line in lines)),
        )
    return SpanDataset(
        path=path,
        rows=questions.questions,
        has_labels=has_answers,
        has_impossible=questions.has_impossible,
        name=name,
    )


class Candidate(NamedTuple):
    """One of the best answers to a question; an empty text says that there is none."""

    text: str
    probability: float
    """Probability among the candidates of this question."""
    start_logit: float
    end_logit: float
    tokens: tuple[int, int] = (0, 0)
    """The first one and the last one, among those of all windows."""

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


@dataclass(frozen=True, kw_only=True)
class SpanAnswers(dataset.Answers):
    """The answers to questions."""

    questions: Sequence[squad.Question]
    has_impossible: bool
    """Whether these questions may have no answer: scores are those of SQuAD 2.0."""
    n_best: Mapping[str, list[Candidate]]
    """By question id, most probable first, all texts different."""
    null_odds: Mapping[str, float] | None
    """Score of "no answer" less that of the best answer; `None` if every question has
    an answer."""

    def best(self) -> dict[str, Candidate]:
        """Returns the best answers that are not empty; empty only without any text."""
        return {
            id: next((c for c in candidates if c.text), candidates[0])
            for id, candidates in self.n_best.items()
        }

    def candidates(self) -> dataset.Candidates:
        """Returns the best answers of each question, "no answer" among them. The answer
        to be sure of is the best text, also where "no answer" is more probable; without
        any text it is the last column, which has no candidates."""
        shape = len(self.questions), 1 + max(map(len, self.n_best.values()))
        logits, is_right = np.full(shape, -np.inf), np.zeros(shape, bool)
        places = np.full(shape[0], -1)
        exact = functools.partial(
            squad_scores.score_answer, has_impossible=self.has_impossible
        )
        for row, question in enumerate(self.questions):
            right = [answer.text for answer in question.answers]
            for place, candidate in enumerate(self.n_best[question.id]):
                logits[row, place] = candidate.score
                is_right[row, place] = exact(candidate.text, right).exact == 1
                if candidate.text and places[row] < 0:
                    places[row] = place
        return dataset.Candidates(logits, is_right, places)

    def judged_labels(self) -> dataset.JudgedLabels:
        """Returns two classes for each question: its right answers together, and the
        best of the wrong ones."""
        logits, is_right, *_ = self.candidates()
        shares, rows = scipy.special.softmax(logits, axis=-1), np.arange(len(logits))
        wrong = np.where(is_right, 0, shares)
        names = []
        for question, best in zip(self.questions, wrong.argmax(axis=-1), strict=True):
            texts = [answer.text for answer in question.answers] or [""]
            names.append((texts[0], self.n_best[question.id][best].text))
        right = np.where(is_right, shares, 0).sum(axis=-1)
        return dataset.JudgedLabels(
            rows=rows,
            labels=0 * rows,
            probabilities=np.stack([right, wrong.max(axis=-1)], axis=-1),
            names=np.array(names, object),
            parts=np.full(len(rows), ""),
            groups=0 * rows,
        )

    def calibrated(self, decision: tasks.Decision) -> "SpanAnswers":
        """Returns the answers with the probabilities at the decision's temperature."""
        n_best = {}
        for id, candidates in self.n_best.items():
            scores = np.array([candidate.score for candidate in candidates])
            shares = scipy.special.softmax(scores / decision.temperature).tolist()
            pairs = zip(candidates, shares, strict=True)
            n_best[id] = [c._replace(probability=share) for c, share in pairs]
        return dataclasses.replace(self, n_best=n_best)

    def texts(self, *, decision: tasks.Decision = tasks.LIKELIEST) -> dict[str, str]:
        """Returns the answers: an empty one where the odds of "no answer" are above the
        decision's, or where the probability of the best text is too low for a promise.
        """
        if decision.is_promise:
            best = self.calibrated(decision).best().items()
            is_given = decision.is_given
            return {id: c.text if is_given(c.probability) else "" for id, c in best}
        odds, most, best = self.null_odds, decision.no_answer_odds, self.best().items()
        return {id: "" if odds and odds[id] > most else c.text for id, c in best}

    def scores(self, *, decision=tasks.LIKELIEST) -> dict[str, float]:
        """Returns the official scores; for 2.0 also those of the best threshold."""
        gold, odds = squad.gold_answers(self.questions), self.null_odds
        texts = self.texts(decision=decision)
        scores = squad_scores.scores(gold, texts, has_impossible=self.has_impossible)
        if odds is not None:
            best_texts = {id: best.text for id, best in self.best().items()}
            scores |= squad_scores.best_thresholds(gold, best_texts, odds)
        return scores

    def records(self, *, decision=tasks.LIKELIEST) -> Iterator[AnsweredQuestion]:
        texts, best = self.texts(decision=decision), self.best()
        n_best = self.calibrated(decision).n_best
        for id, question, context, right in self.questions:
            probabilities = {c.text: c.probability for c in n_best[id]}
            # A calibrated probability is that of the best text, given or not.
            asked = best[id].text if decision.is_promise else texts[id]
            yield AnsweredQuestion(
                id=id,
                question=question,
                context=context,
                answers=tuple(answer.text for answer in right),
                prediction=texts[id],
                probability=probabilities.get(asked, 0.0),
                null_odds=self.null_odds and self.null_odds[id],
                best_text=best[id].text,
            )


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Model inputs `[CLS] question [SEP] window of the context [SEP]`, one or more for
    each question, in order. Values of tokens are end to end, as in `texts`."""

    texts: tokenized.TokenizedTexts
    questions: np.ndarray
    """`(num_windows,)` int32: the place of each window's question among all."""
    start_positions: np.ndarray
    """`(num_windows,)` int32: the answer's first token, counted from `[CLS]`; 0, which
    is `[CLS]`, if the window does not hold the whole answer or there is none."""
    end_positions: np.ndarray
    """`(num_windows,)` int32: the answer's last token."""
    char_starts: np.ndarray
    """`(num_tokens,)` int32: first character of a token of the context; else 0."""
    char_ends: np.ndarray
    """`(num_tokens,)` int32: the character after its last one; else 0."""
    has_max_context: np.ndarray
    """`(num_tokens,)` bool: whether a token of the context has more tokens around it
    here than in the other windows. An answer begins only with such a token."""
    whole_lengths: np.ndarray
    """`(num_questions,)` int64: tokens of each question with all of its context."""

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns inputs and positions of some windows, padded to the longest."""
        return {
            **self.texts.batch(rows),
            "start_positions": self.start_positions[rows],
            "end_positions": self.end_positions[rows],
        }

    @property
    def lengths(self) -> np.ndarray:
        """Returns the tokens of each window, `(num_windows,)` int64."""
        return self.texts.lengths

    @property
    def num_answers(self) -> int:
        """Returns the number of tokens of all windows: each has outputs."""
        return len(self.texts.input_ids)

    def places(self, rows: np.ndarray) -> dataset.Places:
        """Returns places of the outputs for a batch of windows, among all tokens."""
        tokens, mask = self.texts.tokens(rows)
        return dataset.Places(tokens[mask], np.nonzero(mask))


def cut_windows(
    num_tokens: int, window_length: int, doc_stride: int
) -> list[tuple[slice, np.ndarray]]:
    """Returns the windows over a context; a single empty one if it has no tokens. Each
    is its tokens, and `Windows.has_max_context` of them."""
    spans = tokenized.window_spans(num_tokens, window_length, doc_stride)
    best = np.full(num_tokens, -np.inf)
    owners = np.zeros(num_tokens, np.int32)
    for number, (start, end) in enumerate(spans):
        # The smaller side counts; among equals the longer window, then the first.
        left = np.arange(end - start)
        score = np.minimum(left, left[::-1]) + 0.01 * (end - start)
        is_better = score > best[start:end]
        best[start:end][is_better] = score[is_better]
        owners[start:end][is_better] = number
    windows = [slice(*span) for span in spans]
    return [(window, owners[window] == n) for n, window in enumerate(windows)]


def _best_spans(
    context: str,
    windows: Windows,
    rows: np.ndarray,
    logits: np.ndarray,
    settings: finetuning.SpanConfig,
) -> list[Candidate]:
    """Returns the best span of each text, which may be in more than one place, the best
    text first. `rows` are the windows of the question, `logits` `(2, num_tokens)`.

    The `n_best_size` best first tokens of each window are combined with as many best
    last tokens. As only tokens of the context are ranked (in the original all are, and
    those of the question are thrown out later), no answer of the original is missed.
    """
    # 1. The best first and last tokens: each row's logits, -inf for none, and columns.
    tokens, mask = windows.texts.tokens(rows)
    # (2, num_windows, longest): an answer may begin here, or end here.
    may_be = mask & [windows.has_max_context[tokens], windows.char_ends[tokens] > 0]
    both = np.where(may_be, logits[:, tokens], -np.inf)
    columns = np.argsort(-both, axis=2, kind="stable")[:, :, : settings.n_best_size]
    both, (first, last) = np.take_along_axis(both, columns, axis=2), columns
    # 2. Their pairs.
    # (num_windows, first tokens, last tokens), as are `scores` and `is_span`.
    length = last[:, None, :] - first[:, :, None] + 1
    scores = both[0][:, :, None] + both[1][:, None, :]
    is_span = (length >= 1) & (length <= settings.max_answer_length)
    is_span &= scores > -np.inf
    # Stable: among equals the first window, then the better first token.
    order = np.argsort(-scores[is_span], kind="stable")
    best: dict[str, Candidate] = {}
    for row, begin, end in np.argwhere(is_span)[order].tolist():
        if len(best) == settings.n_best_size:
            break
        pair = tokens[row, first[row, begin]], tokens[row, last[row, end]]
        text = context[windows.char_starts[pair[0]] : windows.char_ends[pair[1]]]
        start_logit, end_logit = float(both[0, row, begin]), float(both[1, row, end])
        best.setdefault(text, Candidate(text, 0.0, start_logit, end_logit, pair))
    return list(best.values())


def score_file(path: str | Path, predictions: str | Path) -> dict[str, float]:
    """Scores a `predictions.json` of any system as `squad_scores.scores` does. The file
    `path` has SQuAD's layout, with answers; an empty prediction is "no answer"."""
    questions = squad.read_squad(path)
    return squad_scores.scores(
        squad.gold_answers(questions.questions),
        squad.load_predictions(predictions),
        has_impossible=questions.has_impossible,
    )
