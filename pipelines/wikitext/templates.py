"""The few templates that stand for words inside a sentence.

Most templates are dropped; without these a sentence would have a hole.
"""

import re
from collections.abc import Callable

_Template = Callable[[list[str]], str]


def _argument(number: int) -> _Template:
    return lambda arguments: arguments[number] if len(arguments) > number else ""


def _last(arguments: list[str]) -> str:
    return arguments[-1] if arguments else ""


def _constant(text: str) -> _Template:
    return lambda arguments: text


def _prefixed(prefix: str) -> _Template:
    return lambda arguments: f"{prefix} {arguments[0]}" if arguments else ""


def _suffixed(suffix: str) -> _Template:
    return lambda arguments: f"{arguments[0]}{suffix}" if arguments else ""


def _paragraph(arguments: list[str]) -> str:
    return f"\n\n{arguments[0]}\n\n" if arguments else ""


def _convert(arguments: list[str]) -> str:
    # {{convert|10|to|20|km|mi}} or {{convert|10|km|mi}}: value, unit, other unit.
    count = 4 if len(arguments) > 3 and arguments[1] in _RANGE_WORDS else 2
    return " ".join(_CONVERT_WORDS.get(word, word) for word in arguments[:count])


_RANGE_WORDS = frozenset(("to", "and", "or", "-", "–", "by", "x"))
_CONVERT_WORDS = {
    "-": "to",
    "–": "to",
    "x": "by",
    "C": "°C",
    "F": "°F",
    "m2": "m²",
    "m3": "m³",
    "km2": "km²",
    "sqkm": "km²",
    "sqmi": "square miles",
}

_INLINE_TEMPLATES: dict[str, _Template] = {
    **dict.fromkeys(("lang", "langue"), _argument(1)),
    **dict.fromkeys(
        "abbr en ill inline-block linktext nihongo polytonic ruby tooltip "
        "unicode val vanchor ilq flag latin 仮リンク 要出典範囲 読み仮名".split()
        + ["interlanguage link"],
        _argument(0),
    ),
    **dict.fromkeys(
        "color transl transliteration nowrap nobr nobold small smallcaps big".split(),
        _last,
    ),
    **dict.fromkeys("convert cvt unité unit nombre nb".split(), _convert),
    **dict.fromkeys(("date", "date-", "date de naissance"), " ".join),
    **dict.fromkeys(("frac", "fraction"), "/".join),
    **dict.fromkeys(("circa", "c.", "ca"), _prefixed("c.")),
    **dict.fromkeys(("s", "s-"), _suffixed("e siècle")),
    **dict.fromkeys(("quote", "cquote", "blockquote"), _paragraph),
    **dict.fromkeys(("nbsp", "nbs", "space"), _constant(" ")),
    **dict.fromkeys(("ndash", "endash"), _constant("–")),
    **dict.fromkeys(("spnd", "snd", "spaced ndash"), _constant(" – ")),
    "as of": _prefixed("As of"),
    "mdash": _constant("—"),
    "'": _constant("'"),
    "'s": _constant("'s"),
    "!": _constant("|"),
    "=": _constant("="),
}
# French ordinals and centuries are templates by their own name: {{XIXe siècle}}.
_SELF_NAMED = re.compile(r"\d{1,4}(?:e|er|re)|[IVXL]+e siècle")
# "name=value", but "1=value" and the text of a quotation are arguments like others.
_NAMED = re.compile(r"(?!(?:\d+|text)\s*=)[\w -]{1,30}=")
_NUMBERED = re.compile(r"^(?:\d+|text)\s*=\s*")


def expand(content: str) -> str:
    """The words that a template stands for, where we know them; mostly none."""
    own_name, _, rest = content.partition("|")
    name = own_name.strip().lower()
    words = _INLINE_TEMPLATES.get(name)
    if words is None:
        if name.startswith("formatnum:"):
            return name.removeprefix("formatnum:")
        if not name.startswith("lang-"):
            return own_name if _SELF_NAMED.fullmatch(own_name) else ""
        words = _argument(0)
    arguments = [argument.strip() for argument in rest.split("|")] if rest else []
    return words(
        [
            _NUMBERED.sub("", argument)
            for argument in arguments
            if not _NAMED.match(argument)
        ]
    )
