"""`tf.train.Example` messages, and shards of them, without TensorFlow.

Wire format: protobuf's encoding, `tensorflow/core/example/{example,feature}.proto`.
"""

import contextlib
import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, Literal, NamedTuple, cast

import numpy as np

from bert_keras.core import files, manifest
from bert_keras.core.errors import InputError
from bert_keras.data import tfrecords

VOCABULARY_NAME = "vocab.txt"

# Keys of protobuf fields: field number << 3 | wire type; 2 is length-delimited.
_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"

Compression = Literal["none", "gzip"]


class _Columns(NamedTuple):
    """Some adjacent bytes of each of `n` messages."""

    data: np.ndarray
    """`(n, width)` uint8."""
    is_kept: np.ndarray
    """`(n, width)` bool: the other bytes are dropped, without a gap."""
    sizes: np.ndarray
    """`(n,)` int64: bytes of each row that are kept."""


def encode_examples(
    features: Mapping[str, np.ndarray],
    *,
    lengths: Mapping[str, np.ndarray] | None = None,
) -> list[bytes]:
    """Serialises `n` `tf.train.Example`s like `SerializeToString(deterministic=True)`.

    The `features` are `(n, values)` integers or float32 numbers. The optional
    `lengths`, `(n,)`, are the numbers of values of integer features of varying length.
    Map entries rise by name (if no name begins another: there protobuf's
    implementations differ). Each message is a row of a matrix of bytes, of which some
    are dropped, because a varint takes as few bytes as it can.
    """
    lengths = lengths or {}
    entries = []
    for name, values in sorted(features.items()):
        # A `Feature` has a FloatList as field 2, an Int64List as 3; both are packed in
        # field 1.
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
    ends = np.cumsum(np.sum([part.sizes for part in columns], axis=0)).tolist()
    return [joined[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _nested(key: bytes, columns: list[_Columns]) -> list[_Columns]:
    sizes = np.sum([part.sizes for part in columns], axis=0)[:, np.newaxis]
    return [_constant(key, len(sizes)), _varints(sizes), *columns]


def _constant(data: bytes, num_rows: int) -> _Columns:
    row = np.frombuffer(data, np.uint8)
    return _all_kept(np.broadcast_to(row, (num_rows, len(row))))


def _all_kept(data: np.ndarray) -> _Columns:
    num_rows, width = data.shape
    return _Columns(data, np.broadcast_to(True, data.shape), np.full(num_rows, width))


def _varints(values: np.ndarray, lengths: np.ndarray | None = None) -> _Columns:
    """Encodes `(n, values)` integers: 7 bits a byte, lowest first, 1 to 10 bytes."""
    # As protobuf has it, a negative number is a large one of 64 bits.
    is_wide = values.size > 0 and (values.min() < 0 or values.max() >= 1 << 32)
    numbers = values.astype(np.uint64 if is_wide else np.uint32)
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
            # The highest bit of a byte says that another one follows.
            data[:, :, place] |= is_kept[:, :, place + 1].view(np.uint8) << 7
    if lengths is not None:
        is_kept &= (np.arange(num_values) < lengths[:, np.newaxis])[:, :, np.newaxis]
    is_kept = is_kept.reshape(num_rows, -1)
    return _Columns(data.reshape(num_rows, -1), is_kept, is_kept.sum(axis=1))


def write_shard(
    path: files.Path, records: Iterable[bytes], *, compression: Compression = "none"
) -> manifest.Shard:
    """Writes a TFRecord file: the same records give the same bytes; if compressed, with
    the same zlib."""
    level = 6 if compression == "gzip" else None
    return write_hashed(path, map(tfrecords.frame, records), level=level)


def write_hashed(
    path: files.Path, records: Iterable[bytes], *, level: int | None
) -> manifest.Shard:
    """Writes a shard that appears under its name only when it is complete. `level` is
    that of gzip; `None`: no compression."""
    num_records = 0
    with files.open_atomically(path) as file:
        stream = contextlib.nullcontext(file)
        if level is not None:
            # Neither a time nor a name in the header.
            stream = gzip.GzipFile("", "wb", level, file, mtime=0)
        with stream as opened:
            for record in records:
                opened.write(record)
                num_records += 1
        file.flush()
        return manifest.Shard(
            name=files.name_of(path),
            num_records=num_records,
            num_bytes=file.tell(),
            # Read again, from memory: hashing each record costs as much as making it.
            sha256=files.sha256(file.name),
        )


def read_records(
    path: files.Path, *, compression: Compression = "none"
) -> Iterator[bytes]:
    """Yields the records of a TFRecord file, each checked against its CRC."""
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
