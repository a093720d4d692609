"""Cleaning and lower case of characters, as graph operations: see `graph_tokenizer`."""

import functools
import sys
import unicodedata
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert_keras.data import tokenization

# Flags of a character in the tables. The low byte holds the canonical combining class
# of the character after the change: 0 for all but some marks.
_COMBINING_CLASS = 0xFF
_DROPPED = 1 << 8  # deleted at the very start
SPACE = 1 << 9
ISOLATED = 1 << 10  # a word by itself: punctuation and ideographs
_EXPANDED = 1 << 11  # becomes several characters: Hangul syllables, mostly
_STRIPPED = 1 << 12  # an accent: counts for order and final sigma, then vanishes
_CASED = 1 << 13
_CASE_IGNORABLE = 1 << 14

_CAPITAL_SIGMA, _FINAL_SIGMA = 0x3A3, 0x3C2
# Hangul syllables of three letters, and some musical symbols, have as many.
_LONGEST_EXPANSION = 3
_BLOCK_SIZE = 128


class Characters(NamedTuple):
    """All characters of a batch, end to end, `(num_characters,)` each: code points and
    flags are int32, numbers int64."""

    code_points: tf.Tensor
    flags: tf.Tensor
    text: tf.Tensor
    """Number of the character's text in the batch, ascending."""
    starts: tf.Tensor
    """The character's place in the batch before any change."""
    ends: tf.Tensor
    """The place after the character and its stripped marks."""

    def has(self, flag: int) -> tf.Tensor:
        return tf.bitwise.bitwise_and(self.flags, flag) != 0

    def only(self, mask: tf.Tensor) -> "Characters":
        return Characters(*(tf.boolean_mask(values, mask) for values in self))

    def begins_text(self) -> tf.Tensor:
        """Marks the first character of each text."""
        return self.text != tf.concat([[-1], self.text[:-1]], 0)


class CharacterTable(tf.Module):
    """Cleans characters and, if asked, makes them small letters without accents. It
    follows `tokenization.basic_tokenize`, but only marks spaces and isolated
    characters, where the original cuts."""

    def __init__(self, *, do_lower_case: bool):
        super().__init__(name="characters")
        self._do_lower_case = do_lower_case
        # Eager constants, which a SavedModel holds once for all its signatures.
        constants = map(tf.constant, _build_tables(do_lower_case))
        self._blocks, self._offsets, self._flags, self._expansions = constants

    def __call__(self, code_points: tf.RaggedTensor) -> Characters:
        """Changes the characters of texts, `(batch_size, None)` int32 code points."""
        flat = code_points.flat_values
        flags, offsets = self._look_up(flat)
        places = tf.range(tf.size(flat, tf.int64))
        characters = Characters(
            flat, flags, code_points.value_rowids(), places, places + 1
        )
        is_kept = ~characters.has(_DROPPED)
        characters = characters.only(is_kept)
        if not self._do_lower_case:
            return characters
        return self._lower_and_strip(characters, tf.boolean_mask(offsets, is_kept))

    def _look_up(self, code_points: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns flags of code points, and their distances to the results."""
        block = tf.gather(self._blocks, code_points // _BLOCK_SIZE)
        entry = block * _BLOCK_SIZE + code_points % _BLOCK_SIZE
        return tf.gather(self._flags, entry), tf.gather(self._offsets, entry)

    def _lower_and_strip(self, sources: Characters, offsets: tf.Tensor) -> Characters:
        """Computes `strip_accents(text.lower())`; rare parts run only if they occur."""
        characters = sources._replace(code_points=sources.code_points + offsets)
        has_sigma = tf.reduce_any(sources.code_points == _CAPITAL_SIGMA)
        characters = tf.cond(
            has_sigma, lambda: _end_with_sigmas(characters, sources), lambda: characters
        )
        has_expanded = tf.reduce_any(characters.has(_EXPANDED))
        characters = tf.cond(
            has_expanded, lambda: self._expand(characters, offsets), lambda: characters
        )
        # The places of characters that stay; an accent belongs to the one before it in
        # its text.
        is_kept = ~characters.has(_STRIPPED)
        begins = tf.where(is_kept | characters.begins_text())[:, 0]
        next_begins = tf.concat([begins, [tf.size(is_kept, tf.int64)]], 0)[1:]
        starts = tf.boolean_mask(characters.starts, is_kept)
        ends = tf.gather(characters.ends, next_begins - 1)
        # A text may begin with an accent, which belongs to no character.
        ends = tf.boolean_mask(ends, tf.gather(is_kept, begins))
        has_marks = tf.reduce_any(characters.has(_COMBINING_CLASS) & is_kept)
        characters = tf.cond(
            has_marks, lambda: _order_marks(characters), lambda: characters
        )
        # Marks change places with one another, but the places stay in order.
        characters = characters.only(~characters.has(_STRIPPED))
        return characters._replace(starts=starts, ends=ends)

    def _expand(self, characters: Characters, offsets: tf.Tensor) -> Characters:
        """Puts the whole decomposition where one character cannot hold it. The offset
        of such a character is its row in the table of expansions."""
        is_expanded = characters.has(_EXPANDED)
        parts = tf.gather(self._expansions, tf.where(is_expanded, offsets, 0))
        flags, _ = self._look_up(parts)
        is_first = tf.range(_LONGEST_EXPANSION) == 0
        unchanged_flags = tf.where(is_first, characters.flags[:, tf.newaxis], _DROPPED)

        def flat(of_expanded, of_others):
            chosen = tf.where(is_expanded[:, tf.newaxis], of_expanded, of_others)
            return tf.reshape(chosen, [-1])

        expanded = Characters(
            flat(parts, characters.code_points[:, tf.newaxis]),
            flat(flags, unchanged_flags),
            # Text, start and end: each part has those of the whole character.
            *(tf.repeat(v, _LONGEST_EXPANSION) for v in characters[2:]),
        )
        return expanded.only(~expanded.has(_DROPPED))


def _end_with_sigmas(characters: Characters, sources: Characters) -> Characters:
    """Lowers capital sigmas that end a word. By Unicode's rule, as in `str.lower`, such
    a sigma stands after a cased letter and not before one, whatever case-ignorable
    characters (accents, apostrophes) lie between. `sources` are before any change."""
    is_relevant = ~sources.has(_CASE_IGNORABLE)
    relevant = sources.only(is_relevant)
    is_cased, begins = relevant.has(_CASED), relevant.begins_text()
    after_cased = tf.concat([[False], is_cased[:-1]], 0) & ~begins
    before_cased = tf.concat([(is_cased & ~begins)[1:], [False]], 0)
    is_sigma = relevant.code_points == _CAPITAL_SIGMA
    is_final = is_sigma & after_cased & ~before_cased
    places = tf.boolean_mask(tf.where(is_relevant), is_final)
    code_points = tf.tensor_scatter_nd_update(
        characters.code_points, places, tf.fill(tf.shape(places)[:1], _FINAL_SIGMA)
    )
    return characters._replace(code_points=code_points)


def _order_marks(characters: Characters) -> Characters:
    """Sorts each run of combining marks by class, as canonical ordering asks. Most such
    marks are stripped as accents; the others hardly ever meet a mark of another class.
    """
    combining_class = tf.bitwise.bitwise_and(characters.flags, _COMBINING_CLASS)
    begins_run = (combining_class == 0) | characters.begins_text()
    run = tf.cumsum(tf.cast(begins_run, tf.int64))
    order = tf.argsort(run * 256 + tf.cast(combining_class, tf.int64), stable=True)
    # Their places do not change, see `_lower_and_strip`.
    return characters._replace(
        code_points=tf.gather(characters.code_points, order),
        flags=tf.gather(characters.flags, order),
    )


@functools.cache
def _build_tables(
    do_lower_case: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the changes of all code points: blocks, offsets, flags and expansions.

    Blocks have `_BLOCK_SIZE` code points, and equal ones are stored once: the first
    array is the block of each code point, `(0x110000 / _BLOCK_SIZE,)`. Offsets are
    distances to the new code points, or rows of expansions. Expansions are
    `(num_expansions, _LONGEST_EXPANSION)` code points, padded with U+0000, which counts
    as dropped. All are int32.
    """
    offsets = np.zeros(sys.maxunicode + 1, np.int32)
    flags = np.zeros(sys.maxunicode + 1, np.int32)
    expansions: list[list[int]] = []
    for first, last in tokenization.CJK_RANGES:
        flags[first : last + 1] = ISOLATED
    for char in map(chr, range(sys.maxunicode + 1)):
        if unicodedata.category(char) in ("Cn", "Co", "Cs"):
            continue  # most of Unicode: without case, marks or decomposition
        code_point = ord(char)
        if tokenization.is_dropped(char):
            flags[code_point] |= _DROPPED
        elif char.isspace():
            flags[code_point] |= SPACE
        elif tokenization.is_punctuation(char):
            flags[code_point] |= ISOLATED
        if not do_lower_case or flags[code_point] & (_DROPPED | SPACE):
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
    offsets, flags = distinct.reshape(-1, 2).T
    rows = np.array(expansions, np.int32).reshape(-1, _LONGEST_EXPANSION)
    return blocks.reshape(-1).astype(np.int32), offsets.copy(), flags.copy(), rows


def _lowered_flags(char: str, decomposed: str, kept: str) -> int:
    flags = 0
    if len(kept) > 1:
        flags |= _EXPANDED
    elif not kept:
        flags |= _STRIPPED
    elif tokenization.is_punctuation(kept):
        flags |= ISOLATED
    # The class of the first, since nothing decomposes into a mark and then a letter.
    flags |= unicodedata.combining(decomposed[0])
    # `str.lower` knows both properties but shows them only by its treatment of a sigma.
    if f"{char}Σ".lower().endswith("ς"):
        flags |= _CASED
    elif f"A{char}Σ".lower().endswith("ς"):
        flags |= _CASE_IGNORABLE
    return flags
