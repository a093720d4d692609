"""A `tokenizer.json` that gives our ids in any browser, whose own version of Unicode
does not matter: the file spells out the character classes of the running Python."""

import functools
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from bert_keras.checkpoints.formats import hugging_face_tokenizer
from bert_keras.data import tokenization


def describe(tokenizer: tokenization.Tokenizer) -> dict[str, Any]:
    """Returns the file's values, with the steps of `tokenization.basic_tokenize`. But
    `[MASK]` and the like in a text are one token, as others expect."""
    lower, classes = tokenizer.do_lower_case, character_classes()
    dropped, marks, alone = ({"pattern": {"Regex": x}} for x in classes.values())
    removes = {"type": "Replace", "content": ""}
    isolates = {"type": "Split", "behavior": "Isolated", "invert": False}
    steps = [{**removes, **dropped}]
    if lower:
        steps += [{"type": "Lowercase"}, {"type": "NFD"}, {**removes, **marks}]
    splits = [{"type": "WhitespaceSplit"}, {**isolates, **alone}]
    return {
        **hugging_face_tokenizer.describe(tokenizer.vocabulary, do_lower_case=lower),
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
    }


@functools.cache
def character_classes() -> Mapping[str, str]:
    """Returns regular expressions for characters that are `dropped`, for `marks` that
    are stripped from lower-cased text, and for characters that are words `alone`."""

    def kind(char: str) -> str:
        if tokenization.is_dropped(char):
            return "d"
        is_alone = tokenization.is_punctuation(char) or tokenization.is_cjk(char)
        return "a" if is_alone else "m" if unicodedata.category(char) == "Mn" else " "

    def literal(point: int) -> str:
        # All engines of regular expressions take these two ways to write a character.
        return f"\\u{point:04X}" if point < 1 << 16 else chr(point)

    kinds, classes = "".join(kind(chr(point)) for point in range(0x110000)), {}
    for name in ("dropped", "marks", "alone"):
        runs = re.finditer(f"{name[0]}+", kinds)
        ranges = (f"{literal(x.start())}-{literal(x.end() - 1)}" for x in runs)
        classes[name] = f"[{''.join(ranges)}]"
    return classes
