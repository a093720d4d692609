"""Compressed files -> bytes; bzip2 files from any stream on; without Beam.

Sources read bzip2, gzip, xz and Zstandard files alike, told by their first bytes.

A bzip2 file may consist of many streams, each of which can be unpacked by itself: the
multistream dumps of Wikipedia have one per hundred pages, and pbzip2 makes one of each
900 kB. Streams are found by their first bytes, so no index is needed.
"""

import bz2
import contextlib
import gzip
import logging
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import zstandard

from bert_keras.core import first_bytes
from bert_keras.core.errors import InputError

CHUNK_BYTES = 1 << 18
_SEARCHED_BYTES = 1 << 25
# Ten bytes: in 20 GB the odds of a chance match are 1 to 10^14. The second alternative
# is an empty stream.
_MAGIC = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
_MAGIC_BYTES = 10
_END_OF_STREAM = 0x177245385090
_SEARCHED_END_BYTES = 1 << 20
NO_END = 1 << 63
"""A place behind the end of any file."""

logger = logging.getLogger(__name__)


def compression(file: BinaryIO) -> str | None:
    """Returns `bz2`, `gz`, `xz`, `zst` or `None`; moves to the file's beginning."""
    file.seek(0)
    magic = file.read(6)
    file.seek(0)
    kinds = first_bytes.COMPRESSIONS.items()
    return next((name for name, start in kinds if magic.startswith(start)), None)


def has_streams(file: BinaryIO) -> bool:
    """Whether a bzip2 file holds several streams, the second in its first 32 MiB."""
    # Past the beginning of the first stream's magic, which is thus not found.
    file.seek(1)
    return _find_stream(file, b"", 1, _SEARCHED_BYTES) is not None


@contextlib.contextmanager
def _errors_named(path: str) -> Iterator[None]:
    try:
        yield
        return
    except EOFError:
        state = "ends in the middle (truncated)"
    except _DamagedError as error:
        state = f"is damaged ({error})"
    raise InputError(
        f"{path}: the compressed file {state}; copy or download it again"
    ) from None


class _DamagedError(Exception):
    """Bytes that cannot be unpacked."""


def read_streams(
    file: BinaryIO, path: str, start: int, stop: int
) -> Iterator[int | bytes]:
    """Unpacks a bzip2 file, from the first stream that begins at `start` or later.

    Yields the first byte of each stream, then its content. Reading goes on past `stop`
    while the caller asks for more, since a page may end there. Bytes after the last
    stream are ignored, as by bunzip2.
    """
    with _errors_named(path):
        file.seek(start)
        # The bytes read ahead, from the first byte of a stream on, and its place.
        found = _find_stream(file, b"", start, stop)
        while found:
            data, begin = found
            yield begin
            decompressor = bz2.BZ2Decompressor()
            while not decompressor.eof:
                try:
                    # A chunk at a time: 113 bytes may become 100 MB, of zeros.
                    chunk = decompressor.decompress(data, CHUNK_BYTES)
                except (OSError, ValueError) as error:
                    reason = f"{error}, in the stream at byte {begin:,}"
                    raise _DamagedError(reason) from None
                if chunk:
                    yield chunk
                data = b""
                if decompressor.needs_input and not (data := file.read(CHUNK_BYTES)):
                    raise EOFError
            # The next stream begins where this one ends, or this one is the last.
            data = decompressor.unused_data
            end = file.tell() - len(data)
            found = _find_stream(file, data, end, NO_END)
            if found and found[1] > end:
                raise _DamagedError(f"bytes that are no bzip2 stream, at byte {end:,}")


def _find_stream(
    file: BinaryIO, data: bytes, begin: int, stop: int
) -> tuple[bytes, int] | None:
    """Looks for a stream that begins before `stop` in `data` and the file after it.
    `data` begins at byte `begin`. Returns the bytes read from the stream on, and its
    first byte."""
    while begin < stop:
        if match := _MAGIC.search(data):
            begin += match.start()
            return (data[match.start() :], begin) if begin < stop else None
        num_passed = max(len(data) - _MAGIC_BYTES + 1, 0)
        data, begin = data[num_passed:], begin + num_passed
        if not (more := file.read(CHUNK_BYTES)):
            return None
        data += more
    return None


def read_all(file: BinaryIO, path: str) -> Iterator[bytes]:
    """Yields the content of a file of any compression in chunks."""
    kind = compression(file)
    with _errors_named(path):
        if kind is None:
            yield from iter(lambda: file.read(CHUNK_BYTES), b"")
        elif kind == "bz2":
            # Not bz2.BZ2File: to it, damage at the start of a later stream is the end
            # of the file, so the rest would be missing without an error.
            if not _MAGIC.match(file.read(_MAGIC_BYTES)):
                raise _DamagedError("it does not begin as a bzip2 file does")
            events = read_streams(file, path, 0, 1)
            yield from (event for event in events if isinstance(event, bytes))
        else:
            yield from _gzip_chunks(file) if kind == "gz" else _frame_chunks(file)


def check_end(file: BinaryIO, path: str) -> None:
    """Refuses a bzip2 file without its end; warns of bytes after the last stream."""
    size = file.seek(0, 2)
    file.seek(max(size - _SEARCHED_END_BYTES, 0))
    tail = file.read()
    # A stream ends with 48 bits of magic, at any bit: five whole bytes of them, and
    # part of one before and after. 32 bits of checksum follow.
    magics = (_END_OF_STREAM >> bit & (1 << 40) - 1 for bit in range(8))
    place, bit = max(
        (tail.rfind(magic.to_bytes(5, "big")), bit) for bit, magic in enumerate(magics)
    )
    # Five bytes of magic, four of checksum, one more unless both end at a whole byte.
    rest = tail[place + 9 + (bit > 0) :]
    if place < 0 or b"BZh" in rest:
        raise InputError(
            f"{path}: the bzip2 file has no end (truncated); copy or download it again"
        )
    if rest.strip(b"\0"):
        logger.warning(
            f"{path}: ignores the last {len(rest)} bytes, which are no bzip2 stream, "
            "as bunzip2 does"
        )


def read_last(file: BinaryIO, path: str) -> bytes:
    """Returns the last text of a bzip2 file of many streams, empty for a long one. It
    is that of the streams that begin in the last MiB of the file, less the first."""
    first = max(file.seek(0, 2) - _SEARCHED_END_BYTES, 1)
    text = b""
    for event in read_streams(file, path, first, NO_END):
        if isinstance(event, bytes):
            text = (text + event)[-CHUNK_BYTES:]
    return text


def _gzip_chunks(file: BinaryIO) -> Iterator[bytes]:
    stream, has_data = gzip.GzipFile(fileobj=file), False
    try:
        # One piece at a time: `read` would lose those before an error.
        while chunk := stream.read1(CHUNK_BYTES):
            yield chunk
            has_data = True
    except (gzip.BadGzipFile, zlib.error) as error:
        if not (has_data and str(error).startswith("Not a gzipped file")):
            raise _DamagedError(str(error)) from None
        name = getattr(file, "name", "a gzip file")
        logger.warning(
            f"{name}: ignores the bytes after the last gzip member, as gunzip does"
        )


def _frame_chunks(file: BinaryIO) -> Iterator[bytes]:
    """Unpacks xz streams, or Zstandard frames, up to the end of the last one."""
    make: Callable[[], Any] = lzma.LZMADecompressor
    if compression(file) == "zst":
        make = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
    frame = None
    data = b""
    # A few bytes at a time: they may become ten thousand times as many.
    while data := data or file.read(1 << 14):
        if frame is None:
            data = data.lstrip(b"\0")  # padding
            frame = make() if data else None
            continue
        try:
            if chunk := frame.decompress(data):
                yield chunk
        except (lzma.LZMAError, zstandard.ZstdError) as error:
            raise _DamagedError(str(error)) from None
        data, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise EOFError
