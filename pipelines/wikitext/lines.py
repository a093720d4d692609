"""Lines of text -> paragraphs: lists, headings and table rows go, gaps are closed."""

import functools
import html
import itertools
import re
from collections import Counter

from bert_keras.pipelines.wikitext import markup

_LETTER = re.compile(r"[^\W\d_]")
_SENTENCE_END = re.compile(r"[.!?…:;。！？：؟۔।][\"'”’»)\]｣」』）]*$")
_POINTER = re.compile(r"(?:see also|main article|further information)s?\b", re.I)
_QUOTES = re.compile("'{2,}")

_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
_OTHER_SPACE = re.compile(
    "[\t\x0b\x0c\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
)

# A line that begins with anything else is text.
_MARKS = frozenset(["", *" \t*#:;|!-='"])
_HEADING = re.compile(r"(={1,6})[^=]+\1[ \t]*|=.*=\s*$")
_PSEUDO_HEADING = re.compile(r"'''[^'.]{1,80}'''[:\s]*")

# Gaps to close; most paragraphs have none, which one search shows.
_HOLE = re.compile(
    r"[(（\[)）,.\"_](?:"
    r"(?<=[(（\[])[ ,;:、，；)）\]]|(?<=[)）])(?<=[ ,;、，；].)"
    r"|(?<=[,.])(?<= .)(?:[ ,.]|\Z)|(?<=,) ?[,.]|(?<=\")\"|(?<=_)_)"
)
_MAGIC_WORD = re.compile(r"__[^\W\d]{3,40}?__")
# Not the brackets of "main()"; but Korean has no space before those of "베를린()은".
_EMPTY_BRACKETS = re.compile(
    r"\((?<![A-Za-z0-9_]\()[ ,;:]{0,20}\)|（[ 、，；,;]{0,20}）|\[ ?\]"
)
_AFTER_BRACKET = re.compile(r"([(（])[ ,;:、，；]{1,20}")
_REPEATED_COMMA = re.compile(r",(?: ?,)+")
_COMMA_AND_POINT = re.compile(r", ?\.(?= |\Z)")
# These look back from characters that are rarer than the space before them.
_GAP_BEFORE_BRACKET = re.compile(r"[)）](?<=[ ,;、，；].)")
_GAP_BEFORE_POINT = re.compile(r"[,.](?<= .)(?=[ ,.]|\Z)")


def clean(wikitext: str, counts: Counter[str] | None = None) -> list[str]:
    """Returns the running text of a page: paragraphs in order, each on one line. No
    paragraph is empty or a mere fragment. `counts` is incremented whenever a rule drops
    something; docs/data.md lists the rules."""
    counts = Counter() if counts is None else counts
    whole = []
    for text in paragraphs(markup.resolve(wikitext, counts), counts):
        # A remainder of a heading, a column or a list.
        is_fragment = len(text) < 60 and not _SENTENCE_END.search(text)
        if is_fragment or (len(text) < 200 and _POINTER.match(text)):
            counts["fragments"] += 1
        else:
            whole.append(text)
    return whole


def paragraphs(text: str, counts: Counter[str]) -> list[str]:
    """Joins lines to paragraphs and tidies each; none is empty."""
    # All at once: a call for each paragraph would cost more than the work.
    decoded = "\n".join(_blocks(text, counts))
    if "&" in decoded:
        decoded = decoded.replace("&nbsp;", " ")
        decoded = _ENTITY.sub(lambda entity: _character(entity[0]), decoded)
    # White space other than line ends becomes a space.
    decoded = _OTHER_SPACE.sub(" ", decoded)
    tidied = []
    for line in filter(None, decoded.split("\n")):
        repaired = _repair(line) if "  " in line or _HOLE.search(line) else line
        if _LETTER.search(repaired):
            tidied.append(repaired.lstrip(" ,;:").rstrip(" "))
        else:
            counts["without_letters"] += 1
    return tidied


def _blocks(text: str, counts: Counter[str]) -> list[str]:
    ended: list[str] = []
    lines: list[str] = []
    # Whether only blank lines are between the last paragraph and this line.
    may_be_lead = False
    for line in text.split("\n"):
        has_formula = markup.FORMULA in line
        line = line.replace(markup.FORMULA, "") if has_formula else line
        kind = _kind(line) if line[:1] in _MARKS else "text"
        if kind == "text":
            lines.append(_drop_quotes(line))
            continue
        if lines:
            ended.append(" ".join(lines))
            lines, may_be_lead = [], True
        if kind == "blank":
            continue
        if has_formula and line[0] == ":":
            # An indented formula, whose sentence stays.
            counts["lists"] += 1
        else:
            if kind:
                counts[kind] += 1
            # What only announces something dropped goes, too: "It may refer to:".
            while may_be_lead and ended and ". " not in ended[-1]:
                if not ended[-1].rstrip().endswith((":", "：")):
                    break
                ended.pop()
                counts["leads"] += 1
            heading = _HEADING.match(line)
            if heading and heading.end() < len(line):
                # In dumps of 2006, text may follow on the line of a heading.
                lines.append(_drop_quotes(line[heading.end() :]))
        may_be_lead = False
    return [*ended, " ".join(lines)] if lines else ended


def _kind(line: str) -> str:
    """Returns the kind of a line: "text", "blank" or the rule that drops it, empty for
    the bar that is left of a table or list which `markup` dropped, and counted."""
    first = line[:1]
    if not first or line.isspace():
        return "blank"
    if first in "*#:;":
        return "lists"
    if first == "|" or (first == "!" and "!!" in line):
        return "" if line == "|" else "table_rows"
    if first == "-" and line.startswith("----"):
        return "horizontal_rules"
    if first in " \t":
        # A leading space means preformatted text, such as code; but it also remains
        # where a paragraph of prose began with a template or reference.
        line = line.strip()
        is_prose = len(line) > 60 and line[0] not in "*#:;|" and ". " in line + " "
        return "text" if is_prose else "preformatted"
    heading = _HEADING.match(line) if first == "=" else _PSEUDO_HEADING.fullmatch(line)
    return "headings" if heading else "text"


def _drop_quotes(line: str) -> str:
    """Drops the marks of bold and italic, read as MediaWiki does. "l'''Iliade''" is an
    apostrophe and italic: if the numbers of bold and of italic marks are both odd, one
    mark of bold is an apostrophe and a mark of italic."""
    if "''" not in line:
        return line
    runs = list(_QUOTES.finditer(line))
    sizes = [len(run[0]) if len(run[0]) < 6 else 5 for run in runs]
    num_italic = sum(size in (2, 5) for size in sizes)
    num_bold = sum(size in (3, 4, 5) for size in sizes)
    apostrophe = -1
    if num_italic % 2 and num_bold % 2:
        bold = [run.start() for run in runs if len(run[0]) == 3]
        # MediaWiki takes the mark after a word of one letter, else after any word.
        elided = [at for at in bold if at > 1 and line[at - 2] == " " != line[at - 1]]
        elided += [at for at in bold if at > 0 and line[at - 1] != " "]
        apostrophe = next(iter(elided), -1)

    def shown(run: re.Match[str]) -> str:
        at, size = run.start(), len(run[0])
        if size == 4:
            # An apostrophe and bold; or the italic around a dropped template.
            beside = line[at - 1 : at] + line[at + 4 : at + 5]
            return "'" if any(map(str.isalnum, beside)) else ""
        if size == 6:
            return ""  # The bold around a dropped template.
        return "'" if at == apostrophe else "'" * max(size - 5, 0)

    return _QUOTES.sub(shown, line)


@functools.lru_cache(maxsize=4096)
def _character(entity: str) -> str:
    character = html.unescape(entity)
    return " " if character.isspace() else character


def _repair(paragraph: str) -> str:
    """Closes the gaps left by dropped markup, with one space between words."""
    # They are in capitals, where a script has them; "__init__" is none.
    text = _MAGIC_WORD.sub(
        lambda word: "" if word[0] == word[0].upper() else word[0], paragraph
    )
    text = _AFTER_BRACKET.sub(r"\1", _EMPTY_BRACKETS.sub("", text))
    text = _REPEATED_COMMA.sub(",", _EMPTY_BRACKETS.sub("", text))
    text = _COMMA_AND_POINT.sub(".", text)
    text = " ".join(text.replace('""', "").split())
    # The characters of a gap before a mark go, too.
    for mark, gap in ((_GAP_BEFORE_BRACKET, " ,;、，；"), (_GAP_BEFORE_POINT, " ")):
        starts = [0, *(found.start() for found in mark.finditer(text)), len(text)]
        pieces = [text[a:b] for a, b in itertools.pairwise(starts)]
        text = "".join([*(piece.rstrip(gap) for piece in pieces[:-1]), pieces[-1]])
    return text
