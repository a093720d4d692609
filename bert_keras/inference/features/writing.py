"""Vectors of words, from layers of an encoder, written to files for other models: a
NumPy array for each layer, and an index of the words."""

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert_keras.checkpoints import conversion, starting_point, weights
from bert_keras.core import files, progress
from bert_keras.core.errors import InputError
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
    `encoder.resolve_layers` and `settings.features`; a `form` of `None` is guessed by
    the file's name.
    """
    # 1. The words, and the encoder.
    output_dir = files.path(output_dir).absolute()
    files.check_is_new(output_dir)
    form = form or word_inputs.form_of(input_path)
    columns = settings.columns
    sentences = word_inputs.read_sentences(input_path, form=form, columns=columns)
    checkpoint = conversion.read_with_tokenizer(model)
    bert_config = checkpoint.bert_config
    numbers = resolve_layers(layers, bert_config.num_hidden_layers, path=model)
    length, longest = settings.max_seq_length, bert_config.max_position_embeddings
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
    arrays = starting_point.encoder_arrays(checkpoint)
    shape = sum(len(s.words) for s in sentences), bert_config.hidden_size
    facts = {
        "layers": numbers,
        "hidden_size": bert_config.hidden_size,
        "form": form,
        **inputs,
        "model_sha256": starting_point.digest(checkpoint, arrays),
        "input_sha256": files.sha256(input_path),
        "num_examples": len(sentences),
        "num_rows": shape[0],
    }
    tokenizer = checkpoint.tokenizer
    encode = functools.partial(word_inputs.encode, tokenizer=tokenizer, **inputs)
    # 3. The network: the encoder alone, of a checkpoint of any kind.
    encoder = registry.build_network(bert_config, tasks.Task(kind="encoder"), seed=0)
    weights.assign(encoder, checkpoint.arrays)
    # It is as large as the model.
    del checkpoint, arrays

    def compute(features: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns vectors of pieces, `(num_pieces, num_layers, hidden_size)`."""
        ids = {name: features[name] for name in forward.INPUT_NAMES}
        encoded = encoder(ids, training=False, return_all_layers=True)
        outputs = [encoded["encoder_outputs"][layer] for layer in numbers]
        pieces = [tf.gather_nd(output, features["pieces"]) for output in outputs]
        return tf.stack(pieces, axis=1)

    names = (*forward.INPUT_NAMES, "pieces")
    predict = forward.BatchPredictor(compute, feature_names=names)
    # 4. The vectors.
    with files.new_directory(output_dir) as directory:
        _write_index(directory / _INDEX_NAME, sentences)
        paths = [directory / f"layer_{number}.npy" for number in numbers]
        _write_arrays(paths, shape, sentences, encode=encode, predict=predict)
        files.write_json(directory / _FACTS_NAME, facts)
    logger.info("%d vectors of each layer in %s", shape[0], output_dir)


def _write_index(path: Path, sentences: Sequence[ner.Sentence]) -> None:
    first_row = 0
    with files.open_atomically(path) as file:
        for sentence in sentences:
            line = {"line": sentence.line, "words": sentence.words}
            if sentence.text is not None:
                line["starts"] = [start for start, _ in sentence.places]
                line["ends"] = [end for _, end in sentence.places]
            line["first_row"] = first_row
            text_line = json.dumps(line, ensure_ascii=False) + "\n"
            # A half of a character becomes the escape that JSON has for it.
            file.write(text_line.encode(errors="backslashreplace"))
            first_row += len(sentence.words)


def _write_arrays(
    paths: Sequence[Path],
    shape: tuple[int, int],
    sentences: Sequence[ner.Sentence],
    *,
    encode: Callable[[Sequence[ner.Sentence]], word_inputs.PooledWords],
    predict: forward.BatchPredictor,
) -> None:
    """Writes the vectors of all words, `(num_words, hidden_size)` float32, to a NumPy
    array for each layer, some at a time."""
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    most_pieces = max(1, BYTES_AT_A_TIME // (4 * len(paths) * shape[1]))
    num_done, sentences_per_input = 0, 0.0
    with (
        contextlib.ExitStack() as stack,
        progress.Progress(
            "features",
            total=len(sentences),
            unit="texts",
            read=lambda: num_done + int(sentences_per_input * predict.num_done),
            only_if_long=True,
        ),
    ):
        arrays = [stack.enter_context(files.open_atomically(path)) for path in paths]
        for array in arrays:
            np.lib.format.write_array_header_1_0(array, header)
        for sentences_of_part in word_inputs.parts(sentences):
            words = encode(sentences_of_part)
            predict.num_done = 0
            # A blank text has no words, and so no window.
            num_inputs = max(1, len(words.windows))
            sentences_per_input = len(sentences_of_part) / num_inputs
            for part in words.parts(most_pieces):
                vectors = part.pool(predict(part, title=None))
                for place, array in enumerate(arrays):
                    array.write(np.ascontiguousarray(vectors[:, place], "<f4"))
            num_done += len(sentences_of_part)
            sentences_per_input = 0.0
