"""The tokenizer again, as graph operations, for models that take strings.

Gives the ids of `tokenization.Tokenizer` for every text. tensorflow-text's own BERT
normalisation does not (it folds case by NFKC, makes white space of control characters
and counts a word's length in bytes), so characters go through tables made from
`unicodedata`, and tensorflow-text only splits words into pieces. An exported graph
therefore keeps the Unicode version of the Python that exported it.
"""

import functools
import sys
import unicodedata
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bert_keras import features, tokenization

# What a table says about a character. The low byte holds the canonical combining
# class of what the character becomes: 0 for all but some marks.
_COMBINING_CLASS = 0xFF
_DROPPED = 1 << 8  # deleted at the very start
_SPACE = 1 << 9
_ISOLATED = 1 << 10  # a word by itself: punctuation and ideographs
_EXPANDED = 1 << 11  # becomes several characters: Hangul syllables, mostly
_STRIPPED = 1 << 12  # an accent: counts for order and final sigma, then vanishes
_CASED = 1 << 13
_CASE_IGNORABLE = 1 << 14

_CAPITAL_SIGMA, _FINAL_SIGMA = 0x3A3, 0x3C2
_LONGEST_EXPANSION = 3
_BLOCK_SIZE = 128


class GraphTokenizer(tf.Module):
    """Strings to WordPiece ids, inside a graph.

    Calling it with a `(batch_size,)` string tensor gives a `(batch_size, None)` ragged
    int32 tensor: what `Tokenizer.encode` gives for each string. Bytes that are not
    UTF-8 are skipped. The vocabulary is part of the graph.
    """

    def __init__(self, vocabulary: tokenization.Vocabulary, *, do_lower_case: bool):
        super().__init__(name="tokenizer")
        self._do_lower_case = do_lower_case
        tables = _build_tables(do_lower_case)
        # Eager constants, which a SavedModel holds once for all its signatures.
        self._blocks = tf.constant(tables.blocks)
        self._offsets = tf.constant(tables.offsets)
        self._flags = tf.constant(tables.flags)
        self._expansions = tf.constant(tables.expansions)
        self._wordpiece = tf_text.FastWordpieceTokenizer(
            vocab=list(vocabulary.tokens),
            suffix_indicator=tokenization.CONTINUATION_PREFIX,
            unknown_token=features.UNK_TOKEN,
            # Length is counted here, in characters: `_join_words`.
            max_bytes_per_word=4 * tokenization.MAX_INPUT_CHARS_PER_WORD,
            token_out_type=tf.int32,
            no_pretokenization=True,
        )

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        # Malformed bytes become U+FFFD, which is dropped like any other U+FFFD.
        decoded = tf.strings.unicode_decode(texts, "UTF-8")
        code_points = decoded.flat_values
        flags, offsets = self._look_up(code_points)
        characters = _Characters(code_points, flags, decoded.value_rowids())
        is_kept = ~characters.has(_DROPPED)
        characters = characters.only(is_kept)
        if self._do_lower_case:
            offsets = tf.boolean_mask(offsets, is_kept)
            characters = self._lower_and_strip(characters, offsets)
        words, text_of_word = _join_words(characters)
        pieces = self._wordpiece.tokenize(words)
        nested = tf.RaggedTensor.from_value_rowids(
            pieces, text_of_word, nrows=tf.size(texts, tf.int64), validate=False
        )
        return nested.merge_dims(1, 2)

    def _look_up(self, code_points: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Flags of code points, and how far away the ones are that they become."""
        block = tf.gather(self._blocks, code_points // _BLOCK_SIZE)
        entry = block * _BLOCK_SIZE + code_points % _BLOCK_SIZE
        return tf.gather(self._flags, entry), tf.gather(self._offsets, entry)

    def _lower_and_strip(
        self, characters: "_Characters", offsets: tf.Tensor
    ) -> "_Characters":
        """`strip_accents(text.lower())`; the rare parts run only when they occur."""
        sources = characters
        characters = characters._replace(code_points=sources.code_points + offsets)
        characters = tf.cond(
            tf.reduce_any(sources.code_points == _CAPITAL_SIGMA),
            lambda: characters.put(_final_sigmas(sources), _FINAL_SIGMA),
            lambda: characters,
        )
        characters = tf.cond(
            tf.reduce_any(characters.has(_EXPANDED)),
            lambda: self._expand(characters, offsets),
            lambda: characters,
        )
        characters = tf.cond(
            tf.reduce_any(
                characters.has(_COMBINING_CLASS) & ~characters.has(_STRIPPED)
            ),
            lambda: _order_marks(characters),
            lambda: characters,
        )
        return characters.only(~characters.has(_STRIPPED))

    def _expand(self, characters: "_Characters", offsets: tf.Tensor) -> "_Characters":
        """Puts the whole decomposition where one character cannot hold it.

        The offset of such a character is its row in the table of expansions.
        """
        is_expanded = characters.has(_EXPANDED)
        parts = tf.gather(self._expansions, tf.where(is_expanded, offsets, 0))
        flags, _ = self._look_up(parts)
        is_expanded = is_expanded[:, tf.newaxis]
        first = tf.one_hot(0, _LONGEST_EXPANSION, dtype=tf.int32)
        unchanged = characters.code_points[:, tf.newaxis] * first
        unchanged_flags = tf.where(
            first == 1, characters.flags[:, tf.newaxis], _DROPPED
        )
        expanded = _Characters(
            tf.reshape(tf.where(is_expanded, parts, unchanged), [-1]),
            tf.reshape(tf.where(is_expanded, flags, unchanged_flags), [-1]),
            tf.repeat(characters.text, _LONGEST_EXPANSION),
        )
        return expanded.only(~expanded.has(_DROPPED))


def pack_pairs(
    ids_a: tf.RaggedTensor,
    ids_b: tf.RaggedTensor | None,
    *,
    max_seq_length: int,
    vocabulary: tokenization.Vocabulary,
    pad_to_max_seq_length: bool = False,
) -> dict[str, tf.Tensor]:
    """Packs texts or pairs of texts into model inputs: `pack_pair` for a batch.

    Args:
        ids_a: `(batch_size, None)` int32, ids of the first texts.
        ids_b: the same of the second texts; an empty row has no second text.
        max_seq_length: tokens at most, special tokens included; at least 3.
        vocabulary: gives the special tokens.
        pad_to_max_seq_length: pad to this length, not to the longest of the batch.

    Returns:
        `input_ids`, `input_mask` (1 for a token, 0 for padding) and `segment_ids`, each
        `(batch_size, sequence_length)` int32.
    """
    if max_seq_length < 3:
        raise ValueError(f"`max_seq_length` must be at least 3, got {max_seq_length}")
    if ids_b is None:
        ids_b = tf.RaggedTensor.from_row_lengths(
            tf.constant([], tf.int32), tf.zeros_like(ids_a.row_lengths())
        )
    lengths_a, lengths_b = ids_a.row_lengths(), ids_b.row_lengths()
    has_b = tf.cast(lengths_b > 0, tf.int64)
    lengths_a, lengths_b = _truncated_lengths(
        lengths_a, lengths_b, max_seq_length - 2 - has_b
    )
    once = tf.ones_like(lengths_a)
    sep = tf.constant(vocabulary.sep_id)
    parts = [
        _repeat(tf.constant(vocabulary.cls_id), once),
        _first(ids_a, lengths_a),
        _repeat(sep, once),
        _first(ids_b, lengths_b),
        _repeat(sep, has_b),
    ]
    segments = [tf.zeros_like(part) for part in parts[:3]]
    segments += [tf.ones_like(part) for part in parts[3:]]
    input_ids, segment_ids = tf.concat(parts, 1), tf.concat(segments, 1)
    shape = [None, max_seq_length if pad_to_max_seq_length else None]
    return {
        "input_ids": input_ids.to_tensor(vocabulary.pad_id, shape=shape),
        "input_mask": tf.ones_like(input_ids).to_tensor(shape=shape),
        "segment_ids": segment_ids.to_tensor(shape=shape),
    }


def _truncated_lengths(
    lengths_a: tf.Tensor, lengths_b: tf.Tensor, totals: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """`tokenization.truncated_lengths` for a batch."""
    shorter = tf.minimum(lengths_a, lengths_b)
    rest = totals - shorter
    half = totals // 2
    is_cut = lengths_a + lengths_b > totals
    # Only the longer one is cut, unless half of the room is too little for the other.
    cut_a = tf.where(lengths_a > lengths_b, rest, shorter)
    cut_b = tf.where(lengths_a > lengths_b, shorter, rest)
    both = 2 * shorter > totals
    cut_a = tf.where(both, totals - half, cut_a)
    cut_b = tf.where(both, half, cut_b)
    return tf.where(is_cut, cut_a, lengths_a), tf.where(is_cut, cut_b, lengths_b)


def _repeat(token_id: tf.Tensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    values = tf.fill([tf.reduce_sum(lengths)], token_id)
    return tf.RaggedTensor.from_row_lengths(values, lengths)


def _first(ids: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """The first `lengths[i]` ids of each row."""
    position = tf.ragged.range(ids.row_lengths()).flat_values
    is_kept = position < tf.repeat(lengths, ids.row_lengths())
    values = tf.boolean_mask(ids.flat_values, is_kept)
    return tf.RaggedTensor.from_row_lengths(values, lengths)


class _Characters(NamedTuple):
    """All characters of a batch, one after another."""

    code_points: tf.Tensor
    """`(num_characters,)` int32."""
    flags: tf.Tensor
    """`(num_characters,)` int32."""
    text: tf.Tensor
    """`(num_characters,)` int64: which text of the batch each belongs to, ascending."""

    def has(self, flag: int) -> tf.Tensor:
        return tf.bitwise.bitwise_and(self.flags, flag) != 0

    def only(self, mask: tf.Tensor) -> "_Characters":
        return _Characters(*(tf.boolean_mask(values, mask) for values in self))

    def put(self, mask: tf.Tensor, code_point: int) -> "_Characters":
        return self._replace(code_points=tf.where(mask, code_point, self.code_points))

    def begins_text(self) -> tf.Tensor:
        """Whether each character is the first one of its text."""
        return self.text != tf.concat([[-1], self.text[:-1]], 0)


def _final_sigmas(characters: _Characters) -> tf.Tensor:
    """Which characters are capital sigmas that end a word.

    By Unicode's rule, as `str.lower` has it: after a cased letter and not before one,
    whatever case-ignorable characters (accents, apostrophes) lie between.
    """
    is_relevant = ~characters.has(_CASE_IGNORABLE)
    relevant = characters.only(is_relevant)
    is_cased, begins = relevant.has(_CASED), relevant.begins_text()
    after_cased = tf.concat([[False], is_cased[:-1]], 0) & ~begins
    before_cased = tf.concat([(is_cased & ~begins)[1:], [False]], 0)
    is_sigma = relevant.code_points == _CAPITAL_SIGMA
    is_final = is_sigma & after_cased & ~before_cased
    return tf.tensor_scatter_nd_update(
        tf.zeros_like(is_relevant), tf.where(is_relevant), is_final
    )


def _order_marks(characters: _Characters) -> _Characters:
    """Sorts each run of combining marks by class, as canonical ordering asks.

    Most such marks are stripped as accents; of the others hardly any two that differ
    in class ever meet.
    """
    combining_class = tf.bitwise.bitwise_and(characters.flags, _COMBINING_CLASS)
    begins_run = (combining_class == 0) | characters.begins_text()
    run = tf.cumsum(tf.cast(begins_run, tf.int64))
    order = tf.argsort(run * 256 + tf.cast(combining_class, tf.int64), stable=True)
    return _Characters(*(tf.gather(values, order) for values in characters))


def _join_words(characters: _Characters) -> tuple[tf.Tensor, tf.Tensor]:
    """Joins characters into words.

    Returns:
        `(num_words,)` strings, and which text of the batch each belongs to.
    """
    is_space, is_isolated = characters.has(_SPACE), characters.has(_ISOLATED)
    after_end = tf.concat([[True], (is_space | is_isolated)[:-1]], 0)
    begins_word = is_isolated | after_end | characters.begins_text()
    begins_word = tf.boolean_mask(begins_word, ~is_space)
    characters = characters.only(~is_space)
    starts = tf.where(begins_word)[:, 0]
    words = tf.RaggedTensor.from_row_starts(
        characters.code_points, starts, validate=False
    )
    strings = tf.strings.unicode_encode(words, "UTF-8")
    is_too_long = words.row_lengths() > tokenization.MAX_INPUT_CHARS_PER_WORD
    # The entry itself: text cannot spell it, since brackets are words of their own.
    strings = tf.where(is_too_long, features.UNK_TOKEN, strings)
    return strings, tf.gather(characters.text, starts)


class _Tables(NamedTuple):
    """What every code point becomes, in blocks of which equal ones are kept once."""

    blocks: np.ndarray
    """`(0x110000 / _BLOCK_SIZE,)` int32: the block of a code point."""
    offsets: np.ndarray
    """`(num_blocks * _BLOCK_SIZE,)` int32: how far it moves, or its expansion."""
    flags: np.ndarray
    """The same shape, int32."""
    expansions: np.ndarray
    """`(num_expansions, _LONGEST_EXPANSION)` int32 code points, padded with U+0000,
    which counts as dropped."""


@functools.cache
def _build_tables(do_lower_case: bool) -> _Tables:
    offsets = np.zeros(sys.maxunicode + 1, np.int32)
    flags = np.zeros(sys.maxunicode + 1, np.int32)
    expansions: list[list[int]] = []
    for first, last in tokenization.CJK_RANGES:
        flags[first : last + 1] = _ISOLATED
    for char in map(chr, range(sys.maxunicode + 1)):
        if unicodedata.category(char) in ("Cn", "Co", "Cs"):
            continue  # most of Unicode: without case, marks or decomposition
        code_point = ord(char)
        flags[code_point] |= _plain_flags(char)
        if not do_lower_case or flags[code_point] & (_DROPPED | _SPACE):
            continue
        decomposed = unicodedata.normalize("NFD", char.lower())
        kept = tokenization.strip_accents(decomposed)
        flags[code_point] |= _lowered_flags(char, decomposed, kept)
        if len(kept) > 1:
            offsets[code_point] = len(expansions)
            padding = [0] * (_LONGEST_EXPANSION - len(kept))
            expansions.append([*map(ord, kept), *padding])
        elif kept:
            offsets[code_point] = ord(kept) - code_point
    pairs = np.stack([offsets, flags], axis=-1).reshape(-1, _BLOCK_SIZE * 2)
    distinct, blocks = np.unique(pairs, axis=0, return_inverse=True)
    distinct = distinct.reshape(-1, 2)
    return _Tables(
        blocks=blocks.reshape(-1).astype(np.int32),
        offsets=distinct[:, 0].copy(),
        flags=distinct[:, 1].copy(),
        expansions=np.array(expansions, np.int32).reshape(-1, _LONGEST_EXPANSION),
    )


def _plain_flags(char: str) -> int:
    if tokenization.is_dropped(char):
        return _DROPPED
    if char.isspace():
        return _SPACE
    return _ISOLATED if tokenization.is_punctuation(char) else 0


def _lowered_flags(char: str, decomposed: str, kept: str) -> int:
    flags = 0
    if len(kept) > 1:
        flags |= _EXPANDED
    elif not kept:
        flags |= _STRIPPED
    elif tokenization.is_punctuation(kept):
        flags |= _ISOLATED
    # The first one's, since nothing decomposes into a mark and then a letter.
    flags |= unicodedata.combining(decomposed[0])
    # `str.lower` knows both properties but shows them only by what it makes of a sigma.
    if f"{char}Σ".lower().endswith("ς"):
        flags |= _CASED
    elif f"A{char}Σ".lower().endswith("ς"):
        flags |= _CASE_IGNORABLE
    return flags
