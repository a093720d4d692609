"""Files -> their lines, from any byte on, in bounded memory; without Beam."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import BinaryIO

from bert_keras.core import files, first_bytes
from bert_keras.core.errors import InputError
from bert_keras.pipelines.sources import multistream, source

MAX_LINE_BYTES = 1 << 26
START_BYTES = 1 << 16
"""First bytes of a text that tell what it is."""


def check(path: str, *, kind: str, expected: str) -> bytes:
    """Returns the first bytes of a text for the source `kind`. Refuses a file of
    another source, or of none, and a bzip2 file without its end."""
    start = b""
    with files.open_to_read(path) as file:
        if multistream.compression(file) == "bz2":
            multistream.check_end(file, path)
        for chunk in multistream.read_all(file, path):
            start += chunk
            if len(start) >= START_BYTES:
                break
    form = first_bytes.recognize(start)
    if form is not None and form.source != kind:
        raise InputError(
            f"{path}: --{kind}: expected {expected}, but this is {form.name}: "
            f"{form.remedy}"
        )
    return start[:START_BYTES]


@contextlib.contextmanager
def open_range(part: source.Range) -> Iterator[tuple[BinaryIO, int]]:
    """Opens a file; yields it, and the end of the range in its text."""
    with files.open_to_read(part.item.path) as file:
        is_packed = multistream.compression(file) is not None
        yield file, multistream.NO_END if is_packed else part.stop


def read_lines(
    file: BinaryIO, path: str, start: int
) -> Iterator[tuple[int, bytes | None]]:
    """Yields the offset, in the text, and each line, `None` if longer than 64 MiB. The
    lines have no ends. A packed file can only be read from 0."""
    if start == 0:
        return _split(multistream.read_all(file, path), 0)
    # A line begins at `start` if the byte before it ends one.
    file.seek(start - 1)
    chunks = iter(lambda: file.read(multistream.CHUNK_BYTES), b"")
    return itertools.islice(_split(chunks, start - 1), 1, None)


def _split(chunks: Iterator[bytes], offset: int) -> Iterator[tuple[int, bytes | None]]:
    line, num_bytes = bytearray(), 0
    for chunk in chunks:
        *ended, begun = chunk.split(b"\n")
        for piece in ended:
            line += piece
            num_bytes += len(piece) + 1
            yield offset, bytes(line) if num_bytes <= MAX_LINE_BYTES else None
            offset += num_bytes
            line.clear()
            num_bytes = 0
        line += begun
        num_bytes += len(begun)
        if num_bytes > MAX_LINE_BYTES:
            line.clear()
    if num_bytes:
        yield offset, bytes(line) if num_bytes <= MAX_LINE_BYTES else None
