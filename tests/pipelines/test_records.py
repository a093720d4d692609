"""Records: the bytes of protobuf and TFRecord, and nothing damaged is read."""

import gzip
import math
import random
import struct
import tracemalloc

import google_crc32c
import numpy as np
import pytest

from bert_keras.core import manifest
from bert_keras.core.errors import InputError
from bert_keras.data import tfrecords
from bert_keras.pipelines import records
from tests.pipelines import example_messages

EXAMPLE = (
    "0a1d"  # Features, 29 bytes
    "0a0d 0a0161 1208 1206 0a04 0000803f"  # "a": FloatList, packed, 1.0
    "0a0c 0a0162 1207 1a05 0a03 01ac02"  # "b": Int64List, packed, 1 and 300
)
NEGATIVE = "0a15 0a13 0a0161 120e 1a0c 0a0a feffffffffffffffff01"  # ten bytes


@pytest.fixture(scope="session")
def tf():
    return pytest.importorskip("tensorflow", reason="compares with TensorFlow")


def random_features(seed, num_rows):
    """Features of each kind, some of another length in each example."""
    rng = random.Random(seed)
    integers = [0, 1, 127, 128, 16383, 16384, 119546, 2**31, 2**63 - 1, -1, -(2**63)]
    integers = integers[: rng.choice([3, 4, 6, 7, 8, 9, 11])]
    floats = [0.0, 1.0, -0.5, math.inf, 2.0**-140]
    values, lengths = {}, {}
    # No name begins another: protobuf implementations order such names differently.
    letters = rng.sample("abcdefghij", rng.randrange(1, 8))
    for name in [letter * rng.choice([1, 5, 200]) for letter in letters]:
        width = rng.choice([1, 20, 127, 128, 300])
        if rng.random() < 0.4:
            shape = [rng.choices(floats, k=width) for _ in range(num_rows)]
            values[name] = np.array(shape, np.float32)
            continue
        shape = [rng.choices(integers, k=width) for _ in range(num_rows)]
        values[name] = np.array(shape, np.int64)
        if rng.random() < 0.5:
            lengths[name] = np.array([rng.randint(1, width) for _ in range(num_rows)])
    return values, lengths


def row_of(values, lengths, row):
    """The features of one example as lists."""
    return {
        name: matrix[row, : lengths[name][row] if name in lengths else None].tolist()
        for name, matrix in values.items()
    }


@pytest.mark.parametrize(
    ("values", "lengths", "encoded"),
    [
        ({"b": np.array([[1, 300]]), "a": np.ones((1, 1), np.float32)}, {}, [EXAMPLE]),
        ({"a": np.array([[-2]])}, {}, [NEGATIVE]),
        (
            {"a": np.array([[5, 300], [7, 0], [1, 1]])},
            {"a": np.array([2, 1, 0])},
            [
                "0a0e 0a0c 0a0161 1207 1a05 0a03 05ac02",
                "0a0c 0a0a 0a0161 1205 1a03 0a01 07",
                "0a0b 0a09 0a0161 1204 1a02 0a00",
            ],
        ),
        ({"a": np.zeros((0, 3), np.int64)}, {}, []),
    ],
)
def test_bytes_of_examples(values, lengths, encoded):
    made = records.encode_examples(values, lengths=lengths)
    assert made == [*map(bytes.fromhex, encoded)]
    for row, message in enumerate(made):
        assert example_messages.decode(message) == row_of(values, lengths, row)


@pytest.mark.reference
def test_examples_are_those_of_tensorflow(tf):
    for seed in range(100):
        values, lengths = random_features(seed, num_rows=3)
        made = records.encode_examples(values, lengths=lengths)
        for row, encoded in enumerate(made):
            expected = row_of(values, lengths, row)
            example = tf.train.Example()
            for name, numbers in expected.items():
                kind = "float_list" if isinstance(numbers[0], float) else "int64_list"
                feature = example.features.feature[name]
                getattr(feature, kind).value.extend(numbers)
            assert encoded == example.SerializeToString(deterministic=True)
            assert example_messages.decode(encoded) == expected


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_shard_is_what_its_description_says(tmp_path, compression):
    written = [b"one", b"two" * 1000, b""]
    suffix = ".gz" if compression == "gzip" else ""
    paths = [tmp_path / f"{name}.tfrecord{suffix}" for name in "ab"]
    options = {"records": written, "compression": compression}
    shards = [records.write_shard(path, **options) for path in paths]
    assert [(s.name, s.num_records) for s in shards] == [(p.name, 3) for p in paths]
    made = manifest.Manifest(kind="examples", shards=tuple(shards), config={})
    manifest.verify_shards(tmp_path, made)
    assert list(records.read_records(paths[0], compression=compression)) == written
    data = paths[0].read_bytes()
    assert data == paths[1].read_bytes()
    if compression == "gzip":
        # Neither the time nor the name is in the header.
        assert data[3:8] == bytes(5)
        data = gzip.decompress(data)
    assert data == b"".join(map(tfrecords.frame, written))


def is_refused(path, data):
    """Asserts that a file of these bytes cannot be read."""
    path.write_bytes(data)
    kind = "gzip" if path.suffix == ".gz" else "none"
    with pytest.raises(InputError, match=f"{path.name}: expected a TFRecord.*recreate"):
        list(records.read_records(path, compression=kind))


def flipped(data, position, bit):
    return data[:position] + bytes([data[position] ^ bit]) + data[position + 1 :]


def test_a_damaged_compressed_file_is_refused(tmp_path):
    path = tmp_path / "x.tfrecord.gz"
    records.write_shard(path, [b"first", b"second"], compression="gzip")
    data = path.read_bytes()
    for length in range(1, len(data)):
        is_refused(path, data[:length])
    for position in range(10, len(data)):
        is_refused(path, flipped(data, position, 0x10))
    is_refused(path, b"no gzip")


def test_a_failed_shard_leaves_nothing_and_what_was_there(tmp_path):
    def failing():
        yield b"one"
        raise RuntimeError("stopped")

    for before in ([], [b"old"]):
        if before:
            records.write_shard(tmp_path / "x.tfrecord", before)
        with pytest.raises(RuntimeError, match="stopped"):
            records.write_shard(tmp_path / "x.tfrecord", failing())
        assert [f.name for f in tmp_path.iterdir()] == ["x.tfrecord"] * len(before)
    assert list(records.read_records(tmp_path / "x.tfrecord")) == [b"old"]


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "x.tfrecord"
    records.write_shard(path, [b"first", b"second"])
    data = path.read_bytes()
    for length in {*range(1, len(data))} - {21}:  # between the two, nothing is cut
        is_refused(path, data[:length])
    for position in range(len(data)):
        for bit in range(8):
            is_refused(path, flipped(data, position, 1 << bit))


def test_a_false_length_takes_no_memory(tmp_path):
    path = tmp_path / "x.tfrecord"
    header = struct.pack("<Q", 1 << 40)
    crc = google_crc32c.value(header)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    path.write_bytes(header + struct.pack("<I", masked) + bytes(100))
    tracemalloc.start()
    with pytest.raises(InputError, match="at byte 0, but the file ends within"):
        list(records.read_records(path))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
