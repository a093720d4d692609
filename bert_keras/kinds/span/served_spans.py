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

_NONE = float("-inf")
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

    The context is read in windows, and the answer chosen, as in `squad.featurize` and
    `dataset.predict`. A question has no answer if its odds are above the
    run's threshold, or above 0 if the run has none.
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

    def encode(self, question, context):
        return self._pack_pairs(self._tokenizer(question), self._tokenizer(context))

    def answer(self, question, context):
        code_points = graph_tokenizer.decode(context)
        candidates, null_scores = self._read_all(question, code_points)
        outputs = decide(
            candidates,
            null_scores,
            has_impossible=self._has_impossible,
            n_best_size=self._settings.n_best_size,
            threshold=self._threshold,
        )
        texts = tf.range(tf.size(context, tf.int64))
        places = (tf.cast(outputs[name], tf.int64) for name in ("start", "end"))
        return {"answer": graph_tokenizer.cut(code_points, texts, *places), **outputs}

    def _read_all(
        self, question: tf.Tensor, code_points: tf.RaggedTensor
    ) -> tuple["Candidates", tf.Tensor]:
        """Returns each question's best candidates, by characters of its context, and
        its lowest score of "no answer"."""
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
            logits = numbers["start_logits"], numbers["end_logits"]
            # 3. Number the columns' tokens, which follow [CLS] question [SEP].
            columns = tf.range(tf.shape(logits[0], tf.int64)[1])
            first_columns = asked.row_lengths() + 2
            tokens = columns + (here.starts - first_columns)[:, tf.newaxis]
            is_context = tokens >= here.starts[:, tf.newaxis]
            is_context &= tokens < here.ends[:, tf.newaxis]
            tokens = tf.where(is_context, tokens, 0)
            # 4. Combine first and last tokens, and keep the best answers so far.
            rows, first, last, scores = find(
                *logits,
                tokens=tokens,
                may_begin=is_context & (tf.gather(owners, tokens) == rows[:, None]),
                may_end=is_context,
                n_best_size=settings.n_best_size,
                max_answer_length=settings.max_answer_length,
            )
            texts = tf.gather(here.texts, rows)
            starts = tf.gather(pieces.starts.values, first)
            ends = tf.gather(pieces.ends.values, last)
            texts_of_spans = fingerprint(texts, starts, ends)
            new = Candidates(*(texts, scores, starts, ends, texts_of_spans))
            best = keep_best(candidates, new, n_best_size=settings.n_best_size)
            # 5. "No answer" has the score of [CLS] where it is lowest.
            of_cls = tf.add_n([tf.cast(v[:, 0], tf.float64) for v in logits])
            lowest = tf.math.unsorted_segment_min(of_cls, here.texts, queries.nrows())
            return best, tf.minimum(null_scores, lowest)

        dtypes = (tf.int64, tf.float64, tf.int32, tf.int32, tf.int64)
        none = Candidates(*(tf.zeros([0], dtype) for dtype in dtypes))
        infinite = tf.fill([queries.nrows()], tf.constant(np.inf, tf.float64))
        num_windows = tf.size(windows.texts, tf.int64)
        return graph_windows.fold(
            read, (none, infinite), num_windows, windows_at_once=self.windows_at_once
        )

    def expected_outputs(self, answers):
        for record in answers.records(threshold=self._threshold):
            odds = record.null_odds
            if odds is not None and abs(odds - self._threshold) < self.clear_cut:
                yield {}
            elif record.probability > 0.75:
                answer = record.prediction.encode()
                yield {"probability": record.probability, "answer": answer}
            else:
                # Another answer may be almost as probable.
                yield {"probability": record.probability}


def context_owners(windows: graph_windows.Windows, num_tokens: tf.Tensor) -> tf.Tensor:
    """Returns `(num_tokens,)` int64: the window in which each token has most context,
    as in `squad.cut_windows`."""
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
    start_logits: tf.Tensor,
    end_logits: tf.Tensor,
    *,
    tokens: tf.Tensor,
    may_begin: tf.Tensor,
    may_end: tf.Tensor,
    n_best_size: int,
    max_answer_length: int,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Combines the best first tokens of each window with its best last ones.

    Returns the possible answers by window, first and last token, each best first,
    `(num_spans,)` each: the window's number, the first and the last token among those
    of all contexts (int64), and the sum of both logits (float64).

    Args:
        start_logits: `(num_windows, length)` float32; `end_logits` are the same.
        tokens: the same shape, int64: for each column, the index of its token among the
            tokens of all contexts, end to end.
        may_begin: the same shape, bool: tokens that an answer may begin with;
            `may_end`, tokens that it may end with, likewise.
        n_best_size: number of first and of last tokens.
        max_answer_length: tokens of an answer at most.
    """

    def top(logits, may_be):
        """Returns each row's best logits, -inf for none, and their columns."""
        logits = tf.where(may_be, tf.cast(logits, tf.float64), _NONE)
        return tf.math.top_k(logits, tf.minimum(n_best_size, tf.shape(logits)[1]))

    first_logits, first = top(start_logits, may_begin)
    last_logits, last = top(end_logits, may_end)
    length = last[:, tf.newaxis, :] - first[:, :, tf.newaxis] + 1
    scores = first_logits[:, :, tf.newaxis] + last_logits[:, tf.newaxis, :]
    is_span = (length >= 1) & (length <= max_answer_length) & (scores > _NONE)
    places = tf.where(is_span)
    first, last = (tf.gather(tokens, c, batch_dims=1) for c in (first, last))
    first = tf.gather_nd(first, places[:, :2])
    last = tf.gather_nd(last, tf.gather(places, [0, 2], axis=1))
    return places[:, 0], first, last, tf.boolean_mask(scores, is_span)


class Candidates(NamedTuple):
    """Possible answers to the questions of a batch, `(num_candidates,)` each."""

    examples: tf.Tensor
    """int64: number of the question."""
    scores: tf.Tensor
    """float64."""
    starts: tf.Tensor
    """int32: the first character, in the context."""
    ends: tf.Tensor
    """int32: the place after the last one."""
    fingerprints: tf.Tensor
    """int64: see `fingerprinter`."""


def keep_best(before: Candidates, new: Candidates, *, n_best_size: int) -> Candidates:
    """Returns at most `n_best_size` candidates of each question, the best first.

    A text counts once. Of equal ones, those `before` come first, then those that are
    first among `new`. Candidates may come in any number of parts, because a text that
    is not among the best of its part is not among the best of all.
    """

    def take(candidates, places):
        return Candidates(*(tf.gather(values, places) for values in candidates))

    # 1. Both parts by question, and by score within each.
    both = Candidates(*(tf.concat(pair, 0) for pair in zip(before, new, strict=True)))
    both = take(both, tf.argsort(both.scores, direction="DESCENDING", stable=True))
    both = take(both, tf.argsort(both.examples, stable=True))
    # 2. The first place of each text.
    _, text = tf.unique(both.fingerprints)
    num_texts = tf.reduce_max(tf.concat([text, [-1]], 0)) + 1
    places = tf.range(tf.size(text))
    both = take(both, tf.math.unsorted_segment_min(places, text, num_texts))
    # 3. The best of each question.
    _, _, counts = tf.unique_with_counts(both.examples)
    rank = tf.ragged.range(counts).values
    return take(both, tf.where(rank < n_best_size)[:, 0])


def fingerprinter(code_points: tf.RaggedTensor) -> Callable[..., tf.Tensor]:
    """Returns a function that gives equal texts of one context the same number.

    The texts themselves could be as long as all contexts together, for each of hundreds
    of candidates. The number is a polynomial of the characters modulo 2 ** 64, computed
    from sums over all characters up to each place. Different texts get the same number
    about once in 1e19.

    `code_points` of contexts are `(batch_size, None)` int32. The returned function
    takes `examples` (int64), `starts` and `ends` (int32, characters of a context), each
    `(num_texts,)`, and returns int64.
    """
    characters = tf.cast(code_points.flat_values, tf.uint64) + 1
    num_characters = tf.size(characters)
    base = tf.constant(_BASE, tf.uint64)
    powers = tf.math.cumprod(tf.fill([num_characters + 1], base))
    sums = tf.concat([[tf.zeros([], tf.uint64)], tf.cumsum(characters * powers[1:])], 0)
    first_characters = tf.cast(code_points.row_starts(), tf.int32)

    def fingerprint(examples, starts, ends):
        first = tf.gather(first_characters, examples)
        begin, end = first + starts, first + ends
        # Multiplied as if all texts began at the same place.
        text = (tf.gather(sums, end) - tf.gather(sums, begin)) * tf.gather(
            powers, num_characters - begin
        )
        salt = tf.cast(examples, tf.uint64) * tf.constant(_SALT, tf.uint64)
        return tf.bitcast(text + salt, tf.int64)

    return fingerprint


def decide(
    candidates: Candidates,
    null_scores: tf.Tensor,
    *,
    has_impossible: bool,
    n_best_size: int,
    threshold: float,
) -> dict[str, tf.Tensor]:
    """Returns `dataset.SpanAnswers.texts`, with the probability of each, by
    the names of `Spans`.

    Args:
        candidates: from `keep_best`, with the same `n_best_size`.
        null_scores: `(batch_size,)` float64, of `[CLS]` where it is lowest.
        has_impossible: whether "no answer" is an answer.
        threshold: odds above which there is no answer.
    """

    def by_question(values, default):
        """Returns `(batch_size, n_best_size)`."""
        num_rows = tf.size(null_scores, tf.int64)
        rows = tf.RaggedTensor.from_value_rowids(
            values, candidates.examples, nrows=num_rows, validate=False
        )
        return rows.to_tensor(default, shape=[None, n_best_size])

    none = tf.constant(_NONE, tf.float64)
    scores = by_question(candidates.scores, none)
    best = scores[:, 0]
    if has_impossible:
        nulls = null_scores[:, tf.newaxis]
        # "No answer" counts among the best, but is never itself left out.
        has_worse = tf.reduce_any(scores < nulls, axis=1, keepdims=True)
        is_last = tf.range(n_best_size) == n_best_size - 1
        scores = tf.where(has_worse & is_last, none, scores)
        odds = null_scores - best
        is_answered = (scores[:, 0] > _NONE) & (odds <= threshold)
        probabilities = tf.nn.softmax(tf.concat([nulls, scores], axis=1))
        no_answer, probability = probabilities[:, 0], probabilities[:, 1]
    else:
        # Without anything to choose from the score is 0.
        null_scores = tf.zeros_like(null_scores)
        is_answered = best > _NONE
        no_answer, probability = tf.ones_like(best), tf.nn.softmax(scores)[:, 0]
    columns = {"start": candidates.starts, "end": candidates.ends}
    places = {name: by_question(values, 0)[:, 0] for name, values in columns.items()}
    outputs = {name: tf.where(is_answered, v, 0) for name, v in places.items()}
    outputs["score"] = tf.where(is_answered, best, null_scores)
    outputs["probability"] = tf.where(is_answered, probability, no_answer)
    if has_impossible:
        outputs["no_answer_probability"] = no_answer
    dtypes = {name: tf.int32 if name in columns else tf.float32 for name in outputs}
    return {name: tf.cast(values, dtypes[name]) for name, values in outputs.items()}
