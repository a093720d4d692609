"""Plain-text files of one book or many -> books."""

import contextlib
import hashlib
import logging
import os
import tempfile
from collections import Counter
from typing import ClassVar

from bert_keras.core import files
from bert_keras.pipelines.sources import multistream, sentences, source, text_lines

logger = logging.getLogger(__name__)


class Books(source.Source):
    """Books as Project Gutenberg has them, and any other plain text."""

    name: ClassVar[str] = "books"
    description: ClassVar[str] = "plain-text books, one or many in a file"
    takes_encodings: ClassVar[bool] = True

    def check(self, path: str, *, allow_cut_dumps: bool) -> str | None:
        """Checks a file; a file like BookCorpus's is read by `sentences`."""
        start = text_lines.check(path, kind=self.name, expected="a plain-text book")
        if not sentences.is_one_sentence_a_line(start):
            return None
        logger.info(
            f"{path}: holds a sentence on each line, as BookCorpus does: read as by "
            "--sentences"
        )
        return "sentences"

    def split(self, item: source.Input, max_bytes: int) -> list[source.Range]:
        """Returns ranges of whole pieces, each of about as many bytes. Reads a long
        file to find where its books begin, 270 MB in a second; a packed one is not
        divided."""
        from bert_keras.pipelines.sources import book_cutter

        with files.open_to_read(item.path) as file:
            if multistream.compression(file) is not None:
                return []
            pieces = book_cutter.find_pieces(file, item.num_bytes)
        groups: list[list[book_cutter.Piece]] = [[]]
        for piece in pieces:
            if groups[-1] and piece.stop - groups[-1][0].start > max_bytes:
                groups.append([])
            groups[-1].append(piece)
        return [
            source.Range(item, group[0].start, group[-1].stop, tuple(group))
            for group in groups
        ]

    def read(self, part: source.Range, context: source.Context) -> source.Items:
        from bert_keras.pipelines.sources import book_cutter, book_text, encodings

        name, counts = files.name_of(part.item.path), context.counts
        with contextlib.ExitStack() as stack:
            # 1. The books. They are sought, so a packed file is unpacked to disk.
            file = stack.enter_context(files.open_to_read(part.item.path))
            if multistream.compression(file) is not None:
                unpacked = stack.enter_context(tempfile.TemporaryFile())
                unpacked.writelines(multistream.read_all(file, part.item.path))
                file = unpacked
            mark = encodings.mark_of(file)
            pieces = part.pieces or book_cutter.find_pieces(file, file.seek(0, 2))
            for piece in map(book_cutter.Piece._make, pieces):
                counts["items_read"] += 1
                file.seek(piece.start)
                data = file.read(piece.stop - piece.start)
                digest = hashlib.sha256(data).hexdigest()
                # The header of the book, of which this may be a later part.
                file.seek(piece.book)
                head = file.read(book_cutter.MAX_HEADER_BYTES)
                context.reach(piece.stop)
                # 2. The text of one, in the encoding that the file or `head` states.
                try:
                    text, codec = encodings.decode(
                        data, mark=mark, head=head, choice=part.item.encoding
                    )
                except ValueError as error:
                    place = f"byte {piece.start}" if piece.start else ""
                    yield source.Reject(part.item.path, place, "", str(error))
                    continue
                del data
                counts[f"encoding/{codec}"] += 1
                # 3. Its paragraphs.
                title = os.path.splitext(name)[0]
                is_later_part = piece.book < piece.start
                if is_later_part:
                    front = head.decode(mark or codec, errors="replace")
                    header, _ = book_text.split_header(front)
                    title = book_text.title_of(header) or title
                cleaned: Counter[str] = Counter()
                title, paragraphs = book_text.parse_book(
                    text, name=title, is_later_part=is_later_part, counts=cleaned
                )
                counts.update({f"cleaned/{rule}": cleaned[rule] for rule in +cleaned})
                if not paragraphs:
                    counts["dropped/no running text"] += 1
                    continue
                yield source.SourceDocument(
                    id=f"{name}:{digest[:12]}",
                    source=self.name,
                    title=title,
                    paragraphs=paragraphs,
                )
