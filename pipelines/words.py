"""Words of text in any script: one count for limits, manifests and data cards.

A stretch between white space is a word, as in `str.split`. Where a script is written
without spaces, two characters of Chinese or Japanese are a word, and four of Thai, Lao,
Khmer, Burmese and their like, whose vowels and tones are characters of their own.

This is length, comparable between languages, and no segmentation, which needs a
dictionary of each language (Unicode Standard Annex 29, section 4). The numbers are the
characters that translations take for each English word, rounded: Chinese 1.6 (the
29,724 words of XQuAD's contexts), and in article 1 of the Universal Declaration of
Human Rights (30 words) Japanese 2.6, Thai 4.3. Korean has spaces.
"""

import re
import tomllib
from importlib import resources

# Characters of Unicode's blocks, as literals: a class like `\w` would grow with the
# tables of each Python. Ideographs, kana, bopomofo and Yi syllables:
_EAST_ASIAN = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303b\u3041-\u309f"
    "\u30a1-\u30fa\u30fc-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\ua4cf\uf900-\ufaff"
    "\uff66-\uff9f\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
)
# Line breaking class SA (Unicode Standard Annex 14) and Tibetan: Thai, Lao, Tibetan,
# Burmese, Khmer, Tai Le and New Tai Lue, Tai Tham, more Burmese, Tai Viet.
SOUTH_EAST_ASIAN = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf"
    "\ua9e0-\ua9ff\uaa60-\uaadf"
)
"""For a class of a regular expression: scripts whose words are four characters."""
_UNSPACED = _EAST_ASIAN + SOUTH_EAST_ASIAN
# Punctuation of East Asia divides words without a space.
_DIVIDERS = (
    "\u3001-\u301f\u3030\u30fb\ufe10-\ufe1f\ufe30-\ufe6f\uff01-\uff0f"
    "\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"
)
_MARKS = "!-/:-@\\[-`{-~\u00a1-\u00bf\u2000-\u206f" + _DIVIDERS

_HAS_UNSPACED = re.compile(f"[{_UNSPACED}{_DIVIDERS}]")
_WORD = re.compile(
    f"[{_EAST_ASIAN}]{{1,2}}|[{SOUTH_EAST_ASIAN}]{{1,4}}"
    # Between white space, with no such character: a word, a lone dash too.
    rf"|(?<!\S)[^\s{_UNSPACED}{_DIVIDERS}]++(?!\S)"
    # Next to such characters: a name, a number, but not a quotation mark.
    rf"|[^\s{_UNSPACED}{_MARKS}][^\s{_UNSPACED}{_DIVIDERS}]*+"
)


def has_unspaced(text: str) -> bool:
    """Whether a text has characters, or punctuation, of a script without spaces."""
    return not text.isascii() and _HAS_UNSPACED.search(text) is not None


def count_words(text: str) -> int:
    """Counts the words of a text, in time linear in its length."""
    # The zero width space divides words where a script has no visible one.
    text = text.replace("\u200b", " ")
    if not has_unspaced(text):
        return len(text.split())
    return sum(1 for _ in _WORD.finditer(text))


def read_lists(section: str) -> dict[str, frozenset[str]]:
    """Returns the lists of a section of `word_lists.toml`, by name."""
    file = resources.files("bert_keras.pipelines") / "word_lists.toml"
    texts = tomllib.loads(file.read_text(encoding="utf-8"))[section]
    lists = {}
    for name, text in texts.items():
        # The names of some lists have blanks in them.
        parts = re.split(r"[|\n]", text) if "|" in text else text.split()
        lists[name] = frozenset(filter(None, parts))
    return lists


def read_rules(section: str) -> dict[str, str]:
    """Returns the name of the list in a section of `word_lists.toml`, by word."""
    lists = read_lists(section)
    return {word: name for name, words in lists.items() for word in words}
