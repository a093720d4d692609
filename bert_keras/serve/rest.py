"""Requests and answers, of a model in TensorFlow Serving's REST form.

https://www.tensorflow.org/tfx/serving/api_rest describes it. The sentences of errors
and the bounds are our own.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pydantic
import tensorflow as tf

from bert_keras.core import files
from bert_keras.core.errors import InputError, check_choice, one_line
from bert_keras.core.settings import choices, strict
from bert_keras.kinds import served

MAX_ROWS, MAX_PARTS, MAX_TEXT_BYTES, MAX_QUESTION = 128, 256, 100_000, 2_000
"""Bounds: rows of a request, strings of a row's list (passages), bytes of a text,
characters of a question to an index."""


def read(
    body: bytes, signatures: Mapping[str, served.Signature]
) -> tuple[str, list[np.ndarray], bool]:
    """Returns the signature that a request names, the signature's inputs in order, with
    strings as bytes, and whether the request has rows. Raises an `InputError`."""
    request = parse(body)
    keys = {"instances", "inputs"} & (set(request) if type(request) is dict else set())
    if len(keys) != 1:
        raise InputError("expected an object with either `instances` or `inputs`")
    signature = str(request.get("signature_name") or served.STRINGS)
    check_choice("`signature_name`", signature, signatures)
    specs = signatures[signature].inputs
    names = [str(spec.name) for spec in specs]
    # All columns are read as one row of whole columns.
    has_rows = "instances" in keys
    rows = request["instances"] if has_rows else [request["inputs"]]
    if not isinstance(rows, list) or not rows:
        raise InputError("expected `instances` to be a list that is not empty")
    if len(names) == 1:  # which may be left out
        rows = [row if isinstance(row, dict) else {names[0]: row} for row in rows]
    if not all(isinstance(row, dict) and row.keys() == set(names) for row in rows):
        raise InputError(f"expected the inputs {', '.join(names)} and no others")
    columns = []
    for spec in specs:
        values = [row[str(spec.name)] for row in rows]
        columns.append(_column(values if has_rows else values[0], spec))
    if len({len(column) for column in columns}) > 1:
        raise InputError(f"expected as many rows of {', '.join(names)}")
    return signature, columns, has_rows


class Search(strict.StrictModel):
    """A question to an index."""

    question: str
    top: int = pydantic.Field(10, ge=1, le=MAX_ROWS)
    by: choices.SearchBy = "both"

    def _problems(self) -> Iterator[str]:
        # Each word is looked up in the whole index.
        if (size := len(self.question)) > MAX_QUESTION:
            yield f"expected {MAX_QUESTION} characters at most, got {size}"


def parse(body: bytes) -> Any:
    """Returns the values of JSON, with strings in base64 as bytes. Raises an
    `InputError`."""
    try:
        # TensorFlow ends the process if a list is in 254 others.
        return files.parse_json(body.decode("utf-8-sig"), object_hook=_decode)
    except (ValueError, TypeError) as error:
        raise InputError(f"expected JSON: {one_line(error)}") from None


def _decode(value: dict[str, Any]) -> Any:
    is_binary = value.keys() == {"b64"}
    return base64.b64decode(value["b64"], validate=True) if is_binary else value


def _column(values: Any, spec: tf.TensorSpec) -> np.ndarray:
    is_text = spec.dtype == tf.string
    try:
        if not is_text:  # TensorFlow wraps integers of more bits around.
            np.asarray(values, np.int32)
        array = np.asarray(tf.constant(values, spec.dtype))
        if array.ndim != spec.shape.rank:
            raise ValueError
    except (ValueError, TypeError, OverflowError):
        axes = ", ".join(("batch", "columns", "tokens")[: spec.shape.rank])
        cells = "texts" if is_text else "32-bit integers"
        expected = f"expected {spec.name} of shape ({axes}), full lists of {cells}"
        raise InputError(expected) from None
    bounds = [("rows", len(array), MAX_ROWS)]
    if is_text:
        bounds.append(("strings in a row", max(array.shape[1:], default=0), MAX_PARTS))
        longest = max(map(len, array.flat), default=0)
        bounds.append(("bytes in a text", longest, MAX_TEXT_BYTES))
    for name, number, most in bounds:
        if number > most:
            raise InputError(f"expected {most} {name} at most, got {number}")
    return array


def write(outputs: Mapping[str, np.ndarray], *, has_rows: bool) -> bytes:
    """Returns the body of an answer. An only output comes without its name."""
    decode = np.frompyfunc(lambda text: text.decode(errors="replace"), 1, 1)
    values: Any = {
        name: (decode(array) if array.dtype == object else array).tolist()
        for name, array in outputs.items()
    }
    if len(values) == 1:
        [values] = values.values()
    elif has_rows:
        rows = zip(*values.values(), strict=True)
        values = [dict(zip(outputs, row, strict=True)) for row in rows]
    key = "predictions" if has_rows else "outputs"
    return json.dumps({key: values}, ensure_ascii=False).encode()
