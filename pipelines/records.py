"""`tf.train.Example` messages and TFRecord files, without TensorFlow.

Wire formats: protobuf's encoding, `tensorflow/core/example/{example,feature}.proto`,
and the TFRecord framing (length, masked CRC of the length, data, masked CRC of the
data). `tf.data.TFRecordDataset` reads what this writes, and the other way round.
"""

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import google_crc32c

from bert_keras import manifest
from bert_keras.errors import InputError

VOCABULARY_NAME = "vocab.txt"
"""The vocabulary's copy in a directory of examples."""

# Keys of protobuf fields: field number << 3 | wire type; 2 is length-delimited.
_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"
_FLOAT_LIST, _INT64_LIST = 2, 3  # field numbers of the message Feature
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


# tf.train.Example, encoding.


class _Varints(dict):
    """Memo of varints: token ids, positions and lengths come again and again."""

    _LARGEST_KEPT = 1 << 20

    def __missing__(self, number: int) -> bytes:
        rest, digits = number & 0xFFFFFFFFFFFFFFFF, bytearray()
        while rest >= 0x80:
            digits.append(rest & 0x7F | 0x80)
            rest >>= 7
        digits.append(rest)
        encoded = bytes(digits)
        if 0 <= number < self._LARGEST_KEPT:
            self[number] = encoded
        return encoded


_varints = _Varints()


def int64_feature(values: Iterable[int]) -> bytes:
    """A `Feature` message that holds integers."""
    packed = b"".join(map(_varints.__getitem__, values))
    return _nested(_FIELD_3, _nested(_FIELD_1, packed))


def float_feature(values: Sequence[float]) -> bytes:
    """A `Feature` message that holds float32 numbers."""
    packed = struct.pack(f"<{len(values)}f", *values)
    return _nested(_FIELD_2, _nested(_FIELD_1, packed))


def encode_example(features: Mapping[str, bytes]) -> bytes:
    """A serialised `tf.train.Example`.

    Args:
        features: `Feature` messages of `int64_feature` or `float_feature`, by name.

    Returns:
        What `SerializeToString(deterministic=True)` gives: map entries by rising name
        (if none begins another: there protobuf's implementations differ).
    """
    entries = [
        _nested(_FIELD_1, _nested(_FIELD_1, name.encode()) + _nested(_FIELD_2, feature))
        for name, feature in sorted(features.items())
    ]
    return _nested(_FIELD_1, b"".join(entries))


def _nested(key: bytes, message: bytes) -> bytes:
    return key + _varints[len(message)] + message


# tf.train.Example, decoding.


def decode_example(data: bytes) -> dict[str, list[int] | list[float]]:
    """The features of a serialised `tf.train.Example`, by name.

    Reads packed and unpacked lists, fields in any order, and passes over fields that
    it does not know, as protobuf does.

    Raises:
        InputError: not an `Example`, or a feature of bytes.
    """
    features: dict[str, list[int] | list[float]] = {}
    try:
        for entry in _submessages(_submessage(data, 1), 1):
            name = bytes(_submessage(entry, 1)).decode()
            features[name] = _decode_feature(_submessage(entry, 2))
    except (IndexError, struct.error, UnicodeDecodeError, _NotAnExample) as error:
        raise InputError(
            "expected a serialised tf.train.Example of numbers, got something else "
            f"({error}); make the records again with `bert-keras examples`"
        ) from None
    return features


class _NotAnExample(Exception):
    """The bytes are no message of the kind that was looked for."""


def _decode_feature(message: memoryview) -> list[int] | list[float]:
    for number, wire_type, value in _fields(message):
        if number == _INT64_LIST and wire_type == _LENGTH_DELIMITED:
            return _decode_int64_list(value)
        if number == _FLOAT_LIST and wire_type == _LENGTH_DELIMITED:
            return _decode_float_list(value)
    raise _NotAnExample("a feature without a list of numbers")


def _decode_int64_list(message: memoryview) -> list[int]:
    numbers: list[int] = []
    for _, wire_type, value in _fields(message):
        if wire_type == _VARINT:
            numbers.append(value)
            continue
        if wire_type != _LENGTH_DELIMITED:
            raise _NotAnExample("an integer of fixed width")
        offset = 0
        while offset < len(value):
            number, offset = _read_varint(value, offset)
            numbers.append(number)
    return [n - (1 << 64) if n >> 63 else n for n in numbers]


def _decode_float_list(message: memoryview) -> list[float]:
    numbers: list[float] = []
    for _, wire_type, value in _fields(message):
        if wire_type not in (_FIXED32, _LENGTH_DELIMITED):
            raise _NotAnExample("a float32 of another width")
        numbers.extend(number for (number,) in struct.iter_unpack("<f", value))
    return numbers


def _submessages(message: bytes | memoryview, number: int) -> Iterator[memoryview]:
    for found, wire_type, value in _fields(memoryview(message)):
        if found == number and wire_type == _LENGTH_DELIMITED:
            yield value


def _submessage(message: bytes | memoryview, number: int) -> memoryview:
    found = list(_submessages(message, number))
    if not found:
        raise _NotAnExample(f"field {number} is missing")
    return found[-1]  # A field that comes twice: the last counts, as in protobuf.


def _fields(message: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Field number, wire type and value of every field of a message."""
    offset = 0
    while offset < len(message):
        key, offset = _read_varint(message, offset)
        wire_type = key & 7
        if wire_type == _VARINT:
            value, offset = _read_varint(message, offset)
            yield key >> 3, wire_type, value
            continue
        if wire_type == _LENGTH_DELIMITED:
            length, offset = _read_varint(message, offset)
        elif wire_type in (_FIXED32, _FIXED64):
            length = 4 if wire_type == _FIXED32 else 8
        else:
            raise _NotAnExample(f"wire type {wire_type}")
        if length > len(message) - offset:
            raise _NotAnExample("a field longer than its message")
        yield key >> 3, wire_type, message[offset : offset + length]
        offset += length


def _read_varint(message: memoryview, offset: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        byte = message[offset]
        offset += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & 0xFFFFFFFFFFFFFFFF, offset
    raise _NotAnExample("a number of more than ten bytes")


# TFRecord files.


def frame(data: bytes) -> bytes:
    """One record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked_crc(length), data, _masked_crc(data)))


def _masked_crc(data: bytes) -> bytes:
    # Masked so that a CRC of data that itself holds CRCs stays a good check.
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def write_shard(path: str | Path, records: Iterable[bytes]) -> manifest.Shard:
    """Writes a TFRecord file that appears under its name only when it is whole.

    Returns:
        What a manifest says of the file.
    """
    digest = hashlib.sha256()
    num_records = num_bytes = 0
    with manifest.open_atomically(path) as file:
        for record in records:
            framed = frame(record)
            file.write(framed)
            digest.update(framed)
            num_records += 1
            num_bytes += len(framed)
    return manifest.Shard(
        name=Path(path).name,
        num_records=num_records,
        num_bytes=num_bytes,
        sha256=digest.hexdigest(),
    )


def read_records(path: str | Path) -> Iterator[bytes]:
    """The records of a TFRecord file, each checked against its CRC.

    Raises:
        InputError: the file ends within a record, or a CRC differs.
    """
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        while header := file.read(12):
            start = file.tell() - len(header)
            if len(header) < 12 or header[8:] != _masked_crc(header[:8]):
                raise _damaged(path, start, "no record begins there")
            (length,) = struct.unpack("<Q", header[:8])
            # Before memory is taken for it: a length may be any number.
            if length + 4 > size - file.tell():
                raise _damaged(path, start, "the file ends within the record")
            data, crc = file.read(length), file.read(4)
            if crc != _masked_crc(data):
                raise _damaged(path, start, "its checksum differs")
            yield data


def _damaged(path: str | Path, offset: int, reason: str) -> InputError:
    return InputError(
        f"{path}: expected a TFRecord at byte {offset}, but {reason}: the file was "
        "cut or changed; make it again"
    )
