"""WordPiece ids of many texts at once: the ids of `tokenization.Tokenizer`, in arrays.

The texts become one array of UTF-8 bytes, in which NumPy finds the words. A word of at
most 16 bytes is two numbers of 64 bits, and a table maps these to the ids that the
tokenizer gave at the word's first occurrence: a known word never becomes a Python
object.

The ids are exact because the tokenizer treats a character that it always makes a word
of its own (ASCII signs, most other punctuation, ideographs) and the text on either side
of it independently, as it does white space. So the text may be cut there first, and the
tokenizer itself splits the stretches between two cuts. One rule looks further than a
character: a capital sigma becomes a final one by the characters around it, beyond an
apostrophe too. Texts that hold a capital sigma are lower-cased first.
"""

from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from bert_keras.data import tokenization

_BLOCK_CHARACTERS = 1 << 18
"""Characters of the texts that are encoded at once: their arrays stay in the cache."""

_LONGEST = 16  # bytes of a word that is looked up as two numbers
# The place of a word's ids in the pool and their number, as one number: a word of more
# than 2 ** 31 bytes has no place in memory anyway.
_NUMBER_BITS = 32
_MOST_IDS = (1 << _NUMBER_BITS) - 1

# Kinds of bytes: white space, part of a word, a word of its own, the rest of that one.
_WHITE, _PART, _ALONE, _REST = range(4)

# Keeps the first 0 to 8 bytes of a number that was read with the lowest byte first.
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)

_Keys = tuple[np.ndarray, np.ndarray]


def _kind(byte: int) -> int:
    if chr(byte) in " \t\n\r":
        return _WHITE
    is_alone = byte < 128 and tokenization.is_punctuation(chr(byte))
    return _ALONE if is_alone else _PART


_KINDS = bytes(map(_kind, range(256)))


def _alone_of_three_bytes() -> np.ndarray:
    """Marks common words of 3 bytes, `(65536,)` bool; the tokenizer finds others."""
    is_alone = np.zeros(1 << 16, bool)
    for first, last in ((0x2010, 0x205E), (0x3001, 0x303F), (0xFF01, 0xFF65)):
        for code_point in range(first, last + 1):
            is_alone[code_point] = tokenization.is_punctuation(chr(code_point))
    for first, last in tokenization.CJK_RANGES:
        if last < 1 << 16:
            is_alone[first : last + 1] = True
    return is_alone


_ALONE_OF_THREE_BYTES = _alone_of_three_bytes()


class BatchTokenizer:
    """Tokenizer of many texts at once, which remembers words."""

    def __init__(self, tokenizer: tokenization.Tokenizer):
        self.tokenizer = tokenizer
        self._table = _WordTable()
        self._pool = array(tokenizer.typecode)
        """Ids of the words of the table, end to end."""
        self._long = tokenization.Memo(self._encode_word)

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encodes texts without special tokens. Returns the ids of all, end to end, of
        the tokenizer's `typecode`, and the number of each text's ids, int64."""
        ids = [np.empty(0, self.tokenizer.typecode)]
        numbers = [np.empty(0, np.int64)]
        # A block has at most `_BLOCK_CHARACTERS`, or is one text.
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        first = num_before = 0
        while first < len(texts):
            limit = num_before + _BLOCK_CHARACTERS
            last = max(first + 1, int(np.searchsorted(ends, limit, side="right")))
            block_ids, block_numbers = self._encode_block(texts[first:last])
            ids.append(block_ids)
            numbers.append(block_numbers)
            first, num_before = last, int(ends[last - 1])
        return np.concatenate(ids), np.concatenate(numbers)

    def _encode_block(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        # 1. UTF-8, each text between two line ends, then white space.
        joined = "\n".join(texts)
        if joined.count("\n") >= len(texts):
            joined = "\n".join(text.replace("\n", " ") for text in texts)
        lower = self.tokenizer.do_lower_case
        if lower and "\N{GREEK CAPITAL LETTER SIGMA}" in joined:
            joined = tokenization.clean(joined).lower()
        # The tokenizer drops NUL; a word of the table ends at the first.
        data = joined.replace("\0", "").encode("utf-8", "surrogatepass")
        data = b"".join((b"\n", data.lower() if lower else data, b"\n" + b" " * 24))
        # 2. Words, and the number of words before the end of each text.
        characters = np.frombuffer(data, np.uint8)
        starts, ends = _find_words(data, characters)
        text_ends = np.flatnonzero(characters == ord("\n"))[1:]
        words_before = np.searchsorted(starts, text_ends)
        # 3. Ids of as many words at a time as the table holds.
        ids, ids_before = [], [np.zeros(1, np.int64)]
        for first in range(0, len(starts), _WordTable.MOST_KEPT):
            chosen = slice(first, first + _WordTable.MOST_KEPT)
            of_words, sizes = self._encode_words(data, starts[chosen], ends[chosen])
            ids.append(of_words)
            ids_before.append(ids_before[-1][-1] + np.cumsum(sizes))
        totals = np.concatenate(ids_before)[words_before]
        joined_ids = np.concatenate([np.empty(0, self.tokenizer.typecode), *ids])
        return joined_ids, np.diff(totals, prepend=0)

    def _encode_words(
        self, data: bytes, starts: np.ndarray, ends: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        sizes = ends - starts
        is_long = sizes > _LONGEST
        short = np.flatnonzero(~is_long)
        # The first 8 bytes of short words as uint64, and the next 8, padded with 0.
        every = np.ndarray(len(data) - 7, "<u8", data, strides=(1,))
        begins, lengths = starts[short], sizes[short]
        low = every[begins] & _MASKS[np.minimum(lengths, 8)]
        high = np.zeros_like(low)
        more = np.flatnonzero(lengths > 8)
        high[more] = every[begins[more] + 8] & _MASKS[np.minimum(lengths[more] - 8, 8)]
        keys = low, high
        slots, missing = self._table.find(keys)
        if self._table.num_words + len(missing) > _WordTable.MOST_KEPT:
            # The table forgets all words: common words return at once.
            self._table.clear()
            del self._pool[:]
            slots, missing = self._table.find(keys)
        new = self._table.add(keys, slots, missing)
        added = [
            self._add(self._encode_word(word))
            for word in _cut(data, starts, ends, short[new])
        ]
        self._table.values[slots[new]] = added
        num_kept = len(self._pool)
        values = np.empty(len(starts), np.int64)
        values[short] = self._table.values[slots]
        words = _cut(data, starts, ends, np.flatnonzero(is_long))
        values[is_long] = [self._add(self._long[word]) for word in words]
        # The ids of each word are a slice of the pool, most often of one id.
        firsts, numbers = values >> _NUMBER_BITS, values & _MOST_IDS
        ends = np.cumsum(numbers)
        places = firsts
        if (numbers != 1).any():
            places = np.repeat(firsts - (ends - numbers), numbers)
            places += np.arange(len(places))
        ids = np.frombuffer(self._pool, self._pool.typecode)[places]
        del self._pool[num_kept:]
        return ids, numbers

    def _encode_word(self, word: bytes) -> bytes:
        if word.isalnum():
            return self.tokenizer.encode_word(word.decode())
        return self.tokenizer.encode_stretch(word.decode("utf-8", "surrogatepass"))

    def _add(self, packed: bytes) -> int:
        """Adds ids to the pool; returns the first one's place and their number."""
        first = len(self._pool)
        self._pool.frombytes(packed)
        return first << _NUMBER_BITS | len(self._pool) - first


def _find_words(data: bytes, characters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns starts and ends of the words; `data` begins with white space."""
    kinds = np.frombuffer(data.translate(_KINDS), np.uint8)
    is_ascii = data.isascii()
    if not is_ascii:
        first = np.flatnonzero((characters >= 0xE0) & (characters < 0xF0))
        code_points = (characters[first] & 15).astype(np.intp) << 12
        code_points |= (characters[first + 1] & 63).astype(np.intp) << 6
        code_points |= characters[first + 2] & 63
        alone = first[_ALONE_OF_THREE_BYTES[code_points]]
        kinds = kinds.copy()
        kinds[alone] = _ALONE
        kinds[alone + 1] = kinds[alone + 2] = _REST
    is_part, is_word = kinds == _PART, kinds != _WHITE
    goes_on = is_part[1:] & is_part[:-1]
    if not is_ascii:
        goes_on |= kinds[1:] == _REST
    is_border = ~goes_on
    starts = np.flatnonzero(is_word[1:] & is_border) + 1
    return starts, np.flatnonzero(is_word[:-1] & is_border) + 1


def _cut(
    data: bytes, starts: np.ndarray, ends: np.ndarray, chosen: np.ndarray
) -> Iterator[bytes]:
    borders = zip(starts[chosen].tolist(), ends[chosen].tolist(), strict=True)
    return (data[start:end] for start, end in borders)


class _WordTable:
    """A hash table with open addressing: words of at most 16 bytes, none of them 0, and
    a number for each. All words of a call are looked up at once."""

    _BITS = 18
    MOST_KEPT = 1 << 17
    _FACTORS = np.array([0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93], np.uint64)

    def __init__(self) -> None:
        num_slots = 1 << self._BITS
        self._low = np.zeros(num_slots, np.uint64)  # 0: the slot is free
        self._high = np.zeros(num_slots, np.uint64)
        self.values = np.zeros(num_slots, np.int64)
        """`(slots,)`, set by the caller."""
        self._claims = np.zeros(num_slots, np.int64)
        self.num_words = 0
        """Words of the table, at most `MOST_KEPT`."""

    def _home(self, keys: _Keys) -> np.ndarray:
        mixed = keys[0] * self._FACTORS[0] + (keys[1] ^ keys[0] >> np.uint64(32))
        mixed *= self._FACTORS[1]
        return (mixed >> np.uint64(64 - self._BITS)).astype(np.intp)

    def clear(self) -> None:
        self._low[:] = 0
        self.num_words = 0

    def find(self, keys: _Keys) -> tuple[np.ndarray, np.ndarray]:
        """Returns the slots of words, and the places of words without a slot."""
        slots = self._home(keys)
        return slots, np.flatnonzero(~self._holds(slots, keys))

    def _holds(self, slots: np.ndarray, keys: _Keys) -> np.ndarray:
        return (self._low[slots] == keys[0]) & (self._high[slots] == keys[1])

    def add(self, keys: _Keys, slots: np.ndarray, missing: np.ndarray) -> np.ndarray:
        """Adds the words at `missing` to the table. Fills in `slots` for all of them
        and returns the indices of the words that were new, one for each distinct word.
        """
        low, high = keys
        added = [np.empty(0, np.intp)]
        left = missing
        while len(left):
            free = left[self._low[slots[left]] == 0]
            # The last of several words that want the same slot gets it.
            self._claims[slots[free]] = free
            winners = free[self._claims[slots[free]] == free]
            self._low[slots[winners]] = low[winners]
            self._high[slots[winners]] = high[winners]
            added.append(winners)
            left = left[~self._holds(slots[left], (low[left], high[left]))]
            slots[left] = (slots[left] + 1) & (len(self._low) - 1)
        new = np.concatenate(added)
        self.num_words += len(new)
        return new
