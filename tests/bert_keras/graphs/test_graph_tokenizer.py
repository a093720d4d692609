"""The tokenizer in the graph: ids, places of pieces and words are those of Python."""

import functools
import itertools
import json
import random
import sys
import unicodedata

import pytest
import tensorflow as tf

from bert_keras.data import features, token_offsets, tokenization
from bert_keras.graphs import graph_tokenizer
from bert_keras.kinds.tagging import ner

SMALL = tokenization.Vocabulary(
    (
        *features.SPECIAL_TOKENS,
        *("un", "##want", "##ed", "runn", "##ing", ",", "a", "##b", "e", "ᄒ", "##ᅡ"),
        *("##ᆫ", "博", "!", "𝔞", "##𝔞", "##a"),
    )
)
CODE_POINTS = [c for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]


@functools.cache
def tokenizer_of(vocabulary, do_lower_case):
    return graph_tokenizer.GraphTokenizer(vocabulary, do_lower_case=do_lower_case)


def locate(texts, vocabulary=SMALL, do_lower_case=True):
    """Ids, starts and ends of each text, as lists."""
    code_points = graph_tokenizer.decode(tf.constant(texts, tf.string))
    pieces = tokenizer_of(vocabulary, do_lower_case).locate(code_points)
    return list(zip(*(column.to_list() for column in pieces), strict=True))


def check(texts, vocabulary, do_lower_case) -> list:
    """Compares with Python; returns what the graph gives."""
    reference = token_offsets.OffsetTokenizer(
        tokenization.Tokenizer(vocabulary, do_lower_case=do_lower_case)
    )
    located = []
    for first in range(0, len(texts), 4096):
        encoded = [text.encode() for text in texts[first : first + 4096]]
        located += locate(encoded, vocabulary, do_lower_case)
    for text, pieces in zip(texts, located, strict=True):
        expected = tuple(column.tolist() for column in reference.encode(text))
        assert pieces == expected, ascii(text)
    return located


@functools.cache
def alphabet() -> tokenization.Vocabulary:
    """Every character that a mark can become is an entry, so that order shows."""
    letters = {"σ", "ς", "a", "b", "i", "中", "'"}
    for char in map(chr, CODE_POINTS):
        if unicodedata.combining(char) or unicodedata.decomposition(char):
            letters |= set(tokenization.strip_accents(char.lower()))
    letters = sorted(letters)
    return tokenization.Vocabulary(
        (*features.SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters))
    )


slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("name", "do_lower_case"),
    [
        *(("uncased", True), slow("cased", False), slow("chinese", True)),
        slow("multi_cased", False),
    ],
)
def test_ids_are_the_originals_and_places_those_of_python(
    shared_data, name, do_lower_case
):
    vocabulary = tokenization.Vocabulary.load(
        shared_data / f"vocab/{name}_L-12_H-768_A-12/vocab.txt"
    )
    lines = (shared_data / f"tokenization/{name}.jsonl").read_bytes().splitlines()
    cases = [json.loads(line) for line in lines]
    texts = [case["text"] for case in cases]
    located = check(texts, vocabulary, do_lower_case)
    assert [ids for ids, _, _ in located] == [case["ids"] for case in cases]


def texts_of(code_points):
    return [text for c in map(chr, code_points) for text in (c, f"a{c}b")]


def test_agrees_on_characters_of_every_sort():
    """Of the others, which are all alike, one in 97; the slow half has every one."""
    telling = [
        c
        for c in CODE_POINTS
        if c < 0x3000
        or unicodedata.category(chr(c)) not in ("Cn", "Co", "Lo")
        or (unicodedata.decomposition(chr(c)) and c % 7 == 0)
        or c % 97 == 0
    ]
    check(texts_of(telling), alphabet(), True)


@pytest.mark.slow
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_agrees_on_every_code_point(do_lower_case):
    check(texts_of(CODE_POINTS), alphabet(), do_lower_case)


@pytest.mark.parametrize(("do_lower_case", "count"), [(True, 3000), (False, 1000)])
def test_agrees_on_random_strings(do_lower_case, count):
    rng = random.Random(5)
    everything = [chr(c) for c in CODE_POINTS]
    marks = [c for c in everything if unicodedata.combining(c)]
    kept_marks = [c for c in marks if unicodedata.category(c) != "Mn"]
    dropped = [c for c in everything if unicodedata.category(c) in ("Cf", "Cc", "Zs")]
    decomposed = [c for c in everything if unicodedata.decomposition(c)]
    pools = ["aΣb Σ'.", "\u0345\u034f\u0f73\U0001d15e", kept_marks, kept_marks, dropped]
    pools += [marks, decomposed, everything, " 中한,[İ\u00ad\u2028\u2000"]
    texts = [
        "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randrange(15)))
        for _ in range(count)
    ]
    located = check(texts, alphabet(), do_lower_case)
    assert sum(len(ids) for ids, _, _ in located) > count


def test_context_decides_sigma_and_the_order_of_marks():
    texts = ["ΑΣ", "ΑΣ.", "ΑΣ.Α", "ΑΣ'", "Σ", "Α Σ", "Α\u0301Σ\u0301", "ΑΣ中Σ", "Σ中ΑΣ"]
    texts += ["ΑΣ\u200b", "Α\ufffdΣ", "ΣΣΣ", "aΣ\u02b0", "\u02b0Σ", "", "Α", "Σ\nΑ"]
    # Classes 224 and 216: canonical order swaps them, unless something parts them.
    swapped, kept = "a\u302e\U0001d165", "a\u302e\u034f\U0001d165"
    texts += [f"a\u302e{part}\U0001d165b" for part in ("", "\u0301", "x", " ")]
    located = check([*texts, "\u302e", "\U0001d165", swapped, kept], alphabet(), True)
    spelled = [[alphabet().tokens[i] for i in ids] for ids, _, _ in located[-2:]]
    assert spelled == [
        ["a", "##\U0001d165", "##\u302e"],
        ["a", "##\u302e", "##\U0001d165"],
    ]


def test_ids_and_places_by_hand():
    def ids(*pieces):
        return [SMALL.ids[piece] for piece in pieces]

    unwanted = ids("un", "##want", "##ed")
    expected = {
        "UNwantéd,running": (
            [*unwanted, *ids(",", "runn", "##ing")],
            *([0, 2, 6, 8, 9, 13], [2, 6, 8, 9, 13, 16]),
        ),
        "unwanted e": ([*unwanted, *ids("e")], [0, 2, 6, 9], [2, 6, 8, 10]),
        "": ([], [], []),
        " \x00\ufffd\t": ([], [], []),
        "\u0301e\u0301\u00ad\u0301 \u0301": (ids("e"), [1], [5]),
        "\ufeffun\x00want\x1fed": (unwanted, [1, 4, 9], [3, 8, 11]),
        "한\u0301!": (ids("ᄒ", "##ᅡ", "##ᆫ", "!"), [0, 0, 0, 2], [1, 1, 2, 3]),
        "x" * 201 + " e": (ids("[UNK]", "e"), [0, 202], [201, 203]),
        "博\u0301e": (ids("博", "e"), [0, 2], [2, 3]),
        "[e]": (ids("[UNK]", "e", "[UNK]"), [0, 1, 2], [1, 2, 3]),
        "[MASK]": (ids("[UNK]", "[UNK]", "[UNK]"), [0, 1, 5], [1, 5, 6]),
    }
    assert locate([*expected]) == [*expected.values()]
    assert locate([]) == []


def test_the_longest_word_has_200_characters_of_any_width():
    check([c * n for c in "aá𝔞" for n in (199, 200, 201)], SMALL, True)


def test_bytes_that_are_not_utf8_count_as_python_replaces_them():
    for text in (
        *(b"\xff\xfee", b"\xe4\xb8e\xe4", b"\xed\xa0\x80e", b"\xc0\xafe"),
        *(b"\xf4\x90\x80\x80e", b"\xf0\x9f\x98e\xf0\x9f\x98"),
    ):
        [(ids, [start], [end])] = locate([text], do_lower_case=False)
        assert ids == [SMALL.ids["e"]]
        assert text.decode("utf-8", errors="replace")[start:end] == "e"


def test_parts_are_cut_out():
    texts = ["añb🙂c", "", "日本\x00語"]
    places = [(0, 1, 4), (0, 0, 0), (2, 2, 4), (2, 0, 1), (0, 5, 5)]
    parts = graph_tokenizer.cut(
        graph_tokenizer.decode(tf.constant(texts)),
        *(tf.constant(column, tf.int64) for column in zip(*places, strict=True)),
    )
    parts = [part.decode() for part in parts.numpy()]
    assert parts == ["ñb🙂", "", "\x00語", "日", ""]


def split_in_graph(texts: list[str]) -> list[list[tuple[int, int]]]:
    splitter = graph_tokenizer.WordSplitter()
    starts, ends = splitter(graph_tokenizer.decode(tf.constant(texts)))
    pairs = zip(starts.to_list(), ends.to_list(), strict=True)
    return [list(zip(*pair, strict=True)) for pair in pairs]


def test_words_are_those_of_the_original(shared_data):
    lines = (shared_data / "tokenization/cased.jsonl").read_bytes().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    # Most others are of large blocks that are alike.
    code_points = [c for c in range(0x20000) if c < 0x3100 or c % 101 == 0]
    chars = [c for c in map(chr, code_points) if unicodedata.category(c) != "Cs"]
    texts += ["", " ", "\x00", *(f"a{char}b" for char in chars)]
    words = split_in_graph(texts)
    for text, places in zip(texts, words, strict=True):
        assert places == ner.split_words(text), ascii(text)
        spelled = [
            "".join(c for c in text[start:end] if not tokenization.is_dropped(c))
            for start, end in places
        ]
        assert spelled == tokenization.basic_tokenize(text, do_lower_case=False)
    assert sum(map(len, words[: len(lines)])) > 10_000


@pytest.mark.parametrize("max_seq_length", [3, 4, 5, 9])
@pytest.mark.parametrize("keeps_tail", [False, True])
def test_packs_as_the_reference_does(max_seq_length, keeps_tail):
    lengths = itertools.product([*range(9), 40], repeat=2)
    pairs = [(list(range(5, 5 + a)), list(range(60, 60 + b))) for a, b in lengths]
    options = {"max_seq_length": max_seq_length, "keeps_tail": keeps_tail}
    packed = graph_tokenizer.pack_pairs(
        *(tf.ragged.constant(ids, tf.int32) for ids in zip(*pairs, strict=True)),
        vocabulary=SMALL,
        **options,
    )
    columns = [values.numpy().tolist() for values in packed.values()]
    longest = 0
    for (a, b), *rows in zip(pairs, *columns, strict=True):
        ids, segments = tokenization.pack_pair(a, b, vocabulary=SMALL, **options)
        longest = max(longest, len(ids))
        expected = zip(ids, [1] * len(ids), segments, strict=True)
        padding = [(0, 0, 0)] * (len(rows[0]) - len(ids))
        assert list(zip(*rows, strict=True)) == [*expected, *padding], (a, b)
    assert list(packed) == ["input_ids", "input_mask", "segment_ids"]
    assert packed["input_ids"].shape == (len(pairs), longest)
    assert {values.dtype for values in packed.values()} == {tf.int32}


def test_packs_single_texts():
    texts = tf.ragged.constant([[5, 6], [], [5] * 9], tf.int32)
    pack = functools.partial(graph_tokenizer.pack_pairs, texts, vocabulary=SMALL)
    single, pairs = (pack(other, max_seq_length=6) for other in (None, texts[:, :0]))
    for name, values in pairs.items():
        assert single[name].numpy().tolist() == values.numpy().tolist()
    with pytest.raises(ValueError, match="at least 3, got 2"):
        pack(None, max_seq_length=2)
