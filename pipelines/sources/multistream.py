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
_PACKED_BYTES = 1 << 14
_SEARCHED_BYTES = 1 << 25
# Ten bytes: in 20 GB the odds of a chance match are 1 to 10^14. The second alternative
# is an empty stream.
_MAGIC = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
_MAGIC_BYTES = 10
_END_OF_STREAM = 0x177245385090
_SEARCHED_END_BYTES = 1 << 20
_NO_END = 1 << 63

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
    return _Window(file, 1).find_stream(_SEARCHED_BYTES)


@contextlib.contextmanager
def _errors_named(path: str) -> Iterator[None]:
    try:
        yield
    except (EOFError, _DamagedError) as error:
        is_damaged = isinstance(error, _DamagedError)
        state = (
            f"is damaged ({error})" if is_damaged else "ends in the middle (truncated)"
        )
        raise InputError(
            f"{path}: the compressed file {state}; copy or download it again"
        ) from None


def read_streams(
    file: BinaryIO, path: str, start: int, stop: int
) -> Iterator[int | bytes]:
    """Unpacks a bzip2 file, from the first stream that begins at `start` or later.

    Yields the first byte of each stream, then its content. Reading goes on past `stop`
    while the caller asks for more, since a page may end there. Bytes after the last
    stream are ignored, as by bunzip2.
    """
    with _errors_named(path):
        yield from _streams(file, start, stop)


def _streams(file: BinaryIO, start: int, stop: int) -> Iterator[int | bytes]:
    window = _Window(file, start)
    is_found = window.find_stream(stop)
    while is_found:
        begin = window.offset
        yield begin
        try:
            yield from _unpack(window)
        except _DamagedError as error:
            raise _DamagedError(f"{error}, in the stream at byte {begin:,}") from None
        is_found = window.is_stream()
        if not is_found and window.skip_zeros():
            offset = window.offset
            if window.find_stream(_NO_END):
                reason = f"bytes that are no bzip2 stream, at byte {offset:,}"
                raise _DamagedError(reason)


def read_all(file: BinaryIO, path: str) -> Iterator[bytes]:
    """Yields the content of a file of any compression in chunks."""
    kind = compression(file)
    with _errors_named(path):
        if kind is None:
            yield from iter(lambda: file.read(CHUNK_BYTES), b"")
        elif kind == "bz2":
            # Not bz2.BZ2File: to it, damage at the start of a later stream is the end
            # of the file, so the rest would be missing without an error.
            if not _Window(file, 0).is_stream():
                raise _DamagedError("it does not begin as a bzip2 file does")
            yield from (e for e in _streams(file, 0, 1) if isinstance(e, bytes))
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
    rest = tail[place + 9 + (bit > 0) :]
    if place < 0 or b"BZh" in rest:
        raise InputError(
            f"{path}: the bzip2 file has no end (truncated); copy or download it again"
        )
    if rest.strip(b"\0"):
        logger.warning(
            "%s: ignores the last %d bytes, which are no bzip2 stream, as bunzip2 does",
            path,
            len(rest),
        )


def read_last(file: BinaryIO, path: str) -> bytes:
    """Returns the last text of a bzip2 file of many streams, empty for a long one.

    It is that of the streams that begin in the last MiB of the file, less the first.
    """
    first = max(file.seek(0, 2) - _SEARCHED_END_BYTES, 1)
    text = b""
    for event in read_streams(file, path, first, _NO_END):
        if isinstance(event, bytes):
            text = (text + event)[-CHUNK_BYTES:]
    return text


class Progress:
    """Reports how much of a range of a file, in bytes, has been read."""

    def __init__(
        self, file: BinaryIO, start: int, stop: int, advance: Callable[[int], object]
    ):
        self._file = file
        self._consumed = start
        self._stop = stop
        self._advance = advance

    def update(self, position: int | None = None) -> None:
        """Reports the bytes up to `position`; `None`: that of the file."""
        position = min(self._file.tell() if position is None else position, self._stop)
        if position > self._consumed:
            self._advance(position - self._consumed)
            self._consumed = position

    def finish(self) -> None:
        self.update(self._stop)


class _DamagedError(Exception):
    """Bytes that cannot be unpacked."""


class _Window:
    """The bytes of a file from an offset on, some of them read ahead."""

    def __init__(self, file: BinaryIO, offset: int):
        self.offset = offset
        """Position of the first byte that has not been taken."""
        self._file = file
        self._ahead = b""
        file.seek(offset)

    def take(self) -> bytes:
        """Takes some bytes; none at the end of the file."""
        data = self._ahead or self._file.read(CHUNK_BYTES)
        self._ahead = b""
        self.offset += len(data)
        return data

    def give_back(self, data: bytes) -> None:
        self._ahead = data + self._ahead
        self.offset -= len(data)

    def is_stream(self) -> bool:
        while len(self._ahead) < _MAGIC_BYTES and self._read():
            pass
        return _MAGIC.match(self._ahead) is not None

    def find_stream(self, stop: int) -> bool:
        """Moves to the next stream that begins before `stop`, if there is one."""
        while self.offset < stop:
            if match := _MAGIC.search(self._ahead):
                self._skip(match.start())
                return self.offset < stop
            self._skip(max(len(self._ahead) - _MAGIC_BYTES + 1, 0))
            if not self._read():
                return False
        return False

    def skip_zeros(self) -> bool:
        """Moves past zero bytes, the padding of tapes; `False` at the end of file."""
        while not (rest := self._ahead.lstrip(b"\0")):
            self._skip(len(self._ahead))
            if not self._read():
                return False
        self._skip(len(self._ahead) - len(rest))
        return True

    def _read(self) -> bool:
        """Reads ahead; `False` at the end of the file."""
        more = self._file.read(CHUNK_BYTES)
        self._ahead += more
        return bool(more)

    def _skip(self, num_bytes: int) -> None:
        self._ahead = self._ahead[num_bytes:]
        self.offset += num_bytes


def _unpack(window: _Window) -> Iterator[bytes]:
    decompressor = bz2.BZ2Decompressor()
    while not decompressor.eof:
        data = b""
        if decompressor.needs_input:
            data = window.take()
            if not data:
                raise EOFError
        try:
            chunk = decompressor.decompress(data, CHUNK_BYTES)
        except (OSError, ValueError) as error:
            raise _DamagedError(str(error)) from None
        if chunk:
            yield chunk
    window.give_back(decompressor.unused_data)


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
        logger.warning(
            "%s: ignores the bytes after the last gzip member, as gunzip does",
            getattr(file, "name", "a gzip file"),
        )


def _frame_chunks(file: BinaryIO) -> Iterator[bytes]:
    """Unpacks xz streams, or Zstandard frames, up to the end of the last one."""
    make: Callable[[], Any] = lzma.LZMADecompressor
    if compression(file) == "zst":
        make = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
    frame = None
    data = b""
    # A few bytes at a time: they may become ten thousand times as many.
    while data := data or file.read(_PACKED_BYTES):
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
