"""Requests that TensorFlow Serving answers while it loads a model.

The first request of a kind is slow: kernels, threads and buffers are made for it. The
server sends itself the requests in `assets.extra/tf_serving_warmup_requests` and is
ready when they are answered.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert_keras.core.errors import InputError
from bert_keras.data import features, tfrecords
from bert_keras.kinds import served

FILE_NAME = "tf_serving_warmup_requests"
"""Name that the server looks for, below `assets.extra/`."""


def check(*, to: str, output_dir: Path) -> None:
    """Raises an `InputError` for an export that TensorFlow Serving does not read."""
    if to != "saved_model":
        raise InputError(f"--serving tf needs --to saved_model, got --to {to}")
    if not output_dir.name.isdecimal() or not output_dir.parent.name:
        raise InputError(
            f"{output_dir}: TensorFlow Serving reads numbered versions in a model's "
            "directory: expected an --output such as exported/mine/1"
        )


def write(model: served.ServedModel, directory: Path) -> None:
    """Writes the requests for the model in a directory, a `PredictionLog` of TensorFlow
    Serving in each record."""
    path = directory / "assets.extra" / FILE_NAME
    path.parent.mkdir(exist_ok=True)
    # Four messages of `tensorflow_serving/apis`, whose fields are all messages, strings
    # or maps: PredictionLog.predict_log.request is a PredictRequest.
    with path.open("wb") as file:
        for signature, inputs in requests(model):
            request = _field(1, _field(3, signature.encode()))
            for name, value in inputs.items():
                tensor = tf.make_tensor_proto(value).SerializeToString()
                request += _field(2, _field(1, name.encode()) + _field(2, tensor))
            file.write(tfrecords.frame(_field(6, _field(1, request))))


def requests(model: served.ServedModel) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yields signatures and inputs: short, longer and full, alone and in batches."""
    longest = model.max_seq_length
    # With so many tokens of a request, a server of BERT-BASE on two cores is ready
    # within a minute or so.
    most_tokens = max(4096, longest)
    shapes = [
        (batch_size, length)
        for length in sorted({min(length, longest) for length in (16, 64, longest)})
        for batch_size in (1, 8, 32)
        if batch_size * length <= most_tokens
    ]
    for name, signature in model.signatures().items():
        for shape in shapes:
            yield name, {s.name: _value(s, model, *shape) for s in signature.inputs}


def _value(
    spec: tf.TensorSpec, model: served.ServedModel, batch_size: int, length: int
) -> np.ndarray:
    """Makes an input such that inputs have `length` tokens or a few less."""
    # A word that is one token.
    tokens, encode = model.vocabulary.tokens, model.tokenizer.encode
    words = (t for i, t in enumerate(tokens) if t.isalpha() and encode(t) == [i])
    word = next(words, features.UNK_TOKEN)
    num_words = max(1, length - 4)
    if spec.dtype == tf.int32:
        fill = {"input_ids": model.vocabulary.ids[word], "segment_ids": 0}
        last = 1 if spec.name == "masked_lm_positions" else length
        shape = (batch_size, 2, last) if spec.shape.rank == 3 else (batch_size, last)
        return np.full(shape, fill.get(spec.name, 1), np.int32)
    if spec.name == "words":
        return np.full((batch_size, num_words), word, object)
    if spec.name == "document":
        return np.array([str(row) for row in range(batch_size)], object)
    # Of the texts that share an input, the last one is long.
    is_long = spec.name in ("text", "text_pair", "context", "endings", "passages")
    if "text_pair" in [other.name for other in model.string_specs]:
        num_words //= 2
    text = " ".join([word] * (num_words if is_long else 1))
    if "masked_lm_positions" in [other.name for other in model.id_specs]:
        text = f"{features.MASK_TOKEN} {text}"
    return np.full((batch_size, *[2] * (spec.shape.rank - 1)), text, object)


def _field(number: int, data: bytes) -> bytes:
    """Encodes a field of a protocol buffer that has a length."""
    # A list of bytes is encoded as such fields, each with the number 1.
    encoded = tf.train.BytesList(value=[data]).SerializeToString()
    return bytes([number << 3 | 2]) + encoded[1:]
