"""Character offsets of the WordPieces of a text.

The ids are those of `tokenization.Tokenizer`. Its steps (dropping control characters,
lower-casing, stripping accents, splitting) are repeated here with each character's
place, so that an answer can be cut out of the original text.
"""

import functools
import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bert_keras.data import tokenization

# Stretches between white spaces; these controls are white space for Python only.
_CHUNKS = re.compile(r"[\S\x0b\x0c\x1c-\x1f\x85]+")


class TokenOffsets(NamedTuple):
    """Pieces of a text and the characters `text[start:end]` that they stand for.

    Starts and ends never descend. Ranges overlap only where one character became
    several (a Hangul syllable is decomposed) that are in different pieces: each has the
    whole character. Combining marks that are stripped belong to the character before
    them. `[UNK]` has its whole word.
    """

    ids: np.ndarray
    """`(num_pieces,)` int32, equal to `Tokenizer.encode(text)`."""
    starts: np.ndarray
    """`(num_pieces,)` int32."""
    ends: np.ndarray
    """`(num_pieces,)` int32."""


class OffsetTokenizer:
    """A tokenizer that gives the pieces' offsets too. It remembers short stretches
    between white spaces, as `Tokenizer` does."""

    def __init__(self, tokenizer: tokenization.Tokenizer):
        self.tokenizer = tokenizer
        prefix = tokenization.CONTINUATION_PREFIX
        self._lengths = [
            len(token.removeprefix(prefix)) for token in tokenizer.vocabulary.tokens
        ]
        # Larger entries than the tokenizer's, so fewer are kept: about 60 MB.
        self._located = tokenization.Memo(self._pieces, most_kept=1 << 17)

    def encode(self, text: str) -> TokenOffsets:
        ids: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        for match in _CHUNKS.finditer(text):
            place = match.start()
            chunk_ids, chunk_starts, chunk_ends = self._located[match[0]]
            ids += chunk_ids
            starts += [place + start for start in chunk_starts]
            ends += [place + end for end in chunk_ends]
        return TokenOffsets(*(np.array(n, np.int32) for n in (ids, starts, ends)))

    def _pieces(self, chunk: str) -> tuple[list[int], list[int], list[int]]:
        """Returns ids, starts and ends, by laying the ids along the words."""
        ids = self.tokenizer.encode(chunk)
        unk_id = self.tokenizer.vocabulary.unk_id
        starts, ends, piece = [], [], 0
        do_lower_case = self.tokenizer.do_lower_case
        for word_starts, word_ends in _words(chunk, do_lower_case=do_lower_case):
            begin, length = 0, len(word_starts)
            while begin < length:
                # No word is spelled [UNK]: brackets are words of their own.
                is_unknown = ids[piece] == unk_id
                end = length if is_unknown else begin + self._lengths[ids[piece]]
                starts.append(word_starts[begin])
                ends.append(word_ends[end - 1])
                begin, piece = end, piece + 1
        return ids, starts, ends


def _words(chunk: str, *, do_lower_case: bool) -> Iterator[tuple[list[int], list[int]]]:
    """Yields starts and ends of the characters of each word of `basic_tokenize`."""
    starts, ends, kinds = [], [], ""
    for place, char in enumerate(chunk):
        # Characters may be dropped, multiply, or be marks of the character before.
        for kind in _kinds(char, do_lower_case):
            if kind != "m":
                starts.append(place)
                ends.append(place + 1)
                kinds += kind
            elif ends:
                ends[-1] = place + 1
    for match in re.finditer("[.]|w+", kinds):
        word = slice(*match.span())
        yield starts[word], ends[word]


@functools.lru_cache(1 << 16)
def _kinds(char: str, do_lower_case: bool) -> str:
    """Returns the kinds of the characters that a character becomes, one by one.

    `.` is a word of its own, `w` part of a word, a space a space, `m` a mark that is
    stripped; the result is empty if the character is dropped. The characters around it
    never change the kinds, though they change which letter a sigma becomes, and the
    order of marks.
    """
    if tokenization.is_dropped(char):
        return ""
    if tokenization.is_cjk(char):
        return "."
    if do_lower_case:
        char = unicodedata.normalize("NFD", char.lower())
    parts = ""
    for part in char:
        if do_lower_case and unicodedata.category(part) == "Mn":
            parts += "m"
        elif tokenization.is_punctuation(part):
            parts += "."
        else:
            parts += " " if part.isspace() else "w"
    # A mark before the letter of the same character (U+0CC0) is not the last letter's.
    return parts.lstrip("m") or parts
