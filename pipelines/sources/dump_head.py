"""The head of a MediaWiki export: its root and its wiki."""

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO
from xml.etree import ElementTree

from bert_keras.core import first_bytes
from bert_keras.core.errors import InputError
from bert_keras.pipelines.sources import multistream

_MAX_HEAD_BYTES = 1 << 22

# Names of the namespaces, for a dump that does not list them.
_SUBJECTS = {"user": 2, "wikipedia": 4, "project": 4, "file": 6, "image": 6}
_SUBJECTS |= {"mediawiki": 8, "template": 10, "help": 12, "category": 14, "portal": 100}
_DEFAULT_NAMESPACES = {"media": -2, "special": -1, "talk": 1} | _SUBJECTS
_DEFAULT_NAMESPACES |= {f"{name} talk": n + 1 for name, n in _SUBJECTS.items()}


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
    _check_encoding(head, path)
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
        if (number := number_of(item.get("key"))) is not None
    }
    wiki = info.findtext("dbname") or wiki_of(info.findtext("base") or "")
    return Head(wiki=wiki, namespaces=namespaces or _DEFAULT_NAMESPACES, root=root)


_ELEMENT = re.compile(rb"<([A-Za-z_][\w.:-]*)([\s/>])?")


def _root_element(text: bytes) -> tuple[bytes | None, int]:
    """Returns the name of the first element, and its offset.

    The name is empty if there can be none, `None` if the text ends too early. A comment
    before the root may contain anything, even a page.
    """
    prolog = _PROLOG.match(text)
    position = prolog.end() if prolog else 0
    if text.startswith((b"<?", b"<!"), position):
        return None, 0
    if element := _ELEMENT.match(text, position):
        return (element[1] if element[2] else None), position
    return (None if text[position : position + 2] in (b"", b"<") else b""), position


# A byte-order mark, then white space, comments, a document type with or without
# declarations in it, instructions.
_PROLOG = re.compile(
    rb"(?:\xef\xbb\xbf)?(?:\s++|<!--.*?-->|<!(?!--)[^\[>]*+(?:\[.*?\]\s*)?>|<\?.*?>)*",
    re.DOTALL,
)


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


def number_of(text: str | None) -> int | None:
    """Returns the integer of up to 18 digits that a text consists of; else `None`."""
    return int(text) if text and _NUMBER.fullmatch(text) else None


_NUMBER = re.compile(r"\s*-?[0-9]{1,18}\s*")


def wiki_of(url: str) -> str:
    """Returns `enwiki` for a page of en.wikipedia.org; `wiki` for an unknown host."""
    host = (_HOST.match(url) or ["", ""])[1].lower().split(".")
    if len(host) == 3 and host[1].startswith("wik"):
        family = "wiki" if host[1] == "wikipedia" else host[1]
        return host[0].replace("-", "_") + family
    return "wiki"


_HOST = re.compile(r"https?://([\w.-]+)")


# In this order: the mark of UTF-32 begins with that of UTF-16.
_ENCODINGS = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32"}
_ENCODINGS |= {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
_ENCODINGS |= {b"<\0": "UTF-16LE", b"\0<": "UTF-16BE"}
_DECLARED = re.compile(rb"\s*<\?xml[^>]*?encoding\s*=\s*[\"']([\w.:-]+)")
_OF_UTF8 = (b"utf-8", b"utf8", b"ascii", b"us-ascii")


def _check_encoding(start: bytes, path: str) -> None:
    declared = _DECLARED.match(start.removeprefix(codecs.BOM_UTF8))
    names = (name for mark, name in _ENCODINGS.items() if start.startswith(mark))
    name = next(names, None)
    if name is None and declared and declared[1].lower() not in _OF_UTF8:
        name = declared[1].decode()
    if name is not None:
        raise InputError(
            f"{path}: line 1: expected a dump in UTF-8, but this one is in {name}: "
            f"convert it with `iconv -f {name} -t UTF-8`, and correct the encoding "
            "that its first line declares"
        )
