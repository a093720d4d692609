"""Decoding of many examples at once: whole numbers, and nothing else is read."""

import random

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.pipelines import records
from bert_keras.pipelines.inspection import example_decoding
from tests.pipelines import example_messages


def varint(number):
    number &= (1 << 64) - 1
    digits = bytearray()
    while number >= 0x80:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def field(key, content):
    return bytes([key]) + varint(len(content)) + content


def example(values, *, shape="packed"):
    """A message, written from protobuf's description alone."""
    entries = b""
    for name, numbers in values.items():
        if shape == "unpacked":
            content = b"".join(b"\x08" + varint(number) for number in numbers)
        else:
            content = field(0x0A, b"".join(map(varint, numbers)))
        feature = field(0x12, field(0x1A, content))
        key = field(0x0A, name.encode())
        entries += field(
            0x0A, feature + key if shape == "value first" else key + feature
        )
    return field(0x0A, entries)


def assert_decoded(messages, expected):
    decoded = example_decoding.decode_examples(messages)
    assert decoded.keys() == {name for values in expected for name in values}
    for name, column in decoded.items():
        lists = [values.get(name, []) for values in expected]
        assert column.lengths.tolist() == [len(numbers) for numbers in lists]
        assert column.values.tolist() == [n for numbers in lists for n in numbers]


def random_values(rng):
    largest = [1, 127, 128, 16383, 16384, 2**21, 2**40, 2**63 - 1]
    values = {}
    for name in rng.sample(("input_ids", "a", "b" * 130, "c" * 20_000), 3):
        limit = rng.choice(largest)
        count = rng.choice([1, 2, 128, 700])
        values[name] = [rng.randint(-limit, limit) for _ in range(count)]
        if rng.random() < 0.5:
            values[name] = [abs(number) for number in values[name]]
    return values


def test_many_at_once():
    rng = random.Random(0)
    for _ in range(20):
        expected = [random_values(rng) for _ in range(rng.randint(1, 20))]
        messages = [example(values) for values in expected]
        assert_decoded(messages, expected)


def test_absent_and_empty_features():
    expected = [{"a": [1]}, {"b": [2, 3]}, {}, {"a": [], "b": [4]}]
    assert_decoded([example(values) for values in expected], expected)


def test_floats():
    matrix = np.array([[0.0, 1.0, -0.5], [2.0**-140, np.inf, 3.0]], np.float32)
    messages = records.encode_examples({"w": matrix})
    column = example_decoding.decode_examples(messages)["w"]
    assert column.values.dtype == np.float32
    assert column.values.tolist() == matrix.ravel().tolist()
    assert column.lengths.tolist() == [3, 3]


def test_the_last_of_two_features_of_one_name_counts():
    first, second = (example({"a": [n]})[2:] for n in (1, 2))
    assert_decoded([field(0x0A, first + second)], [{"a": [2]}])


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a",
        b"\xff" * 20,
        field(0x0A, field(0x1A, b"x"))[:-1],
        # A list of bytes, and a name that is not UTF-8.
        example({"a": [1]}).replace(b"\x1a\x03", b"\x0a\x03"),
        example({"a": [1]}).replace(b"\x01a", b"\x01\xff"),
        b"hello, this is no message",
        example({"a": [1]})[:-1],
        example({"a": [1]}) + b"\x0a",
        # A number that never ends, and one of too many bytes.
        example({"a": [1 << 63]}).replace(b"\x01", b"\x80"),
    ],
)
def test_what_is_no_example(message):
    with pytest.raises(InputError, match="expected a serialised tf.train.Example"):
        example_decoding.decode_examples([message])


@pytest.mark.parametrize("shape", ["packed", "unpacked", "value first"])
def test_every_form_that_protobuf_allows(shape):
    messages = [example({"a": [1, 300]}, shape=shape) + b"\x78\x01", b""]
    column = example_decoding.decode_examples(messages)["a"]
    assert (column.values.tolist(), column.lengths.tolist()) == ([1, 300], [2, 0])


def test_integers_and_floats_under_one_name():
    messages = [
        *records.encode_examples({"a": np.array([[1]])}),
        *records.encode_examples({"a": np.array([[1.0]], np.float32)}),
    ]
    with pytest.raises(InputError, match="values of a of one kind, found integers and"):
        example_decoding.decode_examples(messages)


@pytest.mark.reference
def test_damaged_messages_are_read_as_by_tensorflow_or_refused():
    tf = pytest.importorskip("tensorflow", reason="compares with TensorFlow")
    rng = random.Random(1)
    whole = example({"ab": [1, 300, 5], "c": [70_000] * 50, "d": [-1]})
    refused = 0
    for _ in range(3000):
        message = bytearray(whole)
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
