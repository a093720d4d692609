"""Lines of text -> paragraphs: lists, headings and table rows go, gaps are mended."""

import html
import re


def paragraphs(text: str) -> list[str]:
    """Joins lines to paragraphs and tidies each; none is empty."""
    tidied = (_tidy(block) for block in _blocks(text.split("\n")))
    return [paragraph for paragraph in tidied if paragraph]


_SENTENCE_END = re.compile(r"[.!?…:;。！？：؟۔।][\"'”’»)\]」』）]*$")
_POINTER = re.compile(
    r"(?:see also|main article|further information)s?\b", re.IGNORECASE
)


def is_fragment(paragraph: str) -> bool:
    """Whether a paragraph is what is left of a heading, a column or a list."""
    if len(paragraph) < 60 and not _SENTENCE_END.search(paragraph):
        return True
    return len(paragraph) < 200 and _POINTER.match(paragraph) is not None


def _blocks(lines: list[str]) -> list[str]:
    """Joins the lines of each paragraph; drops lists, headings and table rows."""
    blocks: list[str] = []
    current: list[str] = []

    def flush() -> None:
        if current:
            blocks.append(" ".join(current))
            current.clear()

    for line in lines:
        heading = _HEADING.match(line) if line[:1] == "=" else None
        if heading:
            # Text on the line of a heading is text, as in dumps of 2006.
            line = line[heading.end() :]
        kind = "heading" if heading and not line else _line_kind(line)
        if kind == "text":
            current.append(_drop_quotes(line) if "''" in line else line)
            continue
        flush()
        if kind != "blank" and blocks and _is_lead(blocks[-1]):
            blocks.pop()
    flush()
    return blocks


def _line_kind(line: str) -> str:
    first = line[:1]
    if not first or line.isspace():
        return "blank"
    if first in "*#:;":
        return "list"
    if first == "|" or (first == "!" and "!!" in line):
        return "table"
    if first == "-" and line.startswith("----"):
        return "rule"
    if first in " \t":
        return "text" if _is_prose(line.strip()) else "preformatted"
    if line.startswith("'''") and _PSEUDO_HEADING.fullmatch(line):
        return "heading"
    return "text"


_HEADING = re.compile(r"(={1,6})[^=]+\1[ \t]*|=.*=\s*$")
_PSEUDO_HEADING = re.compile(r"'''[^'.]{1,80}'''[:\s]*")


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
_MAGIC_WORD = re.compile(r"__[^\W\d_]{3,}__")
# But not those of "main()".
_EMPTY_BRACKETS = re.compile(
    r"\((?<!\w\()[\s,;:]{0,20}\)|（[\s、，；,;]{0,20}）|\[ ?\]"
)
_AFTER_BRACKET = re.compile(r"([(（])[\s,;:、，；]{1,20}")
_BEFORE_BRACKET = re.compile(r"[\s,;、，；]{1,20}([)）])")
_BEFORE_BRACKET_PAIRS = (" )", ",)", ";)", " ）", "、）", "，）", "；）")
_SPACE_BEFORE_POINT = re.compile(r" ([,.])(?=[ ,.]|$)")
_LETTER = re.compile(r"[^\W\d_]")


def _unescape(entity: re.Match[str]) -> str:
    return html.unescape(entity[0])


def _tidy(block: str) -> str:
    """Decodes entities and mends what dropped markup leaves behind."""
    text = block
    if "&" in text:
        text = _ENTITY.sub(_unescape, text.replace("&nbsp;", " "))
    if "__" in text:
        text = _MAGIC_WORD.sub("", text)
    if "(" in text or "（" in text or "[" in text:
        text = _EMPTY_BRACKETS.sub("", text)
        text = _AFTER_BRACKET.sub(r"\1", text)
        text = _EMPTY_BRACKETS.sub("", text)
    text = " ".join(text.replace('""', "").split())
    if any(pair in text for pair in _BEFORE_BRACKET_PAIRS):
        text = _BEFORE_BRACKET.sub(r"\1", text)
    if " ," in text or " ." in text:
        text = _SPACE_BEFORE_POINT.sub(r"\1", text)
    text = text.lstrip(" ,;:")
    return text if _LETTER.search(text) else ""
