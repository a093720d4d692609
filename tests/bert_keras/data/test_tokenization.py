"""The tokenizer against the original's outputs and against a port of the original."""

import functools
import itertools
import json
import pickle
import random
import sys
import unicodedata

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.data import features, tokenization

SPECIAL = features.SPECIAL_TOKENS
SMALL = (*SPECIAL, "un", "##want", "##ed", "runn", "##ing", ",", "σ", "##ς", "##σ")

# name, do_lower_case: as the published models use them.
PUBLISHED = (
    ("uncased", True),
    ("cased", False),
    ("chinese", True),
    ("multi_cased", False),
)


def published_vocabulary(shared_data, name):
    folder = shared_data / "vocab" / f"{name}_L-12_H-768_A-12"
    return tokenization.Vocabulary.load(folder / "vocab.txt")


def small_tokenizer(do_lower_case=True):
    vocabulary = tokenization.Vocabulary(SMALL)
    return tokenization.Tokenizer(vocabulary, do_lower_case=do_lower_case)


def load(tmp_path, text):
    path = tmp_path / "vocab.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return tokenization.Vocabulary.load(path)


# Text to tokens.


@pytest.mark.parametrize(("name", "do_lower_case"), PUBLISHED)
def test_gives_the_originals_tokens_on_every_recorded_case(
    shared_data, name, do_lower_case
):
    vocabulary = published_vocabulary(shared_data, name)
    assert (vocabulary.unk_id, vocabulary.mask_id) == (100, 103)
    tokenization.check_casing(vocabulary, do_lower_case)
    tokenizer = tokenization.Tokenizer(vocabulary, do_lower_case=do_lower_case)
    lines = (shared_data / f"tokenization/{name}.jsonl").read_bytes().splitlines()
    assert len(lines) == 422
    for case in map(json.loads, lines):
        text = case["text"]
        words = tokenization.basic_tokenize(text, do_lower_case=do_lower_case)
        assert words == case["basic_tokens"], text
        assert tokenizer.tokenize(text) == case["tokens"], text
        assert tokenizer.encode(text) == case["ids"], text


def test_gives_what_the_originals_own_tests_ask_for(shared_data):
    path = shared_data / "tokenization/published_unit_cases.json"
    for case in json.loads(path.read_text(encoding="utf-8")):
        text, lower = case["text"], case.get("do_lower_case", False)
        if case["kind"] == "basic":
            words = tokenization.basic_tokenize(text, do_lower_case=lower)
            assert words == case["tokens"]
            continue
        vocabulary = tokenization.Vocabulary(("[PAD]", *case["vocab"], "[MASK]"))
        tokenizer = tokenization.Tokenizer(vocabulary, do_lower_case=lower)
        assert tokenizer.tokenize(text) == case["tokens"]
        shifted = [i - 1 for i in tokenizer.encode(text)]
        assert shifted == case.get("ids", shifted)


def random_strings(count):
    """Strings over all of Unicode, dense in what decides about tokens."""
    rng = random.Random(7)
    telling = [
        chr(c)
        for c in range(sys.maxunicode + 1)
        if unicodedata.category(chr(c)) in ("Cc", "Cf", "Mn", "Mc", "Zs", "Zl", "Zp")
        or unicodedata.decomposition(chr(c))
    ]
    pools = ("abcXYZ ΣσΑ.'[]", telling, "中文字한국어\u0301\u00ad \u2028İŉǅ", None)
    for _ in range(count):
        pool = [rng.choice(pools) for _ in range(rng.randrange(1, 12))]
        yield "".join(
            chr(rng.randrange(sys.maxunicode + 1)) if p is None else rng.choice(p)
            for p in pool
        )


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.parametrize(("name", "do_lower_case"), PUBLISHED[:2])
def test_agrees_with_model_gardens_copy_on_all_of_unicode(
    shared_data, name, do_lower_case
):
    reference = pytest.importorskip("official.nlp.tools.tokenization")
    path = shared_data / f"vocab/{name}_L-12_H-768_A-12/vocab.txt"
    original = reference.FullTokenizer(str(path), do_lower_case=do_lower_case)
    # Model Garden raised the original's 200.
    original.wordpiece_tokenizer.max_input_chars_per_word = 200
    vocabulary = published_vocabulary(shared_data, name)
    ours = tokenization.Tokenizer(vocabulary, do_lower_case=do_lower_case)
    for text in random_strings(5_000):
        assert ours.tokenize(text) == original.tokenize(text), ascii(text)
    # Of the unassigned and private ones, which are all alike, one in 97.
    telling = [
        c
        for c in map(chr, range(sys.maxunicode + 1))
        if unicodedata.category(c) not in ("Cn", "Co") or ord(c) % 97 == 0
    ]
    for first in range(0, len(telling), 64):
        text = " ".join(f"a{c}b {c}" for c in telling[first : first + 64])
        assert ours.tokenize(text) == original.tokenize(text), ascii(text)


def test_words_of_odd_characters():
    for text, words in {
        "": [],
        " \t\r\n\u00a0\u3000\u2028": [],
        "İstanbul": ["istanbul"],
        "ΣΟΦΟΣ.ΑΣ ΑΣ": ["σοφοσ", ".", "ας", "ας"],
        "각": ["\u1100\u1161\u11a8"],
        "\ue000\ufdd0": ["\ue000\ufdd0"],
        "a\u0301 \u0301": ["a"],
    }.items():
        assert tokenization.basic_tokenize(text, do_lower_case=True) == words
    words = tokenization.basic_tokenize("Ça, ΑΣ\u0301", do_lower_case=False)
    assert words == ["Ça", ",", "ΑΣ\u0301"]


def test_the_longest_entry_and_the_longest_word():
    entries = ("honorificabilitudinitatibus", "##honorificabilitudinitatibus")
    tokenizer = tokenization.Tokenizer(
        tokenization.Vocabulary((*SPECIAL, *entries, "a", "##a")), do_lower_case=True
    )
    assert tokenizer.tokenize("Honorificabilitudinitatibus" * 2) == list(entries)
    assert tokenizer.tokenize("a" * 200) == ["a"] + ["##a"] * 199
    assert tokenizer.tokenize("a" * 201) == ["[UNK]"]
    # Accents count no more once they are stripped.
    assert tokenizer.tokenize("á" * 200) == ["a"] + ["##a"] * 199


def test_what_is_remembered_changes_nothing_and_is_bounded(monkeypatch):
    texts = ["unwanted unwanted", "running ΑΣ unwanted", "unwanted,running x"]
    expected = [small_tokenizer().encode(text) for text in texts]
    keep_two = functools.partial(tokenization.Memo, most_kept=2)
    monkeypatch.setattr(tokenization, "Memo", keep_two)
    tokenizer = small_tokenizer()
    for _ in range(3):
        assert [tokenizer.encode(text) for text in texts] == expected
        assert len(tokenizer._remembered) <= 2
    tokenizer.encode("x" * 41)
    assert "x" * 41 not in tokenizer._remembered


def test_pickles_without_what_it_remembers():
    tokenizer = small_tokenizer(do_lower_case=False)
    tokenizer.encode("un running")
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy._remembered == {}
    assert copy.vocabulary == tokenizer.vocabulary
    assert copy.tokenize("un Running") == ["un", "[UNK]"]
    # Callers own what `encode` returns.
    copy.encode("unwanted").append(99)
    assert copy.encode("unwanted") == [5, 6, 7]


# The vocabulary.


def test_vocabulary_reads_back_what_it_saves(tmp_path):
    vocabulary = tokenization.Vocabulary((*SPECIAL, "\u2028", "##\u2028", "é"))
    vocabulary.save(tmp_path / "saved.txt")
    assert tokenization.Vocabulary.load(tmp_path / "saved.txt") == vocabulary
    assert [path.name for path in tmp_path.iterdir()] == ["saved.txt"]
    vocabulary = tokenization.Vocabulary(("[PAD]", *reversed(SPECIAL[1:]), "un"))
    names = ("pad_id", "mask_id", "sep_id", "cls_id", "unk_id")
    assert [getattr(vocabulary, name) for name in names] == [0, 1, 2, 3, 4]
    assert (vocabulary.ids["un"], len(vocabulary)) == (5, 6)
    vocabulary = tokenization.Vocabulary((*SPECIAL, "a", "##a", "#", "b##"))
    assert np.flatnonzero(vocabulary.is_continuation).tolist() == [6]


def test_digest_is_that_of_the_file_whatever_its_line_ends(tmp_path):
    lines = (*SPECIAL, "un")
    plain = load(tmp_path, "\n".join(lines) + "\n")
    # printf '[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n' | sha256sum
    assert plain.sha256.startswith("780fc707d337")
    for text in ("\r\n".join(lines), "\ufeff" + "  \n".join(lines) + "\n"):
        assert load(tmp_path, text) == plain


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "vocab.txt: the vocabulary is empty: expected one entry a line"),
        (b"[PAD]\n\xff\n", "vocab.txt: line 2: not UTF-8"),
        ("[PAD]\na\nb\na\n", "vocab.txt: 'a' is on line 2 and again on line 4"),
        ("[PAD]\n[UNK]\n[SEP]\n[MASK]\n", r"vocab.txt: no entry \[CLS\]"),
        ("a\n" + "\n".join(SPECIAL), "must be the first entry .* on line 2"),
        ("\n".join(SPECIAL) + "\n\n", "line 6: expected an entry, found ''"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        load(tmp_path, content)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match=r"absent.txt: .*: No such file"):
        tokenization.Vocabulary.load(tmp_path / "absent.txt")
    for token in ("a\nb", " a", ""):
        with pytest.raises(InputError, match="line 6: expected an entry"):
            tokenization.Vocabulary((*SPECIAL, token))


def test_check_casing_says_what_to_do():
    neither = tokenization.Vocabulary((*SPECIAL, "क", "##ा", "中", "<S>"))
    cased = tokenization.Vocabulary((*SPECIAL, "a", "##B"))
    uncased = tokenization.Vocabulary((*SPECIAL, "a", "##b"))
    for vocabulary, is_lower in (
        (neither, True),
        (neither, False),
        (cased, False),
        (uncased, True),
    ):
        tokenization.check_casing(vocabulary, is_lower)
    with pytest.raises(InputError, match=r"is cased \(it has 'B'\).* add --cased"):
        tokenization.check_casing(cased, True)
    with pytest.raises(InputError, match="is uncased .* leave --cased out"):
        tokenization.check_casing(uncased, False)


# Pairs.


def test_truncates_like_dropping_one_token_at_a_time():
    for a, b, total in itertools.product(range(12), range(12), range(24)):
        lengths = [a, b]
        while sum(lengths) > total:
            lengths[0 if lengths[0] > lengths[1] else 1] -= 1
        assert tokenization.truncated_lengths(a, b, total) == tuple(lengths)


@pytest.mark.parametrize(
    ("a", "b", "length", "input_ids", "segment_ids"),
    [
        ([11, 12], None, 8, [2, 11, 12, 3], [0, 0, 0, 0]),
        ([11, 12], [], 8, [2, 11, 12, 3], [0, 0, 0, 0]),
        ([11, 12], [21], 8, [2, 11, 12, 3, 21, 3], [0, 0, 0, 0, 1, 1]),
        ([], [21], 8, [2, 3, 21, 3], [0, 0, 1, 1]),
        ([11, 12, 13], None, 4, [2, 11, 12, 3], [0, 0, 0, 0]),
        ([11, 12], [21, 22], 6, [2, 11, 12, 3, 21, 3], [0, 0, 0, 0, 1, 1]),
        ([11, 12], [21, 22], 3, [2, 3, 3], [0, 0, 1]),
    ],
)
def test_pack_pair(a, b, length, input_ids, segment_ids):
    assert pack(a, b, length) == (input_ids, segment_ids)


def pack(a, b, length, **options):
    vocabulary = tokenization.Vocabulary(SMALL)
    return tokenization.pack_pair(
        a, b, max_seq_length=length, vocabulary=vocabulary, **options
    )


@pytest.mark.parametrize("length", [3, 4, 6, 7, 10, 64, 128, 511, 512])
def test_head_and_tail_in_proportion(length):
    """Sun et al. (2019), 5.3.1: the first 128 and the last 382 of 510."""
    for num_a, num_b in ((0, 0), (5, 0), (600, 0), (600, 3), (3, 600), (700, 600)):
        if num_b and length < 7:
            continue
        a, b = list(range(100, 100 + num_a)), list(range(1000, 1000 + num_b))
        packed, segments = pack(a, b, length, keeps_tail=True)
        expected = min(length, num_a + num_b + 2 + (b != []))
        assert len(packed) == len(segments) == expected
        for ids, rest in ((a, packed[1:]), (b, packed[segments.count(0) :])):
            kept = rest[: rest.index(3)] if ids else []
            # A share of 128 / 510, and never a token more.
            head = len(kept) * 128 // 510
            if len(kept) < len(ids):
                assert kept == ids[:head] + ids[len(ids) - len(kept) + head :]
            else:
                assert kept == ids


def test_pack_pair_needs_room_for_special_tokens():
    with pytest.raises(ValueError, match="at least 3, got 2"):
        pack([5], None, 2)
