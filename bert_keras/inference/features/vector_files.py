"""Files of vectors: a NumPy array for each layer, and an index of the words."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bert_keras.core import files
from bert_keras.kinds.tagging import ner

FACTS_NAME = "features.json"
"""File of the settings that made the vectors, written last."""
INDEX_NAME = "index.jsonl"
"""Index: for each text or sentence its `line`, the first in the file, from 1; `words`;
of texts `starts` and `ends`, the characters of each word; and `first_row`, the number
of its first vector, from 0."""


class VectorWriter:
    """Writes `layer_N.npy`, `(num_words, hidden_size)` float32, of some layers."""

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
        self._arrays = [open_file(f"layer_{layer}.npy") for layer in layers]
        self._num_described = self._num_rows = 0
        self._write_headers()

    def describe(self, sentences: Sequence[ner.Sentence]) -> None:
        """Takes the sentences whose vectors come next."""
        for sentence in sentences:
            line = {"line": sentence.line, "words": sentence.words}
            if sentence.text is not None:
                line["starts"] = [start for start, _ in sentence.places]
                line["ends"] = [end for _, end in sentence.places]
            line["first_row"] = self._num_described
            text_line = json.dumps(line, ensure_ascii=False) + "\n"
            # A half of a character becomes the escape that JSON has for it.
            self._index.write(text_line.encode(errors="backslashreplace"))
            self._num_described += len(sentence.words)

    def add(self, vectors: np.ndarray) -> None:
        """Takes vectors of described sentences; parts may end inside one."""
        self._num_rows += len(vectors)
        for place, file in enumerate(self._arrays):
            file.write(np.ascontiguousarray(vectors[:, place], "<f4"))

    def finish(self) -> None:
        """Writes the rest, when all described sentences have their vectors."""
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
