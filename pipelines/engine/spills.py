"""A shuffle on disk: files of values sorted by key, read back key by key.

A file holds the values of key 0, then of key 1, and so on, each after its length, and
then, for each key, the offset of its values.
"""

import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import numpy as np

from bert_keras.core import files

_LENGTH = struct.Struct("<I")
_FOOTER = struct.Struct("<Q")
_FLUSH_BYTES = 16 << 20


def _offsets(file: BinaryIO) -> np.ndarray:
    """Reads where the values of each key begin, and the last ones end."""
    file.seek(-_FOOTER.size, 2)
    (num_keys,) = _FOOTER.unpack(file.read())
    file.seek(-_FOOTER.size - 8 * (num_keys + 1), 2)
    return np.frombuffer(file.read(8 * (num_keys + 1)), np.int64)


def spilled_bytes(path: str) -> np.ndarray:
    """Returns the bytes that a file holds for each key: `(num_keys,)` int64."""
    with open(path, "rb") as file:
        return np.diff(_offsets(file))


def read_values(
    paths: Sequence[str], key: int, *, advance: Callable[[int], object]
) -> Iterator[bytes]:
    """Yields the values of one key in several files."""
    for path in paths:
        with open(path, "rb") as file:
            start, end = _offsets(file)[key : key + 2].tolist()
            file.seek(start)
            while start < end:
                (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
                value = file.read(length)
                advance(length + _LENGTH.size)
                yield value
                start += length + _LENGTH.size


class SpillWriter:
    """Writes values by key into files of a `prefix` that no other writer may use."""

    def __init__(self, prefix: str, *, num_keys: int):
        self._prefix = prefix
        self._num_keys = num_keys
        self._values: dict[int, list[bytes]] = defaultdict(list)
        self._num_bytes = 0
        self._paths: list[str] = []

    def add(self, key: int, value: bytes) -> None:
        self._values[key].append(value)
        self._num_bytes += len(value) + 64  # the memory of the object besides
        if self._num_bytes >= _FLUSH_BYTES:
            self._flush()

    def close(self) -> list[str]:
        """Writes the rest; returns the paths of all files."""
        if self._values:
            self._flush()
        return self._paths

    def _flush(self) -> None:
        path = f"{self._prefix}-{len(self._paths)}.spill"
        offsets = np.zeros(self._num_keys + 1, np.int64)
        # The file appears once it is complete.
        with files.open_atomically(path) as file:
            for key in range(self._num_keys):
                for value in self._values.pop(key, ()):
                    file.write(_LENGTH.pack(len(value)))
                    file.write(value)
                offsets[key + 1] = file.tell()
            file.write(offsets.tobytes())
            file.write(_FOOTER.pack(self._num_keys))
        self._paths.append(path)
        self._num_bytes = 0
