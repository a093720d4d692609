"""Plain-text files of one book or many -> books."""

import hashlib
import logging
import os
from collections import Counter
from typing import TYPE_CHECKING, BinaryIO, ClassVar

from bert_keras.core import files
from bert_keras.pipelines.sources import sentences, source

if TYPE_CHECKING:
    from bert_keras.pipelines.sources import book_cutter

logger = logging.getLogger(__name__)


class Books:
    """Books as Project Gutenberg has them, and any other plain text."""

    name: ClassVar[str] = "books"
    description: ClassVar[str] = "plain-text books, one or many in a file"

    def check(self, path: str, *, allow_cut_dumps: bool) -> str:
        """Checks a file; a file like BookCorpus's is read by `sentences`."""
        with files.open_to_read(path) as file:
            start = file.read(4096)
            source.check_no_html(start, path, expected="a plain-text book")
            if not sentences.is_one_sentence_a_line(file):
                return self.name
        logger.info(
            "%s: holds a sentence on each line, as BookCorpus does: read as by "
            "--sentences",
            path,
        )
        return "sentences"

    def split(self, item: source.Input, max_bytes: int) -> list[source.Range]:
        """Returns ranges of whole pieces, each of about as many bytes.

        Reads a long file to find where its books begin, 270 MB in a second.
        """
        from bert_keras.pipelines.sources import book_cutter

        if item.num_bytes <= max_bytes:
            return source.one_range(item)
        with files.open_to_read(item.path) as file:
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
            )
            for group in groups
        ]

    def read(self, part: source.Range, context: source.Context) -> source.Items:
        from bert_keras.pipelines.sources import book_cutter

        with files.open_to_read(part.path) as file:
            encoding = book_cutter.encoding_of(file)
            pieces = part.pieces or book_cutter.find_pieces(file, part.stop)
            for piece in map(book_cutter.Piece._make, pieces):
                context.counts["items_read"] += 1
                book = _read_book(file, piece, part.path, encoding, context)
                if book is not None:
                    yield book
                context.advance(piece.stop - piece.start)


def _read_book(
    file: BinaryIO,
    piece: "book_cutter.Piece",
    path: str,
    encoding: str | None,
    context: source.Context,
) -> source.SourceDocument | source.Reject | None:
    from bert_keras.pipelines.sources import book_cutter, book_text, encodings

    counts, otherwise = context.counts, context.encoding
    file.seek(piece.start)
    data = file.read(piece.stop - piece.start)
    digest = hashlib.sha256(data).hexdigest()
    try:
        text, codec = encodings.decode(data, encoding, otherwise=otherwise)
    except ValueError as error:
        place = f"byte {piece.start}" if piece.start else ""
        return source.Reject(path, place, "", str(error))
    del data
    counts[f"encoding/{codec}"] += 1
    name = files.name_of(path)
    title = os.path.splitext(name)[0]
    is_later_part = piece.book < piece.start
    if is_later_part:
        file.seek(piece.book)
        head_bytes = file.read(book_cutter.MAX_HEADER_BYTES)
        head = head_bytes.decode(encoding or codec, errors="replace")
        title = book_text.title_of(book_text.split_header(head)[0]) or title
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
