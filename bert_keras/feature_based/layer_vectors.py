"""Outputs of an encoder's layers, a vector for each word, written to files.

For models that are trained on the vectors while the encoder stays as it is (section 5.3
of the paper).
"""

import contextlib
import json
import logging
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import tensorflow as tf

from bert_keras import config, files, progress
from bert_keras.checkpoints import starting_point, weights
from bert_keras.data import tokenization
from bert_keras.errors import InputError, check_choice
from bert_keras.feature_based import configuration, word_inputs
from bert_keras.model import networks
from bert_keras.model.encoder import resolve_layers
from bert_keras.tasks import reading, tokenized

logger = logging.getLogger(__name__)

FORMATS: tuple[str, ...] = typing.get_args(configuration.VectorFormat)

FACTS_NAME = "features.json"
"""How the vectors were made. Written last."""
INDEX_NAME = "index.jsonl"
"""Of `numpy`: a line for each example, see `word_inputs.AlignedInputs.examples`, with
`first_row`, where its rows begin, from 0."""
RECORDS_NAME = "features.tfrecord"
"""Of `tfrecord`: for each example what the index says, lists of strings or integers,
and a list of floats for each layer, row after row."""

TOKENS_PER_BATCH = 8192
"""Padding included; bounds the memory whatever the length."""
BYTES_AT_A_TIME = 1 << 28
"""Of vectors that are held before they are written."""


def layer_name(layer: int) -> str:
    """The name of a layer's list in a record, and with `.npy` of its file, `(num_rows,
    hidden_size)` float32."""
    return f"layer_{layer}"


def write(
    model: str | Path,
    input_path: str | Path,
    output_dir: str | Path,
    *,
    settings: configuration.FeaturesConfig,
    layers: Sequence[int] = (-1,),
    pooling: str = "first",
    to: str = "numpy",
    form: str | None = None,
) -> None:
    """Writes the outputs of some layers for each word of a file.

    The directory appears when it is finished. How much memory that takes depends on
    `BYTES_AT_A_TIME` and on the text, not on the number of vectors.

    Args:
        model: checkpoint of any format (see `checkpoints.conversion`).
        input_path: the file.
        output_dir: to make.
        settings: how the file becomes inputs.
        layers: see `encoder.resolve_layers`.
        pooling: one of `word_inputs.POOLINGS`.
        to: one of `FORMATS`.
        form: one of `word_inputs.FORMS`; `None`: by the file's name.

    Raises:
        InputError: the model, the file or the directory cannot be used, or there is no
            such layer.
    """
    output_dir = Path(output_dir).absolute()
    files.check_is_new(output_dir)
    form = form or word_inputs.form_of(input_path)
    check_choice("--to", to, FORMATS)
    check_choice("--pooling", pooling, word_inputs.POOLINGS)
    check_choice("--form", form, word_inputs.FORMS)
    examples = word_inputs.read(input_path, form=form, columns=settings.columns)
    checkpoint = starting_point.read_with_tokenizer(model)
    encoder = LayerEncoder(checkpoint, layers, path=model)
    inputs = {
        "max_seq_length": encoder.check_length(settings.max_seq_length),
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
        "num_examples": len(examples),
    }
    tokenizer = tokenization.Tokenizer(
        checkpoint.vocabulary, do_lower_case=checkpoint.do_lower_case
    )
    # As large as the model.
    del checkpoint
    with files.new_directory(output_dir) as directory:
        make_inputs = word_inputs.Encoder(tokenizer, **inputs)
        facts |= _write_all(encoder, make_inputs, examples, directory, to=to)
        files.write_json(directory / FACTS_NAME, facts)
    if facts["num_cut"]:
        logger.warning(
            "%s: %d texts are longer than %d tokens: there are no vectors for their "
            "ends; cut them into shorter ones",
            *(input_path, facts["num_cut"], facts["max_seq_length"]),
        )
    logger.info("%d vectors of each layer in %s", facts["num_rows"], output_dir)


def _write_all(
    encoder: "LayerEncoder",
    make_inputs: word_inputs.Encoder,
    examples: Sequence[word_inputs.Example],
    directory: Path,
    *,
    to: str,
) -> dict[str, int]:
    """Writes everything but the facts; returns how much it was."""
    num_rows = num_cut = num_done = 0
    # Of the part that is under way.
    examples_per_input = 0.0
    make_writer = {"numpy": _NumpyWriter, "tfrecord": _RecordWriter}[to]
    with (
        contextlib.ExitStack() as stack,
        progress.Progress(
            "features",
            total=len(examples),
            unit="texts",
            read=lambda: num_done + int(examples_per_input * encoder.num_done),
            only_if_long=True,
        ),
    ):
        writer: _Writer = make_writer(directory, encoder, stack)
        for part in word_inputs.parts(examples):
            made = make_inputs(part)
            writer.describe(made.examples)
            encoder.num_done = 0
            examples_per_input = len(part) / len(made.inputs)
            for vectors in encoder.encode(made):
                writer.add(vectors)
                num_rows += len(vectors)
            num_done, examples_per_input = num_done + len(part), 0.0
            num_cut += made.num_cut
        writer.finish()
    return {"num_rows": num_rows, "num_cut": num_cut}


class LayerEncoder:
    """An encoder that gives the outputs of some of its layers.

    Args:
        checkpoint: of any kind; its heads are left out.
        layers: see `encoder.resolve_layers`.
        path: of the checkpoint, for errors.

    Raises:
        InputError: there is no such layer.
    """

    def __init__(
        self, checkpoint: weights.Checkpoint, layers: Sequence[int], *, path: str | Path
    ):
        bert_config = checkpoint.bert_config
        self.layers = resolve_layers(layers, bert_config.num_hidden_layers, path=path)
        self.hidden_size = bert_config.hidden_size
        self._longest, self._path = bert_config.max_position_embeddings, path
        self.num_done = 0
        """Inputs that were begun, for a progress line; to be set back by its owner."""
        self._encoder = networks.build(bert_config, config.Task(kind="encoder"), seed=0)
        weights.assign(self._encoder, checkpoint.arrays)
        matrix = tf.TensorSpec([None, None], tf.int32)
        names = ("input_ids", "input_mask", "segment_ids")
        # One trace for all shapes.
        self._outputs_at = tf.function(
            self._compute, input_signature=[{name: matrix for name in names}, matrix]
        )

    def check_length(self, max_seq_length: int | None) -> int:
        """A maximal length, or that of the encoder for `None`.

        Raises:
            InputError: the encoder takes fewer tokens.
        """
        if max_seq_length is not None and max_seq_length > self._longest:
            raise InputError(
                f"`max_seq_length` is {max_seq_length}, but the encoder of "
                f"{self._path} takes {self._longest} tokens at most: leave it out"
            )
        return max_seq_length or self._longest

    def encode(self, aligned: word_inputs.AlignedInputs) -> Iterator[np.ndarray]:
        """The vectors of all rows, in their order, some at a time.

        Yields:
            `(some_rows, num_layers, hidden_size)` float32.
        """
        bytes_per_row = 4 * len(self.layers) * self.hidden_size
        rows_at_a_time = max(1, BYTES_AT_A_TIME // bytes_per_row)
        ends, num_inputs, begin = np.cumsum(aligned.num_rows), len(aligned.inputs), 0
        while begin < num_inputs:
            most = rows_at_a_time + (ends[begin - 1] if begin else 0)
            end = max(begin + 1, int(np.searchsorted(ends, most, side="right")))
            yield self._encode(aligned, np.arange(begin, end))
            begin = end

    def _encode(
        self, aligned: word_inputs.AlignedInputs, inputs: np.ndarray
    ) -> np.ndarray:
        """The vectors of all rows of inputs that follow one another."""
        first_rows = np.cumsum(aligned.num_rows) - aligned.num_rows
        begin, num_rows = first_rows[inputs[0]], aligned.num_rows[inputs].sum()
        vectors = np.empty((num_rows, len(self.layers), self.hidden_size), np.float32)
        for batch in _batches(aligned.inputs.lengths, inputs):
            counts = aligned.num_rows[batch]
            rows = tokenized.ranges(first_rows[batch], counts)
            self.num_done += len(batch)
            if not len(rows):
                continue
            num_pieces = aligned.num_pieces[rows]
            pieces = np.stack(
                [
                    np.repeat(np.repeat(np.arange(len(batch)), counts), num_pieces),
                    tokenized.ranges(aligned.positions[rows], num_pieces),
                ],
                axis=-1,
            )
            outputs = self._outputs_at(
                aligned.inputs.batch(batch), pieces.astype(np.int32)
            ).numpy()
            if num_pieces.max() > 1:
                starts = np.cumsum(num_pieces) - num_pieces
                outputs = np.add.reduceat(outputs, starts)
                outputs = outputs / np.float32(num_pieces)[:, None, None]
            vectors[rows - begin] = outputs
        return vectors

    def _compute(self, features, pieces):
        """`(num_pieces, num_layers, hidden_size)`, at places `(row, position)`."""
        encoded = self._encoder(features, training=False, return_all_layers=True)
        outputs = [encoded["encoder_outputs"][layer] for layer in self.layers]
        found = [tf.gather_nd(output, pieces) for output in outputs]
        return tf.stack(found, axis=1)


def _batches(lengths: np.ndarray, inputs: np.ndarray) -> Iterator[np.ndarray]:
    """Inputs of like lengths; the longest first: what is too large fails at once."""
    rest = inputs[np.argsort(-lengths[inputs], kind="stable")]
    while len(rest):
        num_inputs = max(1, TOKENS_PER_BATCH // int(lengths[rest[0]]))
        yield rest[:num_inputs]
        rest = rest[num_inputs:]


class _Writer(Protocol):
    """Files that are being written."""

    def describe(self, examples: Sequence[dict[str, Any]]) -> None:
        """Takes what is told of examples whose vectors come next."""

    def add(self, vectors: np.ndarray) -> None:
        """Takes vectors of described examples, which may begin or end within one."""

    def finish(self) -> None:
        """Writes what there is left; all described examples have their vectors."""


class _NumpyWriter:
    """An array for each layer, and the index."""

    def __init__(
        self, directory: Path, encoder: LayerEncoder, stack: contextlib.ExitStack
    ):
        def open_file(name: str) -> BinaryIO:
            return stack.enter_context(files.open_atomically(directory / name))

        self._hidden_size = encoder.hidden_size
        self._index = open_file(INDEX_NAME)
        self._arrays = [open_file(f"{layer_name(n)}.npy") for n in encoder.layers]
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
        """Of one size whatever the number of rows: NumPy leaves room for growth."""
        header = {
            "descr": "<f4",
            "fortran_order": False,
            "shape": (self._num_rows, self._hidden_size),
        }
        for file in self._arrays:
            file.seek(0)
            np.lib.format.write_array_header_1_0(file, header)


class _RecordWriter:
    """A record for each example."""

    def __init__(
        self, directory: Path, encoder: LayerEncoder, stack: contextlib.ExitStack
    ):
        self._layers = encoder.layers
        path = str(directory / RECORDS_NAME)
        self._file = stack.enter_context(tf.io.TFRecordWriter(path))
        self._examples: list[dict[str, Any]] = []
        self._vectors = np.empty((0, len(self._layers), encoder.hidden_size), "f4")

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
        return made.SerializeToString()


# Of the words or pieces of an example, of which each has a row.
_STRINGS = ("words", "pieces")


def _num_rows(example: dict[str, Any]) -> int:
    return next(len(example[name]) for name in _STRINGS if name in example)


def _integers(values: Sequence[int]) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


@dataclass(frozen=True, kw_only=True)
class Features:
    """A finished directory of NumPy arrays."""

    facts: dict[str, Any]
    """What `FACTS_NAME` holds."""
    layers: dict[int, np.ndarray]
    """From a layer's number, from 0, to `(num_rows, hidden_size)` float32, which stays
    in its file until it is looked at."""
    examples: tuple[dict[str, Any], ...]
    """The lines of the index."""


def read(directory: str | Path) -> Features:
    """Reads what `write` has made of NumPy arrays.

    Raises:
        InputError: no such directory, unfinished, or of records.
    """
    directory = Path(directory)
    if not (directory / INDEX_NAME).is_file():
        raise InputError(
            f"{directory}: expected a directory made by `bert-keras features --to "
            f"numpy`, found no {INDEX_NAME} in it"
        )
    facts = files.read_json(directory / FACTS_NAME)
    layers = {
        layer: np.load(directory / f"{layer_name(layer)}.npy", mmap_mode="r")
        for layer in facts["layers"]
    }
    rows = reading.read_jsonl(directory / INDEX_NAME)
    return Features(
        facts=facts, layers=layers, examples=tuple(example for _, example in rows)
    )
