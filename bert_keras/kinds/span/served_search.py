"""Answers from scores of tokens, as graph operations: see `squad_predictions`."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf


class Found(NamedTuple):
    """Possible answers in some windows, by window, first and last token, each best
    first."""

    rows: tf.Tensor
    """`(num_found,)` int64: number of the window."""
    first: tf.Tensor
    """`(num_found,)` int32: column of the first token."""
    last: tf.Tensor
    """`(num_found,)` int32: column of the last token."""
    scores: tf.Tensor
    """`(num_found,)` float64: the sum of both logits."""


def find(
    start_logits: tf.Tensor,
    end_logits: tf.Tensor,
    *,
    may_begin: tf.Tensor,
    may_end: tf.Tensor,
    n_best_size: int,
    max_answer_length: int,
) -> Found:
    """Combines the best first tokens of each window with its best last ones.

    Args:
        start_logits: `(num_windows, length)` float32; `end_logits` are the same.
        may_begin: the same shape, bool: tokens that an answer may begin with.
        n_best_size: number of first and of last tokens.
        max_answer_length: tokens of an answer at most.
    """
    first_logits, first = _top(start_logits, may_begin, n_best_size)
    last_logits, last = _top(end_logits, may_end, n_best_size)
    length = last[:, tf.newaxis, :] - first[:, :, tf.newaxis] + 1
    is_span = (length >= 1) & (length <= max_answer_length)
    is_span &= (first_logits > _NONE)[:, :, tf.newaxis]
    is_span &= (last_logits > _NONE)[:, tf.newaxis, :]
    places = tf.where(is_span)
    of_first, of_last = places[:, :2], tf.gather(places, [0, 2], axis=1)
    return Found(
        rows=places[:, 0],
        first=tf.gather_nd(first, of_first),
        last=tf.gather_nd(last, of_last),
        scores=tf.gather_nd(first_logits, of_first)
        + tf.gather_nd(last_logits, of_last),
    )


_NONE = float("-inf")


def _top(
    logits: tf.Tensor, may_be: tf.Tensor, count: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the best logits of each row, -inf for none, and their columns; among
    equals the first."""
    logits = tf.where(may_be, tf.cast(logits, tf.float64), _NONE)
    return tf.math.top_k(logits, tf.minimum(count, tf.shape(logits)[1]))


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


def no_candidates() -> Candidates:
    kinds = (tf.int64, tf.float64, tf.int32, tf.int32, tf.int64)
    return Candidates(*(tf.zeros([0], kind) for kind in kinds))


def keep_best(before: Candidates, found: Candidates, *, n_best_size: int) -> Candidates:
    """Returns the at most `n_best_size` best candidates of each question, best first.

    A text counts once. Among equals those `before` come first, then in the order given.
    Candidates may come in any number of parts: a text that is not among the best of its
    part is not among the best of all.
    """
    both = Candidates(*(tf.concat(pair, 0) for pair in zip(before, found, strict=True)))
    both = _take(both, tf.argsort(both.scores, direction="DESCENDING", stable=True))
    both = _take(both, tf.argsort(both.examples, stable=True))
    _, text = tf.unique(both.fingerprints)
    places = tf.range(tf.size(text))
    firsts = tf.math.unsorted_segment_min(
        places, text, tf.reduce_max(tf.concat([text, [-1]], 0)) + 1
    )
    both = _take(both, firsts)
    _, _, counts = tf.unique_with_counts(both.examples)
    rank = tf.ragged.range(counts).values
    return _take(both, tf.where(rank < n_best_size)[:, 0])


def _take(candidates: Candidates, places: tf.Tensor) -> Candidates:
    return Candidates(*(tf.gather(values, places) for values in candidates))


def fingerprinter(code_points: tf.RaggedTensor) -> Callable[..., tf.Tensor]:
    """Makes numbers that are equal for equal texts of one context.

    The texts themselves could be as long as all contexts together, for each of hundreds
    of candidates. A number is a polynomial of the characters modulo 2 ** 64, as sums
    over all characters up to each place; different texts have equal numbers about once
    in 1e19.

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
        # As if all began at the same place.
        text = (tf.gather(sums, end) - tf.gather(sums, begin)) * tf.gather(
            powers, num_characters - begin
        )
        salt = tf.cast(examples, tf.uint64) * tf.constant(_SALT, tf.uint64)
        return tf.bitcast(text + salt, tf.int64)

    return fingerprint


# Odd numbers without a pattern.
_BASE = 0xD1342543DE82EF95
_SALT = 0x9E3779B97F4A7C15


class Decision(NamedTuple):
    """Answers to the questions of a batch, `(batch_size,)` each."""

    starts: tf.Tensor
    """int32: first character; 0 for no answer."""
    ends: tf.Tensor
    """int32: the place after the last character; 0 for no answer."""
    scores: tf.Tensor
    """float32: the sum of both logits, for no answer those of `[CLS]`; 0 if there was
    nothing to choose from."""
    probabilities: tf.Tensor
    """float32: probability among the best answers of the question."""
    no_answer_probabilities: tf.Tensor | None
    """float32; `None` if every question has one."""


def decide(
    candidates: Candidates,
    null_scores: tf.Tensor,
    *,
    has_impossible: bool,
    n_best_size: int,
    threshold: float,
) -> Decision:
    """Returns `squad_predictions.Predictions.answers`, with the probability of each.

    Args:
        candidates: from `keep_best`, with the same `n_best_size`.
        null_scores: `(batch_size,)` float64, of `[CLS]` where it is lowest.
        has_impossible: whether "no answer" is an answer.
        threshold: odds above which there is no answer.
    """
    none = tf.constant(_NONE, tf.float64)
    scores, starts, ends = (
        _by_question(values, candidates.examples, tf.size(null_scores), n_best_size, no)
        for values, no in (
            (candidates.scores, none),
            (candidates.starts, 0),
            (candidates.ends, 0),
        )
    )
    best = scores[:, 0]
    nulls = null_scores[:, tf.newaxis]
    if has_impossible:
        # "No answer" counts among the best, but is never itself left out.
        has_worse = tf.reduce_any(scores < nulls, axis=1, keepdims=True)
        is_last = tf.range(n_best_size) == n_best_size - 1
        scores = tf.where(has_worse & is_last, none, scores)
        odds = null_scores - best
        is_answered = (scores[:, 0] > _NONE) & (odds <= threshold)
        probabilities = tf.nn.softmax(tf.concat([nulls, scores], axis=1))
        no_answer, best_probability = probabilities[:, 0], probabilities[:, 1]
    else:
        null_scores = tf.zeros_like(null_scores)
        is_answered = best > _NONE
        no_answer = tf.ones_like(best)
        best_probability = tf.nn.softmax(scores)[:, 0]
    return Decision(
        starts=tf.where(is_answered, starts[:, 0], 0),
        ends=tf.where(is_answered, ends[:, 0], 0),
        scores=tf.cast(tf.where(is_answered, best, null_scores), tf.float32),
        probabilities=tf.cast(
            tf.where(is_answered, best_probability, no_answer), tf.float32
        ),
        no_answer_probabilities=(
            tf.cast(no_answer, tf.float32) if has_impossible else None
        ),
    )


def _by_question(
    values: tf.Tensor,
    examples: tf.Tensor,
    num_questions: tf.Tensor,
    n_best_size: int,
    default: tf.Tensor,
) -> tf.Tensor:
    """Returns values as `(num_questions, n_best_size)`, padded with `default`."""
    rows = tf.RaggedTensor.from_value_rowids(
        values, examples, nrows=tf.cast(num_questions, tf.int64), validate=False
    )
    return rows.to_tensor(default, shape=[None, n_best_size])
