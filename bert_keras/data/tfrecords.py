"""TFRecord files, without TensorFlow: `tf.data.TFRecordDataset` has the same format. A
record is its length in 8 bytes, the masked CRC of these, the data, and its masked CRC.
"""

import struct
from collections.abc import Iterator
from typing import BinaryIO

import google_crc32c

_READ_AT_ONCE = 1 << 18


class DamagedRecord(Exception):
    """A file without a whole, undamaged record where one was expected."""

    def __init__(self, offset: int, reason: str, *, is_cut: bool = False):
        super().__init__(f"at byte {offset}, {reason}")
        self.offset = offset
        """First byte of the record."""
        self.reason = reason
        self.is_cut = is_cut
        """Whether the file merely ends too early, as while it is being written."""


def frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked_crc(length), data, _masked_crc(data)))


def read_frames(file: BinaryIO) -> Iterator[bytes]:
    """Yields the data of a file's records, each checked against its CRC."""
    offset = 0
    while header := file.read(12):
        is_cut = len(header) < 12
        if is_cut or header[8:] != _masked_crc(header[:8]):
            raise DamagedRecord(offset, "no record begins there", is_cut=is_cut)
        (length,) = struct.unpack("<Q", header[:8])
        # Piece by piece: a damaged length takes no more memory than the file has.
        data = file.read(min(length, _READ_AT_ONCE))
        while len(data) < length and (
            more := file.read(min(length - len(data), _READ_AT_ONCE))
        ):
            data += more
        crc = file.read(4)
        if len(data) < length or len(crc) < 4:
            reason = "the file ends within the record"
            raise DamagedRecord(offset, reason, is_cut=True)
        if crc != _masked_crc(data):
            raise DamagedRecord(offset, "its checksum differs")
        yield data
        offset += length + 16


def _masked_crc(data: bytes) -> bytes:
    # Masked so that a CRC of data that itself holds CRCs stays a good check.
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
