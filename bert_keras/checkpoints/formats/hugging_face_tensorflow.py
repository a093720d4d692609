"""Weights of transformers' TensorFlow classes, of its versions 2 to 4: `tf_model.h5`,
or, with `safe_serialization`, a `model.safetensors` whose metadata say so.

Variables appear under the names of the PyTorch classes and with their shapes, so that
one reader serves both. The names in the file begin with those of layers and models,
such as `mlm___cls/tf_bert_for_masked_lm/mlm___cls/predictions/bias:0`; those in shards
begin with the layer.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from bert_keras.checkpoints.containers import (
    keras_files,
    safetensors_files,
    sharded_files,
)
from bert_keras.core.errors import InputError

NAME = "tf_model.h5"

_LAYERS = "bert|mlm___cls|nsp___cls|classifier|qa_outputs"


def tensor_name(name: str) -> str:
    """Returns PyTorch's name of a variable; a name of another model stays."""
    match = re.fullmatch(rf"(?:.*/)?((?:{_LAYERS})/.+):0", name)
    if match is None:
        return name
    dotted = re.sub("^(mlm|nsp)___", "", match[1]).replace("_._", "/").replace("/", ".")
    return re.sub(r"\.(kernel|embeddings)$", ".weight", dotted)


def open_h5(path: Path) -> "TensorflowFile":
    return TensorflowFile(path, keras_files.WeightsFile(path))


def open_safetensors(path: Path) -> sharded_files.TensorFile:
    file = safetensors_files.SafetensorsFile(path)
    return TensorflowFile(path, file) if file.metadata.get("format") == "tf" else file


class TensorflowFile:
    """A `weights.Source` of the variables of one opened file, read on demand."""

    def __init__(self, path: Path, file: Any):
        self._path, self._file = path, file
        # The head of the masked LM repeats the embeddings, whose table it uses.
        self._copies: dict[str, list[str]] = {}
        self.layouts: dict[str, safetensors_files.Layout] = {}
        self.metadata = {"format": "tf"}
        for name, (dtype, shape) in self._file.layouts.items():
            new = tensor_name(name)
            self._copies.setdefault(new, []).append(name)
            shape = shape[::-1] if name.endswith("/kernel:0") else shape
            self.layouts[new] = safetensors_files.Layout(dtype, shape)
            if match := re.match(r"[^/]+/tf_([a-z_]+?)(?:_\d+)?/", name):
                # Without `TF`, in small letters. Versions before 3 say it only here.
                self.metadata["class"] = match[1].replace("_", "")

    def read(self, name: str) -> np.ndarray:
        first, *copies = self._copies[name]
        array = self._file.read(first)
        for copy in copies:
            if not np.array_equal(array, self._file.read(copy), equal_nan=True):
                raise InputError(
                    f"{self._path}: {first!r} and {copy!r} differ, but are one weight "
                    "of a BERT: the file is damaged; take another copy"
                )
        return array.T if first.endswith("/kernel:0") else array
