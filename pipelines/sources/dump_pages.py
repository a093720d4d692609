"""MediaWiki export XML -> pages, one at a time, in bounded memory, from any byte on.

Reads versions 0.3 to 0.11, of any compression that `multistream` reads, in UTF-8.
The XML is not parsed as a whole, but cut into `<page>...</page>`, each parsed by
itself, so that a bad page costs only that page and a dump without an end can still be
read.
"""

import html
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO
from xml.etree import ElementTree

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.pipelines.sources import dump_head, multistream, page_cutter

_SEARCHED_END_BYTES = 1 << 16
_REDIRECT = re.compile(
    r"\s*#\s*(?:redirect|redirection|weiterleitung|doorverwijzing|redirección"
    r"|rinvia|redirecionamento|patrz|przekieruj|tam|omdirigering|пренасочване|виж"
    r"|перенаправление|перенапр|перенаправлення|تحويل|転送|リダイレクト|重定向|넘겨주기)"
    r"\s*:?\s*\[\[",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Page:
    """The newest revision of one page."""

    wiki: str
    """`enwiki` for English Wikipedia; `wiki` if the dump does not say."""
    page_id: int
    title: str
    namespace: int
    """0 for articles."""
    timestamp: str
    """Time of the revision, ISO 8601; empty if the dump does not say."""
    is_redirect: bool
    model: str
    """`wikitext` unless the page is CSS, JavaScript, JSON, Lua, ..."""
    text: str

    @property
    def reason_to_drop(self) -> str | None:
        """Returns why a page is no article; `None`: it is one."""
        if self.namespace != 0:
            return "other namespace"
        if self.is_redirect:
            return "redirect"
        return None if self.model == "wikitext" else "not wikitext"


@dataclass(frozen=True, kw_only=True)
class BadPage:
    page_id: int | None
    title: str | None
    reason: str


def read_pages(
    path: str,
    *,
    start: int = 0,
    stop: int | None = None,
    allow_cut: bool = False,
    advance: Callable[[int], object] = lambda _: None,
) -> Iterator[Page | BadPage]:
    """Reads the pages of a dump, of any compression, that begin in a range of the file.

    `start` and `stop` (`None`: the end) are in bytes of the file, that is, compressed.
    Adjacent ranges hold each page once. `advance` is called with the number of bytes of
    the range just consumed. Unless `allow_cut`, a dump whose end `check_dump` cannot
    see must end with `</mediawiki>`.
    """
    stop = files.size(path) if stop is None else stop
    with files.open_to_read(path) as file:
        head = dump_head.read_head(file, path)
        file.seek(start)
        progress = multistream.Progress(file, start, stop, advance)
        end = _End()
        for xml, problem in _cut_pages(file, path, head, start, stop, end):
            yield _bad_page(xml, problem) if problem else parse_page(xml, head)
            progress.update()
        progress.finish()
        # `check_dump` has looked at the short texts of last streams.
        is_long = start == 0 or len(end.text) == _SEARCHED_END_BYTES
        if end.is_reached and is_long and not allow_cut:
            _check_end(end.text, path)


@dataclass
class _End:
    """The last text of a compressed dump that was read."""

    text: bytes = b""
    is_reached: bool = False
    """Whether nothing follows it in the file."""

    def add(self, chunk: bytes) -> None:
        self.text = (self.text + chunk)[-_SEARCHED_END_BYTES:]


def check_dump(path: str, *, allow_cut: bool = False) -> None:
    """Finds early what would stop the job, such as a missing `</mediawiki>`."""
    with files.open_to_read(path) as file:
        dump_head.read_head(file, path)
        kind = multistream.compression(file)
        if kind == "bz2":
            multistream.check_end(file, path)
        if allow_cut:
            return
        if kind is None:
            size = file.seek(0, 2)
            file.seek(max(size - _SEARCHED_END_BYTES, 0))
            _check_end(file.read(), path)
        elif kind == "bz2" and (text := multistream.read_last(file, path)):
            _check_end(text[-_SEARCHED_END_BYTES:], path)
        # The end of one long stream is known when it has been read.


def _check_end(text: bytes, path: str) -> None:
    if b"</mediawiki>" not in text:
        raise InputError(
            f"{path}: the dump has no </mediawiki> at its end, so it was cut off: copy "
            "or download it again; to read an excerpt as it is, give --allow_cut_dumps"
        )


def is_splittable(path: str) -> bool:
    """Whether several workers can share a dump: plain or many bzip2 streams."""
    with files.open_to_read(path) as file:
        kind = multistream.compression(file)
        return kind is None or (kind == "bz2" and multistream.has_streams(file))


def parse_page(xml: bytes, head: dump_head.Head) -> Page | BadPage:
    try:
        page = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        if b"\0" in xml or xml.decode(errors="ignore").encode() != xml:
            return _bad_page(xml, "bytes that are not in the file's encoding")
        return _bad_page(xml, f"not well-formed XML: {error}")
    title, page_id = page.findtext("title"), dump_head.number_of(page.findtext("id"))
    revisions = page.findall("revision")
    if not title or page_id is None or not revisions:
        return _bad_page(xml, "no title, id or revision")
    revision = max(revisions, key=lambda item: item.findtext("timestamp") or "")
    element = revision.find("text")
    if element is not None and len(element):
        return _bad_page(xml, f"unescaped <{element[0].tag}> in <text>")
    text = revision.findtext("text") or ""
    namespace = dump_head.number_of(page.findtext("ns"))
    if namespace is None:
        prefix, colon, _ = title.partition(":")
        namespace = head.namespaces.get(prefix.strip().lower(), 0) if colon else 0
    return Page(
        wiki=head.wiki,
        page_id=page_id,
        title=title,
        namespace=namespace,
        timestamp=revision.findtext("timestamp") or "",
        is_redirect=page.find("redirect") is not None or bool(_REDIRECT.match(text)),
        model=revision.findtext("model") or "wikitext",
        text=text,
    )


def _bad_page(xml: bytes, reason: str) -> BadPage:
    start = xml[:4096].decode(errors="replace")
    title = re.search(r"<title>([^<]*)</title>", start)
    page_id = re.search(r"<id>\s*(\d{1,18})\s*</id>", start)
    return BadPage(
        page_id=int(page_id[1]) if page_id else None,
        title=html.unescape(title[1]) if title else None,
        reason=reason,
    )


# From a range of bytes to `<page>...</page>`.


def _cut_pages(
    file: BinaryIO,
    path: str,
    head: dump_head.Head,
    start: int,
    stop: int,
    end: _End,
) -> Iterator[page_cutter.Cut]:
    kind = multistream.compression(file)
    if kind == "bz2":
        yield from _cut_streams(file, path, head, start, stop, end)
        return
    cutter = page_cutter.PageCutter(skip=head.root)
    chunks = multistream.read_all(file, path)
    if kind is None:
        # The position of a page is its own.
        cutter = page_cutter.PageCutter(offset=start, skip=head.root, stop=stop)
        file.seek(start)
        chunks = iter(lambda: file.read(multistream.CHUNK_BYTES), b"")
    elif not start <= 0 < stop:
        # Such a file cannot be split: all of it is at position 0.
        return
    for chunk in chunks:
        yield from cutter.feed(chunk)
        if kind is not None:
            end.add(chunk)
        if cutter.is_finished and file.tell() >= stop:
            return
    end.is_reached = kind is not None
    yield from cutter.cut_off(_DUMP_ENDS)


def _cut_streams(
    file: BinaryIO,
    path: str,
    head: dump_head.Head,
    start: int,
    stop: int,
    end: _End,
) -> Iterator[page_cutter.Cut]:
    """Cuts a bzip2 file, in which the position of a page is that of its stream.

    A stream that begins after the range is read only to finish a page, or a tag, that
    the stream before it left open.
    """
    cutter = page_cutter.PageCutter()
    for event in multistream.read_streams(file, path, start, stop):
        if isinstance(event, bytes):
            yield from cutter.feed(event)
            end.add(event)
        elif event == 0:
            cutter.skip = head.root
        elif cutter.stop is None and event >= stop:
            cutter.stop = cutter.offset
        if cutter.is_finished:
            return
    end.is_reached = bool(end.text)
    yield from cutter.cut_off(_DUMP_ENDS)


_DUMP_ENDS = "cut off: the dump ends before </page>"
