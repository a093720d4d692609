"""Decoding of many examples at once: whole numbers, and nothing else is read."""

import random

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
        assert column.lengths.tolist() == list(map(len, lists))
        assert column.values.tolist() == sum(lists, [])


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


@pytest.mark.reference
def test_damaged_messages_are_read_as_by_tensorflow_or_refused():
    tf = pytest.importorskip("tensorflow", reason="compares with TensorFlow")
    rng = random.Random(1)
    refused = 0
    for _ in range(3000):
        message = bytearray(WHOLE)
        for _ in range(rng.randint(1, 3)):
            message[rng.randrange(len(message))] = rng.randrange(256)
        try:
            decoded = example_messages.decode(bytes(message))
        except InputError:
            refused += 1
            continue
        features = tf.train.Example.FromString(bytes(message)).features.feature
        assert decoded == {
            name: list(feature.int64_list.value or feature.float_list.value)
            for name, feature in features.items()
        }
    assert 300 < refused < 2700
