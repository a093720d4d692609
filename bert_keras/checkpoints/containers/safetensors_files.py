"""Tensors of a safetensors file.

The safetensors package is not used. Its reader maps a file of the local disk, which
then counts as memory of the process, and reads nothing from a store; its writer needs
all tensors in memory at once. Our own files also have hashes, in the metadata of their
headers, so that damage is noticed. The module needs no TensorFlow.
"""

import contextlib
import hashlib
import json
import math
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np
import pydantic

from bert_keras.core import files
from bert_keras.core.errors import InputError, one_line

FLOATS = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_DTYPES = FLOATS | {
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}

# Keys of the metadata, and what stands in the place of a hash until it is known.
_HEADER_HASH, _TENSOR_HASH = "sha256 of header", "sha256 of {}"
_NO_HASH = "0" * 64


class DamagedFile(InputError):
    """A file that is truncated, damaged, or not safetensors. A disk or network that
    does not answer is another `InputError`: the file may be intact."""


class Layout(NamedTuple):
    dtype: np.dtype | str
    """The name in the file if NumPy has no such type."""
    shape: tuple[int, ...]


def layouts_of(tensors: Mapping[str, Any]) -> dict[str, Layout]:
    """Returns the layouts of arrays, or of variables of any framework."""
    return {k: Layout(np.dtype(v.dtype), tuple(v.shape)) for k, v in tensors.items()}


class _Header(pydantic.BaseModel, extra="allow"):
    class Entry(pydantic.BaseModel):
        dtype: str
        shape: tuple[pydantic.NonNegativeInt, ...]
        data_offsets: tuple[pydantic.NonNegativeInt, pydantic.NonNegativeInt]

    metadata: dict[str, str] = pydantic.Field({}, alias="__metadata__")
    __pydantic_extra__: dict[str, Entry]


class SafetensorsFile:
    """A `weights.Source` of the tensors of one file, read on demand.

    The header's claims are compared with the file's size before memory is allocated.
    If the file has hashes, those of the header and of each tensor are verified.

    Args:
        needs_hashes: whether a file without hashes counts as damaged.
    """

    def __init__(self, path: str | Path, *, needs_hashes: bool = False):
        self.path = path
        with _errors_of(path):
            self._file = files.open_to_read(path)
            weakref.finalize(self, self._file.close)
            header, self._data_begin = _read_header(self._file)
            if needs_hashes and _HEADER_HASH not in header.metadata:
                raise ValueError("it has no hashes")
        self.metadata = header.metadata
        self._entries = header.__pydantic_extra__
        self.shapes = {name: entry.shape for name, entry in self._entries.items()}
        self.layouts = {
            name: Layout(_DTYPES.get(entry.dtype, entry.dtype), entry.shape)
            for name, entry in self._entries.items()
        }

    def read(self, name: str) -> np.ndarray:
        dtype, shape = self.layouts[name]
        begin, end = self._entries[name].data_offsets
        with _errors_of(self.path):
            self._file.seek(self._data_begin + begin)
            data = self._file.read(end - begin)
            if len(data) < end - begin:
                raise ValueError("it was truncated while it was being read")
            expected = self.metadata.get(_TENSOR_HASH.format(name))
            if expected is not None and hashlib.sha256(data).hexdigest() != expected:
                raise ValueError(f"the hash of {name!r} differs")
        return np.frombuffer(data, dtype).reshape(shape)


def _read_header(file: BinaryIO) -> tuple[_Header, int]:
    """Returns a header whose tensors fill the rest of the file exactly, as the format
    demands, and the offset of their first byte."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    num_bytes = int.from_bytes(file.read(8), "little")
    # The limit of the safetensors package. Our headers have less than 1 MB.
    if size < 8 or num_bytes > min(size - 8, 100_000_000):
        raise ValueError(f"claims a header of {num_bytes} bytes in a file of {size}")
    text = file.read(num_bytes)
    header = _Header.model_validate_json(text, strict=True)
    # The hash was computed while zeros stood in its place.
    expected = header.metadata.get(_HEADER_HASH)
    if expected is not None:
        text = text.replace(expected.encode(), _NO_HASH.encode(), 1)
        if hashlib.sha256(text).hexdigest() != expected:
            raise ValueError("the hash of its header differs")
    # Tensors follow one another without gaps, and each is as long as its shape says.
    end = 0
    entries = header.__pydantic_extra__.items()
    for name, entry in sorted(entries, key=lambda item: item[1].data_offsets):
        previous_end, (begin, end) = end, entry.data_offsets
        claimed = end - begin
        if entry.dtype in _DTYPES:
            claimed = math.prod(entry.shape) * _DTYPES[entry.dtype].itemsize
        if begin != previous_end or end - begin != claimed:
            raise ValueError(
                f"{name!r}: {entry.dtype} of the shape {entry.shape} do not fill the "
                f"bytes from {previous_end} to {end}"
            )
    if end != size - 8 - num_bytes:
        raise ValueError(f"claims {8 + num_bytes + end} bytes in a file of {size}")
    return header, 8 + num_bytes


@contextlib.contextmanager
def _errors_of(path: str | Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}; run the same command again "
            "when it can be"
        ) from None
    except ValueError as error:
        raise DamagedFile(
            f"{path}: cannot be read as safetensors: {one_line(error)}"
        ) from None


def write(
    path: str | Path,
    layouts: Mapping[str, Layout],
    tensors: Iterable[tuple[str, Any]],
    *,
    has_hashes: bool,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes tensors, in the order of `layouts` and consumed one by one, to a file,
    whole or not at all. Equal tensors give equal bytes. Afterwards the file survives a
    power failure."""
    hashes = {}
    if has_hashes:
        # Zeros of a hash's length hold its place: the header, which comes first, does
        # not grow when the hashes are known.
        hashes = {_TENSOR_HASH.format(name): _NO_HASH for name in layouts}
        hashes[_HEADER_HASH] = _NO_HASH
    # PyTorch's reader and others require the format.
    metadata = {"format": "pt", **(metadata or {})}
    with files.open_atomically(path) as file:
        file.write(_header(layouts, metadata | hashes))
        for expected, (name, tensor) in zip(layouts.items(), tensors, strict=True):
            array = np.asarray(tensor)
            actual = name, Layout(array.dtype, array.shape)
            if actual != expected:
                raise ValueError(f"expected {expected}, got {actual}")
            # Bytes in the file are in C order and, as here, little-endian.
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            file.write(data)
            if has_hashes:
                digest = hashlib.sha256(data).hexdigest()
                hashes[_TENSOR_HASH.format(name)] = digest
        if has_hashes:
            header = _header(layouts, metadata | hashes)
            hashes[_HEADER_HASH] = hashlib.sha256(header[8:]).hexdigest()
            file.seek(0)
            file.write(_header(layouts, metadata | hashes))
    if not files.is_remote(path):
        # The file's name is on the disk when its directory is. Some network file
        # systems do not support it.
        descriptor = os.open(Path(path).parent, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _header(layouts: Mapping[str, Layout], metadata: Mapping[str, str]) -> bytes:
    values: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, (dtype, shape) in layouts.items():
        begin, end = end, end + math.prod(shape) * np.dtype(dtype).itemsize
        values[name] = {
            "dtype": _CODES[np.dtype(dtype)],
            "shape": shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(values, separators=(",", ":")).encode()
    # Padded, so that the numbers begin at a multiple of eight and can be mapped.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
