"""Plain-text files of one book or many -> books."""

import contextlib
import hashlib
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, ClassVar

from bert_keras.core import files
from bert_keras.pipelines.sources import (
    first_bytes,
    multistream,
    sentences,
    source,
    text_lines,
)

if TYPE_CHECKING:
    from bert_keras.pipelines.sources import book_cutter

logger = logging.getLogger(__name__)


class Books:
    """Books as Project Gutenberg has them, and any other plain text."""

    name: ClassVar[str] = "books"
    description: ClassVar[str] = "plain-text books, one or many in a file"

    takes_encodings: ClassVar[bool] = True

    def check(self, path: str, *, allow_cut_dumps: bool) -> str:
        """Checks a file; a file like BookCorpus's is read by `sentences`."""
        start = text_lines.check_packing(path)
        first_bytes.check(start, path, source=self.name, expected="a plain-text book")
        if not sentences.is_one_sentence_a_line(start):
            return self.name
        logger.info(
            "%s: holds a sentence on each line, as BookCorpus does: read as by "
            "--sentences",
            path,
        )
        return "sentences"

    def split(self, item: source.Input, max_bytes: int) -> list[source.Range]:
        """Returns ranges of whole pieces, each of about as many bytes.

        Reads a long file to find where its books begin, 270 MB in a second. A packed
        file is one range.
        """
        from bert_keras.pipelines.sources import book_cutter

        if item.num_bytes <= max_bytes:
            return source.one_range(item)
        with files.open_to_read(item.path) as file:
            if multistream.compression(file) is not None:
                return source.one_range(item)
            pieces = book_cutter.find_pieces(file, item.num_bytes)
        groups: list[list[book_cutter.Piece]] = [[]]
        for piece in pieces:
            if groups[-1] and piece.stop - groups[-1][0].start > max_bytes:
                groups.append([])
            groups[-1].append(piece)
        return [
            source.Range(
                kind=item.kind,
                path=item.path,
                start=group[0].start,
                stop=group[-1].stop,
                pieces=tuple(group),
                encoding=item.encoding,
            )
            for group in groups
        ]

    def read(self, part: source.Range, context: source.Context) -> source.Items:
        from bert_keras.pipelines.sources import book_cutter

        with _open_unpacked(part.path) as file:
            progress = multistream.Progress(
                file, part.start, part.stop, context.advance
            )
            pieces = part.pieces or book_cutter.find_pieces(file, file.seek(0, 2))
            for piece in map(book_cutter.Piece._make, pieces):
                context.counts["items_read"] += 1
                book = _read_book(file, piece, part, context.counts)
                if book is not None:
                    yield book
                progress.update(piece.stop)
            progress.finish()


@contextlib.contextmanager
def _open_unpacked(path: str) -> Iterator[BinaryIO]:
    """Opens a file in which books can be sought: a packed one is unpacked to disk."""
    with files.open_to_read(path) as file:
        if multistream.compression(file) is None:
            yield file
            return
        with tempfile.TemporaryFile() as unpacked:
            unpacked.writelines(multistream.read_all(file, path))
            yield unpacked


def _read_book(
    file: BinaryIO,
    piece: "book_cutter.Piece",
    part: source.Range,
    counts: Counter[str],
) -> source.SourceDocument | source.Reject | None:
    from bert_keras.pipelines.sources import book_cutter, book_text, encodings

    path = part.path
    mark = encodings.mark_of(file)
    file.seek(piece.start)
    data = file.read(piece.stop - piece.start)
    digest = hashlib.sha256(data).hexdigest()
    # The header of the book, of which this may be a later part.
    file.seek(piece.book)
    head = file.read(book_cutter.MAX_HEADER_BYTES)
    try:
        text, codec = encodings.decode(data, mark=mark, head=head, choice=part.encoding)
    except ValueError as error:
        place = f"byte {piece.start}" if piece.start else ""
        return source.Reject(path, place, "", str(error))
    del data
    counts[f"encoding/{codec}"] += 1
    name = files.name_of(path)
    title = os.path.splitext(name)[0]
    is_later_part = piece.book < piece.start
    if is_later_part:
        front = head.decode(mark or codec, errors="replace")
        title = book_text.title_of(book_text.split_header(front)[0]) or title
    cleaned: Counter[str] = Counter()
    title, paragraphs = book_text.parse_book(
        text, name=title, is_later_part=is_later_part, counts=cleaned
    )
    counts.update({f"cleaned/{rule}": cleaned[rule] for rule in +cleaned})
    if not paragraphs:
        counts["dropped/no running text"] += 1
        return None
    return source.SourceDocument(
        id=f"{name}:{digest[:12]}",
        rank="",
        source="books",
        title=title,
        paragraphs=paragraphs,
    )
