"""Sentences cut into windows of words, as graph operations: see `ner_windows`."""

from typing import NamedTuple

import tensorflow as tf


class Windows(NamedTuple):
    """Windows over the sentences of a batch, in order, `(num_windows,)` int64 each.

    Words are counted from the first word of the first sentence. Every word is a
    window's own exactly once, in this order.
    """

    own_begins: tf.Tensor
    """First own word: a window answers for its own words."""
    own_ends: tf.Tensor
    """The word after the last own one."""
    begins: tf.Tensor
    """First word in the window."""
    ends: tf.Tensor
    """The word after the last one in it."""


def cut_windows(
    num_words: tf.Tensor,
    starts: tf.Tensor,
    *,
    max_pieces: int,
    documents: tf.Tensor | None = None,
) -> Windows:
    """Returns the windows of `ner_windows.tokenize`, for a batch.

    Args:
        num_words: `(batch_size,)` int64: length of each sentence.
        starts: `(num_words + 1,)` int64: first piece of each word, and the end of the
            last word. A word has one to `max_pieces` pieces.
        max_pieces: length of a window.
        documents: `(batch_size,)` int64, ascending from 0 in steps of 1 at most: the
            document of each sentence, whose words fill its windows; `None`: each
            sentence is a document.
    """
    # 1. Where each word's sentence begins and ends. Windows over long ones have half
    # the length, so that words at the cuts have neighbours.
    sentence_begins, sentence_ends = _spans(num_words)
    num_pieces = tf.gather(starts, sentence_ends) - tf.gather(starts, sentence_begins)
    longest = tf.where(num_pieces > max_pieces, max_pieces // 2, max_pieces)
    first, last, longest = (
        tf.repeat(values, num_words)
        for values in (sentence_begins, sentence_ends, longest)
    )
    # 2. Where a window's own words end if they begin with a word; so, followed from the
    # first word of all sentences at once, which words begin a window.
    words = tf.range(tf.size(first, tf.int64))
    fitting = _last_within(starts, starts[:-1] + tf.cast(longest, tf.int64))
    next_begins = tf.minimum(last, tf.maximum(words + 1, fitting))

    def follow(current, reached):
        following = tf.gather(next_begins, current)
        is_in = following < tf.gather(last, current)
        reached = tf.concat([reached, current], 0)
        return tf.boolean_mask(following, is_in), reached

    _, own_begins = tf.while_loop(
        lambda current, reached: tf.size(current) > 0,
        follow,
        (tf.boolean_mask(sentence_begins, num_words > 0), tf.zeros([0], tf.int64)),
        shape_invariants=(tf.TensorShape([None]), tf.TensorShape([None])),
    )
    own_begins = tf.sort(own_begins)
    own_ends = tf.gather(next_begins, own_begins)
    # 3. Add words of the sentence, or of its document: half of the room on each side,
    # and room that one side leaves on the other.
    if documents is not None:
        of_words = tf.repeat(documents, num_words)
        first, last = (
            tf.gather(places, of_words)
            for places in _spans(tf.math.segment_sum(num_words, documents))
        )
    first, last = tf.gather(first, own_begins), tf.gather(last, own_begins)
    begin_pieces = tf.gather(starts, own_begins)
    room = max_pieces - (tf.gather(starts, own_ends) - begin_pieces)
    begins = tf.maximum(first, _first_from(starts, begin_pieces - room // 2))
    ends = _last_within(starts, tf.gather(starts, begins) + max_pieces)
    ends = tf.minimum(last, ends)
    begins = _first_from(starts, tf.gather(starts, ends) - max_pieces)
    return Windows(own_begins, own_ends, tf.maximum(first, begins), ends)


def _spans(num_words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns begins and ends of texts of so many words."""
    ends = tf.cumsum(num_words)
    return ends - num_words, ends


def _first_from(starts: tf.Tensor, pieces: tf.Tensor) -> tf.Tensor:
    # The operation of `tf.searchsorted`, which cannot search for nothing.
    return tf.raw_ops.LowerBound(
        sorted_inputs=starts[tf.newaxis], values=pieces[tf.newaxis], out_type=tf.int64
    )[0]


def _last_within(starts: tf.Tensor, pieces: tf.Tensor) -> tf.Tensor:
    # Of whole numbers, the first above is the first from the next on.
    return _first_from(starts, pieces + 1) - 1
