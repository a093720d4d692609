"""MediaWiki export XML -> pages, one at a time, in bounded memory.

Reads versions 0.3 to 0.11, plain, bzip2 (one stream or many) or gzip, in any encoding
that a byte-order mark or the XML declaration names. The XML is never parsed as a
whole: it is cut into `<page>...</page>` strings and each is parsed by itself, so that
a bad page costs that page and a dump without an end is still read.
"""

import bz2
import codecs
import gzip
import html
import itertools
import re
import urllib.parse
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO
from xml.etree import ElementTree

from bert_keras.errors import InputError

_CHUNK_BYTES = 1 << 18
_MAX_HEAD_CHARS = 1 << 22
_MAX_PAGE_CHARS = 1 << 26
_BZ2_END_OF_STREAM = 0x177245385090

# What the namespaces are called where a dump does not say.
_DEFAULT_NAMESPACES = {
    "media": -2,
    "special": -1,
    "talk": 1,
    "user": 2,
    "user talk": 3,
    "wikipedia": 4,
    "wikipedia talk": 5,
    "project": 4,
    "project talk": 5,
    "file": 6,
    "file talk": 7,
    "image": 6,
    "image talk": 7,
    "mediawiki": 8,
    "mediawiki talk": 9,
    "template": 10,
    "template talk": 11,
    "help": 12,
    "help talk": 13,
    "category": 14,
    "category talk": 15,
    "portal": 100,
    "portal talk": 101,
}

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
    """`enwiki` for English Wikipedia; `wiki` where the dump does not say."""
    page_id: int
    title: str
    namespace: int
    """0 for articles."""
    timestamp: str
    """Of the revision, ISO 8601; empty where the dump does not say."""
    is_redirect: bool
    model: str
    """`wikitext` unless the page is CSS, JavaScript, JSON, Lua, ..."""
    text: str


@dataclass(frozen=True, kw_only=True)
class BadPage:
    """A page that cannot be read."""

    page_id: int | None
    title: str | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Site:
    """What the head of a dump says about its wiki."""

    wiki: str
    namespaces: Mapping[str, int]
    """Namespace number by lower-case name."""


def read_pages(
    path: str, *, advance: Callable[[int], object] = lambda _: None
) -> Iterator[Page | BadPage]:
    """Reads a dump from its first page to its last.

    Args:
        path: a `.xml`, `.xml.bz2` or `.xml.gz` file (told apart by content).
        advance: called with the number of bytes of the file just consumed.

    Raises:
        InputError: not a MediaWiki export, or a damaged or truncated compressed file.
    """
    with open(path, "rb") as file:
        chunks = _decoded(_decompressed(file, path, advance), path)
        head, chunks = _read_head(chunks, path)
        site = _parse_site(head)
        for xml, problem in _cut_pages(chunks):
            yield _bad_page(xml, problem) if problem else parse_page(xml, site)


def check_dump(path: str) -> None:
    """Finds in an instant what would otherwise stop the job later.

    Raises:
        InputError: the file is empty, not a MediaWiki export, or a bzip2 file whose
            end is missing.
    """
    with open(path, "rb") as file:
        chunks = _decoded(_decompressed(file, path, lambda _: None), path)
        _read_head(chunks, path)
    _check_bz2_end(path)


def parse_page(xml: str, site: Site) -> Page | BadPage:
    """Parses one `<page>...</page>` string."""
    if "\0" in xml:
        return _bad_page(xml, "bytes that are not in the file's encoding")
    try:
        page = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        return _bad_page(xml, f"not well-formed XML: {error}")
    title, page_id = page.findtext("title"), page.findtext("id")
    revisions = page.findall("revision")
    if not title or not (page_id or "").strip().isdecimal() or not revisions:
        return _bad_page(xml, "no title, id or revision")
    revision = max(revisions, key=lambda item: item.findtext("timestamp") or "")
    text = revision.findtext("text") or ""
    namespace = page.findtext("ns")
    return Page(
        wiki=site.wiki,
        page_id=int(page_id),
        title=title,
        namespace=_namespace(title, site) if namespace is None else int(namespace),
        timestamp=revision.findtext("timestamp") or "",
        is_redirect=page.find("redirect") is not None or bool(_REDIRECT.match(text)),
        model=revision.findtext("model") or "wikitext",
        text=text,
    )


def _namespace(title: str, site: Site) -> int:
    prefix, colon, _ = title.partition(":")
    return site.namespaces.get(prefix.strip().lower(), 0) if colon else 0


def _bad_page(xml: str, reason: str) -> BadPage:
    title = re.search(r"<title>([^<]*)</title>", xml)
    page_id = re.search(r"<id>\s*(\d{1,18})\s*</id>", xml)
    return BadPage(
        page_id=int(page_id[1]) if page_id else None,
        title=html.unescape(title[1]) if title else None,
        reason=reason,
    )


# From bytes on disk to text.


def _decompressed(
    file: BinaryIO, path: str, advance: Callable[[int], object]
) -> Iterator[bytes]:
    magic = file.read(3)
    file.seek(0)
    try:
        consumed = 0
        for chunk in _chunks(file, magic):
            yield chunk
            advance(file.tell() - consumed)
            consumed = file.tell()
    except EOFError:
        raise InputError(
            f"{path}: the compressed file ends in the middle (truncated); copy or "
            "download it again"
        ) from None
    except (OSError, zlib.error) as error:
        raise InputError(
            f"{path}: the compressed file is damaged ({error}); copy or download it "
            "again"
        ) from None


def _chunks(file: BinaryIO, magic: bytes) -> Iterator[bytes]:
    if magic == b"BZh":
        return _bz2_chunks(file)
    stream = gzip.GzipFile(fileobj=file) if magic[:2] == b"\x1f\x8b" else file
    return iter(lambda: stream.read(_CHUNK_BYTES), b"")


def _bz2_chunks(file: BinaryIO) -> Iterator[bytes]:
    # Not bz2.BZ2File: that takes damage at the start of a later stream for the end of
    # the file, and the rest of a multistream dump would be missing without a word.
    decompressor = bz2.BZ2Decompressor()
    data = file.read(_CHUNK_BYTES)
    while True:
        chunk = decompressor.decompress(data, _CHUNK_BYTES)
        data = b""
        if chunk:
            yield chunk
        if decompressor.eof:
            data = decompressor.unused_data or file.read(_CHUNK_BYTES)
            if not data.strip(b"\0"):
                return
            decompressor = bz2.BZ2Decompressor()
        elif decompressor.needs_input:
            data = file.read(_CHUNK_BYTES)
            if not data:
                raise EOFError


def _check_bz2_end(path: str) -> None:
    with open(path, "rb") as file:
        if file.read(3) != b"BZh":
            return
        size = file.seek(0, 2)
        file.seek(max(size - 4096, 0))
        tail = file.read().rstrip(b"\0")[-24:] + bytes(8)
    # The last stream ends with 48 bits of magic and 32 of checksum, on any bit.
    bits = int.from_bytes(tail, "big")
    mask = (1 << 48) - 1
    if not any(
        (bits >> shift) & mask == _BZ2_END_OF_STREAM for shift in range(len(tail) * 8)
    ):
        raise InputError(
            f"{path}: the bzip2 file has no end (truncated); copy or download it again"
        )


def _mark_undecodable(error: UnicodeError) -> tuple[str, int]:
    # NUL cannot occur in XML, so it shows which page the bad bytes are in.
    return "\0", error.end if isinstance(error, UnicodeDecodeError) else 0


codecs.register_error("bert_keras.mark", _mark_undecodable)


def _decoded(chunks: Iterator[bytes], path: str) -> Iterator[str]:
    first = next(chunks, b"")
    name = _encoding_name(first)
    try:
        decoder = codecs.getincrementaldecoder(name)("bert_keras.mark")
    except LookupError:
        raise InputError(f"{path}: unknown encoding {name!r} in the XML") from None
    for chunk in itertools.chain([first], chunks):
        yield decoder.decode(chunk)
    yield decoder.decode(b"", final=True)


def _encoding_name(start: bytes) -> str:
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF32_LE, "utf-32"),
        (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
        (b"<\0", "utf-16-le"),
        (b"\0<", "utf-16-be"),
    ):
        if start.startswith(mark):
            return name
    declared = re.match(rb"\s*<\?xml[^>]*?encoding\s*=\s*[\"']([\w.:-]+)", start)
    return declared[1].decode() if declared else "utf-8"


# From text to pages.


def _read_head(chunks: Iterator[str], path: str) -> tuple[str, Iterator[str]]:
    """Returns the dump's head (root and site information), and all from the root on."""
    head = ""
    root = None
    for chunk in chunks:
        head += chunk
        if root is None:
            # A comment before the root may hold anything, even a page.
            root, start = _root_element(head)
            head = head[start:]
        if root is not None and root != "mediawiki":
            break
        is_whole = root and re.search("</siteinfo>|<page>|</mediawiki>", head)
        if is_whole or len(head) > _MAX_HEAD_CHARS:
            break
    if root != "mediawiki":
        raise _not_a_dump(head, root, path)
    return head, itertools.chain([head], chunks)


_ELEMENT = re.compile(r"<([A-Za-z_][\w.:-]*)([\s/>])?")


def _root_element(text: str) -> tuple[str | None, int]:
    """The name of the first element, and where it begins.

    The name is `""` if there can be none, None if the text does not reach that far.
    """
    position = 0
    while True:
        while text[position : position + 1].isspace():
            position += 1
        rest = text[position : position + 4]
        if rest.startswith(("<?", "<!")):
            close = "-->" if rest == "<!--" else ">"
            end = text.find(close, position + 2)
            if end < 0:
                return None, 0
            position = end + len(close)
        elif element := _ELEMENT.match(text, position):
            return (element[1] if element[2] else None), position
        else:
            return (None if rest in ("", "<") else ""), position


def _not_a_dump(head: str, root: str | None, path: str) -> InputError:
    expected = "expected a MediaWiki export (XML with the root <mediawiki>)"
    if not head.strip():
        return InputError(f"{path}: {expected}, but the file is empty")
    if root:
        what = (
            "an HTML page" if root.lower() == "html" else f"XML with the root <{root}>"
        )
        return InputError(f"{path}: {expected}, but this is {what}")
    if re.match(r"\s*<!doctype html", head, re.IGNORECASE):
        return InputError(f"{path}: {expected}, but this is an HTML page")
    return InputError(
        f"{path}: {expected}, but this is not XML; it begins with {head[:24]!r}"
    )


def _parse_site(head: str) -> Site:
    match = re.search(r"<siteinfo>.*?</siteinfo>", head, re.DOTALL)
    try:
        info = ElementTree.fromstring(match[0] if match else "<siteinfo/>")
    except ElementTree.ParseError:
        info = ElementTree.Element("siteinfo")
    namespaces = {
        (item.text or "").lower(): int(item.get("key", "0"))
        for item in info.iter("namespace")
    }
    wiki = info.findtext("dbname") or _wiki_of_host(info.findtext("base") or "")
    return Site(wiki=wiki, namespaces=namespaces or _DEFAULT_NAMESPACES)


def _wiki_of_host(base: str) -> str:
    host = (urllib.parse.urlsplit(base).hostname or "").split(".")
    if len(host) == 3 and host[1].startswith("wik"):
        family = "wiki" if host[1] == "wikipedia" else host[1]
        return host[0].replace("-", "_") + family
    return "wiki"


def _cut_pages(chunks: Iterator[str]) -> Iterator[tuple[str, str | None]]:
    """Cuts out `<page>...</page>`.

    Yields:
        (whole page, None), or (what there is of a page, what is wrong with it).
    """
    boundary = re.compile("</?page>")
    overlap = len("</page>") - 1
    buffer, opened, scanned = "", None, 0
    for chunk in chunks:
        # A tag may lie across two chunks.
        position = max(len(buffer) - overlap, scanned)
        buffer += chunk
        for tag in boundary.finditer(buffer, position):
            scanned = tag.end()
            if opened is not None:
                whole = tag[0] == "</page>"
                end = scanned if whole else tag.start()
                yield buffer[opened:end], None if whole else "no </page>"
            opened = tag.start() if tag[0] == "<page>" else None
        if opened is not None and len(buffer) - opened > _MAX_PAGE_CHARS:
            yield buffer[opened : opened + 4096], "longer than 64 million characters"
            opened = None
        keep = max(len(buffer) - overlap, scanned) if opened is None else opened
        buffer, scanned = buffer[keep:], scanned - keep
        opened = None if opened is None else 0
    if opened is not None:
        yield buffer, "cut off: the dump ends before </page>"
