"""Source files -> documents: one reader for each kind of file. Pure: knows no Beam.

A reader yields a `Record` for each document and a `Reject` for each item that it cannot
read; it counts what it leaves out on purpose.
"""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pipelines import books, sentences, wikipedia, wikitext


class Reject(NamedTuple):
    """An item that could not be read."""

    file: str
    item: str
    """Page id, line number or nothing."""
    title: str
    reason: str


class Record(NamedTuple):
    """A document on its way to its shard."""

    id: str
    rank: str
    """Of documents with the same id, the one with the greatest rank is kept."""
    source: str
    num_sentences: int
    num_words: int
    line: bytes
    """The document as a line of JSON, compressed: a runner may hold all of them."""


Advance = Callable[[int], object]
"""Called with the number of bytes of the file just consumed."""
Count = Callable[[str], object]
"""Called with the name of what is counted."""


def read_wikipedia(
    path: str, advance: Advance, count: Count
) -> Iterator[Record | Reject]:
    """The articles of a dump: namespace 0, no redirects, running text only."""
    for page in wikipedia.read_pages(path, advance=advance):
        count("items_read")
        if isinstance(page, wikipedia.BadPage):
            item = "" if page.page_id is None else str(page.page_id)
            yield Reject(path, item, page.title or "", page.reason)
        elif page.namespace != 0:
            count("dropped/other namespace")
        elif page.is_redirect:
            count("dropped/redirect")
        elif page.model != "wikitext":
            count("dropped/not wikitext")
        elif paragraphs := wikitext.clean(page.text):
            yield make_record(
                f"{page.wiki}:{page.page_id}:{page.title}",
                source="wikipedia",
                title=page.title,
                paragraphs=paragraphs,
                rank=page.timestamp,
            )
        else:
            count("dropped/no running text")


def read_book(path: str, advance: Advance, count: Count) -> Iterator[Record | Reject]:
    """The one document of a plain-text book."""
    data = Path(path).read_bytes()
    advance(len(data))
    count("items_read")
    text, encoding = books.decode(data)
    if "\0" in text:
        yield Reject(path, "", "", "not plain text: it holds NUL characters")
        return
    count(f"encoding/{encoding}")
    name = Path(path).name
    book = books.parse_book(text, name=Path(path).stem)
    if book.paragraphs:
        yield make_record(
            f"{name}:{hashlib.sha256(data).hexdigest()[:12]}",
            source="books",
            title=book.title,
            paragraphs=book.paragraphs,
        )
    else:
        count("dropped/no running text")


def read_jsonl(path: str, advance: Advance, count: Count) -> Iterator[Record | Reject]:
    """The documents of a file of JSON lines."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            advance(len(line))
            if not line.strip():
                continue
            count("items_read")
            try:
                record = parse_line(line)
            except ValueError as error:
                yield Reject(path, f"line {number}", "", str(error))
                continue
            if record is None:
                count("dropped/no running text")
            else:
                yield record


READERS = {
    "wikipedia": read_wikipedia,
    "books": read_book,
    "jsonl": read_jsonl,
}


def parse_line(line: bytes) -> Record | None:
    """Reads one line of JSON; None if its text is blank.

    Raises:
        ValueError: not an object with an `id` (a string or integer) and a `text`.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError("not an object")
    document_id, text = values.get("id"), values.get("text")
    if isinstance(document_id, int) and not isinstance(document_id, bool):
        document_id = str(document_id)
    if not isinstance(document_id, str) or not document_id:
        raise ValueError("no 'id', which must be a string or integer")
    title, source = values.get("title") or "", values.get("source") or "jsonl"
    for name, value in (("text", text), ("title", title), ("source", source)):
        if not isinstance(value, str):
            raise ValueError(f"no {name!r}, which must be a string")
    blocks = text.replace("\r\n", "\n").split("\n\n")
    paragraphs = [" ".join(block.split()) for block in blocks if block.strip()]
    if not paragraphs:
        return None
    return make_record(document_id, source=source, title=title, paragraphs=paragraphs)


def make_record(
    document_id: str,
    *,
    source: str,
    title: str,
    paragraphs: Sequence[str],
    rank: str = "",
) -> Record:
    """Splits paragraphs into sentences and packs them as one document."""
    split = [sentences.split_sentences(paragraph) for paragraph in paragraphs]
    document = {
        "id": document_id,
        "source": source,
        "title": title,
        "paragraphs": [paragraph for paragraph in split if paragraph],
    }
    line = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return Record(
        id=document_id,
        rank=rank,
        source=source,
        num_sentences=sum(map(len, split)),
        num_words=sum(len(paragraph.split()) for paragraph in paragraphs),
        line=zlib.compress(line.encode(), 1),
    )
