"""Exported answers to questions about a text, however long it is.

The search among scores of tokens is that of `dataset`, as graph operations.
The windows of a batch are rows. With `n_best_size` 2, `find` combines first and last
tokens of the row

    column            0      1      2      3      4      5      6
    token             [CLS]  who    [SEP]  Ada    met    Bob    [SEP]
    start_logits      9      9      9      5      4      8      9
    end_logits        9      9      9      1      2      6      9
    may_end                                yes    yes    yes
    may_begin                              yes    yes    (Bob: in the next window)

into all pairs of the best two columns, first 3 and 4, last 5 and 4:

    length            3 to 5: 3     3 to 4: 2     4 to 5: 2     4 to 4: 1
    score             11            7             10            6

Pairs of at most `max_answer_length` tokens are candidates.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras.core.errors import InputError
from bert_keras.graphs import graph_tokenizer, graph_windows
from bert_keras.kinds import served

_NONE = np.float64("-inf")
"""Score of an answer that does not exist."""

# Odd numbers without a pattern, see `fingerprinter`.
_BASE, _SALT = 0xD1342543DE82EF95, 0x9E3779B97F4A7C15


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

    The context is read in windows, and the answer chosen, as by
    `dataset.SpanDataset`. A question has no answer if its odds are above the run's
    threshold, or above 0 if the run has none.
    """

    outputs = ("start_logits", "end_logits")
    string_specs = (
        tf.TensorSpec([None], tf.string, "question"),
        tf.TensorSpec([None], tf.string, "context"),
    )
    windows_at_once = 16

    def __init__(self, trained: served.Trained):
        super().__init__(trained)
        self._settings = trained.settings.span
        self._has_impossible = trained.task.has_impossible
        if self.max_seq_length < self._settings.max_query_length + 4:
            raise InputError(
                f"{trained.path}: windows of {self.max_seq_length} tokens have no room "
                f"for {self._settings.max_query_length} of the question, 3 special "
                "tokens and some of the text"
            )

    @property
    def decisions(self):
        limits = self._settings.model_dump() | super().decisions
        if self._has_impossible:
            # Null: "no answer" counts among the answers, but has no threshold.
            odds = self.decision.no_answer_odds
            limits["no_answer_threshold"] = None if self.decision.is_promise else odds
        return limits

    def answer(self, question, context):
        n_best_size = self._settings.n_best_size
        code_points = graph_tokenizer.decode(context)
        candidates, null_scores = self._read_all(question, code_points)
        # 1. Give each question a row of its candidates, the best first.
        rows = tf.RaggedTensor.from_value_rowids(
            candidates.scores,
            candidates.examples,
            nrows=tf.size(context, tf.int64),
            validate=False,
        )
        scores = rows.to_tensor(_NONE, shape=[None, n_best_size])
        best = scores[:, 0]
        if not self._has_impossible:
            # Only where there is nothing to choose from.
            null_scores = tf.where(best > _NONE, _NONE, tf.zeros_like(best))
        # 2. Decide whether there is an answer. "No answer" counts among the best, but
        # is never itself left out.
        nulls = null_scores[:, tf.newaxis]
        has_worse = tf.reduce_any(scores < nulls, axis=1, keepdims=True)
        is_last = tf.range(n_best_size) == n_best_size - 1
        scores = tf.where(has_worse & is_last, _NONE, scores)
        is_scored = is_answered = scores[:, 0] > _NONE
        probabilities = self.probabilities(tf.concat([nulls, scores], axis=1))
        no_answer, probability = probabilities[:, 0], probabilities[:, 1]
        if self.decision.is_promise:
            is_answered &= self.decision.is_given(probability)
        else:
            is_answered &= null_scores - best <= self.decision.no_answer_odds
            is_scored = is_answered
        # 3. Cut the answers out.
        first = (
            rows.with_values(values).to_tensor(shape=[None, 1])[:, 0]
            for values in (candidates.starts, candidates.ends)
        )
        start, end = (tf.where(is_answered, place, 0) for place in first)
        texts = tf.range(tf.size(context, tf.int64))
        numbers = {
            "score": tf.where(is_scored, best, null_scores),
            "probability": tf.where(is_scored, probability, no_answer),
        }
        if self._has_impossible:
            numbers["no_answer_probability"] = no_answer
        return {
            "answer": graph_tokenizer.cut(code_points, texts, start, end),
            "start": tf.cast(start, tf.int32),
            "end": tf.cast(end, tf.int32),
            **{name: tf.cast(values, tf.float32) for name, values in numbers.items()},
        }

    def _read_all(
        self, question: tf.Tensor, code_points: tf.RaggedTensor
    ) -> tuple["Candidates", tf.Tensor]:
        """Returns the best `n_best_size` candidates of each question, the best first,
        and its lowest score of "no answer", float64."""
        # 1. Cut texts into tokens, and contexts into windows.
        settings = self._settings
        queries = self._tokenizer(question)[:, : settings.max_query_length]
        pieces = self._tokenizer.locate(code_points)
        windows = graph_windows.cut(
            pieces.ids.row_lengths(),
            self.max_seq_length - 3 - queries.row_lengths(),
            settings.doc_stride,
        )
        owners = context_owners(windows, tf.size(pieces.ids.values))
        # One more, for contexts without any token.
        owners = tf.concat([owners, [-1]], 0)
        fingerprint = fingerprinter(code_points)

        def read(rows, state):
            candidates, null_scores = state
            # 2. Score the tokens of some windows.
            here = graph_windows.Windows(*(tf.gather(v, rows) for v in windows))
            asked = tf.gather(queries, here.texts)
            tokens = tf.ragged.range(here.starts, here.ends)
            ids = tokens.with_values(tf.gather(pieces.ids.values, tokens.values))
            # An empty window gets its [SEP] too.
            once = tf.ones_like(here.texts)
            packed = graph_tokenizer.pack(asked, ids, once, vocabulary=self.vocabulary)
            numbers = self.compute(packed)
            logits = tf.stack([numbers[name] for name in self.outputs])
            logits = tf.cast(logits, tf.float64)
            # 3. Number the columns' tokens, which follow [CLS] question [SEP].
            columns = tf.range(tf.shape(logits, tf.int64)[2])
            first_columns = asked.row_lengths() + 2
            tokens = columns + (here.starts - first_columns)[:, tf.newaxis]
            may_end = tokens >= here.starts[:, tf.newaxis]
            may_end &= tokens < here.ends[:, tf.newaxis]
            tokens = tf.where(may_end, tokens, 0)
            may_begin = may_end & (tf.gather(owners, tokens) == rows[:, tf.newaxis])
            # 4. Combine first and last tokens, and keep the best answers so far.
            window, first, last, scores = find(
                tf.where(tf.stack([may_begin, may_end]), logits, _NONE),
                tokens,
                n_best_size=settings.n_best_size,
                max_answer_length=settings.max_answer_length,
            )
            texts = tf.gather(here.texts, window)
            starts = tf.gather(pieces.starts.values, first)
            ends = tf.gather(pieces.ends.values, last)
            new = texts, scores, starts, ends, fingerprint(texts, starts, ends)
            pairs = zip(candidates, new, strict=True)
            both = Candidates(*(tf.concat(pair, 0) for pair in pairs))
            best = keep_best(both, n_best_size=settings.n_best_size)
            # 5. "No answer" has the score of [CLS] where it is lowest.
            of_cls = tf.reduce_sum(logits[:, :, 0], axis=0)
            lowest = tf.math.unsorted_segment_min(of_cls, here.texts, queries.nrows())
            return best, tf.minimum(null_scores, lowest)

        dtypes = (tf.int64, tf.float64, tf.int64, tf.int64, tf.int64)
        none = Candidates(*(tf.zeros([0], dtype) for dtype in dtypes))
        infinite = tf.fill([queries.nrows()], tf.constant(np.inf, tf.float64))
        num_windows = tf.size(windows.texts, tf.int64)
        return graph_windows.fold(
            read, (none, infinite), num_windows, windows_at_once=self.windows_at_once
        )

    def expected_outputs(self, answers):
        decision = self.decision
        for record in answers.records(decision=decision):
            gap, outputs = np.inf, {"probability": record.probability}
            if decision.is_promise:
                gap = abs(record.probability - decision.threshold)
            elif record.null_odds is not None:
                gap = abs(record.null_odds - decision.no_answer_odds)
            # Else another answer may be almost as probable.
            if gap >= self.clear_cut and record.probability > 0.75:
                outputs["answer"] = record.prediction.encode()
            yield outputs if gap >= self.clear_cut or decision.is_promise else {}


def context_owners(windows: graph_windows.Windows, num_tokens: tf.Tensor) -> tf.Tensor:
    """Returns `(num_tokens,)` int64: the window in which each token has most context,
    as in `dataset.cut_windows`."""
    tokens = tf.ragged.range(windows.starts, windows.ends)
    numbers = tokens.value_rowids()
    length = tf.gather(windows.ends - windows.starts, numbers)
    left = tokens.values - tf.gather(windows.starts, numbers)
    # In the order of operations there: some of these numbers are almost equal.
    score = tf.cast(tf.minimum(left, length - 1 - left), tf.float64)
    score += 0.01 * tf.cast(length, tf.float64)
    best = tf.math.unsorted_segment_max(score, tokens.values, num_tokens)
    is_best = score == tf.gather(best, tokens.values)
    # Among equals the first.
    return tf.math.unsorted_segment_min(
        tf.boolean_mask(numbers, is_best),
        tf.boolean_mask(tokens.values, is_best),
        num_tokens,
    )


def find(
    logits: tf.Tensor, tokens: tf.Tensor, *, n_best_size: int, max_answer_length: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Combines the best first tokens of each window with its best last ones.

    Returns the possible answers by window, first and last token, each best first,
    `(num_spans,)` each: the window's row, the first and the last token (int64), and the
    sum of both logits.

    Args:
        logits: `(2, num_windows, length)` float64, of starts and of ends; -inf where an
            answer may not begin, or end.
        tokens: `(num_windows, length)` int64, the token of each column.
    """
    num_best = tf.minimum(n_best_size, tf.shape(logits)[2])
    both_logits, columns = tf.math.top_k(logits, num_best)
    length = columns[1][:, tf.newaxis, :] - columns[0][:, :, tf.newaxis] + 1
    scores = both_logits[0][:, :, tf.newaxis] + both_logits[1][:, tf.newaxis, :]
    is_span = (length >= 1) & (length <= max_answer_length) & (scores > _NONE)
    places = tf.where(is_span)
    first, last = (
        tf.gather_nd(
            tf.gather(tokens, columns[side], batch_dims=1),
            tf.gather(places, [0, 1 + side], axis=1),
        )
        for side in (0, 1)
    )
    return places[:, 0], first, last, tf.boolean_mask(scores, is_span)


class Candidates(NamedTuple):
    """Possible answers to the questions of a batch, `(num_candidates,)` each."""

    examples: tf.Tensor
    """int64: number of the question."""
    scores: tf.Tensor
    """float64."""
    starts: tf.Tensor
    """int64: the first character, in the context."""
    ends: tf.Tensor
    """int64: the place after the last one."""
    fingerprints: tf.Tensor
    """int64: see `fingerprinter`."""

    def take(self, places: tf.Tensor) -> "Candidates":
        return Candidates(*(tf.gather(values, places) for values in self))


def keep_best(candidates: Candidates, *, n_best_size: int) -> Candidates:
    """Returns at most `n_best_size` candidates of each question, the best first.

    A text counts once, and of equal candidates the first ones. They may come in any
    number of parts, because a text that is not among the best of its part is not among
    the best of all.
    """
    # 1. By question, and by score within each.
    order = tf.argsort(candidates.scores, direction="DESCENDING", stable=True)
    candidates = candidates.take(order)
    candidates = candidates.take(tf.argsort(candidates.examples, stable=True))
    # 2. The first place of each text.
    # `unique` numbers texts as they come, so `first` ascends and keeps the order.
    distinct, text = tf.unique(candidates.fingerprints)
    places = tf.range(tf.size(text))
    first = tf.math.unsorted_segment_min(places, text, tf.size(distinct))
    candidates = candidates.take(first)
    # 3. The best of each question.
    _, _, counts = tf.unique_with_counts(candidates.examples)
    rank = tf.ragged.range(counts).values
    return candidates.take(tf.where(rank < n_best_size)[:, 0])


def fingerprinter(code_points: tf.RaggedTensor) -> Callable[..., tf.Tensor]:
    """Returns a function that gives equal texts of one context the same number.

    The texts themselves could be as long as all contexts together, for each of hundreds
    of candidates. The number is a polynomial of the characters modulo 2 ** 64, computed
    from sums over all characters up to each place. Different texts get the same number
    about once in 1e19.

    `code_points` of contexts are `(batch_size, None)` int32. The returned function
    takes `examples`, `starts` and `ends`, characters of a context, `(num_texts,)` int64
    each, and returns int64.
    """
    characters = tf.cast(code_points.flat_values, tf.uint64) + 1
    num_characters = tf.size(characters, tf.int64)
    base = tf.constant(_BASE, tf.uint64)
    powers = tf.math.cumprod(tf.fill([num_characters + 1], base))
    sums = tf.concat([[tf.zeros([], tf.uint64)], tf.cumsum(characters * powers[1:])], 0)

    def fingerprint(examples, starts, ends):
        first = tf.gather(code_points.row_starts(), examples)
        begin, end = first + starts, first + ends
        # Multiplied as if all texts began at the same place.
        text = (tf.gather(sums, end) - tf.gather(sums, begin)) * tf.gather(
            powers, num_characters - begin
        )
        salt = tf.cast(examples, tf.uint64) * tf.constant(_SALT, tf.uint64)
        return tf.bitcast(text + salt, tf.int64)

    return fingerprint
