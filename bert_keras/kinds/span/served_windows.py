"""Contexts cut into windows, as graph operations: see `squad`."""

from typing import NamedTuple

import tensorflow as tf


class Windows(NamedTuple):
    """The windows of a batch, in order. Tokens are counted from the first one of the
    first context."""

    examples: tf.Tensor
    """`(num_windows,)` int64, ascending: number of its context in the batch."""
    starts: tf.Tensor
    """`(num_windows,)` int64: its first token."""
    ends: tf.Tensor
    """`(num_windows,)` int64: the token after its last one."""
    owners: tf.Tensor
    """`(num_tokens,)` int64: number of the window in which a token has most context."""


def cut_windows(
    num_tokens: tf.Tensor, window_lengths: tf.Tensor, doc_stride: int
) -> Windows:
    """Does the same as `squad.cut_windows`, for a batch.

    Args:
        num_tokens: `(batch_size,)` int64: length of each context.
        window_lengths: `(batch_size,)` int64, at least 1: tokens of the context that
            fit into a window.
        doc_stride: tokens from the beginning of a window to that of the next.
    """
    strides = tf.minimum(window_lengths, doc_stride)
    num_more = _divide_up(tf.maximum(num_tokens - window_lengths, 0), strides)
    counts = num_more + 1
    numbers = tf.ragged.range(counts)
    examples = numbers.value_rowids()
    first_tokens = tf.cumsum(num_tokens, exclusive=True)
    starts = numbers.values * tf.gather(strides, examples)
    ends = tf.minimum(
        starts + tf.gather(window_lengths, examples), tf.gather(num_tokens, examples)
    )
    first_token = tf.gather(first_tokens, examples)
    return Windows(
        examples=examples,
        starts=first_token + starts,
        ends=first_token + ends,
        owners=_owners(num_tokens, window_lengths, strides, num_more)
        + tf.repeat(tf.cumsum(counts, exclusive=True), num_tokens),
    )


def _owners(
    num_tokens: tf.Tensor,
    window_lengths: tf.Tensor,
    strides: tf.Tensor,
    last_numbers: tf.Tensor,
) -> tf.Tensor:
    """Returns the number of each token's window among those over its context.

    All windows but the last are equally long, so the best of them is the one whose
    middle is nearest, of two the first. The last one may be shorter.
    """
    places = tf.ragged.range(num_tokens).values
    length, stride, last, total = (
        tf.repeat(values, num_tokens)
        for values in (window_lengths, strides, last_numbers, num_tokens)
    )
    nearest = _divide_up(2 * places - (length - 1) - stride, 2 * stride)
    nearest = tf.clip_by_value(nearest, 0, tf.maximum(last - 1, 0))
    left = places - nearest * stride
    among_full = tf.where(last > 0, _context(left, length), _NOT_IN)
    left = places - last * stride
    in_last = _context(left, total - last * stride)
    return tf.where(in_last > among_full, last, nearest)


# Less than any context.
_NOT_IN = -1.0


def _context(left: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
    """Returns the score of `squad.cut_windows` for tokens with `left` others before
    them in a window."""
    right = length - 1 - left
    # In the order of operations there: some of these numbers are almost equal.
    score = tf.cast(tf.minimum(left, right), tf.float64) + 0.01 * tf.cast(
        length, tf.float64
    )
    return tf.where((left >= 0) & (right >= 0), score, _NOT_IN)


def _divide_up(dividend: tf.Tensor, divisor: tf.Tensor) -> tf.Tensor:
    return -(-dividend // divisor)
