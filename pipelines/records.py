"""`tf.train.Example` messages, and shards of them, without TensorFlow.

Wire format: protobuf's encoding, `tensorflow/core/example/{example,feature}.proto`.
"""

import contextlib
import gzip
import hashlib
import itertools
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, cast

import numpy as np

from bert_keras import files, manifest
from bert_keras.data import tfrecords
from bert_keras.errors import InputError

VOCABULARY_NAME = "vocab.txt"
"""The vocabulary's copy in a directory of examples."""

# Keys of protobuf fields: field number << 3 | wire type; 2 is length-delimited.
_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"
_FLOAT_LIST, _INT64_LIST = 2, 3  # field numbers of the message Feature
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


# tf.train.Example, encoding.
#
# Many messages at once: a message is a row of a matrix of bytes, of which some are
# dropped, because a varint takes as few bytes as it can.

Compression = Literal["none", "gzip"]
"""Compression of a file of records."""


class _Columns(NamedTuple):
    """Some adjacent bytes of each of `n` messages."""

    data: np.ndarray
    """`(n, width)` uint8."""
    is_kept: np.ndarray
    """`(n, width)` bool: the other bytes are dropped, without a gap."""
    sizes: np.ndarray | int
    """`(n,)` int64: number of bytes of each row that are kept; one for all rows."""


def encode_examples(
    features: Mapping[str, np.ndarray],
    *,
    lengths: Mapping[str, np.ndarray] | None = None,
) -> list[bytes]:
    """Serialises `n` `tf.train.Example`s.

    Args:
        features: by name, `(n, values)` integers or float32 numbers.
        lengths: by name, `(n,)`: number of values in each example, for integer features
            of varying length.

    Returns:
        The bytes of `SerializeToString(deterministic=True)`: map entries by rising name
        (if none begins another: there protobuf's implementations differ).
    """
    lengths = lengths or {}
    entries = []
    for name, values in sorted(features.items()):
        if values.dtype.kind == "f":
            numbers = _all_kept(np.ascontiguousarray(values, "<f4").view(np.uint8))
            feature = _nested(_FIELD_2, _nested(_FIELD_1, [numbers]))
        else:
            numbers = _varints(values, lengths.get(name))
            feature = _nested(_FIELD_3, _nested(_FIELD_1, [numbers]))
        key = _nested(_FIELD_1, [_constant(name.encode(), len(values))])
        entries += _nested(_FIELD_1, [*key, *_nested(_FIELD_2, feature)])
    columns = _nested(_FIELD_1, entries)
    data = np.concatenate([part.data for part in columns], axis=1)
    is_kept = np.concatenate([part.is_kept for part in columns], axis=1)
    joined = np.compress(is_kept.ravel(), data.ravel()).tobytes()
    sizes = np.broadcast_to(_total_size(columns), len(data))
    ends = np.cumsum(sizes).tolist()
    return [joined[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _nested(key: bytes, columns: list[_Columns]) -> list[_Columns]:
    """A field of a message that holds the message `columns`."""
    num_rows, size = len(columns[0].data), _total_size(columns)
    if isinstance(size, int):
        # The same in all rows: most of a message need not be computed.
        packed = _varints(np.array([[size]])).data.tobytes()
        return [_constant(key + packed, num_rows), *columns]
    return [_constant(key, num_rows), _varints(size[:, np.newaxis]), *columns]


def _total_size(columns: Iterable[_Columns]) -> np.ndarray | int:
    return sum(part.sizes for part in columns)


def _constant(data: bytes, num_rows: int) -> _Columns:
    row = np.frombuffer(data, np.uint8)
    return _all_kept(np.broadcast_to(row, (num_rows, len(row))))


def _all_kept(data: np.ndarray) -> _Columns:
    return _Columns(data, np.broadcast_to(True, data.shape), data.shape[1])


def _varints(values: np.ndarray, lengths: np.ndarray | None = None) -> _Columns:
    """`(n, values)` integers, 7 bits a byte, the lowest first, 1 to 10 bytes each."""
    # As protobuf has it, a negative number is a large one of 64 bits.
    numbers = values.astype(np.uint64) if _is_wide(values) else values.astype(np.uint32)
    num_rows, num_values = numbers.shape
    width = max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
    if width == 1 and lengths is None:
        return _all_kept(numbers.astype(np.uint8))
    data = np.empty((num_rows, num_values, width), np.uint8)
    is_kept = np.empty(data.shape, bool)
    is_kept[:, :, 0] = True
    for place in range(width):
        data[:, :, place] = numbers & numbers.dtype.type(0x7F)
        if place + 1 < width:
            numbers = numbers >> numbers.dtype.type(7)
            is_kept[:, :, place + 1] = numbers > 0
            data[:, :, place] |= is_kept[:, :, place + 1].view(np.uint8) << 7
    if lengths is not None:
        is_kept &= (np.arange(num_values) < lengths[:, np.newaxis])[:, :, np.newaxis]
    is_kept = is_kept.reshape(num_rows, -1)
    return _Columns(data.reshape(num_rows, -1), is_kept, is_kept.sum(axis=1))


def _is_wide(values: np.ndarray) -> bool:
    return values.size > 0 and (values.min() < 0 or values.max() >= 1 << 32)


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
            f"({error}); recreate the records with `bert-keras examples`"
        ) from None
    return features


class _NotAnExample(Exception):
    """The bytes are no message of the expected kind."""


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


def _fields(message: memoryview) -> Iterator[tuple[int, int, Any]]:
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


# One write and one hash for each would cost as much as making their frames.
_RECORDS_AT_ONCE = 256


def write_shard(
    path: str | Path,
    records: Iterable[bytes],
    *,
    compression: Compression = "none",
) -> manifest.Shard:
    """Writes a TFRecord file that appears under its name only when it is complete.

    The same records give the same bytes; if compressed, with the same zlib. The name of
    a compressed file ends in `.gz`, by which `read_records` recognises it.
    """
    num_records = 0
    with files.open_atomically(path) as file:
        hashed = _HashedFile(file)
        with contextlib.ExitStack() as stack:
            stream: _HashedFile | gzip.GzipFile = hashed
            if compression == "gzip":
                # Neither a time nor a name in the header.
                stream = gzip.GzipFile("", "wb", 6, hashed, mtime=0)
                stack.enter_context(stream)
            waiting = iter(records)
            while some := list(itertools.islice(waiting, _RECORDS_AT_ONCE)):
                stream.write(b"".join(map(tfrecords.frame, some)))
                num_records += len(some)
    return manifest.Shard(
        name=files.name_of(path),
        num_records=num_records,
        num_bytes=hashed.num_bytes,
        sha256=hashed.digest.hexdigest(),
    )


class _HashedFile:
    """A file for writing that counts and hashes its content."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.num_bytes = 0
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._file.write(data)
        self.digest.update(data)
        self.num_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def read_records(
    path: str | Path, *, compression: Compression | None = None
) -> Iterator[bytes]:
    """The records of a TFRecord file, each checked against its CRC.

    Args:
        path: of the file.
        compression: `None`: gzip if the name ends in `.gz`.

    Raises:
        InputError: the file ends within a record, a CRC differs, or it is not gzip.
    """
    if compression is None:
        compression = "gzip" if str(path).endswith(".gz") else "none"
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(files.open_to_read(path))
        if compression == "gzip":
            file = stack.enter_context(gzip.GzipFile(fileobj=file))
        try:
            yield from tfrecords.read_frames(cast(BinaryIO, file))
        except tfrecords.DamagedRecord as error:
            raise InputError(
                f"{path}: expected a TFRecord at byte {error.offset}, but "
                f"{error.reason}: the file was cut or changed; recreate it"
            ) from None
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise InputError(
                f"{path}: expected a TFRecord file compressed by gzip: {error}: the "
                "file was cut or changed; recreate it"
            ) from None
