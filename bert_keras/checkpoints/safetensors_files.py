"""Tensors in safetensors files: a single one, or shards with an index.

The safetensors package judges files: it holds the lengths and offsets of a header
against the size of the file before any memory is taken. It does not read tensors,
because it maps the file, which then counts as memory of the process too. Nor does it
write them, because it wants all of them in memory at once and makes files that only
their owner may read.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import safetensors

from bert_keras import files
from bert_keras.errors import InputError, one_line

NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

_FLOATS = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


class _Tensor(NamedTuple):
    """Where a tensor is."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """Its first byte in the file."""


class SafetensorsFiles:
    """The tensors of a directory, read when they are asked for: a `weights.Source`.

    Args:
        directory: with `model.safetensors`, or with shards and the index that names
            them.

    Raises:
        InputError: no such file, a damaged one, or an index that names files elsewhere
            or tensors that are in none of them.
    """

    def __init__(self, directory: Path):
        self.path = directory / NAME
        """To name in errors: the file, or the index of its shards."""
        self._tensors: dict[str, _Tensor] = {}
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
                    f"{self.path}: names {name!r}: shards lie beside their index"
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
            with safetensors.safe_open(path, framework="numpy"):
                tensors = _read_header(path)
        except (safetensors.SafetensorError, OSError) as error:
            reason = one_line(error)
            raise InputError(
                f"{path}: cannot be read as safetensors: {reason}"
            ) from None
        if twice := sorted(tensors.keys() & self._tensors.keys()):
            raise InputError(f"{path}: {twice[0]!r} is in another shard too")
        self._tensors |= tensors

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """All tensors by their names."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def read(self, name: str) -> np.ndarray:
        """One tensor of floating-point numbers, see `dtypes`.

        Raises:
            InputError: the file is no longer what it was.
        """
        path, dtype, shape, begin = self._tensors[name]
        try:
            values = np.fromfile(
                path, _FLOATS[dtype], count=math.prod(shape), offset=begin
            )
            return values.reshape(shape)
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: changed while it was read: {error}") from None

    def dtypes(self, names: Iterable[str]) -> set[str]:
        """The dtypes of some tensors.

        Raises:
            InputError: one does not hold floating-point numbers.
        """
        found = set()
        for name in names:
            dtype = self._tensors[name].dtype
            if dtype not in _FLOATS:
                raise InputError(
                    f"{self.path}: {name!r} holds {dtype}, expected one of "
                    f"{', '.join(_FLOATS)}: quantized models are not read"
                )
            found.add(_FLOATS[dtype].name)
        return found


def _read_header(path: Path) -> dict[str, _Tensor]:
    """The tensors of a file whose header was found right."""
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
    """Writes float32 tensors to a file that appears whole or not at all.

    Args:
        path: of the file.
        shapes: of all tensors, by their names.
        tensors: names and values in the order of `shapes`, taken one after the other.

    Raises:
        InputError: the disk is full or does not let us write.
    """
    with files.open_atomically(path) as file:
        file.write(_header(shapes))
        for expected, (name, array) in zip(shapes.items(), tensors, strict=True):
            if (name, array.shape) != expected:
                raise ValueError(f"expected {expected}, got {(name, array.shape)}")
            # Bytes in the file are in C order and little-endian.
            file.write(np.ascontiguousarray(array, "<f4").data)


def _header(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    # The reader in PyTorch and others wants to be told so.
    values: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        offsets = [begin, end]
        values[name] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
    text = json.dumps(values, separators=(",", ":")).encode()
    # Blanks, so that the numbers lie at multiples of eight and can be mapped.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
