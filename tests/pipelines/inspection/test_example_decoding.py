"""Decoding of many examples at once: whole numbers, and nothing else is read."""

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.pipelines import records
from bert_keras.pipelines.inspection import example_reading
from tests.pipelines import example_messages

WHOLE = example_messages.encode({"ab": [1, 300, 5], "c": [70_000] * 50, "d": [-1]})


def test_present_absent_and_empty_features():
    nothing = np.empty(0, int)
    expected = [{"a": [1, -(2**63)]}, {"b": [2, 300]}, {}, {"a": nothing, "b": [4]}]
    messages = [example_messages.encode(values) for values in expected]
    decoded = example_reading.decode_examples(messages)
    for name, column in decoded.items():
        lists = [list(values.get(name, [])) for values in expected]
        assert [values.tolist() for values in column] == lists


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a",
        b"hello, this is no message",
        WHOLE[:-1],
        WHOLE + b"\x0a",
        # A list of bytes, and a name that is not UTF-8.
        example_messages.encode({"a": [1]}).replace(b"\x1a\x03", b"\x0a\x03"),
        example_messages.encode({"a": [1]}).replace(b"\x01a", b"\x01\xff"),
    ],
)
def test_what_is_no_example(message):
    with pytest.raises(InputError, match="expected a serialised tf.train.Example"):
        example_reading.decode_examples([message])


def test_integers_and_floats_under_one_name():
    messages = [
        *records.encode_examples({"a": np.array([[1]])}),
        *records.encode_examples({"a": np.array([[1.0]], np.float32)}),
    ]
    with pytest.raises(InputError, match="values of a of one kind, found integers and"):
        example_reading.decode_examples(messages)
