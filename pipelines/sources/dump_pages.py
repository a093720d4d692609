"""MediaWiki export XML -> pages, one at a time, in bounded memory, from any byte on.

Reads versions 0.3 to 0.11, of any compression that `multistream` reads, in UTF-8.
The XML is not parsed as a whole, but cut into `<page>...</page>`, each parsed by
itself, so that a bad page costs only that page and a dump without an end can still be
read.
"""

import codecs
import html
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO
from xml.etree import ElementTree

from bert_keras.core import files, first_bytes
from bert_keras.core.errors import InputError
from bert_keras.pipelines.sources import multistream, source

_SEARCHED_END_BYTES = 1 << 16
_MAX_PAGE_BYTES = 1 << 26
_MAX_HEAD_BYTES = 1 << 22
_OPEN, _CLOSE = b"<page>", b"</page>"
_TAG = re.compile(b"</?page>")

Cut = tuple[bytes, str | None]
"""A whole page and `None`, or a part of a page and its problem."""

# `#REDIRECT` in the languages of many wikis: old dumps do not mark it by <redirect/>.
_REDIRECT = re.compile(
    r"\s*#\s*(?:redirect|redirection|weiterleitung|doorverwijzing|redirección"
    r"|rinvia|redirecionamento|patrz|przekieruj|tam|omdirigering|пренасочване|виж"
    r"|перенаправление|перенапр|перенаправлення|تحويل|転送|リダイレクト|重定向|넘겨주기)"
    r"\s*:?\s*\[\[",
    re.IGNORECASE,
)

# Names of the namespaces, for a dump that does not list them.
_SUBJECTS = {"user": 2, "wikipedia": 4, "project": 4, "file": 6, "image": 6}
_SUBJECTS |= {"mediawiki": 8, "template": 10, "help": 12, "category": 14, "portal": 100}
_DEFAULT_NAMESPACES = {"media": -2, "special": -1, "talk": 1} | _SUBJECTS
_DEFAULT_NAMESPACES |= {f"{name} talk": n + 1 for name, n in _SUBJECTS.items()}

# In this order: the mark of UTF-32 begins with that of UTF-16.
_ENCODINGS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32"}
_ENCODINGS |= {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
_ENCODINGS |= {b"<\0": "UTF-16LE", b"\0<": "UTF-16BE"}
_DECLARED = re.compile(rb"\s*<\?xml[^>]*?encoding\s*=\s*[\"']([\w.:-]+)")
_OF_UTF8 = (b"utf-8", b"utf8", b"ascii", b"us-ascii")
_HOST = re.compile(r"https?://([\w.-]+)")
_NUMBER = re.compile(r"\s*-?[0-9]{1,18}\s*")
_ELEMENT = re.compile(rb"<([A-Za-z_][\w.:-]*)([\s/>])?")
# A byte-order mark, then white space, comments, a document type with or without
# declarations in it, instructions.
_PROLOG = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:\s++|<!--.*?-->|<!(?!--)[^\[>]*+(?:\[.*?\]\s*)?>|<\?.*?>)*",
    re.DOTALL,
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


def read_pages(
    path: str,
    *,
    start: int = 0,
    stop: int | None = None,
    allow_cut: bool = False,
    reach: Callable[[int], object] = lambda _: None,
) -> Iterator[Page | source.Reject]:
    """Reads the pages of a dump, of any compression, that begin in a range of the file.

    `start` and `stop` (`None`: the end) are in bytes of the file, that is, compressed.
    Adjacent ranges hold each page once. `reach` is called with the place of the file at
    each page. Unless `allow_cut`, a dump whose end `check_dump` cannot see must end
    with `</mediawiki>`.
    """
    stop = files.size(path) if stop is None else stop
    with files.open_to_read(path) as file:
        head = read_head(file, path)
        for xml, problem in _cut_pages(file, path, head, start, stop, allow_cut):
            page = problem or parse_page(xml, head)
            if isinstance(page, str):
                begun = xml[:4096].decode(errors="replace")
                title = re.search(r"<title>([^<]*)</title>", begun)
                page_id = re.search(r"<id>\s*(\d{1,18})\s*</id>", begun)
                page = source.Reject(
                    file=path,
                    item=str(int(page_id[1])) if page_id else "",
                    title=html.unescape(title[1]) if title else "",
                    reason=page,
                )
            yield page
            reach(file.tell())


def check_dump(path: str, *, allow_cut: bool = False) -> None:
    """Finds early what would stop the job, such as a missing `</mediawiki>`."""
    with files.open_to_read(path) as file:
        read_head(file, path)
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


@dataclass(frozen=True, kw_only=True)
class Head:
    """The facts that reading a dump from any place requires."""

    wiki: str
    namespaces: Mapping[str, int]
    """Namespace number by lower-case name."""
    root: int
    """Offset of <mediawiki>, in bytes of the text."""


def read_head(file: BinaryIO, path: str) -> Head:
    head, name, root = b"", None, 0
    for chunk in multistream.read_all(file, path):
        head += chunk
        if name is None:
            name, root = _root_element(head)
        is_other = name is not None and name != b"mediawiki"
        is_whole = name and re.search(rb"</siteinfo>|<page\b|</mediawiki>", head[root:])
        if is_other or is_whole or len(head) > _MAX_HEAD_BYTES:
            break
    # Another encoding than UTF-8, by the first bytes or by the declaration.
    declared = _DECLARED.match(head.removeprefix(codecs.BOM_UTF8))
    marks = (code for mark, code in _ENCODINGS.items() if head.startswith(mark))
    encoding = next(marks, None)
    if encoding is None and declared and declared[1].lower() not in _OF_UTF8:
        encoding = declared[1].decode()
    if encoding is not None:
        raise InputError(
            f"{path}: line 1: expected a dump in UTF-8, but this one is in {encoding}: "
            f"convert it with `iconv -f {encoding} -t UTF-8`, and correct the encoding "
            "that its first line declares"
        )
    if name != b"mediawiki":
        raise _not_a_dump(head, name, path)
    # Pages are cut out by their exact tags.
    if tag := re.search(rb"<page[\s/][^>]*>", head[root:]):
        raise InputError(
            f"{path}: expected pages that begin with <page>, but this dump has "
            f"{tag[0].decode(errors='replace')!r}: rewrite it with `xmllint --c14n`"
        )
    # A dump may lack <siteinfo>, or end within it.
    site = re.search(b"<siteinfo>.*?</siteinfo>", head[root:], re.DOTALL)
    try:
        info = ElementTree.fromstring(site[0] if site else b"<siteinfo/>")
    except ElementTree.ParseError:
        info = ElementTree.Element("siteinfo")
    namespaces = {
        (item.text or "").lower(): number
        for item in info.iter("namespace")
        if (number := _number_of(item.get("key"))) is not None
    }
    wiki = info.findtext("dbname") or wiki_of(info.findtext("base") or "")
    return Head(wiki=wiki, namespaces=namespaces or _DEFAULT_NAMESPACES, root=root)


def _root_element(text: bytes) -> tuple[bytes | None, int]:
    """Returns the name of the first element, and its offset. The name is empty if there
    can be none, `None` if the text ends too early. A comment before the root may
    contain anything, even a page."""
    prolog = _PROLOG.match(text)
    position = prolog.end() if prolog else 0
    if text.startswith((b"<?", b"<!"), position):
        return None, 0
    if element := _ELEMENT.match(text, position):
        return (element[1] if element[2] else None), position
    return (None if text[position : position + 2] in (b"", b"<") else b""), position


def _not_a_dump(head: bytes, root: bytes | None, path: str) -> InputError:
    text = head[:4096].decode("utf-8-sig", errors="replace")
    form = first_bytes.recognize(head)
    if not text.strip():
        is_long = len(head) > _MAX_HEAD_BYTES
        actual = "it begins with 4 MiB of blanks" if is_long else "the file is empty"
    elif form is not None and form.name != "XML":
        actual = f"this is {form.name}: {form.remedy}"
    elif root:
        actual = f"this is XML with the root <{root.decode()}>"
    else:
        actual = f"this is not XML; it begins with {text[:24]!r}"
    return InputError(
        f"{path}: expected a MediaWiki export (XML with the root <mediawiki>), but "
        f"{actual}"
    )


def _number_of(text: str | None) -> int | None:
    """Returns the integer of up to 18 digits that a text consists of; else `None`."""
    return int(text) if text and _NUMBER.fullmatch(text) else None


def wiki_of(url: str) -> str:
    """Returns `enwiki` for a page of en.wikipedia.org; `wiki` for an unknown host."""
    host = (_HOST.match(url) or ["", ""])[1].lower().split(".")
    if len(host) == 3 and host[1].startswith("wik"):
        family = "wiki" if host[1] == "wikipedia" else host[1]
        return host[0].replace("-", "_") + family
    return "wiki"


def parse_page(xml: bytes, head: Head) -> Page | str:
    """Returns a page, or why it cannot be read."""
    try:
        # Cut out of <mediawiki xmlns=...>, the tags of a page have no namespace here.
        page = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        if b"\0" in xml or xml.decode(errors="ignore").encode() != xml:
            return "bytes that are not in the file's encoding"
        return f"not well-formed XML: {error}"
    title, page_id = page.findtext("title"), _number_of(page.findtext("id"))
    revisions = page.findall("revision")
    if not title or page_id is None or not revisions:
        return "no title, id or revision"
    revision = max(revisions, key=lambda item: item.findtext("timestamp") or "")
    element = revision.find("text")
    if element is not None and len(element):
        return f"unescaped <{element[0].tag}> in <text>"
    text = revision.findtext("text") or ""
    namespace = _number_of(page.findtext("ns"))
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


def _cut_pages(
    file: BinaryIO, path: str, head: Head, start: int, stop: int, allow_cut: bool
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
            # The text is read from its beginning, so the cutter's offsets are those of
            # the root.
            cutter.skip = head.root
        elif cutter.stop is None and event >= stop:
            # This stream is the next range's, and so are the pages that begin in it.
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
        for tag in _TAG.finditer(buffer, position):
            self._scanned = tag.end()
            if tag[0] == _CLOSE:
                if self._opened is not None:
                    yield self._take(self._scanned), None
                continue
            if self._opened is not None:
                yield self._take(tag.start()), "no </page>"
            offset = self._begin + tag.start()
            if self.skip <= offset and (self.stop is None or offset < self.stop):
                self._opened = tag.start()
        if self._opened is not None and len(buffer) - self._opened > _MAX_PAGE_BYTES:
            # Enough for `read_pages` to find the title and id; the rest has no <page>
            # and is skipped.
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
        # A slice of the buffer itself would be a second copy of the page.
        page = bytes(memoryview(self._buffer)[self._opened : end])
        self._opened = None
        return page
