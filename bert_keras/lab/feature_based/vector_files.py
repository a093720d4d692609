"""Files of vectors: NumPy arrays with an index, or records; writers and a reader."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import tensorflow as tf

from bert_keras.checkpoints.containers import npz_files
from bert_keras.core import files
from bert_keras.core.errors import InputError, one_line
from bert_keras.labelled import reading

FACTS_NAME = "features.json"
"""File that says how the vectors were made. Written last."""
INDEX_NAME = "index.jsonl"
"""Index of `numpy`: a line for each example, see `word_inputs.AlignedInputs.examples`,
with `first_row`, the number of its first row, from 0."""
RECORDS_NAME = "features.tfrecord"
"""File of `tfrecord`: for each example the values of the index, lists of strings or
integers, and a list of floats for each layer, row after row."""


def layer_name(layer: int) -> str:
    """Name of a layer's list in a record; with `.npy` that of its file, `(num_rows,
    hidden_size)` float32."""
    return f"layer_{layer}"


class Writer(Protocol):
    """Files that are being written."""

    def describe(self, examples: Sequence[dict[str, Any]]) -> None:
        """Takes descriptions of the examples whose vectors come next."""

    def add(self, vectors: np.ndarray) -> None:
        """Takes vectors of described examples; they may begin or end inside one."""

    def finish(self) -> None:
        """Writes the rest; all described examples have their vectors."""


class NumpyWriter:
    """An array for each layer, and the index."""

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

    def describe(self, examples):
        for example in examples:
            line = {**example, "first_row": self._num_described}
            text_line = json.dumps(line, ensure_ascii=False) + "\n"
            # A half of a character becomes the escape that JSON has for it.
            self._index.write(text_line.encode(errors="backslashreplace"))
            self._num_described += _num_rows(example)

    def add(self, vectors):
        self._num_rows += len(vectors)
        for place, file in enumerate(self._arrays):
            file.write(np.ascontiguousarray(vectors[:, place], "<f4"))

    def finish(self):
        self._write_headers()

    def _write_headers(self) -> None:
        """Headers of one size for any number of rows: NumPy leaves room for growth."""
        header = {
            "descr": "<f4",
            "fortran_order": False,
            "shape": (self._num_rows, self._hidden_size),
        }
        for file in self._arrays:
            file.seek(0)
            np.lib.format.write_array_header_1_0(file, header)


class RecordWriter:
    """A record for each example."""

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
        made = tf.train.Example(features=tf.train.Features(feature=feature))
        # Without it, the order of the features is another in every process.
        return made.SerializeToString(deterministic=True)


WRITERS = {"numpy": NumpyWriter, "tfrecord": RecordWriter}
"""By format."""


# Words or pieces of an example, each of which has a row.
_STRINGS = ("words", "pieces")


def _num_rows(example: dict[str, Any]) -> int:
    return next(len(example[name]) for name in _STRINGS if name in example)


def _integers(values: Sequence[int]) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


@dataclass(frozen=True, kw_only=True)
class Features:
    """A finished directory of NumPy arrays."""

    facts: dict[str, Any]
    """Content of `FACTS_NAME`."""
    layers: dict[int, np.ndarray]
    """By number of the layer, from 0: `(num_rows, hidden_size)` float32, read from the
    file when it is used."""
    examples: tuple[dict[str, Any], ...]
    """The lines of the index."""


def read(directory: str | Path) -> Features:
    """Reads a directory of NumPy arrays.

    Raises:
        InputError: no such directory, unfinished, of records, or damaged.
    """
    directory = files.path(directory)
    if not (directory / INDEX_NAME).is_file():
        raise InputError(
            f"{directory}: expected a directory made by `bert-keras features --to "
            f"numpy`, found no {INDEX_NAME} in it"
        )
    facts = files.read_json(directory / FACTS_NAME)
    layers, num_rows, size = map(facts.get, ("layers", "num_rows", "hidden_size"))
    if not isinstance(layers, list) or not all(
        type(number) is int for number in (*layers, num_rows, size)
    ):
        raise InputError(
            f"{directory / FACTS_NAME}: expected `layers`, `num_rows` and "
            "`hidden_size`; make the directory again with `bert-keras features`"
        )
    rows = reading.read_jsonl(directory / INDEX_NAME)
    return Features(
        facts=facts,
        layers={
            layer: _read_array(
                directory / f"{layer_name(layer)}.npy", shape=(num_rows, size)
            )
            for layer in layers
        },
        examples=tuple(example for _, example in rows),
    )


def _read_array(path: Path, *, shape: tuple[int, int]) -> np.ndarray:
    try:
        with path.open("rb") as file:
            header = npz_files.read_header(
                file, name=path.name, num_bytes=files.size(path)
            )
        if header != npz_files.ArrayHeader(shape=shape, dtype=np.dtype("<f4")):
            raise ValueError(f"it has {header.dtype} of shape {header.shape}")
        with files.local_copy(path) as copy:
            return np.load(copy, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: expected float32 of shape {shape}: {one_line(error)}; make the "
            "directory again with `bert-keras features`"
        ) from None
