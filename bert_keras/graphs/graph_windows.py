"""Texts as overlapping windows of tokens, and windows read a few at a time, in a graph.

With windows of 4 tokens and a stride of 3:

    tokens of two texts    0   1   2   3   4 | 5   6
    window 0, text 0       0   1   2   3
    window 1, text 0                   3   4
    window 2, text 1                         | 5   6
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf


class Windows(NamedTuple):
    """The windows of a batch, in order, `(num_windows,)` int64 each. Tokens are counted
    from the first one of the first text."""

    texts: tf.Tensor
    """Ascending: number of the window's text in the batch."""
    starts: tf.Tensor
    """First token of the window."""
    ends: tf.Tensor
    """The token after the last one of the window."""


def cut(num_tokens: tf.Tensor, window_lengths: tf.Tensor, stride: int) -> Windows:
    """Does the same as `tokenized.window_spans`, for a batch: texts of `num_tokens`,
    `(batch_size,)` int64, whose windows hold `window_lengths`, the same shape, at least
    1, and begin `stride` tokens after one another."""
    strides = tf.minimum(window_lengths, stride)
    num_more = -(-tf.maximum(num_tokens - window_lengths, 0) // strides)
    numbers = tf.ragged.range(num_more + 1)
    texts = numbers.value_rowids()
    starts = numbers.values * tf.gather(strides, texts)
    ends = tf.minimum(
        starts + tf.gather(window_lengths, texts), tf.gather(num_tokens, texts)
    )
    first_token = tf.gather(tf.cumsum(num_tokens, exclusive=True), texts)
    return Windows(texts, first_token + starts, first_token + ends)


def fold(
    step: Callable[[tf.Tensor, Any], Any],
    state: Any,
    num_windows: tf.Tensor,
    *,
    windows_at_once: int,
) -> Any:
    """Applies `state = step(rows, state)` to windows, `windows_at_once` at a time.

    Memory depends on that number, not on the length of texts. `rows` are the int64
    numbers of the windows; the first axis of every tensor of the state may change.
    """

    def read(first, state):
        rows = tf.range(first, tf.minimum(first + windows_at_once, num_windows))
        return first + windows_at_once, step(rows, state)

    shapes = tf.nest.map_structure(
        lambda values: tf.TensorShape([None, *values.shape[1:]]), state
    )
    _, state = tf.while_loop(
        lambda first, state: first < num_windows,
        read,
        (tf.constant(0, tf.int64), state),
        shape_invariants=(tf.TensorShape([]), shapes),
        # One after the other, or all would be in memory at once.
        parallel_iterations=1,
    )
    return state
