"""Output of WikiExtractor -> documents: `<doc>` elements or JSON lines; without Beam.

Its remains of headings, lists and tags are dropped where they can be told from running
text.
"""

import codecs
import html
import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from bert_keras.errors import InputError
from bert_keras.pipelines.sources import dump_head, text_lines


class Document(NamedTuple):
    """One article."""

    id: str
    """`enwiki:12:Anarchism`, as for the same page of a dump."""
    title: str
    paragraphs: list[str]
    num_fragments: int
    """Headings, list items and the like that were dropped."""


class BadDocument(NamedTuple):
    """An unreadable article."""

    offset: int
    """Its first byte in the text of the file."""
    title: str
    reason: str


def is_json(start: bytes, path: str) -> bool:
    """Whether a file that begins with `start` holds JSON lines, not `<doc>` elements.

    Raises:
        InputError: it holds neither.
    """
    text = start.removeprefix(codecs.BOM_UTF8).lstrip()
    if text.startswith(b"{"):
        return True
    if not text or text.startswith(b"<doc "):
        return False
    shown = text[:200].decode(errors="replace")
    what = "it" if not dump_head.is_html(shown) else "this is an HTML page; it"
    raise InputError(
        f"{path}: expected output of WikiExtractor (<doc id=... or JSON lines), but "
        f"{what} begins with {shown[:24]!r}"
    )


def parse(
    lines: Iterator[tuple[int, bytes | None]], stop: int, start: bytes, path: str
) -> Iterator[Document | BadDocument]:
    """Reads the documents that begin before an offset.

    Args:
        lines: with their offsets, from any line on.
        stop: in bytes of the text.
        start: the file's first bytes.
        path: its name, for errors.

    Raises:
        InputError: this is no output of WikiExtractor.
    """
    if is_json(start, path):
        return _parse_lines(lines, stop)
    return _parse_elements(lines, stop)


def _parse_lines(
    lines: Iterator[tuple[int, bytes | None]], stop: int
) -> Iterator[Document | BadDocument]:
    for offset, line in lines:
        if offset >= stop:
            return
        if line is None:
            yield BadDocument(offset, "", "longer than 64 MiB")
        elif line.strip():
            yield parse_line(line, offset)


def _parse_elements(
    lines: Iterator[tuple[int, bytes | None]], stop: int
) -> Iterator[Document | BadDocument]:
    """Reads the `<doc>` elements that begin before `stop`, each to its end.

    The rest of an element at the beginning of `lines` is no document.
    """
    body: list[bytes] = []
    size = begin = 0
    opened = None
    for offset, line in lines:
        if offset == 0 and line:
            line = line.removeprefix(codecs.BOM_UTF8)
        short = line if line is not None and len(line) <= _MAX_ELEMENT_BYTES else b""
        if element := _ELEMENT.match(short):
            if opened:
                yield BadDocument(begin, _title_of(opened), "no </doc>")
            opened, body, size, begin = element, [], 0, offset
        if opened is None or begin == offset:
            if offset >= stop:
                return
        elif line is not None and line.rstrip() == b"</doc>":
            yield _element_document(opened, body, begin)
            opened = None
        else:
            size += text_lines.MAX_LINE_BYTES if line is None else len(line)
            body.append(line or b"")
            if size >= text_lines.MAX_LINE_BYTES:
                yield BadDocument(begin, _title_of(opened), "longer than 64 MiB")
                opened = None
    if opened:
        reason = "cut off: the file ends before </doc>"
        yield BadDocument(begin, _title_of(opened), reason)


# No title is longer, and a hostile line would cost its length squared.
_MAX_ELEMENT_BYTES = 4096
# Some versions put a revision or a language between these; none escapes quotes.
_ELEMENT = re.compile(
    rb'<doc id="([^"]*)"[^>]*? url="([^"]*)"[^>]*? title="(.*)"[^"]*>\s*$'
)


def _title_of(element: re.Match[bytes]) -> str:
    return html.unescape(element[3].decode(errors="replace"))


def _element_document(
    element: re.Match[bytes], body: list[bytes], begin: int
) -> Document | BadDocument:
    title = _title_of(element)
    try:
        text = b"\n".join(body).decode()
        page_id, url = element[1].decode(), element[2].decode()
        title = html.unescape(element[3].decode())
    except UnicodeDecodeError:
        return BadDocument(begin, title, "bytes that are not UTF-8")
    return _document(page_id, url, title, text, begin)


def parse_line(line: bytes, offset: int) -> Document | BadDocument:
    """Reads one line of JSON with `id`, `url`, `title` and `text`."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadDocument(offset, "", f"not JSON: {error}")
    if not isinstance(values, dict):
        return BadDocument(offset, "", "not an object")
    found = [values.get(name) for name in ("id", "url", "title", "text")]
    texts = [value for value in found if isinstance(value, str)]
    if len(texts) < len(found):
        reason = "no 'id', 'url', 'title' and 'text' that are all strings"
        return BadDocument(offset, "", reason)
    page_id, url, title, text = texts
    return _document(page_id, url, html.unescape(title), text, offset)


def _document(
    page_id: str, url: str, title: str, text: str, offset: int
) -> Document | BadDocument:
    reason = text_lines.problem_of(page_id + title + text)
    if reason:
        shown = title.encode(errors="replace").decode()
        return BadDocument(offset, shown, reason)
    document_id = f"{dump_head.wiki_of(url)}:{page_id}:{title}"
    kept, num_fragments = paragraphs(html.unescape(text), title)
    return Document(document_id, title, kept, num_fragments)


_SENTENCE_END = re.compile(r"[.!?…。！？؟۔।][\"'”’»)\]」』）]*$")
_DROPPED_TAG = re.compile(
    r"<ref\b[^<>]*(?:/>|>[^<>]*</ref>)|__[A-Z]{4,}__"
    r"|</?(?:ref|section|onlyinclude|noinclude|includeonly|templatestyles|poem|nowiki"
    r"|span|div|small|big|sub|sup|center|font|blockquote|references|[ibup])\b[^<>]*>"
)
_LINE_BREAK = re.compile(r"</?br\b[^<>]*>")
_EMPTY_BRACKETS = re.compile(r" ?\([\s,;]*\)|(?<=\()[,;] ")
# Marks after a dropped template.
_LOOSE_MARK = re.compile(r" +([.,;:])(?= |$)")
# Marks that some versions put before items and headings.
_NO_PROSE = ("BULLET::::", "Section::::", "<", "* ", "- ", "# ")


def paragraphs(text: str, title: str) -> tuple[list[str], int]:
    """The running text of an article, in which each line is a paragraph.

    Args:
        text: with its entities resolved.
        title: dropped if it is the first line.

    Returns:
        The paragraphs, and the number of lines dropped because they are no running
        text.
    """
    lines = [_tidy(line) for line in text.split("\n")]
    lines = [line for line in lines if line]
    if lines and lines[0] == " ".join(title.split()):
        del lines[0]
    kept = [line for line in lines if not _is_fragment(line)]
    return kept, len(lines) - len(kept)


def _tidy(line: str) -> str:
    if "<" in line or "__" in line:
        line = _DROPPED_TAG.sub("", _LINE_BREAK.sub(" ", line))
    if "(" in line:
        line = _EMPTY_BRACKETS.sub("", line)
    return _LOOSE_MARK.sub(r"\1", " ".join(line.split()))


def _is_fragment(line: str) -> bool:
    if line.startswith(_NO_PROSE):
        return True
    if len(line) >= 60:
        return False
    # Headings end with a full stop here: "Early life and education."
    is_heading = line.endswith(".") and " " in line and line.count(" ") < 4
    return not _SENTENCE_END.search(line) or is_heading or bool(_ONE_WORD.match(line))


_ONE_WORD = re.compile(r"\S*[.!]$")
