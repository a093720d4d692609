"""Places of pieces and of words in the graph, against those in Python."""

import json
import random
import unicodedata

import pytest
import tensorflow as tf

from bert_keras.data import features, token_offsets, tokenization
from bert_keras.graphs import graph_tokenizer
from bert_keras.kinds.tagging import ner

CASES = {
    "uncased": True,
    "cased": False,
    "chinese": True,
    "multi_cased": False,
}
PIECES = (
    *("un", "##want", "##ed", "e", "##e", "i", "##i", "a", "##a", "##b", "ᄒ", "##ᅡ"),
    *("##ᆫ", "博", "##σ", "##ς", ";", "!", "E", "##\u0301", "क", "##त"),
)
VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *PIECES))


def locate_in_graph(vocabulary, do_lower_case):
    """A function from texts to lists of ids, starts and ends."""
    tokenizer = graph_tokenizer.GraphTokenizer(vocabulary, do_lower_case=do_lower_case)
    function = tf.function(
        lambda texts: tokenizer.locate(graph_tokenizer.decode(texts)),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )

    def locate(texts):
        columns = [column.to_list() for column in function(tf.constant(texts))]
        return list(zip(*columns, strict=True))

    return locate


def check(vocabulary, do_lower_case, texts, *, batch_size=1000) -> int:
    """Compares the places of all pieces; returns how many there are."""
    locate = locate_in_graph(vocabulary, do_lower_case)
    offsets = token_offsets.OffsetTokenizer(
        tokenization.Tokenizer(vocabulary, do_lower_case=do_lower_case)
    )
    num_pieces = 0
    for first in range(0, len(texts), batch_size):
        batch = texts[first : first + batch_size]
        for text, found in zip(batch, locate(batch), strict=True):
            wanted = offsets.encode(text)
            assert found == tuple(column.tolist() for column in wanted), ascii(text)
            num_pieces += len(wanted.ids)
    return num_pieces


@pytest.mark.parametrize("name", CASES)
def test_places_are_those_of_python(shared_data, name):
    vocabulary = tokenization.Vocabulary.load(
        shared_data / f"vocab/{name}_L-12_H-768_A-12/vocab.txt"
    )
    lines = (shared_data / f"tokenization/{name}.jsonl").read_bytes().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert len(texts) == 422
    assert check(vocabulary, CASES[name], texts) > 15_000


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_places_among_any_characters(do_lower_case):
    """Marks that are stripped, or change places, and characters that become several."""
    odd = [
        char
        for char in map(chr, range(0x20000))
        if unicodedata.category(char) in ("Cf", "Mn", "Mc", "Zs", "Zl", "Cc")
        or unicodedata.combining(char)
        or len(unicodedata.normalize("NFD", char.lower())) > 1
    ]
    marks = ["\u302e", "\U0001d165"]
    letters = sorted({piece.removeprefix("##")[0] for piece in PIECES}) + marks
    vocabulary = tokenization.Vocabulary(
        (*features.SPECIAL_TOKENS, *letters, *(f"##{char}" for char in letters))
    )
    pools = [odd, [*letters, " ", "Σ"], [*marks, "\u0301", *"ae 한"]]
    chooser = random.Random(3)
    texts = [
        "".join(
            chooser.choice(chooser.choice(pools)) for _ in range(chooser.randrange(15))
        )
        for _ in range(5000)
    ]
    assert check(vocabulary, do_lower_case, texts) > 5000


def test_places_by_hand():
    locate = locate_in_graph(VOCABULARY, True)
    texts = [
        "unwanted e",
        "",
        "\u0301e\u0301\u00ad\u0301 \u0301",
        "\ufeffun\x00want\x1fed",
        "한\u0301!",
        "x" * 201 + " e",
        "博\u0301e",
        "\u0301",
        "[e]",
    ]

    def ids(*pieces):
        return [VOCABULARY.ids[piece] for piece in pieces]

    assert locate(texts) == [
        (ids("un", "##want", "##ed", "e"), [0, 2, 6, 9], [2, 6, 8, 10]),
        ([], [], []),
        (ids("e"), [1], [5]),
        (ids("un", "##want", "##ed"), [1, 4, 9], [3, 8, 11]),
        (ids("ᄒ", "##ᅡ", "##ᆫ", "!"), [0, 0, 0, 2], [1, 1, 2, 3]),
        (ids("[UNK]", "e"), [0, 202], [201, 203]),
        (ids("博", "e"), [0, 2], [2, 3]),
        ([], [], []),
        (ids("[UNK]", "e", "[UNK]"), [0, 1, 2], [1, 2, 3]),
    ]
    assert locate(tf.constant([], tf.string)) == []


def test_bytes_that_are_not_utf8_count_as_python_replaces_them():
    locate = locate_in_graph(VOCABULARY, False)
    malformed = [
        b"\xff\xfee",
        b"\xe4\xb8e\xe4",
        b"\xed\xa0\x80e",
        b"\xf4\x90\x80\x80e",
        b"\xf0\x9f\x98e\xf0\x9f\x98",
        b"\xc0\xafe",
    ]
    for text, (ids, (start,), (end,)) in zip(malformed, locate(malformed), strict=True):
        assert ids == [VOCABULARY.ids["e"]]
        assert text.decode("utf-8", errors="replace")[start:end] == "e"


def test_parts_are_cut_out():
    texts = ["añb🙂c", "", "日本\x00語"]
    places = [(0, 1, 4), (0, 0, 0), (2, 2, 4), (2, 0, 1), (0, 5, 5)]
    found = graph_tokenizer.cut(
        graph_tokenizer.decode(tf.constant(texts)),
        *(tf.constant(column, tf.int64) for column in zip(*places, strict=True)),
    )
    found = [part.decode() for part in found.numpy()]
    assert found == [texts[text][start:end] for text, start, end in places]
    assert found == ["ñb🙂", "", "\x00語", "日", ""]


def split_in_graph(texts: list[str]) -> list[list[tuple[int, int]]]:
    splitter = graph_tokenizer.WordSplitter()
    starts, ends = splitter(graph_tokenizer.decode(tf.constant(texts)))
    pairs = zip(starts.to_list(), ends.to_list(), strict=True)
    return [list(zip(*pair, strict=True)) for pair in pairs]


def test_words_are_those_of_the_original(shared_data):
    lines = (shared_data / "tokenization/cased.jsonl").read_bytes().splitlines()
    cases = [json.loads(line) for line in lines]
    # Most others are of large blocks that are alike.
    code_points = [c for c in range(0x20000) if c < 0x3100 or c % 23 == 0]
    chars = [c for c in map(chr, code_points) if unicodedata.category(c) != "Cs"]
    texts = [case["text"] for case in cases]
    texts += ["", " ", "\x00", *(f"a{char}b" for char in chars)]
    found = split_in_graph(texts)
    for text, places in zip(texts, found, strict=True):
        assert places == ner.split_words(text), ascii(text)
        spelled = [
            "".join(c for c in text[start:end] if not tokenization.is_dropped(c))
            for start, end in places
        ]
        assert spelled == tokenization.basic_tokenize(text, do_lower_case=False)
    assert sum(map(len, found[: len(cases)])) > 10_000


def test_words_by_hand():
    text = "\u200bU.S. isn't\u00ad so\u00adft, 日本!\u0301 ok\t"
    places = ner.split_words(text)
    assert [text[start:end] for start, end in places] == [
        *("U", ".", "S", ".", "isn", "'", "t", "so\u00adft", ",", "日", "本", "!"),
        *("\u0301", "ok"),
    ]
    assert split_in_graph([text, "", " \x00"]) == [places, [], []]
