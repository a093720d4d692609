"""Paragraph -> sentences, by rule: Latin and other alphabets, Chinese, Japanese.

A sentence ends at `.`, `!`, `?` or `…` (with closing quotes and brackets) where white
space and anything but a lower-case letter follow, unless the point belongs to an
abbreviation, an initial or an ordinal number; and at `。`, `！`, `？` anywhere.
"""

import re

_BOUNDARY = re.compile(
    r"[.!?…؟۔।]+(?:[\"'”’)\]]|\s?»)*\s+"
    r"|[。！？｡]+[」』）”’)\]]*\s*"
)
_OPENING = "\"'“‘«([{¿¡„‚「『（—–-_*"

# A point after these never ends a sentence; after those in _MAY_END it does where a
# word follows that likes to begin one.
_NEVER_END = frozenset(
    "mr mrs ms dr prof rev hon gen col lt capt cpt sgt maj cmdr adm gov sen rep pres "
    "st sts mt ft messrs mme mlle mm vs viz cf e.g i.e eg ie al ca c approx fig figs "
    "no nos nr vol vols p pp pt ch sec ed eds trans transl rev lit fl b d r abbr pron "
    "resp incl excl ser op cit ibid dept univ assn bros gebr hl bzw vgl ggf sog geb "
    "gest art abs bd hrsg usf u.a d.h z.b v p.ex m n.b pron lat gr им св ул т.е т.н "
    "др проф акад".split()
)
_BEFORE_NUMBERS = frozenset("no nos art fig figs p pp sec vol ch abs abd".split())
_MAY_END = frozenset(
    "inc ltd co corp jr sr etc est a.m p.m u.s u.k u.n d.c ph.d b.c a.d b.a m.a usw "
    "jan feb mar apr jun jul aug sep sept oct nov dec г гг в вв".split()
)
_STARTERS = frozenset(
    "the a an in on at by for from with as after before during since although though "
    "while when where if it its he she his her they their this that these those there "
    "we our i you my however but and or so then thus also another some many most "
    "several both each all no not one two three other according to because despite "
    "der die das ein eine er sie es im am dies diese le la les un une il elle ils en "
    "он она они это в на по".split()
)
_MONTHS = frozenset(
    "januar februar märz april mai juni juli august september oktober november "
    "dezember jahrhundert jahrhunderts jh january february march may june july "
    "october december".split()
)
_LAST_WORD = re.compile(r"[\w.’'-]+$")
_NEXT_WORD = re.compile(r"[\w]+")
_ACRONYM = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")
# Speech that goes on after its closing bracket, as in 「…。」と言った.
_CONTINUES_QUOTE = "とっのがをにはもでな、，"


def split_sentences(paragraph: str) -> list[str]:
    """Splits running text on one line into its sentences.

    Returns:
        The sentences in order, stripped; joined, they are the paragraph less the white
        space between them.
    """
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
    mark, end = boundary[0], boundary.end()
    if mark[0] in "。！？｡":
        return not (mark[-1] in "」』）”’)]" and text[end] in _CONTINUES_QUOTE)
    position = end
    while position < len(text) - 1 and text[position] in _OPENING:
        position += 1
    if text[position].islower():
        return False
    if mark[0] != "." or mark[1] == ".":
        return True
    if not mark[1].isspace() or "»" in mark:
        # A quote or bracket closed: "(b. 1950) The" ends, '"etc." The' ends.
        return True
    return not _is_abbreviation(text, start, boundary.start(), position)


def _is_abbreviation(text: str, start: int, point: int, position: int) -> bool:
    """Whether the point at `point` belongs to the word before it."""
    # Words are short: looking back a little bounds the work.
    last = _LAST_WORD.search(text, max(start, point - 24), point)
    if last is None:
        return False
    word = last[0]
    lower = word.lower()
    following = _NEXT_WORD.match(text, position)
    next_word = following[0].lower() if following else ""
    is_initial = len(word) == 1 and word.isupper()
    if is_initial and last.start() > start and text[last.start() - 1] not in " (\u00a0":
        return False  # A unit or symbol, such as "°C".
    if lower in _NEVER_END and not is_initial:
        # "No." and "Art." are also words: they abbreviate only before a number.
        return lower not in _BEFORE_NUMBERS or next_word[:1].isdigit()
    if lower in _MAY_END or is_initial or _ACRONYM.fullmatch(word):
        return next_word not in _STARTERS
    return word.isdigit() and len(word) < 3 and next_word in _MONTHS
