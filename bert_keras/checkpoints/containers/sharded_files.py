"""Tensors of a model in a single file, or in shards that an index lists."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from bert_keras.checkpoints.containers import safetensors_files
from bert_keras.core import files
from bert_keras.core.errors import InputError

INDEX = ".index.json"
"""Ends the name of an index, after that of a single file."""


class TensorFile(Protocol):
    layouts: Mapping[str, safetensors_files.Layout]
    metadata: Mapping[str, str]

    def read(self, name: str) -> np.ndarray: ...


class ShardedFiles:
    """A `weights.Source` of the tensors of a file or of shards, read on demand.

    Args:
        path: of the file, or of an index: that of a file with `.index.json`.
        open_file: opens the file or a shard.
        tensor_name: makes the name of a tensor in `layouts` from that in an index.
    """

    def __init__(
        self,
        path: Path,
        open_file: Callable[[Path], TensorFile],
        *,
        tensor_name: Callable[[str], str] = str,
    ):
        self.path, weight_map = path, {}
        name = path.name.removesuffix(INDEX)
        if name != path.name:
            weight_map = files.read_json(path).get("weight_map")
            if not isinstance(weight_map, dict) or not weight_map:
                raise InputError(
                    f'{path}: expected "weight_map", from tensors to the files that '
                    "hold them"
                )
        ending = Path(name).suffix
        for name in weight_map.values():
            if not isinstance(name, str) or not name.endswith(ending):
                raise InputError(f"{path}: {name!r} is no *{ending} file")
            if "/" in name or "\\" in name:
                raise InputError(f"{path}: {name!r} is not next to this index")
        self._files: dict[str, TensorFile] = {}
        """For each tensor, the file that holds it."""
        self.metadata: dict[str, str] = {}
        for name in sorted(set(weight_map.values())) or [path.name]:
            shard = path.with_name(name)
            if not shard.is_file():
                raise InputError(f"{shard}: missing; {path.name} names it: download it")
            file = open_file(shard)
            if twice := sorted(file.layouts.keys() & self._files.keys()):
                raise InputError(f"{shard}: {twice[0]!r} is in another shard too")
            self._files |= dict.fromkeys(file.layouts, file)
            self.metadata |= file.metadata
        if missing := sorted(set(map(tensor_name, weight_map)) - self._files.keys()):
            raise InputError(
                f"{path}: names {len(missing)} tensors that no shard holds, such "
                f"as {missing[0]!r}"
            )
        self.shapes = {k: file.layouts[k].shape for k, file in self._files.items()}

    def read(self, name: str) -> np.ndarray:
        return self._files[name].read(name)

    def dtypes(self, names: Iterable[str]) -> set[str]:
        names_of_dtypes, floats = set(), safetensors_files.FLOATS.values()
        for name in names:
            dtype = self._files[name].layouts[name].dtype
            if dtype not in floats:
                raise InputError(
                    f"{self.path}: {name!r} holds {dtype}, expected one of "
                    f"{', '.join(map(str, floats))}: quantized models are not read"
                )
            names_of_dtypes.add(str(dtype))
        return names_of_dtypes
