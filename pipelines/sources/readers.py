"""Source files -> documents: one reader for each kind of file, without Beam.

A file is split into ranges of bytes, which workers read independently. A reader yields
a `SourceDocument` for each document and a `Reject` for each unreadable item; it counts
the items that it leaves out on purpose.
"""

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from bert_keras.core import files, progress
from bert_keras.core.errors import InputError
from bert_keras.pipelines import duplicates, filters, wikitext
from bert_keras.pipelines.sources import (
    KINDS,
    book_cutter,
    books,
    dump_head,
    multistream,
    sentence_lines,
    text_lines,
    wikipedia,
)

logger = logging.getLogger(__name__)

# A larger file that only one worker can read is worth a warning: it takes about a
# minute.
_LONG_BYTES = 1 << 29


@dataclass(frozen=True, kw_only=True)
class Input:
    """One file to read."""

    kind: str
    """`wikipedia`, `books`, `sentences` or `jsonl`."""
    path: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class Range:
    """A part of a file: the documents that begin at `start` or later, before `stop`."""

    kind: str
    path: str
    start: int
    """In bytes of the file, that is, compressed."""
    stop: int
    pieces: tuple[book_cutter.Piece, ...] = ()
    """Of books: the pieces in this part; none: whoever reads it finds them."""


class SourceDocument(NamedTuple):
    """A document of a source, not yet split into sentences."""

    id: str
    rank: str
    """Among documents with the same id, the greatest rank wins."""
    source: str
    title: str
    paragraphs: Sequence[duplicates.Paragraph]
    """Texts or, where the source has sentences, lists of sentences."""


class Reject(NamedTuple):
    """An unreadable item."""

    file: str
    item: str
    """Page id, place in the file or nothing."""
    title: str
    reason: str


Advance = Callable[[int], object]
"""Called with the number of bytes of the range just consumed."""
Count = Callable[..., object]
"""Called with the name of a counter, and with the amount if it is not 1."""


def find_inputs(
    patterns: Mapping[str, Sequence[str]], *, allow_cut_dumps: bool = False
) -> list[Input]:
    """Expands patterns into files, each once, and checks the beginning of each.

    Args:
        patterns: by kind; paths or patterns, local or `gs://`.
        allow_cut_dumps: read plain dumps without `</mediawiki>` at their end.

    Raises:
        InputError: no pattern at all, one that matches nothing, or a file of another
            kind.
    """
    if not any(patterns.values()):
        raise InputError(
            f"nothing to read: give at least one of --{', --'.join(KINDS)}"
        )
    inputs: dict[tuple[str, str], Input] = {}
    for kind, kind_patterns in patterns.items():
        for pattern in kind_patterns:
            paths = _match(kind, pattern)
            for path in paths:
                key = path if files.is_remote(path) else os.path.realpath(path)
                if (kind, key) not in inputs:
                    inputs[kind, key] = _input(kind, path, allow_cut_dumps)
    return sorted(inputs.values(), key=lambda item: (item.kind, item.path))


def fingerprints(inputs: Sequence[Input]) -> dict[str, dict[str, Any]]:
    """Facts that change with each file, see `files.fingerprint`.

    By kind and name, not by path, so that the files may be moved; files of the same
    name are numbered.
    """
    by_name: dict[str, dict[str, Any]] = {}
    seen: Counter[str] = Counter()
    with progress.Progress(
        "corpus: hash",
        total=sum(files.size(item.path) for item in inputs),
        unit="bytes",
        read=lambda: sum(facts["bytes"] for facts in [*by_name.values()]),
        only_if_long=True,
    ):
        for item in inputs:
            name = f"{item.kind} {files.name_of(item.path)}"
            seen[name] += 1
            if seen[name] > 1:
                name += f" ({seen[name]})"
            by_name[name] = files.fingerprint(item.path)
    return by_name


def _match(kind: str, pattern: str) -> list[str]:
    try:
        paths = files.match(pattern)
    except OSError as error:
        raise _unreadable(pattern, error) from None
    if paths != [pattern]:
        paths = [path for path in paths if not os.path.isdir(path)]
    if not paths:
        raise InputError(f"--{kind}: no file matches {pattern!r}")
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{os.fsencode(path)!r}: expected a file name in UTF-8: rename the file"
            ) from None
    return paths


def _input(kind: str, path: str, allow_cut_dumps: bool) -> Input:
    try:
        num_bytes = files.size(path)
        if kind == "wikipedia":
            wikipedia.check_dump(path, allow_cut=allow_cut_dumps)
        else:
            _check_text(kind, path)
        if kind == "books":
            with files.open_to_read(path) as file:
                if sentence_lines.is_one_sentence_a_line(file):
                    logger.info(
                        "%s: holds a sentence on each line, as BookCorpus does: read "
                        "as by --sentences",
                        path,
                    )
                    kind = "sentences"
    except OSError as error:
        raise _unreadable(path, error) from None
    return Input(kind=kind, path=path, num_bytes=num_bytes)


def _unreadable(path: str, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read: {error.strerror or error}")


def _check_text(kind: str, path: str) -> None:
    with files.open_to_read(path) as file:
        if kind == "books":
            start = file.read(4096)
        else:
            start = next(multistream.read_all(file, path), b"")
            if multistream.compression(file) == "bz2":
                multistream.check_end(file, path)
    if kind == "jsonl" and start.lstrip().startswith(b"<doc "):
        raise InputError(
            f"{path}: line 1: expected lines of JSON, but this is the <doc> form of "
            "WikiExtractor: extract the dump again with --json, or give the dump "
            "itself by --wikipedia"
        )
    if dump_head.is_html(start[:4096].decode("utf-8-sig", errors="replace")):
        expected = _EXPECTED[kind]
        raise InputError(f"{path}: expected {expected}, but this is an HTML page")


_EXPECTED = {
    "books": "a plain-text book",
    "sentences": "lines of text",
    "jsonl": "lines of JSON",
}


def split_input(item: Input, *, max_bytes: int = 32 << 20) -> list[Range]:
    """Divides a file into ranges that workers can read independently.

    Files are divided if they are uncompressed, or dumps of many bzip2 streams; any
    other file is one range. Warns of a long dump that only one worker can read. A long
    file of books is read here to find where they begin, 270 MB in a second.

    Args:
        item: from `find_inputs`.
        max_bytes: in each range.
    """
    num_ranges = -(-item.num_bytes // max_bytes)
    if num_ranges > 1 and not _is_splittable(item):
        num_ranges = 1
        if item.kind == "wikipedia" and item.num_bytes > _LONG_BYTES:
            logger.warning(
                "%s: %.1f GB that cannot be divided, so one worker must read all of "
                "it; several can share the dump whose name ends in "
                "-pages-articles-multistream.xml.bz2, from dumps.wikimedia.org, or "
                "this one repacked with pbzip2",
                item.path,
                item.num_bytes / 1e9,
            )
    if num_ranges > 1 and item.kind == "books":
        return _split_books(item, max_bytes)
    num_ranges = max(num_ranges, 1)
    step = sentence_lines.PART_BYTES if item.kind == "sentences" else 1
    starts = {
        item.num_bytes * n // num_ranges // step * step for n in range(num_ranges)
    }
    bounds = [*sorted(starts), item.num_bytes]
    return [
        Range(kind=item.kind, path=item.path, start=start, stop=stop)
        for start, stop in zip(bounds, bounds[1:], strict=False)
    ]


def _split_books(item: Input, max_bytes: int) -> list[Range]:
    """Ranges of whole pieces, each of about as many bytes."""
    with files.open_to_read(item.path) as file:
        pieces = book_cutter.find_pieces(file, item.num_bytes)
    groups: list[list[book_cutter.Piece]] = [[]]
    for piece in pieces:
        if groups[-1] and piece.stop - groups[-1][0].start > max_bytes:
            groups.append([])
        groups[-1].append(piece)
    return [
        Range(
            kind=item.kind,
            path=item.path,
            start=group[0].start,
            stop=group[-1].stop,
            pieces=tuple(group),
        )
        for group in groups
    ]


def _is_splittable(item: Input) -> bool:
    if item.kind == "books":
        return True
    if item.kind == "wikipedia":
        return wikipedia.is_splittable(item.path)
    with files.open_to_read(item.path) as file:
        return multistream.compression(file) is None


def read_range(
    item: Range,
    advance: Advance,
    count: Count,
    *,
    drop_lists: bool = True,
    encoding: str | None = None,
) -> Iterator[SourceDocument | Reject]:
    """Reads the documents that begin in a range.

    Args:
        item: from `split_input`.
        advance: called with the number of bytes of the range just consumed.
        count: called with `items_read` for each item, and with `dropped/` and the
            reason for each item that is left out on purpose.
        drop_lists: leave out disambiguation and list pages of Wikipedia.
        encoding: of books and lines that are not UTF-8; `None`: detect it.

    Raises:
        InputError: the file is too damaged for a `Reject`, or has become shorter.
        OSError: the file cannot be read; the error has its name.
    """
    try:
        yield from _read_range(item, advance, count, drop_lists, encoding)
        num_bytes = files.size(item.path)
    except OSError as error:
        # Errors of reading an open file do not say which.
        error.filename = error.filename or item.path
        raise
    if num_bytes < item.stop:
        raise InputError(
            f"{item.path}: was cut while it was read: it has {num_bytes:,} bytes, and "
            f"had at least {item.stop:,}; wait until it is whole, delete the output "
            "directory and give the command again"
        )


def _read_range(
    item: Range, advance: Advance, count: Count, drop_lists: bool, encoding: str | None
) -> Iterator[SourceDocument | Reject]:
    if item.kind == "wikipedia":
        yield from _read_wikipedia(item, advance, count, drop_lists)
    elif item.kind == "books":
        yield from _read_books(item, advance, count, encoding)
    elif item.kind == "sentences":
        yield from _read_sentences(item, advance, count, encoding)
    else:
        yield from _read_jsonl(item, advance, count)


def _read_wikipedia(
    item: Range, advance: Advance, count: Count, drop_lists: bool
) -> Iterator[SourceDocument | Reject]:
    """Articles: namespace 0, no redirects, running text only."""
    cleaned: Counter[str] = Counter()
    for page in wikipedia.read_pages(
        item.path, start=item.start, stop=item.stop, advance=advance
    ):
        count("items_read")
        if isinstance(page, wikipedia.BadPage):
            page_id = "" if page.page_id is None else str(page.page_id)
            yield Reject(item.path, page_id, page.title or "", page.reason)
        elif reason := _page_reason(page, drop_lists):
            count(f"dropped/{reason}")
        elif paragraphs := wikitext.clean(page.text, cleaned):
            yield SourceDocument(
                id=f"{page.wiki}:{page.page_id}:{page.title}",
                rank=page.timestamp,
                source="wikipedia",
                title=page.title,
                paragraphs=paragraphs,
            )
        else:
            count("dropped/no running text")
    for rule, amount in cleaned.items():
        count(f"cleaned/{rule}", amount)


def _page_reason(page: wikipedia.Page, drop_lists: bool) -> str | None:
    if page.namespace != 0:
        return "other namespace"
    if page.is_redirect:
        return "redirect"
    if page.model != "wikitext":
        return "not wikitext"
    return filters.page_reason(page.title, page.text) if drop_lists else None


_NO_END = 1 << 63


def _read_books(
    item: Range, advance: Advance, count: Count, otherwise: str | None
) -> Iterator[SourceDocument | Reject]:
    with files.open_to_read(item.path) as file:
        encoding = book_cutter.encoding_of(file)
        for piece in item.pieces or book_cutter.find_pieces(file, item.stop):
            count("items_read")
            yield from _read_book(file, piece, encoding, otherwise, item.path, count)
            advance(piece.stop - piece.start)


def _read_book(
    file: BinaryIO,
    piece: book_cutter.Piece,
    encoding: str | None,
    otherwise: str | None,
    path: str,
    count: Count,
) -> Iterator[SourceDocument | Reject]:
    file.seek(piece.start)
    data = file.read(piece.stop - piece.start)
    digest = hashlib.sha256(data).hexdigest()
    try:
        text, codec = _plain_text(data, encoding, otherwise)
    except ValueError as error:
        place = f"byte {piece.start}" if piece.start else ""
        yield Reject(path, place, "", str(error))
        return
    del data
    count(f"encoding/{codec}")
    name = files.name_of(path)
    title = os.path.splitext(name)[0]
    is_later_part = piece.book < piece.start
    if is_later_part:
        file.seek(piece.book)
        head_bytes = file.read(book_cutter.MAX_HEADER_BYTES)
        head = head_bytes.decode(encoding or codec, errors="replace")
        title = books.title_of(books.split_header(head)[0]) or title
    cleaned: Counter[str] = Counter()
    book = books.parse_book(
        text, name=title, is_later_part=is_later_part, counts=cleaned
    )
    for rule, amount in cleaned.items():
        if amount:
            count(f"cleaned/{rule}", amount)
    if book.paragraphs:
        yield SourceDocument(
            id=f"{name}:{digest[:12]}",
            rank="",
            source="books",
            title=book.title,
            paragraphs=list(book.paragraphs),
        )
    else:
        count("dropped/no running text")


def _plain_text(
    data: bytes, encoding: str | None, otherwise: str | None
) -> tuple[str, str]:
    """As `books.decode`; raises `ValueError` for binary data too."""
    text, codec = books.decode(data, encoding, otherwise=otherwise)
    if "\0" in text:
        raise ValueError("not plain text: it holds NUL characters")
    return text, codec


def _read_sentences(
    item: Range, advance: Advance, count: Count, otherwise: str | None
) -> Iterator[SourceDocument | Reject]:
    name = files.name_of(item.path)
    with files.open_to_read(item.path) as file:
        progress = multistream.Progress(file, item.start, item.stop, advance)
        stop = item.stop if multistream.compression(file) is None else _NO_END
        for block in sentence_lines.read_blocks(file, item.path, item.start, stop):
            progress.update()
            count("items_read")
            data = b"\n".join(filter(None, block.lines))
            try:
                if None in block.lines:
                    raise ValueError("longer than 64 MiB")
                text, codec = _plain_text(data, None, otherwise)
            except ValueError as error:
                yield Reject(item.path, f"byte {block.offset}", "", str(error))
                continue
            count(f"encoding/{codec}")
            lines = (" ".join(line.split()) for line in text.split("\n"))
            yield SourceDocument(
                id=f"{name}:{hashlib.sha256(data).hexdigest()[:12]}",
                rank="",
                source="sentences",
                title=os.path.splitext(name)[0],
                paragraphs=[[line for line in lines if line]],
            )
        progress.finish()


def _read_jsonl(
    item: Range, advance: Advance, count: Count
) -> Iterator[SourceDocument | Reject]:
    with files.open_to_read(item.path) as file:
        progress = multistream.Progress(file, item.start, item.stop, advance)
        stop = item.stop if multistream.compression(file) is None else _NO_END
        lines = text_lines.read_lines(file, item.path, item.start)
        for number, (offset, line) in enumerate(lines, 1):
            if offset >= stop:
                break
            progress.update()
            if line is not None and not line.strip():
                continue
            count("items_read")
            try:
                document = parse_line(line)
            except ValueError as error:
                # The number of lines before a range is not known.
                place = f"byte {offset}" if item.start else f"line {number}"
                yield Reject(item.path, place, "", str(error))
                continue
            if document is None:
                count("dropped/no running text")
            else:
                yield document
        progress.finish()


def parse_line(line: bytes | None) -> SourceDocument | None:
    """Reads one line of JSON; `None` if its text is blank.

    Args:
        line: `None` if it is too long to read.

    Raises:
        ValueError: not an object with an `id` (a string or integer) and a `text`.
    """
    if line is None:
        raise ValueError("longer than 64 MiB")
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
    text = str(text)
    if problem := text_lines.problem_of(document_id + title + source + text):
        raise ValueError(problem)
    blocks = text.replace("\r\n", "\n").split("\n\n")
    paragraphs = [" ".join(block.split()) for block in blocks if block.strip()]
    if not paragraphs:
        return None
    return SourceDocument(
        id=document_id, rank="", source=source, title=title, paragraphs=paragraphs
    )
