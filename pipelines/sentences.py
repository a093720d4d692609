"""Paragraph -> sentences, by rules for Latin and other alphabets, Chinese, Japanese.

A sentence ends at `.`, `!`, `?` or `…` (with closing quotes and brackets) before white
space and anything but a lower-case letter, unless the point belongs to an abbreviation,
an initial or an ordinal number; and at `。`, `！`, `？` anywhere.
"""

import re

from bert_keras.pipelines import words

# Begins with one set of characters, so that the engine skips from one to the next, and
# never inside an ellipsis such as "..." or ". . .", which keeps it linear. The groups
# are atomic: before 3.11.5, Python makes mistakes in possessive repeats of a group.
_BOUNDARY = re.compile(
    r"[.!?…؟۔।。！？｡](?:"
    r"(?<=[.!?…؟۔।])(?<![.!?…؟۔।].)(?<![.!?…؟۔।] .)(?>(?: ?[.!?…؟۔।](?!\w))*)"
    r"(?>(?:[\"'”’“‘)\]«_]|\s?»(?!\w)|\[\w{1,3}\])*)\s++"
    r"|(?<=[。！？｡])[。！？｡]*+[」』）”’)\]]*+\s*+)"
)
_OPENING = "\"'“‘«»([{¿¡„‚「『（—–-_*"

_LISTS = words.read_lists("sentences")
_NEVER_END, _MAY_END = _LISTS["never_end"], _LISTS["may_end"]
_ABBREVIATIONS = _NEVER_END | _MAY_END
# Longer words are no abbreviations, which bounds the work.
_MAX_WORD = 24
_LAST_WORD = re.compile(r"[^\W_][\w.’']*$")
_NEXT_WORD = re.compile(r"\w+")
_ACRONYM = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")
_DUTCH_WORD = re.compile(r"['’][nst] [A-Z]")
_ROMAN = re.compile(r"[IVXLC]+")
# Text that continues a sentence after quoted speech, as in 「…。」と言った.
_CONTINUES_QUOTE = "とっのがをにはもでな、，"


def split_sentences(paragraph: str) -> list[str]:
    """Splits running text on one line into its sentences, stripped, in order."""
    sentences = []
    start = 0
    for boundary in _BOUNDARY.finditer(paragraph):
        end = boundary.end()
        if end < len(paragraph) and _is_end(paragraph, start, boundary):
            sentences.append(paragraph[start:end].strip())
            start = end
    sentences.append(paragraph[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _is_end(text: str, start: int, boundary: re.Match[str]) -> bool:
    mark, position = boundary[0], boundary.end()
    if mark[0] in "。！？｡":
        return not (mark[-1] in "」』）”’)]" and text[position] in _CONTINUES_QUOTE)
    # Several may open a sentence: ("¿Qué?
    while text[position] in _OPENING and position < len(text) - 1:
        position += 1
    if text[position].islower():
        # But Dutch sentences may begin so: "'s Avonds", "'t Is".
        return _DUTCH_WORD.match(text, position - 1) is not None
    if text[position] in _OPENING:
        return False  # Only a closing mark is left: .' "
    if mark != ". " and mark.strip() != ".":
        # More than a point: "(b. 1950) The" ends, '"etc." The' ends.
        return True
    word, is_first = _last_word(text, start, boundary.start())
    lower = word.lower()
    if len(word) > 4 and lower not in _ABBREVIATIONS and "." not in word:
        return True  # Most words; the rest is for the others.
    # Whether the point belongs to its word is judged by the next word.
    following = _NEXT_WORD.match(text, position)
    next_word = following[0].lower() if following else ""
    is_initial = len(word) == 1 and word.isupper()
    is_number = word.isdigit() and len(word) < 3
    if is_first and (is_initial or is_number or _ROMAN.fullmatch(word)):
        return False  # "1. The first of them": it counts what follows.
    if lower in _NEVER_END and not is_initial:
        # "No." and "Art." are also words: they abbreviate only before a number.
        return lower in _LISTS["before_numbers"] and not next_word[:1].isdigit()
    if lower in _MAY_END or is_initial or _ACRONYM.fullmatch(word):
        return next_word in _LISTS["starters"]
    return not (is_number and next_word in _LISTS["counted"])


def _last_word(text: str, start: int, point: int) -> tuple[str, bool]:
    """Returns the word before a point, and whether the sentence begins with it."""
    earliest = max(start, point - _MAX_WORD)
    word_start = text.rfind(" ", earliest, point) + 1 or earliest
    word = text[word_start:point]
    is_first = word_start == start
    if not word.isalnum():
        # More than a word, such as "(b" or "°C".
        last = _LAST_WORD.search(word)
        if last is None:
            return "", False
        if len(last[0]) == 1 and last.start() and word[-2] not in _OPENING:
            return "", False  # A unit or symbol, not an initial.
        word = last[0]
        is_first = is_first and not last.start()
    return word, is_first
