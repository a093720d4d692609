"""Pieces and their characters: against the tokenizer, and by hand."""

import functools
import json
import random
import unicodedata

import pytest

from bert_keras.data import features, token_offsets, tokenization

WORDS = (
    *("un", "##want", "##ed", ",", "runn", "##ing", "e", "##e", "e", "want", "i", "ς"),
    *("ᄒ", "##ᅡ", "##ᆫ", "##ᄀ", "博", "推", "a", "##b", "##σ", "##ς", "ss", ";", "!"),
    *("E", "##É", "##\u0301", "क", "##त", "##\u0cd5"),
)
VOCABULARY = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, *dict.fromkeys((*WORDS, "##i", "##a")))
)


def tokenizer_of(vocabulary, do_lower_case) -> token_offsets.OffsetTokenizer:
    return token_offsets.OffsetTokenizer(
        tokenization.Tokenizer(vocabulary, do_lower_case=do_lower_case)
    )


def check(offsets: token_offsets.OffsetTokenizer, text: str) -> None:
    """Ids are the tokenizer's; ranges are not empty and stay in order."""
    found = offsets.encode(text)
    assert found.ids.tolist() == offsets.tokenizer.encode(text)
    ranges = list(zip(found.starts.tolist(), found.ends.tolist(), strict=True))
    assert all(0 <= start < end <= len(text) for start, end in ranges)
    for (start, end), (next_start, next_end) in zip(ranges, ranges[1:], strict=False):
        assert start <= next_start and end <= next_end
        if next_start < end:
            # Parts of one character, with the marks after it.
            assert len(unicodedata.normalize("NFD", text[start].lower())) > 1


@pytest.mark.parametrize(("name", "file"), [("uncased", "en"), ("multi_cased", "de")])
def test_recorded_cases_and_each_range_is_spelled_as_its_piece(shared_data, name, file):
    vocabulary = tokenization.Vocabulary.load(
        shared_data / f"vocab/{name}_L-12_H-768_A-12/vocab.txt"
    )
    offsets = tokenizer_of(vocabulary, name == "uncased")
    path = shared_data / "tokenization" / f"{name}.jsonl"
    for line in filter(None, path.read_text(encoding="utf-8").split("\n")):
        check(offsets, json.loads(line)["text"])
    path = shared_data / "squad" / "xquad" / f"xquad.{file}.json"
    articles = json.loads(path.read_text(encoding="utf-8"))["data"][:12]
    num_pieces = 0
    for context in [p["context"] for a in articles for p in a["paragraphs"]]:
        check(offsets, context)
        for id, start, end in zip(*offsets.encode(context), strict=True):
            piece = vocabulary.tokens[id].removeprefix("##")
            spelled = context[start:end]
            if name == "uncased":
                spelled = tokenization.strip_accents(spelled.lower())
            # Only Hangul, of which these texts have a few, is cut inside a character.
            is_hangul = any("\u1100" <= char <= "\u11ff" for char in piece)
            assert piece == "[UNK]" or is_hangul or spelled == piece
            num_pieces += 1
    assert num_pieces > 7_000


@pytest.mark.parametrize(
    ("text", "do_lower_case", "expected"),
    [
        ("", True, []),
        (" \t\n\u3000 \x00\u200b", True, []),
        (
            "UNwant\u00e9d,running!",
            True,
            [("un", "UN"), ("##want", "want"), ("##ed", "éd"), (",", ","),
             ("runn", "runn"), ("##ing", "ing"), ("!", "!")],
        ),
        # Decomposed: the mark belongs to its letter, also across a soft hyphen.
        ("e\u0301e", True, [("e", "e\u0301"), ("##e", "e")]),
        ("e\u00ad\u0301e", True, [("e", "e\u00ad\u0301"), ("##e", "e")]),
        ("\u0301e \u0301 e", True, [("e", "e"), ("e", "e")]),
        ("E\u0301 \u00c9", False, [("E", "E"), ("##\u0301", "\u0301"), ("[UNK]", "É")]),
        # What is dropped is not part of a piece at either side of it.
        ("un\x00want\x1fed", True, [("un", "un"), ("##want", "want"), ("##ed", "ed")]),
        ("un\x85want\u2028e", True, [("un", "un"), ("##want", "want"), ("e", "e")]),
        # One character, many pieces.
        ("한", True, [("ᄒ", "한"), ("##ᅡ", "한"), ("##ᆫ", "한")]),
        ("하하", True, [("[UNK]", "하하")]),
        # One dropped and one that becomes two: as many as before.
        ("\u00ad하", True, [("ᄒ", "하"), ("##ᅡ", "하")]),
        ("İi", True, [("i", "İ"), ("##i", "i")]),
        # A mark before the letter of its own character is not the last letter's.
        ("e\u0cc0", True, [("e", "e"), ("##\u0cd5", "\u0cc0")]),
        # A sigma at the end of a word, ideographs without spaces, no word at all.
        ("ΑΣ aΣa aΣ", True, [("[UNK]", "ΑΣ"), ("a", "a"), ("##σ", "Σ"), ("##a", "a"),
                             ("a", "a"), ("##ς", "Σ")]),
        ("a博推b!", True, [("a", "a"), ("博", "博"), ("推", "推"), ("[UNK]", "b"),
                          ("!", "!")]),
        # The Greek question mark is a semicolon once decomposed.
        ("博\u0301e", True, [("博", "博\u0301"), ("e", "e")]),
        ("e\u037ee", True, [("e", "e"), (";", "\u037e"), ("e", "e")]),
        ("x" * 201 + " e" + "e" * 199, True,
         [("[UNK]", "x" * 201), ("e", "e"), *[("##e", "e")] * 199]),
        ("[MASK] e", True, [("[UNK]", "["), ("[UNK]", "MASK"), ("[UNK]", "]"),
                            ("e", "e")]),
    ],
)  # fmt: skip
def test_ranges_by_hand(text, do_lower_case, expected):
    offsets = tokenizer_of(VOCABULARY, do_lower_case)
    found = [
        (VOCABULARY.tokens[id], text[start:end])
        for id, start, end in zip(*offsets.encode(text), strict=True)
    ]
    assert found == expected
    check(offsets, text)


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_any_characters(do_lower_case, monkeypatch):
    """Among others marks that normalization puts into another order."""
    keep_few = functools.partial(tokenization.Memo, most_kept=50)
    monkeypatch.setattr(tokenization, "Memo", lambda encode, **_: keep_few(encode))
    odd = [
        char
        for char in map(chr, range(0x20000))
        if unicodedata.category(char) in ("Cf", "Mn", "Mc", "Zs", "Zl")
        or unicodedata.combining(char)
        or len(unicodedata.normalize("NFD", char.lower())) > 1
    ]
    letters = sorted({t.removeprefix("##")[0] for t in VOCABULARY.tokens} | {" ", "Σ"})
    stems = ["\u302e", "\U0001d165", "\U0001d16d"]
    entries = (*letters[1:], *(f"##{c}" for c in letters[1:]))
    vocabulary = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *entries))
    offsets = tokenizer_of(vocabulary, do_lower_case)
    chooser = random.Random(3)
    for _ in range(800):
        pool = chooser.choice((odd, letters, stems + letters))
        text = "".join(
            chooser.choice(chooser.choice((pool, letters)))
            for _ in range(chooser.randint(1, 12))
        )
        check(offsets, text)


def test_texts_without_spaces_take_bounded_time():
    offsets = tokenizer_of(VOCABULARY, True)
    count = 30_000
    one = [[VOCABULARY.unk_id], [0], [count]]
    assert [values.tolist() for values in offsets.encode("é" * count)] == one
    found = offsets.encode("博!" * count)
    assert found.starts.tolist() == list(range(2 * count))
    assert found.ends.tolist() == list(range(1, 2 * count + 1))
