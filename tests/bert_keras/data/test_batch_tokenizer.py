"""Many texts at once: the ids of the tokenizer that takes one text after the other."""

import functools
import random
import sys
import unicodedata

import numpy as np
import pytest

from bert_keras.data import batch_tokenizer, features, tokenization

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789σςαβäßéж中文の한カᄒ"
SMALL = (
    *features.SPECIAL_TOKENS,
    *LETTERS,
    *(f"##{c}" for c in LETTERS),
    *",.'-!“”…、。",
    *("the", "##ed"),
)
# Words of 1 to 40 bytes, at the edges of 8 and 16, and what cuts them.
PARTS = (
    *("a", "the", "Ab" * 4, "a" * 9, "b" * 15, "c" * 16, "d" * 17, "e" * 24, "f" * 40),
    *("ж" * 4, "ж" * 8, "жa" * 4, "の" * 5, "の" * 6, "é", "e\u0301", "İ", "ŉ", "각"),
    *(
        " ",
        "  ",
        *"\t\r\n\u00a0\u3000\u2028\x0b\x1c\x85",
        *",.'-“”’…\u2024\u2027、。中文",
    ),
    *"\0\x01\u200b\u200d\ufeff\ufffd\u00ad\ud800\ue000",
    *("Σ", "ΑΣ", "Σ'Α", "σ", "\u0301", "\u0345", "\u3099", "𠀀", "𝐀", "😀", "\u037e"),
)


@functools.cache
def published(shared_data, do_lower_case):
    name = "uncased" if do_lower_case else "multi_cased"
    path = shared_data / f"vocab/{name}_L-12_H-768_A-12/vocab.txt"
    vocabulary = tokenization.Vocabulary.load(path)
    return tokenization.Tokenizer(vocabulary, do_lower_case=do_lower_case)


def small(do_lower_case):
    vocabulary = tokenization.Vocabulary(SMALL)
    return tokenization.Tokenizer(vocabulary, do_lower_case=do_lower_case)


def assert_same(tokenizer, texts, batch=None):
    """Compares with one text after the other, twice: when words are new and known."""
    batch = batch or batch_tokenizer.BatchTokenizer(tokenizer)
    expected = [tokenizer.encode(text) for text in texts]
    for _ in range(2):
        ids, sizes = batch.encode(texts)
        assert ids.dtype == tokenizer.typecode
        assert len(ids) == sizes.sum()
        found = [part.tolist() for part in np.split(ids, np.cumsum(sizes)[:-1])]
        for text, ours, theirs in zip(texts, found, expected, strict=True):
            assert ours == theirs, ascii(text)[:200]


@pytest.mark.parametrize(
    ("do_lower_case", "num_characters"),
    [
        (True, 5_000),
        (False, 5_000),
        pytest.param(True, None, marks=pytest.mark.slow),
        pytest.param(False, None, marks=pytest.mark.slow),
    ],
)
def test_every_code_point_between_letters_signs_and_sigmas(
    shared_data, do_lower_case, num_characters
):
    tokenizer = published(shared_data, do_lower_case)
    batch = batch_tokenizer.BatchTokenizer(tokenizer)
    telling = range(sys.maxunicode + 1)
    if num_characters:
        telling = random.Random(1).sample(telling, num_characters)
    # Of the unassigned and private ones, which are all alike, one in 97.
    telling = [
        char
        for char in map(chr, telling)
        if unicodedata.category(char) not in ("Cn", "Co") or ord(char) % 97 == 0
    ]
    assert num_characters or len(telling) > 140_000
    for first in range(0, len(telling), 40_000):
        some = telling[first : first + 40_000]
        assert_same(tokenizer, [f"a{c}b,{c}.{c}“{c}中{c} {c}" for c in some], batch)
        assert_same(tokenizer, [f"{c}Σ'{c}α Σ{c}" for c in some[::7]], batch)


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_random_mixtures_of_what_decides_about_words(do_lower_case):
    rng = random.Random(5)
    texts = [
        "".join(rng.choices(PARTS, k=rng.randrange(12)))
        if rng.random() < 0.8
        else "".join(chr(rng.randrange(sys.maxunicode + 1)) for _ in range(8))
        for _ in range(2_000)
    ]
    assert_same(small(do_lower_case), texts)


def test_words_of_any_length_and_lines_of_any_length():
    tokenizer = small(True)
    rng = random.Random(3)
    words = ["a" * size for size in (1, 7, 8, 9, 15, 16, 17, 100, 199, 200, 201, 5_000)]
    words += ["é" * size for size in (4, 8, 9, 100, 200, 201)]
    long = " ".join(rng.choices(words[:6] + ["the,", "中文"], k=60_000))
    assert len(long) > batch_tokenizer._BLOCK_CHARACTERS
    assert_same(tokenizer, [*words, long, "x" * 1_000_000, "中" * 100_000, "the"])


def test_texts_may_be_empty_or_hold_line_ends():
    assert_same(small(True), ["", "a\nb", "\n", " ", "a", "\n\n", "b\r\n", "\0", ""])
    ids, sizes = batch_tokenizer.BatchTokenizer(small(True)).encode([])
    assert (ids.tolist(), sizes.tolist()) == ([], [])


@pytest.mark.parametrize("typecode", ["H", "I"])
def test_what_is_remembered_changes_nothing_and_is_bounded(monkeypatch, typecode):
    monkeypatch.setattr(tokenization, "typecode_for", lambda size: typecode)
    monkeypatch.setattr(batch_tokenizer._WordTable, "MOST_KEPT", 50)
    monkeypatch.setattr(batch_tokenizer, "_BLOCK_CHARACTERS", 300)
    batch = batch_tokenizer.BatchTokenizer(small(True))
    rng = random.Random(1)
    for _ in range(10):
        texts = ["".join(rng.choices("ab, ", k=40)) for _ in range(30)]
        assert_same(batch.tokenizer, [*texts, "ab " * 400], batch)
        assert np.count_nonzero(batch._table._low) <= 50
    assert len(batch._pool) <= 50 * 16


def test_words_that_want_the_same_slot_are_told_apart(monkeypatch):
    last = (1 << batch_tokenizer._WordTable._BITS) - 1
    monkeypatch.setattr(
        batch_tokenizer._WordTable,
        "_home",
        lambda self, keys: np.full(len(keys[0]), last, np.intp),
    )
    rng = random.Random(2)
    words = ["".join(rng.choices("abc", k=rng.choice((1, 2, 9)))) for _ in range(300)]
    batch = batch_tokenizer.BatchTokenizer(small(True))
    assert_same(batch.tokenizer, [" ".join(words), " ".join(words[::-1])], batch)
    # What a free slot still holds is nobody's.
    batch._table.clear()
    assert_same(batch.tokenizer, ["\0 a"], batch)
