"""The tokenizer as graph operations, for models that take strings.

It gives the ids of `tokenization.Tokenizer` for every text. tensorflow-text's own BERT
normalisation does not (it folds case by NFKC, makes white space of control characters
and counts a word's length in bytes), so characters go through tables made from
`unicodedata`, and tensorflow-text only splits words into pieces. An exported graph
therefore keeps the Unicode version of the Python that exported it.

It also says which characters a piece stands for, as `token_offsets` does. Code points
and ids are `(batch_size, None)` ragged int32, places and lengths int64.
"""

from typing import NamedTuple

import tensorflow as tf
import tensorflow_text as tf_text

from bert_keras.data import features, tokenization
from bert_keras.graphs import graph_characters


class Pieces(NamedTuple):
    """`token_offsets.TokenOffsets` for each text, `(batch_size, None)` ragged."""

    ids: tf.RaggedTensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


class GraphTokenizer(tf.Module):
    """Strings to WordPiece ids, inside a graph.

    A call with `(batch_size,)` strings gives `(batch_size, None)` ragged int32: the
    result of `Tokenizer.encode` for each string. Bytes that are not UTF-8 are skipped.
    The vocabulary is part of the graph.
    """

    def __init__(self, vocabulary: tokenization.Vocabulary, *, do_lower_case: bool):
        super().__init__(name="tokenizer")
        self._characters = graph_characters.CharacterTable(do_lower_case=do_lower_case)
        self._unk_id = vocabulary.unk_id
        prefix = tokenization.CONTINUATION_PREFIX
        self._piece_lengths = tf.constant(
            [len(token.removeprefix(prefix)) for token in vocabulary.tokens], tf.int64
        )
        self._wordpiece = tf_text.FastWordpieceTokenizer(
            vocab=list(vocabulary.tokens),
            suffix_indicator=prefix,
            unknown_token=features.UNK_TOKEN,
            # Length is counted in `locate`, in characters.
            max_bytes_per_word=4 * tokenization.MAX_INPUT_CHARS_PER_WORD,
            token_out_type=tf.int32,
            no_pretokenization=True,
        )

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self.locate(decode(texts)).ids

    def locate(self, code_points: tf.RaggedTensor) -> Pieces:
        """Cuts texts, code points from `decode`, into pieces with their places."""
        words = _Words(self._characters(code_points))
        # 1. The pieces of each word.
        spelled = tf.RaggedTensor.from_row_starts(
            words.characters.code_points, words.first, validate=False
        )
        # The entry itself: text cannot spell it, since brackets are words of their own.
        is_too_long = spelled.row_lengths() > tokenization.MAX_INPUT_CHARS_PER_WORD
        strings = tf.strings.unicode_encode(spelled, "UTF-8")
        pieces = self._wordpiece.tokenize(
            tf.where(is_too_long, features.UNK_TOKEN, strings)
        )
        nested = tf.RaggedTensor.from_value_rowids(
            pieces, words.texts, nrows=code_points.nrows(), validate=False
        )
        ids = nested.merge_dims(1, 2)
        # 2. Their places: pieces cover the characters of words without gaps.
        # `[UNK]` covers its whole word.
        lengths = tf.where(
            pieces.flat_values == self._unk_id,
            tf.gather(words.lengths, pieces.value_rowids()),
            tf.gather(self._piece_lengths, pieces.flat_values),
        )
        after = tf.cumsum(lengths)
        first_of_text = tf.gather(code_points.row_starts(), ids.value_rowids())
        starts = tf.gather(words.characters.starts, after - lengths)
        ends = tf.gather(words.characters.ends, after - 1)
        return Pieces(
            ids,
            ids.with_values(starts - first_of_text),
            ids.with_values(ends - first_of_text),
        )


class WordSplitter(tf.Module):
    """Finds the words of texts inside a graph, as `ner.split_words` does."""

    def __init__(self):
        super().__init__(name="word_splitter")
        self._characters = graph_characters.CharacterTable(do_lower_case=False)

    def __call__(
        self, code_points: tf.RaggedTensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Returns word starts and ends in characters, `(batch_size, None)` ragged
        int64."""
        words = _Words(self._characters(code_points))
        starts = tf.gather(words.characters.starts, words.first)
        ends = tf.gather(words.characters.ends, words.first + words.lengths - 1)
        first_of_text = tf.gather(code_points.row_starts(), words.texts)
        rows = tf.RaggedTensor.from_value_rowids(
            starts - first_of_text, words.texts, code_points.nrows(), validate=False
        )
        return rows, rows.with_values(ends - first_of_text)


def decode(texts: tf.Tensor) -> tf.RaggedTensor:
    """Returns the characters of `(batch_size,)` strings, as Python counts them. Bytes
    that are not UTF-8 become U+FFFD, as with `bytes.decode(errors="replace")`."""
    return tf.strings.unicode_decode(texts, "UTF-8")


def cut(
    code_points: tf.RaggedTensor, texts: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor
) -> tf.Tensor:
    """Returns parts of texts, `text[start:end]` in characters, `(num_parts,)` strings.
    `texts` are `(num_parts,)` int64 numbers of the parts' texts."""
    first_of_text = tf.gather(code_points.row_starts(), texts)
    places = tf.ragged.range(first_of_text + starts, first_of_text + ends)
    parts = places.with_values(tf.gather(code_points.flat_values, places.values))
    return tf.strings.unicode_encode(parts, "UTF-8")


def pack_pairs(
    ids_a: tf.RaggedTensor,
    ids_b: tf.RaggedTensor | None,
    *,
    max_seq_length: int,
    vocabulary: tokenization.Vocabulary,
    keeps_tail: bool = False,
) -> dict[str, tf.Tensor]:
    """Packs texts or pairs of texts, a batch of `tokenization.pack_pair`, into
    `input_ids`, `input_mask` (1 for a token, 0 for padding) and `segment_ids`, each
    `(batch_size, sequence_length)` int32, padded to the longest of the batch. An empty
    row of `ids_b` has no second text."""
    if max_seq_length < 3:
        raise ValueError(f"`max_seq_length` must be at least 3, got {max_seq_length}")
    if ids_b is None:
        ids_b = ids_a[:, :0]
    lengths_a, lengths_b = ids_a.row_lengths(), ids_b.row_lengths()
    has_b = tf.cast(lengths_b > 0, tf.int64)
    totals = max_seq_length - 2 - has_b
    halves = totals // 2
    # As `tokenization.truncated_lengths`.
    most_a = tf.maximum(totals - halves, totals - lengths_b)
    most_b = tf.maximum(halves, totals - lengths_a)
    return pack(
        _shortened(ids_a, tf.minimum(lengths_a, most_a), keeps_tail=keeps_tail),
        _shortened(ids_b, tf.minimum(lengths_b, most_b), keeps_tail=keeps_tail),
        has_b,
        vocabulary=vocabulary,
    )


def pack(
    ids_a: tf.RaggedTensor,
    ids_b: tf.RaggedTensor,
    has_b: tf.Tensor,
    *,
    vocabulary: tokenization.Vocabulary,
) -> dict[str, tf.Tensor]:
    """Packs texts that fit, as `pack_pairs`. `has_b` is 1 where a second text, maybe
    empty, gets its `[SEP]`, else 0: `(batch_size,)` int64."""
    once = tf.ones_like(has_b)
    cls, sep = repeat(vocabulary.cls_id, once), repeat(vocabulary.sep_id, once)
    parts = [cls, ids_a, sep, ids_b, repeat(vocabulary.sep_id, has_b)]
    segments = [tf.zeros_like(part) for part in parts[:3]]
    segments += [tf.ones_like(part) for part in parts[3:]]
    input_ids, segment_ids = tf.concat(parts, 1), tf.concat(segments, 1)
    return {
        "input_ids": input_ids.to_tensor(vocabulary.pad_id),
        "input_mask": tf.ones_like(input_ids).to_tensor(),
        "segment_ids": segment_ids.to_tensor(),
    }


def repeat(token_id: int, lengths: tf.Tensor) -> tf.RaggedTensor:
    values = tf.fill([tf.reduce_sum(lengths)], token_id)
    return tf.RaggedTensor.from_row_lengths(values, lengths)


def _shortened(
    ids: tf.RaggedTensor, lengths: tf.Tensor, *, keeps_tail: bool
) -> tf.RaggedTensor:
    """Applies `tokenization.shortened` to each row, down to `lengths[i]` at most."""
    row_lengths = ids.row_lengths()
    heads = tokenization.head_length(lengths) if keeps_tail else lengths
    tails = row_lengths - lengths + heads
    position = tf.ragged.range(row_lengths).flat_values
    is_kept = position < tf.repeat(heads, row_lengths)
    is_kept |= position >= tf.repeat(tails, row_lengths)
    values = tf.boolean_mask(ids.flat_values, is_kept)
    return tf.RaggedTensor.from_row_lengths(values, lengths)


class _Words:
    """Words end to end, `(num_words,)` int64 each: `first`, the first character of each
    word; `texts`, the number of its text in the batch; and `lengths` in characters."""

    def __init__(self, characters: graph_characters.Characters):
        is_space = characters.has(graph_characters.SPACE)
        is_isolated = characters.has(graph_characters.ISOLATED)
        after_end = tf.concat([[True], (is_space | is_isolated)[:-1]], 0)
        begins_word = is_isolated | after_end | characters.begins_text()
        begins_word = tf.boolean_mask(begins_word, ~is_space)
        self.characters = characters.only(~is_space)
        self.first = tf.where(begins_word)[:, 0]
        self.texts = tf.gather(self.characters.text, self.first)
        num_characters = tf.size(self.characters.text, tf.int64)
        after = tf.concat([self.first, [num_characters]], 0)[1:]
        self.lengths = after - self.first
