"""Vectors of words, from layers of an encoder, written to files for other models: a
NumPy array for each layer, and an index of the words."""

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import tensorflow as tf

from bert_keras.checkpoints import conversion, starting_point, weights
from bert_keras.core import files, progress
from bert_keras.core.errors import InputError, check_choice
from bert_keras.core.settings import features as feature_settings
from bert_keras.core.settings import tasks
from bert_keras.inference import forward
from bert_keras.inference.features import word_inputs
from bert_keras.kinds import registry
from bert_keras.kinds.tagging import ner
from bert_keras.model.encoder import resolve_layers

logger = logging.getLogger(__name__)

BYTES_AT_A_TIME = 1 << 28
"""Bytes of vectors that are held before they are written."""

_FACTS_NAME = "features.json"
"""File of the settings that made the vectors, written last."""
_INDEX_NAME = "index.jsonl"
"""Index: for each text or sentence its `line`, the first in the file, from 1; `words`;
of texts `starts` and `ends`, the characters of each word; and `first_row`, the number
of its first vector, from 0."""


def write(
    model: str | Path,
    input_path: str | Path,
    output_dir: str | Path,
    *,
    settings: feature_settings.FeaturesConfig,
    layers: Sequence[int] = (-1,),
    pooling: str = "first",
    form: str | None = None,
) -> None:
    """Writes the outputs of some layers for each word of a file.

    The directory appears when it is finished. Memory depends on `BYTES_AT_A_TIME` and
    on the text, not on the number of vectors. For the choices see
    `encoder.resolve_layers`, `word_inputs.POOLINGS` and `word_inputs.FORMS`; a `form`
    of `None` is guessed by the file's name.
    """
    # 1. The words, and the encoder.
    output_dir = files.path(output_dir).absolute()
    files.check_is_new(output_dir)
    form = form or word_inputs.form_of(input_path)
    check_choice("--pooling", pooling, word_inputs.POOLINGS)
    check_choice("--form", form, word_inputs.FORMS)
    sentences = word_inputs.read_sentences(
        input_path, form=form, columns=settings.columns
    )
    checkpoint = conversion.read_with_tokenizer(model)
    encoder = LayerReader(checkpoint, layers, path=model)
    longest, length = encoder.longest, settings.max_seq_length
    if length is not None and length > longest:
        raise InputError(
            f"`max_seq_length` is {length}, but the encoder of {model} takes {longest} "
            "tokens at most: leave it out"
        )
    # 2. All that the vectors depend on.
    inputs = {
        "max_seq_length": length or longest,
        "pooling": pooling,
        "document_context": settings.document_context,
    }
    facts = {
        "layers": encoder.layers,
        "hidden_size": encoder.hidden_size,
        "form": form,
        **inputs,
        "model_sha256": starting_point.digest(
            checkpoint, starting_point.encoder_arrays(checkpoint)
        ),
        "input_sha256": files.sha256(input_path),
        "num_examples": len(sentences),
    }
    tokenizer = checkpoint.tokenizer
    # It is as large as the model.
    del checkpoint
    # 3. The vectors.
    with files.new_directory(output_dir) as directory:
        encode = functools.partial(word_inputs.encode, tokenizer=tokenizer, **inputs)
        facts["num_rows"] = _write_all(encoder, encode, sentences, directory)
        files.write_json(directory / _FACTS_NAME, facts)
    logger.info("%d vectors of each layer in %s", facts["num_rows"], output_dir)


def _write_all(
    encoder: "LayerReader",
    encode: Callable[[Sequence[ner.Sentence]], word_inputs.PooledWords],
    sentences: Sequence[ner.Sentence],
    directory: Path,
) -> int:
    """Writes all vectors; returns their number."""
    num_rows = num_done = 0
    # In the part that is being encoded.
    sentences_per_input = 0.0
    with (
        contextlib.ExitStack() as stack,
        progress.Progress(
            "features",
            total=len(sentences),
            unit="texts",
            read=lambda: num_done + int(sentences_per_input * encoder.forward.num_done),
            only_if_long=True,
        ),
    ):
        writer = VectorWriter(directory, stack, encoder)
        for part in word_inputs.parts(sentences):
            writer.describe(part)
            words = encode(part)
            encoder.forward.num_done = 0
            # A blank text has no words, and so no window.
            sentences_per_input = len(part) / max(1, len(words.windows))
            for vectors in encoder.vectors(words):
                writer.add(vectors)
                num_rows += len(vectors)
            num_done, sentences_per_input = num_done + len(part), 0.0
        writer.write_headers()
    return num_rows


class VectorWriter:
    """Writes `layer_N.npy`, `(num_words, hidden_size)` float32, of an encoder's layers,
    and the index."""

    def __init__(
        self, directory: Path, stack: contextlib.ExitStack, encoder: "LayerReader"
    ):
        def open_file(name: str) -> BinaryIO:
            return stack.enter_context(files.open_atomically(directory / name))

        self._hidden_size = encoder.hidden_size
        self._index = open_file(_INDEX_NAME)
        self._arrays = [open_file(f"layer_{layer}.npy") for layer in encoder.layers]
        self._num_described = self._num_rows = 0
        self.write_headers()

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

    def write_headers(self) -> None:
        """Writes headers, whose size is the same for any number of rows."""
        shape = (self._num_rows, self._hidden_size)
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        for file in self._arrays:
            file.seek(0)
            np.lib.format.write_array_header_1_0(file, header)


class LayerReader:
    """Computes outputs of some layers of an encoder, see `encoder.resolve_layers`. The
    heads of the checkpoint, which is of any kind, are not used."""

    def __init__(
        self, checkpoint: weights.Checkpoint, layers: Sequence[int], *, path: str | Path
    ):
        bert_config = checkpoint.bert_config
        self.layers = resolve_layers(layers, bert_config.num_hidden_layers, path=path)
        self.hidden_size = bert_config.hidden_size
        self.longest = bert_config.max_position_embeddings
        encoder = registry.build_network(
            bert_config, tasks.Task(kind="encoder"), seed=0
        )
        weights.assign(encoder, checkpoint.arrays)

        def compute(features):
            """Returns vectors of pieces, `(num_pieces, num_layers, hidden_size)`."""
            inputs = {name: features[name] for name in forward.INPUT_NAMES}
            encoded = encoder(inputs, training=False, return_all_layers=True)
            outputs = [encoded["encoder_outputs"][layer] for layer in self.layers]
            pieces = [tf.gather_nd(output, features["pieces"]) for output in outputs]
            return tf.stack(pieces, axis=1)

        self.forward = forward.BatchPredictor(
            compute, feature_names=(*forward.INPUT_NAMES, "pieces")
        )

    def vectors(self, words: word_inputs.PooledWords) -> Iterator[np.ndarray]:
        """Yields the vectors of all words in parts,
        `(num_words, num_layers, hidden_size)` float32."""
        bytes_per_piece = 4 * len(self.layers) * self.hidden_size
        for part in words.parts(max(1, BYTES_AT_A_TIME // bytes_per_piece)):
            yield part.pool(self.forward(part, title=None))
