"""Tensors in safetensors files: a single file, or shards with an index.

The safetensors package only validates files: it checks lengths and offsets of a header
against the size of the file before any memory is allocated. Its reader maps the file,
which then counts as memory of the process. Its writer needs all tensors in memory at
once and makes files that only their owner may read.
"""

import contextlib
import json
import math
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import safetensors

from bert_keras.core import files
from bert_keras.core.errors import InputError, one_line

NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

_FLOATS = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


class _Tensor(NamedTuple):
    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """Offset of its first byte in the file."""


class SafetensorsFiles:
    """A `weights.Source` of the tensors of a directory, read on demand."""

    def __init__(self, directory: Path):
        self.path = directory / NAME
        """The file, or the index of its shards, for errors."""
        self._tensors: dict[str, _Tensor] = {}
        # Copies of a store's files live as long as this object.
        self._copies = contextlib.ExitStack()
        weakref.finalize(self, self._copies.close)
        if self.path.is_file():
            self._open(self.path)
        else:
            self.path = directory / INDEX_NAME
            self._open_shards(directory)

    def _open_shards(self, directory: Path) -> None:
        weight_map = files.read_json(self.path).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise InputError(
                f'{self.path}: expected "weight_map", from tensors to the files that '
                "hold them"
            )
        for name in weight_map.values():
            if not isinstance(name, str) or not name.endswith(".safetensors"):
                raise InputError(f"{self.path}: {name!r} is no *.safetensors file")
            if "/" in name or "\\" in name:
                raise InputError(
                    f"{self.path}: names {name!r}: shards lie next to their index"
                )
        for name in sorted(set(weight_map.values())):
            self._open(directory / name)
        if missing := sorted(weight_map.keys() - self._tensors.keys()):
            raise InputError(
                f"{self.path}: names {len(missing)} tensors that no shard holds, such "
                f"as {missing[0]!r}"
            )

    def _open(self, path: Path) -> None:
        if not path.is_file():
            raise InputError(f"{path}: missing; {self.path.name} names it: download it")
        try:
            copy = self._copies.enter_context(files.local_copy(path))
            with safetensors.safe_open(copy, framework="numpy"):
                tensors = _read_header(copy)
        except (safetensors.SafetensorError, OSError) as error:
            reason = one_line(error)
            raise InputError(
                f"{path}: cannot be read as safetensors: {reason}"
            ) from None
        if twice := sorted(tensors.keys() & self._tensors.keys()):
            raise InputError(f"{path}: {twice[0]!r} is in another shard too")
        self._tensors |= tensors

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def read(self, name: str) -> np.ndarray:
        path, dtype, shape, begin = self._tensors[name]
        try:
            values = np.fromfile(
                path, _FLOATS[dtype], count=math.prod(shape), offset=begin
            )
            return values.reshape(shape)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: changed while it was read: {error}") from None

    def dtypes(self, names: Iterable[str]) -> set[str]:
        names_of_dtypes = set()
        for name in names:
            dtype = self._tensors[name].dtype
            if dtype not in _FLOATS:
                raise InputError(
                    f"{self.path}: {name!r} holds {dtype}, expected one of "
                    f"{', '.join(_FLOATS)}: quantized models are not read"
                )
            names_of_dtypes.add(_FLOATS[dtype].name)
        return names_of_dtypes


def _read_header(path: Path) -> dict[str, _Tensor]:
    with open(path, "rb") as file:
        num_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(num_bytes))
    header.pop("__metadata__", None)
    return {
        name: _Tensor(
            path=path,
            dtype=entry["dtype"],
            shape=tuple(entry["shape"]),
            begin=8 + num_bytes + entry["data_offsets"][0],
        )
        for name, entry in header.items()
    }


def write(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Iterable[tuple[str, np.ndarray]],
) -> None:
    """Writes float32 tensors, in the order of `shapes` and consumed one by one, to a
    file, whole or not at all."""
    with files.open_atomically(path) as file:
        file.write(_header(shapes))
        for expected, (name, array) in zip(shapes.items(), tensors, strict=True):
            if (name, array.shape) != expected:
                raise ValueError(f"expected {expected}, got {(name, array.shape)}")
            # Bytes in the file are in C order and little-endian.
            file.write(np.ascontiguousarray(array, "<f4").data)


def _header(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    # PyTorch's reader and others require it.
    values: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        offsets = [begin, end]
        values[name] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
    text = json.dumps(values, separators=(",", ":")).encode()
    # Padded, so that the numbers begin at a multiple of eight and can be mapped.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
