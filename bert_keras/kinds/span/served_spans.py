"""Exported answers to questions about a text, however long it is."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras.core.errors import InputError
from bert_keras.graphs import graph_tokenizer
from bert_keras.kinds import served
from bert_keras.kinds.span import (
    served_search,
    served_windows,
    squad,
    squad_predictions,
)

_WINDOWS_AT_ONCE = 16
"""Windows read together: memory depends on this, not on the length of texts."""

_CLEAR_CUT = 1e-3
"""Least difference of scores: nearer ones may change places with the rounding of
another batch."""


class Spans(served.ServedModel):
    """The answer to a question in a text.

    Strings: `question` and `context`, `(batch_size,)` each. Ids: `served.INPUT_NAMES`.

    Numbers, also those of the signature of ids: `start_logits` and `end_logits`,
    `(batch_size, sequence_length)` float32, one for each token. Answers,
    `(batch_size,)` each: `answer`, strings cut from the context, "" for no answer;
    `start` and `end`, int32: `context[start:end]` in Python is the answer; `score`,
    float32, the sum of both logits; `probability`, float32, of this answer among the
    best ones; and, if the training had questions without answer,
    `no_answer_probability`, float32.

    The context is read in windows, and the answer chosen, as in `squad.featurize` and
    `squad_predictions.predict`. A question has no answer if its odds are above the
    run's threshold, or above 0 if the run has none.
    """

    def __init__(self, trained: served.Trained):
        super().__init__(trained, max_seq_length=trained.settings.max_seq_length)
        self._settings = trained.settings.span
        self._has_impossible = trained.task.has_impossible
        self._threshold = float(trained.threshold or 0.0)
        if self.max_seq_length < self._settings.max_query_length + 4:
            raise InputError(
                f"{trained.path}: windows of {self.max_seq_length} tokens have no room "
                f"for {self._settings.max_query_length} of the question, 3 special "
                "tokens and some of the text"
            )

    @property
    def decisions(self):
        limits = self._settings.model_dump()
        if self._has_impossible:
            limits["no_answer_threshold"] = self._threshold
        return limits

    def signatures(self):
        names = ("question", "context")
        specs = tuple(tf.TensorSpec([None], tf.string, name) for name in names)
        return {
            served.STRINGS: served.Signature(self.answer, specs),
            served.IDS: self.numbers_signature(),
        }

    def compute(self, ids):
        outputs = self.network(ids)
        return {name: outputs[name] for name in ("start_logits", "end_logits")}

    def answer(self, question: tf.Tensor, context: tf.Tensor) -> dict[str, tf.Tensor]:
        code_points = graph_tokenizer.decode(context)
        decision = self._decide(self._tokenizer(question), code_points)
        starts, ends = decision.starts, decision.ends
        found = {
            "answer": graph_tokenizer.cut(
                code_points,
                tf.range(tf.size(context, tf.int64)),
                tf.cast(starts, tf.int64),
                tf.cast(ends, tf.int64),
            ),
            "start": starts,
            "end": ends,
            "score": decision.scores,
            "probability": decision.probabilities,
        }
        if self._has_impossible:
            found["no_answer_probability"] = decision.no_answer_probabilities
        return found

    def _decide(
        self, questions: tf.RaggedTensor, code_points: tf.RaggedTensor
    ) -> served_search.Decision:
        questions = questions[:, : self._settings.max_query_length]
        pieces = self._tokenizer.locate(code_points)
        windows = served_windows.cut_windows(
            pieces.ids.row_lengths(),
            self.max_seq_length - 3 - questions.row_lengths(),
            self._settings.doc_stride,
        )
        batch = _Batch(
            questions, pieces, windows, served_search.fingerprinter(code_points)
        )
        candidates, null_scores = self._read_all(batch)
        return served_search.decide(
            candidates,
            null_scores,
            has_impossible=self._has_impossible,
            n_best_size=self._settings.n_best_size,
            threshold=self._threshold,
        )

    def _read_all(self, batch: "_Batch") -> tuple[served_search.Candidates, tf.Tensor]:
        """Returns each question's best candidates, and its lowest "no answer" score."""
        num_windows = tf.size(batch.windows.examples, tf.int64)

        def is_left(first, candidates, null_scores):
            return first < num_windows

        def read(first, candidates, null_scores):
            rows = tf.range(first, tf.minimum(first + _WINDOWS_AT_ONCE, num_windows))
            found, new_null_scores = self._read(rows, batch)
            candidates = served_search.keep_best(
                candidates, found, n_best_size=self._settings.n_best_size
            )
            null_scores = tf.minimum(null_scores, new_null_scores)
            return first + _WINDOWS_AT_ONCE, candidates, null_scores

        none = served_search.no_candidates()
        infinite = tf.constant(np.inf, tf.float64)
        of_any_length = tf.TensorShape([None])
        _, candidates, null_scores = tf.while_loop(
            is_left,
            read,
            (
                tf.constant(0, tf.int64),
                none,
                tf.fill([batch.questions.nrows()], infinite),
            ),
            shape_invariants=(
                tf.TensorShape([]),
                served_search.Candidates(*[of_any_length] * len(none)),
                of_any_length,
            ),
            # One after the other, or all would be in memory at once.
            parallel_iterations=1,
        )
        return candidates, null_scores

    def _read(
        self, rows: tf.Tensor, batch: "_Batch"
    ) -> tuple[served_search.Candidates, tf.Tensor]:
        """Returns candidates of some windows, and for each question the lowest score of
        "no answer" in them, infinite without any."""
        examples, starts, ends = (
            tf.gather(values, rows) for values in batch.windows[:3]
        )
        queries = tf.gather(batch.questions, examples)
        tokens = tf.ragged.range(starts, ends)
        numbers = self.compute(
            graph_tokenizer.pack_windows(
                queries,
                tokens.with_values(tf.gather(batch.pieces.ids.values, tokens.values)),
                vocabulary=self.vocabulary,
            )
        )
        start_logits, end_logits = numbers["start_logits"], numbers["end_logits"]
        # After [CLS] question [SEP].
        columns = tf.range(tf.shape(start_logits, tf.int64)[1])
        within = columns - (queries.row_lengths() + 2)[:, tf.newaxis]
        may_end = (within >= 0) & (within < (ends - starts)[:, tf.newaxis])
        # One token more, which is of no window, stands for all outside the context.
        owners = tf.concat([batch.windows.owners, [-1]], 0)
        nowhere = tf.size(batch.windows.owners, tf.int64)
        places = tf.where(may_end, within + starts[:, tf.newaxis], nowhere)
        found = served_search.find(
            start_logits,
            end_logits,
            may_begin=tf.gather(owners, places) == rows[:, tf.newaxis],
            may_end=may_end,
            n_best_size=self._settings.n_best_size,
            max_answer_length=self._settings.max_answer_length,
        )
        of_cls = tf.cast(start_logits[:, 0], tf.float64)
        of_cls += tf.cast(end_logits[:, 0], tf.float64)
        num_questions = batch.questions.nrows()
        return (
            _candidates(found, places, examples, batch),
            tf.math.unsorted_segment_min(of_cls, examples, num_questions),
        )

    def id_probes(self):
        windows = self._python_windows(_probe_questions())
        return _ids_of(windows, np.arange(len(windows.questions)))

    def probes(self):
        questions = _probe_questions()
        wanted = self._python_answers(questions)
        strings = {
            "question": [question.question for question in questions],
            "context": [question.context for question in questions],
        }
        return [
            served.Probe(served.STRINGS, strings, wanted),
            self.numbers_probe(),
        ]

    def _python_windows(self, questions: Sequence[squad.Question]) -> squad.Windows:
        return squad.featurize(
            questions,
            self._python_tokenizer,
            max_seq_length=self.max_seq_length,
            doc_stride=self._settings.doc_stride,
            max_query_length=self._settings.max_query_length,
        )

    def _python_answers(
        self, questions: Sequence[squad.Question]
    ) -> dict[str, np.ndarray]:
        """Returns the answers of `squad_predictions` to the same network's scores.
        Answers are texts without places: `start` and `end` are masked if the text
        occurs more than once, and everything if another answer is as good."""
        windows = self._python_windows(questions)
        start_logits, end_logits = self._python_logits(windows)
        predictions = squad_predictions.predict(
            questions,
            windows,
            start_logits=start_logits,
            end_logits=end_logits,
            has_impossible=self._has_impossible,
            n_best_size=self._settings.n_best_size,
            max_answer_length=self._settings.max_answer_length,
        )
        texts = predictions.answers(null_score_diff_threshold=self._threshold)
        rows = [
            _wanted_row(question, texts[question.id], predictions, self._threshold)
            for question in questions
        ]
        wanted = {
            name: np.ma.masked_invalid([row[name] for row in rows]) for name in rows[0]
        }
        if not self._has_impossible:
            del wanted["no_answer_probability"]
        return wanted

    def _python_logits(self, windows: squad.Windows) -> tuple[np.ndarray, np.ndarray]:
        """Returns start and end logits of all tokens, end to end."""
        logits = np.zeros((2, len(windows.texts.input_ids)), np.float32)
        num_windows = len(windows.questions)
        for first in range(0, num_windows, _WINDOWS_AT_ONCE):
            rows = np.arange(first, min(first + _WINDOWS_AT_ONCE, num_windows))
            outputs = self.compute(served.as_tensors(_ids_of(windows, rows)))
            tokens, mask = windows.texts.tokens(rows)
            for values, name in zip(
                logits, ("start_logits", "end_logits"), strict=True
            ):
                values[tokens[mask]] = outputs[name].numpy()[mask]
        return logits[0], logits[1]


class _Batch(NamedTuple):
    """Questions and their contexts, tokenized."""

    questions: tf.RaggedTensor
    """`(batch_size, None)` int32 ids."""
    pieces: graph_tokenizer.Pieces
    """Pieces of the contexts."""
    windows: served_windows.Windows
    fingerprint: Callable[..., tf.Tensor]
    """See `span_search.fingerprinter`."""


def _candidates(
    found: served_search.Found, places: tf.Tensor, examples: tf.Tensor, batch: _Batch
) -> served_search.Candidates:
    """Returns candidates in some windows, by characters of the contexts.

    Args:
        found: the columns of first and last tokens.
        places: `(num_windows, length)` int64: the token of all contexts in each column.
        examples: `(num_windows,)` int64: the question of each window.
    """
    first, last = (
        tf.gather_nd(places, tf.stack([found.rows, tf.cast(column, tf.int64)], axis=1))
        for column in (found.first, found.last)
    )
    of_question = tf.gather(examples, found.rows)
    starts = tf.gather(batch.pieces.starts.values, first)
    ends = tf.gather(batch.pieces.ends.values, last)
    return served_search.Candidates(
        examples=of_question,
        scores=found.scores,
        starts=starts,
        ends=ends,
        fingerprints=batch.fingerprint(of_question, starts, ends),
    )


def _ids_of(windows: squad.Windows, rows: np.ndarray) -> dict[str, np.ndarray]:
    batch = windows.batch(rows)
    return {name: batch[name] for name in served.INPUT_NAMES}


def _probe_questions() -> list[squad.Question]:
    texts = served.PROBES
    return [
        squad.Question(str(i), texts[i - 1], texts[i], ()) for i in range(len(texts))
    ]


def _wanted_row(
    question: squad.Question,
    text: str,
    predictions: squad_predictions.Predictions,
    threshold: float,
) -> dict[str, float]:
    """Returns outputs for one question; NaN where several are right."""
    candidates = predictions.n_best[question.id]
    ranked = [c.start_logit + c.end_logit for c in candidates if c.text]
    gaps = [first - second for first, second in zip(ranked, ranked[1:2], strict=False)]
    if predictions.null_odds is not None:
        gaps.append(abs(predictions.null_odds[question.id] - threshold))
    is_clear = all(gap > _CLEAR_CUT for gap in gaps)
    is_in_one_place = is_clear and (not text or question.context.count(text) == 1)
    answer = next(c for c in candidates if c.text == text)
    start = question.context.find(text) if is_in_one_place else np.nan
    return {
        "start": start,
        "end": start + len(text),
        "score": answer.start_logit + answer.end_logit if is_clear else np.nan,
        "probability": answer.probability if is_clear else np.nan,
        "no_answer_probability": sum(c.probability for c in candidates if not c.text),
    }
