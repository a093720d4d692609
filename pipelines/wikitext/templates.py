"""The few templates that stand for words in a sentence; all others are dropped."""

import re
from collections.abc import Callable

from bert_keras.pipelines import words


def _first_given(arguments: list[str]) -> str:
    return next(filter(None, arguments), "")


def _convert(arguments: list[str]) -> str:
    """Returns the given value: {{convert|10|km|mi}}, {{convert|6|ft|2|in|m}}."""
    is_pair = len(arguments) > 3 and (
        arguments[1] in _RANGE_WORDS or _NUMBER.fullmatch(arguments[2])
    )
    used = arguments[: 4 if is_pair else 2]
    return " ".join(_CONVERT_WORDS.get(word, word) for word in used)


def _unit(arguments: list[str]) -> str:
    """Returns 12 km² for {{unité|12|km|2}}."""
    power = {"2": "²", "3": "³"}.get(arguments[2], "") if len(arguments) > 2 else ""
    return " ".join(arguments[:2]) + power


_NUMBER = re.compile(r"[-−+±]?\d[\d.,  ]{0,30}")
_RANGE_WORDS = frozenset("to and or - – by x to(-) and(-)".split())
_CONVERT_WORDS = {
    **{"to(-)": "to", "and(-)": "and", "-": "to", "–": "to", "x": "by"},
    **{"C": "°C", "F": "°F", "m2": "m²", "m3": "m³"},
    **{"km2": "km²", "sqkm": "km²", "sqmi": "square miles"},
}
_UNITS = words.read_lists("numbers")["units"]

_INLINE_TEMPLATES: dict[str, str | Callable[[list[str]], str]] = {
    **words.read_rules("templates"),
    **dict.fromkeys(
        "color transl transliteration nowrap nobr nobold small smallcaps big smaller "
        "larger overline underline script".split(),
        lambda arguments: "".join(arguments[-1:]),
    ),
    **dict.fromkeys("convert cvt nombre nb".split(), _convert),
    **dict.fromkeys("unité unit".split(), _unit),
    **dict.fromkeys(("date", "date-", "date de naissance", "date de décès"), " ".join),
    # Chemical formulas: {{chem|H|2|O}}, {{chem2|C_{n}H_{2n+2}}}.
    **dict.fromkeys(
        ("chem", "chem2", "gaps"), lambda parts: re.sub(r"[_^{}]", "", "".join(parts))
    ),
    **dict.fromkeys(("frac", "fraction"), "/".join),
    **dict.fromkeys(("nihongo", "nihongo2"), _first_given),
    # The label of {{target|label}}, as in a link.
    **dict.fromkeys(
        ("нп", "нп2", "нп3", "нп4", "нп5", "iw", "не переведено"),
        lambda arguments: _first_given([*arguments[1:2], *arguments[:1]]),
    ),
    "heure": " h ".join,
    "ship": lambda arguments: " ".join(arguments[:2]),
    "sclass": lambda arguments: "-class ".join(arguments[:2]),
}
# French ordinals and centuries are templates of that name: {{XIXe siècle}}.
_SELF_NAMED = re.compile(r"\d{1,4}(?:e|er|re)|I(?:er|re)|[IVXL]+e siècle")
# "name=value", but "1=value" and the text of a quotation are arguments like others.
_NAMED = re.compile(r"(?!(?:\d{1,3}|texte?)\s*+=)[\w -]{1,30}=")
_NUMBERED = re.compile(r"^(?:\d{1,3}|texte?)\s*+=\s*+")


def expand(content: str) -> str:
    """Returns the words that a known template stands for; else an empty string."""
    own_name, _, rest = content.partition("|")
    name = own_name.strip().lower()
    text = _INLINE_TEMPLATES.get(name)
    if text is None:
        if rest[:1].isdigit():
            number, unit = (f"{rest}|".split("|")[n].strip() for n in (0, 1))
            is_number = unit in _UNITS and _NUMBER.fullmatch(number)
            return f"{number} {unit}" if is_number else ""
        if name.startswith("formatnum:"):
            return name.removeprefix("formatnum:")
        # {{lang-fr|mot}}, {{script/Hebrew|...}}: the rest of the name is the language.
        if not name.startswith(("lang-", "script/", "vol-")):
            return own_name if _SELF_NAMED.fullmatch(own_name) else ""
        text = "{0}"
    arguments = [argument.strip() for argument in rest.split("|")] if rest else []
    arguments = [_NUMBERED.sub("", one) for one in arguments if not _NAMED.match(one)]
    if callable(text):
        return text(arguments)
    try:
        return text.format(*arguments)
    except IndexError:
        return ""
