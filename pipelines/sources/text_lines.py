"""Files -> their lines, from any byte on, in bounded memory; without Beam."""

import itertools
from collections.abc import Iterator
from typing import BinaryIO

from bert_keras.pipelines.sources import multistream

MAX_LINE_BYTES = 1 << 26


def read_lines(
    file: BinaryIO, path: str, start: int
) -> Iterator[tuple[int, bytes | None]]:
    """Reads the lines that begin at a byte or later.

    Args:
        file: plain, or packed with bzip2 or gzip.
        path: its name, for errors.
        start: in bytes. Packed files can only be read from 0.

    Yields:
        The offset of each line in the text, and the line without its end, or `None` if
        it is longer than 64 MiB.

    Raises:
        InputError: a damaged or truncated packed file.
    """
    if start == 0:
        return _split(multistream.read_all(file, path), 0)
    # A line begins at `start` if the byte before it ends one.
    file.seek(start - 1)
    chunks = iter(lambda: file.read(multistream.CHUNK_BYTES), b"")
    return itertools.islice(_split(chunks, start - 1), 1, None)


def problem_of(text: str) -> str | None:
    """Why a string cannot be part of a document; `None`: it can."""
    if "\0" in text:
        return "not plain text: it holds NUL characters"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "not plain text: it holds lone surrogates"
    return None


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
