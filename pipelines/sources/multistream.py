"""Compressed files -> bytes: bzip2 files are read from any stream on.

A bzip2 file may be many streams one after another, each of which can be unpacked by
itself: the multistream dumps of Wikipedia have one for each hundred pages, and pbzip2
makes one of each 900 kB. Streams are found by how they begin, so no index is needed.
Pure: knows no Beam.
"""

import bz2
import collections
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from bert_keras.errors import InputError

CHUNK_BYTES = 1 << 18
_SEARCHED_BYTES = 1 << 25
# So much of a stream is held back, unpacked, since checksums come after what they are
# of. A shorter stream is handed out whole or, if damaged, not at all.
_HELD_BYTES = 4 << 20
# The checksum of a block comes after at most 900 kB.
_HELD_BYTES_OF_BLOCK = 1 << 20
# Ten bytes: in 20 GB the odds that they come by chance are 1 to 10^14. The second
# alternative is a stream of nothing.
_MAGIC = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
_MAGIC_BYTES = 10
_END_OF_STREAM = 0x177245385090


class StreamStart(NamedTuple):
    """A bzip2 stream begins."""

    offset: int
    """Of its first byte in the file."""


class Damage(NamedTuple):
    """What is lost of a bzip2 file; what was unpacked of it is not handed out."""

    offset: int
    reason: str


def compression(file: BinaryIO) -> str | None:
    """`bz2`, `gz` or None, by how a file begins; leaves it at its beginning."""
    file.seek(0)
    magic = file.read(3)
    file.seek(0)
    if magic == b"BZh":
        return "bz2"
    return "gz" if magic[:2] == b"\x1f\x8b" else None


def has_streams(file: BinaryIO) -> bool:
    """Whether a bzip2 file holds several streams, the second in its first 32 MiB."""
    window = _Window(file, 1)
    return window.find_stream(_SEARCHED_BYTES)


def read_streams(
    file: BinaryIO, start: int, stop: int, *, held_bytes: int = _HELD_BYTES
) -> Iterator[StreamStart | Damage | bytes]:
    """Unpacks a bzip2 file, from the first stream that begins at `start` or later.

    Goes on past `stop` as long as it is asked to: a page may end there. But it looks
    for no stream there, where it has lost the thread.

    Args:
        file: any bzip2 file.
        start: in bytes of the file.
        stop: likewise.
        held_bytes: so much that was unpacked is held back until its end is known to be
            sound.

    Yields:
        The start of each stream, then what is in it. `Damage`: a stream that cannot be
        unpacked, or bytes after a stream that are no stream; the next stream follows.

    Raises:
        EOFError: the file ends within a stream.
    """
    window = _Window(file, start)
    is_found = window.find_stream(stop)
    while is_found:
        begin = window.offset
        yield StreamStart(begin)
        try:
            yield from _unpack(window, held_bytes)
        except _DamagedError as error:
            yield Damage(begin, str(error))
            window = _Window(file, begin + 1)
            is_found = window.find_stream(stop)
            continue
        is_found = window.is_stream()
        if not is_found and window.skip_zeros():
            yield Damage(window.offset, "bytes that are no bzip2 stream")
            is_found = window.find_stream(stop)


def read_all(file: BinaryIO, path: str) -> Iterator[bytes]:
    """Unpacks a file from its beginning to its end, or reads it if it is not packed.

    Raises:
        InputError: it is damaged or truncated.
    """
    read = {"bz2": _bz2_chunks, "gz": _gzip_chunks, None: _plain_chunks}
    try:
        yield from read[compression(file)](file)
    except EOFError:
        raise truncated(path) from None
    except _DamagedError as error:
        raise damaged(path, str(error)) from None


def truncated(path: str) -> InputError:
    """The error for a compressed file that ends too early."""
    return InputError(
        f"{path}: the compressed file ends in the middle (truncated); copy or "
        "download it again"
    )


def damaged(path: str, reason: str) -> InputError:
    """The error for a compressed file of which nothing can be saved."""
    return InputError(
        f"{path}: the compressed file is damaged ({reason}); copy or download it again"
    )


def check_end(file: BinaryIO, path: str) -> None:
    """Finds in an instant that the end of a bzip2 file is missing.

    Raises:
        InputError: it is.
    """
    size = file.seek(0, 2)
    file.seek(max(size - 4096, 0))
    tail = file.read().rstrip(b"\0")[-24:] + bytes(8)
    # The last stream ends with 48 bits of magic and 32 of checksum, on any bit.
    bits = int.from_bytes(tail, "big")
    mask = (1 << 48) - 1
    if not any((bits >> n) & mask == _END_OF_STREAM for n in range(len(tail) * 8)):
        raise InputError(
            f"{path}: the bzip2 file has no end (truncated); copy or download it again"
        )


class Progress:
    """Says how much of a range of a file has been read."""

    def __init__(
        self, file: BinaryIO, start: int, stop: int, advance: Callable[[int], object]
    ):
        """Begins at the start of the range.

        Args:
            file: its position tells how far the reading is.
            start: in bytes.
            stop: in bytes; what is read beyond it does not count.
            advance: called with the number of bytes since the last call.
        """
        self._file = file
        self._consumed = start
        self._stop = stop
        self._advance = advance

    def update(self) -> None:
        """To be called now and then."""
        self._move(min(self._file.tell(), self._stop))

    def finish(self) -> None:
        """To be called when the whole range has been read."""
        self._move(self._stop)

    def _move(self, position: int) -> None:
        if position > self._consumed:
            self._advance(position - self._consumed)
            self._consumed = position


class _DamagedError(Exception):
    """Bytes that cannot be unpacked."""


class _Window:
    """The bytes of a file from an offset on, of which some have been read ahead."""

    def __init__(self, file: BinaryIO, offset: int):
        self.offset = offset
        """Of the first byte that has not been taken."""
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
        """Undoes the taking of the last bytes."""
        self._ahead = data + self._ahead
        self.offset -= len(data)

    def is_stream(self) -> bool:
        """Whether a stream begins here."""
        while len(self._ahead) < _MAGIC_BYTES and (more := self._read()):
            self._ahead += more
        return _MAGIC.match(self._ahead) is not None

    def find_stream(self, stop: int) -> bool:
        """Moves to the next stream that begins before `stop`, if there is one."""
        while self.offset < stop:
            if match := _MAGIC.search(self._ahead):
                self._skip(match.start())
                return self.offset < stop
            self._skip(max(len(self._ahead) - _MAGIC_BYTES + 1, 0))
            more = self._read()
            if not more:
                return False
            self._ahead += more
        return False

    def skip_zeros(self) -> bool:
        """Moves past zero bytes, with which tapes are filled up; False at the end."""
        while True:
            rest = self._ahead.lstrip(b"\0")
            self._skip(len(self._ahead) - len(rest))
            if rest:
                return True
            self._ahead = self._read()
            if not self._ahead:
                return False

    def _read(self) -> bytes:
        return self._file.read(CHUNK_BYTES)

    def _skip(self, num_bytes: int) -> None:
        self._ahead = self._ahead[num_bytes:]
        self.offset += num_bytes


def _unpack(window: _Window, held_bytes: int) -> Iterator[bytes]:
    """Unpacks the stream at which the window is, and moves behind it."""
    decompressor = bz2.BZ2Decompressor()
    held: collections.deque[bytes] = collections.deque()
    num_held = 0
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
            held.append(chunk)
            num_held += len(chunk)
        while num_held > held_bytes:
            num_held -= len(held[0])
            yield held.popleft()
    window.give_back(decompressor.unused_data)
    yield from held


def _bz2_chunks(file: BinaryIO) -> Iterator[bytes]:
    # Not bz2.BZ2File: that takes damage at the start of a later stream for the end of
    # the file, and the rest would be missing without a word.
    if not _Window(file, 0).is_stream():
        raise _DamagedError("it does not begin as a bzip2 file does")
    for event in read_streams(file, 0, 1, held_bytes=_HELD_BYTES_OF_BLOCK):
        if isinstance(event, Damage):
            raise _DamagedError(event.reason)
        if isinstance(event, bytes):
            yield event


def _gzip_chunks(file: BinaryIO) -> Iterator[bytes]:
    stream = gzip.GzipFile(fileobj=file)
    try:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _DamagedError(str(error)) from None


def _plain_chunks(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk
