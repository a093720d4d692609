"""Texts that tokenizers stumble over, from a seed."""

import json
import random
import unicodedata
from collections.abc import Iterator

EMOJI = ("👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "❤️", "☎︎", "🙂", "1️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿")
LETTERS = (
    "İ",
    "ı",
    "I",
    "ß",
    "ẞ",
    "Σ",
    "ΑΣ",
    "ΑΣ.",
    "ΑΣ’Β",
    "ς",
    "ﬁ",
    "Å",
    "Ω",
    "é",
    "ǅ",
)
LETTERS += ("한국", "각", "가", "日本", "ひら", "ガ", "ｶﾞ", "𠀋", "𪛟", "𫝀", "豈", "ಕೀ")
LETTERS += ("मुंबई", "עִבְרִית", "مُحَمَّد", "ไทย", "𝒜", "Ⅷ", "²", "½", "㍿", "ﷺ")
MARKS = (
    "\u0301",
    "\u0308",
    "\u0323",
    "\u0345",
    "\u20e3",
    "\u0345\u0301",
    "\u093f",
    "\u0488",
)
CONTROLS = (
    "\0",
    "\x07",
    "\x0b",
    "\x1c",
    "\x1f",
    "\x7f",
    "\x85",
    "\xad",
    "\u200b",
    "\u200d",
)
CONTROLS += ("\u200e", "\u202e", "\u2060", "\ufeff", "\ufffd", "\ufff9", "\U000e0001")
SPACES = (
    " ",
    "\t",
    "\n",
    "\r",
    "\xa0",
    "\u1680",
    "\u2003",
    "\u2028",
    "\u2029",
    "\u3000",
)
# JSON can carry halves of pairs, and numbers that are no characters.
LONE = ("\ud800", "\udc00x", "\udbff", "\ufffe", "\U0010ffff", "\ue000", "\U000f0000")
SIGNS = tuple("!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~¡§«»¿–—‘’“”…‹›、。「」！？𐄀€™°±×÷")
TOKENS = (
    "[MASK",
    "CLS]",
    "[mask]",
    "##ing",
    "[unused1]",
    "[ SEP ]",
    "[[",
    "$&",
    "\\u0041",
)
SPECIAL = ("[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]")
"""These are one token each to others, and brackets with a word to us."""


def strings(
    seed: int, count: int, words: list[str], *, special: float
) -> Iterator[str]:
    """Yields `count` texts; `special` is the share of texts with special tokens."""
    rng = random.Random(seed)
    groups = (EMOJI, LETTERS, MARKS, CONTROLS, SPACES, LONE, SIGNS, TOKENS)

    def part() -> str:
        kind = rng.random()
        if kind < 0.35:
            word = rng.choice(words).removeprefix("##")
            return rng.choice((word, word.upper(), word.title()))
        if kind < 0.75:
            return rng.choice(rng.choice(groups))
        if kind < 0.76:
            # Around the length from which a word is unknown.
            letter = rng.choice(("a", "é", "e\u0301", "𝒜", "İ", "각"))
            return letter * rng.choice((66, 99, 100, 101, 199, 200, 201, 1000))
        plane = rng.choice((0x250, 0x3000, 0x10000, 0x20000, 0x110000))
        return chr(rng.randrange(plane))

    for _ in range(count):
        parts = [part() for _ in range(rng.randrange(1, 12))]
        if rng.random() < special:
            parts.insert(rng.randrange(len(parts) + 1), rng.choice(SPECIAL))
        text = rng.choice(("", "", " ")).join(parts)
        form = rng.choice((None, None, "NFD", "NFC"))
        text = text if form is None else unicodedata.normalize(form, text)
        # Two halves side by side are a character in JSON.
        yield json.loads(json.dumps(text))
