"""Text file of one book or many -> the books in it, in bounded memory; without Beam.

Project Gutenberg marks where a book starts and where it ends. A file of many books is
cut after each end; text before the next start is that book's header. A long stretch
without marks is a book of its own, and a book that is too long to be held in memory is
cut into parts.
"""

import bisect
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from bert_keras.pipelines.sources import encodings

MAX_PIECE_BYTES = 6 << 20
"""Longer books are cut into parts. All of Shakespeare has 5.6 MB; reading a piece takes
about 20 times its size in memory."""
MAX_HEADER_BYTES = 1 << 16
"""A licence has 19 kB and a header 3: a longer stretch outside of marks is a text."""

# Old files have small print at their beginning, whose end is the start of the book, or
# at their end, where less than this follows.
_MIN_BOOK_BYTES = 1 << 12
_CHUNK_BYTES = 1 << 20
_MAX_LINE_BYTES = 512
_WINDOW_BYTES = 1 << 16

_LANDMARKS = (
    b"PROJECT GUTENBERG",
    b"THE SMALL PRINT",
    # The last line of every licence of this century.
    b"NEWSLETTER TO HEAR ABOUT NEW EBOOKS",
)
# The same marks as in `books`, of a line in upper case.
_MARK = re.compile(
    rb"(?P<start>[ \t]*\*{3} ?START OF TH(?:E|IS) PROJECT GUTENBERG E(?:BOOK|TEXT))"
    rb"|(?P<small_print>\*END\*? ?THE SMALL PRINT)"
    rb"|(?P<end>[ \t]*(?:\*{3} ?)?END OF (?:THE |THIS )?PROJECT GUTENBERG"
    rb"|.{0,200}NEWSLETTER TO HEAR ABOUT NEW EBOOKS)"
    rb"|(?P<law>\*{3}START\*\*THE SMALL PRINT)"
    rb"|(?P<notice>(?:\xef\xbb\xbf)?THE PROJECT GUTENBERG E(?:TEXT|BOOK) OF )"
)
_BLANK_LINE = re.compile(rb"\n[ \t\r]*\n|\r[ \t]*\r")


class Piece(NamedTuple):
    """A book, or a part of a long one."""

    start: int
    """In bytes of the file."""
    stop: int
    book: int
    """The first byte of its book: that of the piece unless it is a later part."""


class _Mark(NamedTuple):
    kind: str
    start: int
    """The first byte of its line."""
    stop: int
    """The byte after its line."""


def find_pieces(file: BinaryIO, num_bytes: int) -> list[Piece]:
    """Returns the pieces of a file in order; together they are the file. The text is in
    UTF-16 with a byte-order mark, or has the letters of ASCII."""
    text, marks = _Letters(file), []
    # 1. The marks, by chunks. These overlap by a line on both sides, since a line of a
    # mark may lie across them; `seen` keeps a mark from being found twice.
    overlap = _MAX_LINE_BYTES * text.width
    seen = 0
    for begin in range(0, num_bytes, _CHUNK_BYTES):
        first = max(begin - overlap, 0)
        # With one case to search for, `find` is ten times as fast as an expression.
        chunk = text.read(first, begin + _CHUNK_BYTES + overlap).upper()
        lines = set()
        for landmark in _LANDMARKS:
            place = chunk.find(landmark)
            while place >= 0:
                least = max(place - _MAX_LINE_BYTES, 0)
                end = max(chunk.rfind(mark, least, place) for mark in (b"\n", b"\r"))
                if end >= 0 or least == 0:  # else it is in a long line
                    lines.add(end + 1)
                place = chunk.find(landmark, place + 1)
        for line in sorted(lines):
            start = first + line * text.width
            mark = _MARK.match(chunk, line)
            if mark is None or not seen <= start < begin + _CHUNK_BYTES:
                continue
            end = chunk.find(b"\n", mark.end()) + 1 or mark.end()
            seen = start + 1
            marks.append(_Mark(str(mark.lastgroup), start, first + end * text.width))
    # 2. Small print that no book follows is a mark of the end.
    borders = [mark.start for mark in marks if mark.kind != "notice"] + [num_bytes]
    for place, mark in enumerate(marks):
        following = borders[bisect.bisect(borders, mark.start)]
        if mark.kind == "small_print" and following - mark.start < _MIN_BOOK_BYTES:
            marks[place] = mark._replace(kind="end")
    # 3. The books. Each stops where the next one's header starts, the last one with the
    # file.
    texts = _texts(marks, num_bytes) or [(0, num_bytes)]
    starts = [0, *(start for start, _ in texts[1:])]
    ends = [end for _, end in texts]
    books = zip(starts, ends, [*starts[1:], num_bytes], strict=True)
    return [piece for book in books for piece in _parts(text, *book)]


class _Letters:
    """A file's text with one byte for each code unit, in places of the file."""

    def __init__(self, file: BinaryIO):
        mark = encodings.mark_of(file)
        self._type = {"utf-16-le": "<u2", "utf-16-be": ">u2"}.get(mark or "")
        self.width = 1 if mark is None else 2
        """Bytes of the file for each byte."""
        self._file = file

    def read(self, start: int, stop: int) -> bytes:
        """Returns the bytes for the file's from `start` to `stop`."""
        self._file.seek(start)
        data = self._file.read(stop - start)
        if self._type is None:
            return data
        units = np.frombuffer(data[: len(data) & -2], self._type)
        # No letter of ASCII is lost or made. Second halves of surrogate pairs become
        # what the later bytes of a character are in UTF-8.
        is_second_half = (units >= 0xDC00) & (units < 0xE000)
        letters = np.where(is_second_half, 0x80, np.minimum(units, 0xFF))
        return letters.astype(np.uint8).tobytes()


def _texts(marks: list[_Mark], num_bytes: int) -> list[tuple[int, int]]:
    """Returns texts, marked or not, each with the header before it."""
    texts: list[tuple[int, int]] = []
    outside = 0  # the byte after the last mark of an end
    is_open = False
    notice = 0
    # A text is open from the mark of its start, or from a stretch longer than any
    # header on, to the mark of its end, or the header of the next one.
    for mark in [*marks, _Mark("end of file", num_bytes, num_bytes)]:
        if mark.kind == "notice":
            notice = mark.start
            continue
        is_open = is_open or mark.start - outside >= MAX_HEADER_BYTES
        if mark.kind == "end" or (mark.kind == "law" and is_open):
            if is_open:
                texts.append((outside, mark.stop))
            outside, is_open = mark.stop, False
        elif mark.kind == "law":
            continue  # It is in a header.
        elif not is_open:
            is_open = True
        elif mark.kind != "small_print":
            # No mark of an end: the text ends before the next one's header.
            is_near = max(outside, mark.start - _MIN_BOOK_BYTES) < notice < mark.start
            end = notice if is_near else mark.start
            texts.append((outside, end))
            outside = end
    return texts


def _parts(text: _Letters, start: int, end: int, stop: int) -> Iterator[Piece]:
    """Cuts a book into parts of about the same size; the last one is up to `stop`. The
    place to cut is the last blank line before that size, else the last end of a line,
    else the last blank."""
    book = start
    for num_left in range(-(-(end - start) // MAX_PIECE_BYTES), 1, -1):
        last = start + (end - start) // num_left // text.width * text.width
        first = max(start, last - _WINDOW_BYTES)
        window = text.read(first, last)
        blank_lines = [match.end() for match in _BLANK_LINE.finditer(window)]
        lines, words = window.rfind(b"\n") + 1, window.rfind(b" ") + 1
        place = blank_lines[-1] if blank_lines else lines or words
        if not place:
            # Not within a character, unless it is text in no encoding.
            places = range(len(window) - 1, 0, -1)
            whole = (n for n in places if window[n] & 192 != 128)
            place = next(whole, len(window) - 1)
        cut = first + place * text.width
        yield Piece(start, cut, book)
        start = cut
    yield Piece(start, stop, book)
