"""Vocabulary and WordPiece tokenizer, exact to google-research/bert's.

Pipelines and fine-tuning use it, and the tokenizer of exported models
(`graphs/graph_tokenizer.py`) must agree with it. Character classes are those of the
running Python's `unicodedata`.
"""

import functools
import hashlib
import re
import types
import unicodedata
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.data import features

MAX_INPUT_CHARS_PER_WORD = 200
"""Length of a word above which it becomes `[UNK]`, as in the original."""

_BLANKS = " \t\r\n"
CONTINUATION_PREFIX = "##"
"""Prefix of an entry that continues a word."""

# CJK unified ideographs, their extensions A to E and the compatibility forms. Hangul,
# kana and later extensions are not in the original.
CJK_RANGES = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)

_ASCII_WORDS = re.compile("[0-9A-Za-z]+|[^0-9A-Za-z ]")

# The original deletes these controls, but `str.split` takes them for white space.
_SPLITTING_CONTROLS = re.compile("[\x0b\x0c\x1c-\x1f\x85]")


@dataclass(frozen=True)
class Vocabulary:
    """Entries of a `vocab.txt`; the id of an entry is its place. Refuses duplicates,
    entries that do not fit a line, and special tokens that are missing or misplaced."""

    tokens: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.tokens:
            raise InputError("the vocabulary is empty: expected one entry a line")
        for line, token in enumerate(self.tokens, start=1):
            if not token or "\n" in token or token != token.strip(_BLANKS):
                raise InputError(
                    f"line {line}: expected an entry, found {token!r}: remove the line"
                )
        for line, token in enumerate(self.tokens, start=1):
            if (last := self.ids[token] + 1) > line:
                raise InputError(
                    f"{token!r} is on line {line} and again on line {last}"
                )
        for token in features.SPECIAL_TOKENS:
            if token not in self.ids:
                raise InputError(
                    f"no entry {token}: a BERT vocabulary holds "
                    + " ".join(features.SPECIAL_TOKENS)
                )
        if self.pad_id != 0:
            raise InputError(
                f"{features.PAD_TOKEN} must be the first entry (inputs are padded with "
                f"0), found it on line {self.pad_id + 1}"
            )

    @classmethod
    def load(
        cls, path: files.Path, *, do_lower_case: bool | None = None
    ) -> "Vocabulary":
        """Reads a UTF-8 file with one entry a line, for text of a known casing or, with
        `None`, of any.

        Lines end in LF or CRLF; blanks around an entry are dropped, as in the original.
        Other Unicode separators do not end a line: the published Chinese vocabulary has
        U+2028.
        """
        text = files.read_text(path, expected="a vocabulary")
        lines = text.removesuffix("\n").split("\n") if text else []
        try:
            vocabulary = cls(tuple(line.strip(_BLANKS) for line in lines))
            if do_lower_case is not None:
                check_casing(vocabulary, do_lower_case)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        return vocabulary

    def save(self, path: files.Path) -> None:
        """Writes the file that `load` reads, whole or not at all."""
        files.write_atomically(path, self._file_bytes())

    def __len__(self) -> int:
        return len(self.tokens)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Vocabulary, (self.tokens,))

    @functools.cached_property
    def ids(self) -> Mapping[str, int]:
        return types.MappingProxyType({t: i for i, t in enumerate(self.tokens)})

    @functools.cached_property
    def is_continuation(self) -> np.ndarray:
        """`(len(self),)` bool: whether an entry begins with `##`."""
        return np.array([t.startswith(CONTINUATION_PREFIX) for t in self.tokens])

    @functools.cached_property
    def sha256(self) -> str:
        """Hex digest of the bytes that `save` writes: equal for equal entries, and
        equal to the digest of the loaded file if its lines end in LF."""
        return hashlib.sha256(self._file_bytes()).hexdigest()

    def _file_bytes(self) -> bytes:
        return "".join(f"{token}\n" for token in self.tokens).encode()

    pad_id = property(lambda self: self.ids[features.PAD_TOKEN])
    unk_id = property(lambda self: self.ids[features.UNK_TOKEN])
    cls_id = property(lambda self: self.ids[features.CLS_TOKEN])
    sep_id = property(lambda self: self.ids[features.SEP_TOKEN])
    mask_id = property(lambda self: self.ids[features.MASK_TOKEN])


def typecode_for(vocab_size: int) -> Literal["H", "I"]:
    """Returns the type code of the smallest array for all ids, most often 2 bytes."""
    return "H" if vocab_size <= 1 << 16 else "I"


class Tokenizer:
    """Turns text into WordPiece ids, as google-research/bert's `FullTokenizer` does. A
    stretch between two white spaces gives the same ids in any context: the tokenizer
    remembers stretches, but does not pickle them."""

    def __init__(self, vocabulary: Vocabulary, *, do_lower_case: bool):
        self.vocabulary = vocabulary
        self.do_lower_case = do_lower_case
        self.typecode: Literal["H", "I"] = typecode_for(len(vocabulary))
        packed = [array(self.typecode, [i]).tobytes() for i in range(len(vocabulary))]
        self._unknown = packed[vocabulary.unk_id]
        # Entries that may begin a word, and those that may continue one.
        self._first = dict(zip(vocabulary.tokens, packed, strict=True))
        self._inner = {
            token.removeprefix(CONTINUATION_PREFIX): number
            for token, number in self._first.items()
            if token.startswith(CONTINUATION_PREFIX)
        }
        self._longest = max(map(len, vocabulary.tokens))
        # Many stretches are a known word with a comma or a quote.
        self._word_ids = Memo(self.encode_word)
        self._remembered = Memo(self.encode_stretch)

    def __reduce__(self) -> tuple[Any, ...]:
        build = functools.partial(Tokenizer, do_lower_case=self.do_lower_case)
        return (build, (self.vocabulary,))

    def tokenize(self, text: str) -> list[str]:
        """Splits text into entries of the vocabulary; a word that they cannot spell is
        `[UNK]`. `[MASK]` and the like are plain text: brackets and a word."""
        return [self.vocabulary.tokens[i] for i in self.encode(text)]

    def encode(self, text: str) -> list[int]:
        return memoryview(self.encode_packed(text)).cast(self.typecode).tolist()

    def encode_packed(self, text: str) -> bytes:
        """Returns ids as the bytes of an array of `typecode`. This is several times
        faster than `encode`: no number becomes an object."""
        # In C from end to end when every chunk has been seen before.
        return b"".join(map(self._remembered.__getitem__, split_at_white_space(text)))

    def encode_stretch(self, stretch: str) -> bytes:
        """Encodes as `encode_packed`, but remembers words only, for text met once."""
        words = basic_tokenize(stretch, do_lower_case=self.do_lower_case)
        return b"".join(map(self._word_ids.__getitem__, words))

    def encode_word(self, word: str) -> bytes:
        """Encodes one of the words of `basic_tokenize`; remembers nothing."""
        if len(word) > MAX_INPUT_CHARS_PER_WORD:
            return self._unknown
        return self._spell(word, self._first) or self._unknown

    def encode_continuation(self, text: str) -> list[int]:
        """Returns ids of `##` entries that spell a text within a word, or no ids."""
        return memoryview(self._spell(text, self._inner)).cast(self.typecode).tolist()

    def _spell(self, text: str, entries: Mapping[str, bytes]) -> bytes:
        """Spells by the longest entry that fits next; returns no ids if none fits."""
        pieces, start, length = [], 0, len(text)
        while start < length:
            end = min(length, start + self._longest)
            while (piece := entries.get(text[start:end])) is None:
                end -= 1
                if end == start:
                    return b""
            pieces.append(piece)
            start, entries = end, self._inner
        return b"".join(pieces)


class Memo(dict[Any, Any]):
    """Encodings of stretches of text, made when a stretch is first met; at `most_kept`
    all go, common ones return at once. 2 ** 18 packed encodings take about 35 MB."""

    # Text repeats short stretches; long ones are URLs or scripts without spaces.
    _LONGEST_KEPT = 40

    def __init__(self, encode: Callable[[Any], Any], *, most_kept: int = 1 << 18):
        super().__init__()
        self._encode = encode
        self._most_kept = most_kept

    def __missing__(self, chunk: str | bytes) -> Any:
        encoded = self._encode(chunk)
        if len(chunk) <= self._LONGEST_KEPT:
            if len(self) >= self._most_kept:
                self.clear()
            self[chunk] = encoded
        return encoded


def split_at_white_space(text: str) -> list[str]:
    """Splits text into stretches that `basic_tokenize` treats independently."""
    # Most text is printable throughout: that test takes a fraction of the search.
    if not text.isprintable() and _SPLITTING_CONTROLS.search(text):
        text = _SPLITTING_CONTROLS.sub("", text)
    return text.split()


def basic_tokenize(text: str, *, do_lower_case: bool) -> list[str]:
    """Splits text into words, as the original's `BasicTokenizer` does: drops controls,
    isolates ideographs and punctuation; if asked, lower-cases and strips accents."""
    if text.isascii() and text.isprintable():
        # The same result for most text, several times faster.
        return _ASCII_WORDS.findall(text.lower() if do_lower_case else text)
    words = []
    for chunk in clean(text).split():
        if do_lower_case:
            chunk = strip_accents(chunk.lower())
        words += chunk.translate(_PUNCTUATION_ISOLATED).split()
    return words


def clean(text: str) -> str:
    """Drops control characters and puts spaces around ideographs."""
    return text.translate(_CLEANED)


def strip_accents(text: str) -> str:
    """Decomposes characters (NFD) and drops the nonspacing marks."""
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")


def is_dropped(char: str) -> bool:
    """Whether the original deletes this character: controls, formats, U+FFFD."""
    if char in "\t\n\r":
        return False
    return char == "\ufffd" or unicodedata.category(char) in ("Cc", "Cf")


def is_cjk(char: str) -> bool:
    """Whether the character is an ideograph, which the original makes a word."""
    code_point = ord(char)
    return any(first <= code_point <= last for first, last in CJK_RANGES)


def is_punctuation(char: str) -> bool:
    """Whether the original makes this character a word: all ASCII signs, Unicode P."""
    if char.isascii():
        return char.isprintable() and not char.isalnum() and char != " "
    return unicodedata.category(char).startswith("P")


class CharacterTable(dict[int, str | None]):
    """A table for `str.translate` that makes an entry when a character is first met."""

    def __init__(self, translate: Any):
        super().__init__()
        self._translate = translate

    def __missing__(self, code_point: int) -> str | None:
        self[code_point] = result = self._translate(chr(code_point))
        return result


def _clean(char: str) -> str | None:
    if is_dropped(char):
        return None
    return f" {char} " if is_cjk(char) else char


_CLEANED = CharacterTable(_clean)
_PUNCTUATION_ISOLATED = CharacterTable(
    lambda char: f" {char} " if is_punctuation(char) else char
)


def check_casing(vocabulary: Vocabulary, do_lower_case: bool) -> None:
    """Checks that a vocabulary fits cased or lower-cased text. A vocabulary holds its
    alphabet as single characters, so one capital letter there means cased; small
    letters without any capital mean uncased. Scripts without case pass either way."""
    entries = (t.removeprefix(CONTINUATION_PREFIX) for t in vocabulary.tokens)
    letters = [entry for entry in entries if len(entry) == 1]
    capitals = [letter for letter in letters if letter != letter.lower()]
    if do_lower_case and capitals:
        raise InputError(
            f"the vocabulary is cased (it has {capitals[0]!r}), which lower-cased text "
            "never uses: add --cased, or give an uncased vocabulary"
        )
    small = [letter for letter in letters if letter != letter.upper()]
    if not do_lower_case and small and not capitals:
        raise InputError(
            "the vocabulary is uncased (it has no capital letter), so with --cased "
            "every capitalised word would be unknown: leave --cased out, or give a "
            "cased vocabulary"
        )


def pack_pair(
    ids_a: Sequence[int],
    ids_b: Sequence[int] | None,
    *,
    max_seq_length: int,
    vocabulary: Vocabulary,
    keeps_tail: bool = False,
) -> tuple[list[int], list[int]]:
    """Packs one or two texts into one input, as `run_classifier.py` does.

    Returns `input_ids` (`[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`) and `segment_ids`
    (0 up to the first `[SEP]`, then 1), not padded. There is no second text if `ids_b`
    are `None` or empty. If two texts are too long together, the longer one loses
    tokens, the second if both are equally long: with `keeps_tail` from its middle, see
    `head_length`, else from its end.
    """
    if max_seq_length < 3:
        raise ValueError(f"`max_seq_length` must be at least 3, got {max_seq_length}")
    sep, second = vocabulary.sep_id, []
    length_a = max_seq_length - 2
    if ids_b:
        length_a, length_b = truncated_lengths(len(ids_a), len(ids_b), length_a - 1)
        second = [*shortened(ids_b, length_b, keeps_tail=keeps_tail), sep]
    kept = shortened(ids_a, length_a, keeps_tail=keeps_tail)
    first = [vocabulary.cls_id, *kept, sep]
    return first + second, [0] * len(first) + [1] * len(second)


def shortened(ids: Sequence[int], length: int, *, keeps_tail: bool) -> Sequence[int]:
    """Shortens a text to `length` ids at most: see `pack_pair`."""
    if not keeps_tail or len(ids) <= length:
        return ids[:length]
    head = head_length(length)
    return [*ids[:head], *ids[len(ids) - (length - head) :]]


def head_length(length: Any) -> Any:
    """Returns how many of the `length` tokens kept of a long text, an integer or an
    integer tensor, are from its beginning.

    The share is 128 of 510, as in Sun et al. (2019), "How to Fine-Tune BERT for Text
    Classification?", section 5.3.1, and in proportion for other lengths.
    """
    return length * 128 // 510


def truncated_lengths(length_a: int, length_b: int, total: int) -> tuple[int, int]:
    """Cuts the longer of two texts until both fit `total`, and returns the lengths."""
    # What one text leaves of its half is the other's.
    most_a = max(total - total // 2, total - length_b)
    return min(length_a, most_a), min(length_b, max(total // 2, total - length_a))
