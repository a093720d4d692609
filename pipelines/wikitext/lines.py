"""Lines of text -> paragraphs: lists, headings and table rows go, gaps are mended."""

import html
import re
from collections import Counter
from collections.abc import Iterator


def paragraphs(text: str, counts: Counter[str]) -> list[str]:
    """Joins lines to paragraphs and tidies each; none is empty.

    Args:
        text: lines without markup but bold and italic, entities and line prefixes.
        counts: takes how often each rule dropped a line or a paragraph.
    """
    # All at once: a call for each paragraph would cost more than its work.
    decoded = _decode("\n".join(_blocks(text, counts)))
    found = []
    for line in decoded.split("\n"):
        mended = _mend(line) if "  " in line or _HOLE.search(line) else line
        if _LETTER.search(mended):
            found.append(mended.lstrip(" ,;:").rstrip(" "))
        elif line:
            counts["without_letters"] += 1
    return found


_LETTER = re.compile(r"[^\W\d_]")
_SENTENCE_END = re.compile(r"[.!?…:;。！？：؟۔।][\"'”’»)\]｣」』）]*$")
_POINTER = re.compile(
    r"(?:see also|main article|further information)s?\b", re.IGNORECASE
)


def is_fragment(paragraph: str) -> bool:
    """Whether a paragraph is what is left of a heading, a column or a list."""
    if len(paragraph) < 60 and not _SENTENCE_END.search(paragraph):
        return True
    return len(paragraph) < 200 and _POINTER.match(paragraph) is not None


def _blocks(text: str, counts: Counter[str]) -> list[str]:
    """Joins the lines of each paragraph; drops lists, headings and table rows."""
    blocks: list[str] = []
    current: list[str] = []
    may_be_lead = False
    for line in text.split("\n"):
        kind = "text"
        if line[:1] in _MARKS:
            kind, line = _classify(line)
        if kind == "text":
            current.append(_drop_quotes(line) if "''" in line else line)
            continue
        if current:
            blocks.append(" ".join(current))
            current = []
            may_be_lead = True
        if kind == "blank":
            continue
        counts[kind] += 1
        while may_be_lead and blocks and _is_lead(blocks[-1]):
            blocks.pop()
            counts["leads"] += 1
        may_be_lead = False
    if current:
        blocks.append(" ".join(current))
    return blocks


# A line that begins with anything else is text.
_MARKS = frozenset(["", *" \t*#:;|!-='"])
_HEADING = re.compile(r"(={1,6})[^=]+\1[ \t]*|=.*=\s*$")
_PSEUDO_HEADING = re.compile(r"'''[^'.]{1,80}'''[:\s]*")


def _classify(line: str) -> tuple[str, str]:
    """The kind of a line ("text", "blank" or a rule), and what is text in it."""
    first = line[:1]
    heading = _HEADING.match(line) if first == "=" else None
    if heading:
        # Text on the line of a heading is text, as in dumps of 2006.
        line = line[heading.end() :]
        if not line:
            return "headings", ""
        first = line[0]
    if not first or line.isspace():
        return "blank", ""
    if first in "*#:;":
        return "lists", ""
    if first == "|" or (first == "!" and "!!" in line):
        return "table_rows", ""
    if first == "-" and line.startswith("----"):
        return "horizontal_rules", ""
    if first in " \t" and not _is_prose(line.strip()):
        return "preformatted", ""
    if first == "'" and _PSEUDO_HEADING.fullmatch(line):
        return "headings", ""
    return "text", line


def _is_prose(line: str) -> bool:
    # A leading space means preformatted text, such as code; but it is also left where
    # a template or reference began the line of a paragraph.
    return len(line) > 60 and line[0] not in "*#:;|" and ". " in line + " "


def _is_lead(block: str) -> bool:
    """Whether this only announces what was dropped after it: "It may refer to:"."""
    return block.rstrip().endswith((":", "：")) and ". " not in block


_QUOTES = re.compile("'{2,}")


def _drop_quotes(line: str) -> str:
    """Drops the marks of bold and italic as MediaWiki reads them.

    "l'''Iliade''" is an apostrophe and italic: where neither bold nor italic comes
    out even, one mark of bold is an apostrophe and a mark of italic.
    """
    num_bold = line.count("'''")
    num_italic = line.count("''") - num_bold
    if "''''" not in line and not (num_italic % 2 and num_bold % 2):
        return line.replace("'''", "").replace("''", "")
    return _drop_uneven_quotes(line)


def _drop_uneven_quotes(line: str) -> str:
    runs = list(_QUOTES.finditer(line))
    sizes = [len(run[0]) if len(run[0]) < 6 else 5 for run in runs]
    num_italic = sum(size in (2, 5) for size in sizes)
    num_bold = sum(size in (3, 4, 5) for size in sizes)
    apostrophe = -1
    if num_italic % 2 and num_bold % 2:
        bold = [run.start() for run in runs if len(run[0]) == 3]
        elided = [at for at in bold if at > 1 and line[at - 2] == " " != line[at - 1]]
        elided += [at for at in bold if at > 0 and line[at - 1] != " "]
        apostrophe = next(iter(elided + bold), -1)

    def shown(run: re.Match[str]) -> str:
        size = len(run[0])
        if run.start() == apostrophe or size == 4:
            return "'"
        return "'" * max(size - 5, 0)

    return _QUOTES.sub(shown, line)


_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
_OTHER_SPACE = re.compile(
    "[\t\x0b\x0c\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
)


def _decode(text: str) -> str:
    """Decodes entities; white space but the ends of lines becomes a space."""
    if "&" in text:
        text = _ENTITY.sub(_unescape, text.replace("&nbsp;", " "))
    return _OTHER_SPACE.sub(" ", text)


def _unescape(entity: re.Match[str]) -> str:
    character = html.unescape(entity[0])
    return " " if character.isspace() else character


# Where something is to be mended; one search finds that most paragraphs are whole.
_HOLE = re.compile(
    r"[(（\[)）,.\"_](?:"
    r"(?<=[(（\[])[ ,;:、，；)）\]]|(?<=[)）])(?<=[ ,;、，；].)"
    r"|(?<=[,.])(?<= .)(?:[ ,.]|\Z)|(?<=\")\"|(?<=_)_)"
)
_MAGIC_WORD = re.compile(r"__[^\W\d_]{3,}__")
# But not those of "main()".
_EMPTY_BRACKETS = re.compile(r"\((?<!\w\()[ ,;:]{0,20}\)|（[ 、，；,;]{0,20}）|\[ ?\]")
_AFTER_BRACKET = re.compile(r"([(（])[ ,;:、，；]{1,20}")
# These look back, from characters that are rarer than the space before them.
_GAP_BEFORE_BRACKET = re.compile(r"[)）](?<=[ ,;、，；].)")
_GAP_BEFORE_POINT = re.compile(r"[,.](?<= .)(?=[ ,.]|\Z)")


def _mend(paragraph: str) -> str:
    """Mends what dropped markup leaves behind, with one space between words."""
    text = _MAGIC_WORD.sub("", paragraph)
    text = _EMPTY_BRACKETS.sub("", text)
    text = _AFTER_BRACKET.sub(r"\1", text)
    text = _EMPTY_BRACKETS.sub("", text)
    text = " ".join(text.replace('""', "").split())
    text = "".join(_close_gaps(text, _GAP_BEFORE_BRACKET, " ,;、，；"))
    return "".join(_close_gaps(text, _GAP_BEFORE_POINT, " "))


def _close_gaps(text: str, mark: re.Pattern[str], gap: str) -> Iterator[str]:
    """The pieces of a text, without the characters of `gap` before each `mark`."""
    start = 0
    for found in mark.finditer(text):
        yield text[start : found.start()].rstrip(gap)
        start = found.start()
    yield text[start:]
