"""Writers of files of vectors: NumPy arrays with an index, or records."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf

from bert_keras.core import files

FACTS_NAME = "features.json"
"""File of the settings that made the vectors, written last."""
INDEX_NAME = "index.jsonl"
"""Index of `numpy`: a line for each example, see `word_inputs.AlignedInputs.examples`,
with `first_row`, the number of its first row, from 0."""
RECORDS_NAME = "features.tfrecord"
"""File of `tfrecord`: for each example the values of the index, lists of strings or
integers, and a list of floats for each layer, row after row."""


def layer_name(layer: int) -> str:
    """Returns the name of a layer's list in a record, or of its `.npy` file,
    `(num_rows, hidden_size)` float32."""
    return f"layer_{layer}"


class NumpyWriter:
    def __init__(
        self,
        directory: Path,
        stack: contextlib.ExitStack,
        *,
        layers: Sequence[int],
        hidden_size: int,
    ):
        def open_file(name: str) -> BinaryIO:
            return stack.enter_context(files.open_atomically(directory / name))

        self._hidden_size = hidden_size
        self._index = open_file(INDEX_NAME)
        self._arrays = [open_file(f"{layer_name(n)}.npy") for n in layers]
        self._num_described = self._num_rows = 0
        self._write_headers()

    def describe(self, examples: Sequence[dict[str, Any]]) -> None:
        """Takes descriptions of the examples whose vectors come next."""
        for example in examples:
            line = {**example, "first_row": self._num_described}
            text_line = json.dumps(line, ensure_ascii=False) + "\n"
            # A half of a character becomes the escape that JSON has for it.
            self._index.write(text_line.encode(errors="backslashreplace"))
            self._num_described += _num_rows(example)

    def add(self, vectors: np.ndarray) -> None:
        """Takes vectors of described examples; parts may end inside an example."""
        self._num_rows += len(vectors)
        for place, file in enumerate(self._arrays):
            file.write(np.ascontiguousarray(vectors[:, place], "<f4"))

    def finish(self) -> None:
        """Writes the rest, when all described examples have their vectors."""
        self._write_headers()

    def _write_headers(self) -> None:
        """Writes headers, whose size is the same for any number of rows."""
        header = {
            "descr": "<f4",
            "fortran_order": False,
            "shape": (self._num_rows, self._hidden_size),
        }
        for file in self._arrays:
            file.seek(0)
            np.lib.format.write_array_header_1_0(file, header)


class RecordWriter:
    """A writer with the methods of `NumpyWriter`."""

    def __init__(
        self,
        directory: Path,
        stack: contextlib.ExitStack,
        *,
        layers: Sequence[int],
        hidden_size: int,
    ):
        self._layers = layers
        path = str(directory / RECORDS_NAME)
        self._file = stack.enter_context(tf.io.TFRecordWriter(path))
        self._examples: list[dict[str, Any]] = []
        self._vectors = np.empty((0, len(self._layers), hidden_size), "f4")

    def describe(self, examples):
        self._examples += examples

    def add(self, vectors):
        self._vectors = np.concatenate([self._vectors, vectors])
        num_written = begin = 0
        for example in self._examples:
            end = begin + _num_rows(example)
            if end > len(self._vectors):
                break
            self._file.write(self._record(example, self._vectors[begin:end]))
            begin, num_written = end, num_written + 1
        self._vectors = self._vectors[begin:]
        self._examples = self._examples[num_written:]

    def finish(self):
        if self._examples or len(self._vectors):
            raise RuntimeError("vectors and examples do not go together")

    def _record(self, example: dict[str, Any], vectors: np.ndarray) -> bytes:
        feature = {"line": _integers([example["line"]])}
        for name, values in example.items():
            if name in _STRINGS:
                encoded = [value.encode(errors="replace") for value in values]
                value = tf.train.BytesList(value=encoded)
                feature[name] = tf.train.Feature(bytes_list=value)
            elif name != "line":
                feature[name] = _integers(values)
        for place, layer in enumerate(self._layers):
            value = tf.train.FloatList(value=vectors[:, place].ravel())
            feature[layer_name(layer)] = tf.train.Feature(float_list=value)
        record = tf.train.Example(features=tf.train.Features(feature=feature))
        # Otherwise the order of the features differs between processes.
        return record.SerializeToString(deterministic=True)


WRITERS = {"numpy": NumpyWriter, "tfrecord": RecordWriter}
"""By format."""


# Words or pieces of an example, each of which has a row.
_STRINGS = ("words", "pieces")


def _num_rows(example: dict[str, Any]) -> int:
    return next(len(example[name]) for name in _STRINGS if name in example)


def _integers(values: Sequence[int]) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
