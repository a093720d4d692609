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
from bert_keras.pipelines.sources import dump_head, multistream, source

_SEARCHED_END_BYTES = 1 << 16
_MAX_PAGE_BYTES = 1 << 26
_OPEN, _CLOSE = b"<page>", b"</page>"

Cut = tuple[bytes, str | None]
"""A whole page and `None`, or a part of a page and its problem."""

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


def read_pages(
    path: str,
    *,
    start: int = 0,
    stop: int | None = None,
    allow_cut: bool = False,
    advance: Callable[[int], object] = lambda _: None,
) -> Iterator[Page | source.Reject]:
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
        for xml, problem in _cut_pages(file, path, head, start, stop, allow_cut):
            page = problem or parse_page(xml, head)
            yield _reject(path, xml, page) if isinstance(page, str) else page
            progress.update()
        progress.finish()


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


def parse_page(xml: bytes, head: dump_head.Head) -> Page | str:
    """Returns a page, or why it cannot be read."""
    try:
        page = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        if b"\0" in xml or xml.decode(errors="ignore").encode() != xml:
            return "bytes that are not in the file's encoding"
        return f"not well-formed XML: {error}"
    title, page_id = page.findtext("title"), dump_head.number_of(page.findtext("id"))
    revisions = page.findall("revision")
    if not title or page_id is None or not revisions:
        return "no title, id or revision"
    revision = max(revisions, key=lambda item: item.findtext("timestamp") or "")
    element = revision.find("text")
    if element is not None and len(element):
        return f"unescaped <{element[0].tag}> in <text>"
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


def _reject(path: str, xml: bytes, reason: str) -> source.Reject:
    start = xml[:4096].decode(errors="replace")
    title = re.search(r"<title>([^<]*)</title>", start)
    page_id = re.search(r"<id>\s*(\d{1,18})\s*</id>", start)
    return source.Reject(
        file=path,
        item=str(int(page_id[1])) if page_id else "",
        title=html.unescape(title[1]) if title else "",
        reason=reason,
    )


# From a range of bytes to `<page>...</page>`.


def _cut_pages(
    file: BinaryIO,
    path: str,
    head: dump_head.Head,
    start: int,
    stop: int,
    allow_cut: bool,
) -> Iterator[Cut]:
    """Yields the pages of a range, and parts of pages with their problem.

    The position of a page in a plain file is its own. In a bzip2 file it is that of its
    stream; a stream that begins after the range is read only to finish a page, or a
    tag, that the stream before it left open. Any other compressed file cannot be split:
    all of it is at position 0.
    """
    kind = multistream.compression(file)
    cutter = PageCutter(skip=head.root)
    events: Iterator[int | bytes] = iter(())
    if kind is None:
        cutter = PageCutter(offset=start, skip=head.root, stop=stop)
        file.seek(start)
        events = iter(lambda: file.read(multistream.CHUNK_BYTES), b"")
    elif kind == "bz2":
        cutter.skip = 0
        events = multistream.read_streams(file, path, start, stop)
    elif start <= 0 < stop:
        events = multistream.read_all(file, path)
    last_text = b""
    for event in events:
        if isinstance(event, bytes):
            yield from cutter.feed(event)
            last_text = (last_text + event)[-_SEARCHED_END_BYTES:]
        elif event == 0:
            cutter.skip = head.root
        elif cutter.stop is None and event >= stop:
            cutter.stop = cutter.offset
        if cutter.is_finished and file.tell() >= stop:
            return
    yield from cutter.cut_off("cut off: the dump ends before </page>")
    # The whole file has been read. `check_dump` has looked at the ends of plain files
    # and at the short texts of last streams.
    is_long = start == 0 or len(last_text) == _SEARCHED_END_BYTES
    if kind is not None and last_text and is_long and not allow_cut:
        _check_end(last_text, path)


class PageCutter:
    """Cuts `<page>...</page>` that begin from `skip` to before `stop` out of chunks."""

    def __init__(self, *, offset: int = 0, skip: int = 0, stop: int | None = None):
        self.skip = skip
        self.stop = stop
        self._begin = offset
        self._buffer = bytearray()
        self._opened: int | None = None
        self._scanned = 0

    @property
    def offset(self) -> int:
        return self._begin + len(self._buffer)

    @property
    def is_finished(self) -> bool:
        """Whether no further text can give a page."""
        # Neither a page, nor a tag that may open one, has begun.
        begun = (_OPEN[:length] for length in range(1, len(_OPEN)))
        is_open = self._opened is not None or any(map(self._buffer.endswith, begun))
        return self.stop is not None and not is_open

    def feed(self, chunk: bytes) -> Iterator[Cut]:
        buffer = self._buffer
        # 1. Tags, of which one may lie across two chunks.
        position = max(len(buffer) - len(_CLOSE) + 1, self._scanned)
        buffer += chunk
        while (name := buffer.find(b"page>", position)) >= 0:
            position = self._scanned = name + len(b"page>")
            if buffer.startswith(_OPEN, name - 1) and name > 0:
                if self._opened is not None:
                    yield self._take(name - 1), "no </page>"
                offset = self._begin + name - 1
                if self.skip <= offset and (self.stop is None or offset < self.stop):
                    self._opened = name - 1
            elif buffer.startswith(_CLOSE, name - 2) and name > 1:
                if self._opened is not None:
                    yield self._take(self._scanned), None
        if self._opened is not None and len(buffer) - self._opened > _MAX_PAGE_BYTES:
            yield self._take(self._opened + 4096), "longer than 64 MiB"
        # 2. Only the open page stays in memory, or what may be the start of a tag.
        keep = self._opened
        if keep is None:
            keep = max(len(buffer) - len(_CLOSE) + 1, self._scanned)
        else:
            self._opened = 0
        keep = min(keep, len(buffer))
        del buffer[:keep]
        self._begin += keep
        self._scanned = max(self._scanned - keep, 0)

    def cut_off(self, reason: str) -> Iterator[Cut]:
        """Ends an open page at the end of the text."""
        if self._opened is not None:
            yield self._take(len(self._buffer)), reason

    def _take(self, end: int) -> bytes:
        page = bytes(memoryview(self._buffer)[self._opened : end])
        self._opened = None
        return page
