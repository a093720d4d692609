"""Tensors in safetensors files: a single one, or shards with an index.

The safetensors package reads them: it holds the lengths and offsets of a header against
the size of the file before any memory is taken. It does not write them, because it
wants all tensors in memory at once and makes files that only their owner may read.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from bert_keras import files
from bert_keras.errors import InputError

NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

# The package asks NumPy for bfloat16 by name, which it knows when ml_dtypes is loaded.
_FLOATS = {
    "F64": np.dtype("float64"),
    "F32": np.dtype("float32"),
    "F16": np.dtype("float16"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


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
        self._files: dict[str, Any] = {}
        if self.path.is_file():
            self._open(self.path)
        else:
            self.path = directory / INDEX_NAME
            self._open_shards(directory)

    def _open_shards(self, directory: Path) -> None:
        weight_map = read_json(self.path).get("weight_map")
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
        if missing := sorted(weight_map.keys() - self._files.keys()):
            raise InputError(
                f"{self.path}: names {len(missing)} tensors that no shard holds, such "
                f"as {missing[0]!r}"
            )

    def _open(self, path: Path) -> None:
        if not path.is_file():
            raise InputError(f"{path}: missing; {self.path.name} names it: download it")
        try:
            file = safetensors.safe_open(path, framework="numpy")
        except (safetensors.SafetensorError, OSError) as error:
            reason = " ".join(str(error).split())[:300]
            raise InputError(
                f"{path}: cannot be read as safetensors: {reason}"
            ) from None
        for name in file.keys():  # noqa: SIM118 (it is no mapping)
            if name in self._files:
                raise InputError(f"{path}: {name!r} is in another shard too")
            self._files[name] = file

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """All tensors by their names."""
        return {
            name: tuple(file.get_slice(name).get_shape())
            for name, file in self._files.items()
        }

    def read(self, name: str) -> np.ndarray:
        """One tensor, as a copy."""
        return self._files[name].get_tensor(name)

    def dtypes(self, names: Iterable[str]) -> set[str]:
        """The dtypes of some tensors.

        Raises:
            InputError: one does not hold floating-point numbers.
        """
        found = set()
        for name in names:
            dtype = self._files[name].get_slice(name).get_dtype()
            if dtype not in _FLOATS:
                raise InputError(
                    f"{self.path}: {name!r} holds {dtype}, expected one of "
                    f"{', '.join(_FLOATS)}: quantized models are not read"
                )
            found.add(_FLOATS[dtype].name)
        return found


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


def read_json(path: Path) -> dict[str, Any]:
    """The keys and values of a JSON file.

    Raises:
        InputError: no such file, or something else in it.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    # Thousands of brackets in a row are a RecursionError.
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: expected JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected keys and values")
    return values
