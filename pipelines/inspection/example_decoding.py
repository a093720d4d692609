"""Many `tf.train.Example` messages at once, as arrays.

Reads the form that protobuf's own writers give them: packed lists, each name before its
value, nothing else. The outer fields are read in Python, the numbers by NumPy.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_keras.core.errors import InputError


class Ragged(NamedTuple):
    """One feature of `n` examples."""

    values: np.ndarray
    """All numbers, one example after the other; int64 or float32."""
    lengths: np.ndarray
    """`(n,)`: count of the numbers of each example."""


def decode_examples(messages: Sequence[bytes]) -> dict[str, Ragged]:
    """Returns features by name; an example without the feature has length 0."""
    payloads: dict[str, list[bytes]] = {}
    kinds: dict[str, int] = {}
    for row, message in enumerate(messages):
        for name, kind, payload in _features_of(message):
            if payload and kinds.setdefault(name, kind) != kind:
                raise InputError(
                    f"expected all values of {name} of one kind, found "
                    "integers and floats"
                )
            column = payloads.setdefault(name, [])
            # Missing in earlier examples, or repeated in this one: the last counts.
            column += [b""] * (row - len(column))
            column[row:] = [payload]
    decoded = {}
    for name, column in payloads.items():
        column += [b""] * (len(messages) - len(column))
        is_float = kinds.get(name) == _FLOATS
        decoded[name] = (_floats if is_float else _integers)(column)
    return decoded


# Keys of protobuf fields, one byte each: lists in the message Feature, and others.
_FLOATS, _INTEGERS = 0x12, 0x1A
_FIELD_1, _FIELD_2 = 0x0A, 0x12


class _Unusual(Exception):
    """A message in another form."""


def _features_of(message: bytes) -> list[tuple[str, int, bytes]]:
    try:
        return list(_usual_features(message))
    except (_Unusual, IndexError, UnicodeDecodeError):
        raise InputError(
            "expected a serialised tf.train.Example of numbers in packed lists, got "
            "something else; recreate the records with `bert-keras examples` or "
            "TensorFlow"
        ) from None


def _usual_features(message: bytes) -> Iterator[tuple[str, int, bytes]]:
    at, end = _content(message, 0)
    if message[0] != _FIELD_1 or end != len(message):
        raise _Unusual
    while at < end:
        entry, entry_end = _content(message, at)
        name, name_end = _content(message, entry)
        feature, feature_end = _content(message, name_end)
        numbers, numbers_end = _content(message, feature)
        kind = message[feature]
        if (
            message[at] != _FIELD_1
            or message[entry] != _FIELD_1
            or message[name_end] != _FIELD_2
            or kind not in (_FLOATS, _INTEGERS)
            or not entry_end == feature_end == numbers_end <= end
        ):
            raise _Unusual
        packed = _packed(message, numbers, numbers_end, kind)
        yield message[name:name_end].decode(), kind, packed
        at = entry_end


def _packed(message: bytes, start: int, end: int, kind: int) -> bytes:
    """Returns the numbers of a FloatList or an Int64List from `start` to `end`."""
    if start == end:
        return b""
    content, content_end = _content(message, start)
    if message[start] != _FIELD_1 or content_end != end:
        raise _Unusual
    payload = message[content:end]
    is_cut = len(payload) % 4 if kind == _FLOATS else payload and payload[-1] >= 0x80
    if is_cut:
        raise _Unusual
    return payload


def _content(message: bytes, at: int) -> tuple[int, int]:
    """Returns where the length-delimited field at `at` begins and ends."""
    size = message[at + 1]
    if size < 0x80:
        return at + 2, at + 2 + size
    size += (message[at + 2] << 7) - 0x80
    if message[at + 2] < 0x80:
        return at + 3, at + 3 + size
    size += (message[at + 3] << 14) - (0x80 << 7)
    if message[at + 3] < 0x80:
        return at + 4, at + 4 + size
    raise _Unusual  # 2 MB or more.


def _floats(column: list[bytes]) -> Ragged:
    lengths = np.fromiter(map(len, column), np.int64, len(column)) // 4
    return Ragged(np.frombuffer(b"".join(column), "<f4"), lengths)


def _integers(column: list[bytes]) -> Ragged:
    """Decodes varints: 7 bits a byte, the lowest first, the last byte below 128."""
    data = np.frombuffer(b"".join(column), np.uint8)
    ends = np.cumsum(np.fromiter(map(len, column), np.int64, len(column)))
    last_bytes = np.flatnonzero(data < 0x80)
    if len(last_bytes) == len(data):
        return Ragged(data.astype(np.int64), np.diff(ends, prepend=0))
    starts = np.concatenate(([0], last_bytes[:-1] + 1))
    sizes = last_bytes - starts + 1
    if sizes.max() > 10:
        raise InputError("expected integers of 64 bits, found a longer one")
    values = data[starts].astype(np.uint64) & np.uint64(0x7F)
    for place in range(1, sizes.max()):
        longer = np.flatnonzero(sizes > place)
        digits = data[starts[longer] + place].astype(np.uint64) & np.uint64(0x7F)
        values[longer] |= digits << np.uint64(7 * place)
    # The number of varints before a byte is that of last bytes.
    lengths = np.diff(np.searchsorted(last_bytes, ends), prepend=0)
    return Ragged(values.view(np.int64), lengths)
