import json
import re
import struct
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from bert_keras.checkpoints.containers import safetensors_files
from bert_keras.core.errors import InputError
from tests.bert_keras.checkpoints.formats import making

ARRAYS = {
    "weights/kernel": np.arange(6, dtype=np.float32).reshape(2, 3) / 7,
    "optimizer/iteration": np.array(2**53 + 1, np.int64),
    "none": np.zeros((0, 4), np.int32),
}


def write(path, arrays, *, has_hashes=True, **options):
    layouts = safetensors_files.layouts_of(arrays)
    safetensors_files.write(
        path, layouts, arrays.items(), has_hashes=has_hashes, **options
    )


def read(path, *, needs_hashes=True):
    file = safetensors_files.SafetensorsFile(path, needs_hashes=needs_hashes)
    arrays = {name: file.read(name) for name in file.layouts}
    for name, (dtype, shape) in file.layouts.items():
        assert (arrays[name].dtype, arrays[name].shape) == (dtype, shape)
    return arrays


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.safetensors"
    write(path, ARRAYS, metadata={"step": "5"})
    return path


@pytest.mark.parametrize("has_hashes", [False, True])
def test_bit_for_bit(tmp_path, has_hashes):
    nans = np.array([0x7FC00000, 0x7FC01234, 0xFFC00001, 0x7F800001], np.uint32)
    arrays = ARRAYS | {
        "nans": nans.view(np.float32),
        "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "every second": np.arange(10, dtype=np.int32)[::2],
        "true": np.array(True),
        "größe": np.float16([1, -0.0]),
        "bfloat16": np.arange(3).astype(ml_dtypes.bfloat16),
    }
    path = tmp_path / "a.safetensors"
    write(path, arrays, has_hashes=has_hashes)
    making.assert_same_arrays(read(path, needs_hashes=has_hashes), arrays)
    if not has_hashes:
        with pytest.raises(InputError, match="as safetensors: it has no hashes"):
            read(path)


def test_the_package_reads_it_and_is_read(path, tmp_path):
    making.assert_same_arrays(safetensors.numpy.load_file(path), ARRAYS)
    with safetensors.safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    assert (metadata["format"], metadata["step"]) == ("pt", "5")
    assert metadata == safetensors_files.SafetensorsFile(path).metadata
    other = tmp_path / "b.safetensors"
    safetensors.numpy.save_file(ARRAYS, other)
    making.assert_same_arrays(read(other, needs_hashes=False), ARRAYS)
    # Equal arrays give equal bytes.
    write(other, ARRAYS, metadata={"step": "5"})
    assert other.read_bytes() == path.read_bytes()


class TestDamage:
    def test_every_byte(self, path):
        """A flipped byte is found: never another value, name or error."""
        whole = path.read_bytes()
        for index in range(len(whole)):
            data = bytearray(whole)
            data[index] ^= 1 << index % 8
            path.write_bytes(data)
            with pytest.raises(safetensors_files.DamagedFile):
                read(path)

    def test_cut_anywhere(self, path):
        whole = path.read_bytes()
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises(safetensors_files.DamagedFile, match=r"claims \d|hea"):
                read(path)

    def test_something_else(self, tmp_path):
        path = tmp_path / "a.safetensors"
        with pytest.raises(InputError, match="No such file.*; run the same") as raised:
            read(path)
        assert raised.type is InputError
        path.write_text("no tensors")
        message = f"{re.escape(str(path))}: cannot be read as safetensors: claims a hea"
        with pytest.raises(safetensors_files.DamagedFile, match=message):
            read(path)


def file_bytes(header, data=b"", *, num_bytes=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    num_bytes = len(text) if num_bytes is None else num_bytes
    return struct.pack("<Q", num_bytes) + text + data


def entry(shape, end, *, begin=0, dtype="F32", **more):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end], **more}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        file_bytes(b"{}", num_bytes=8 << 30),
        file_bytes(b"{}", num_bytes=2**64 - 1),
        file_bytes(b"not JSON!"),
        file_bytes(b"[]"),
        file_bytes(b"[" * 10**5),
        file_bytes(b'{"\xff": 1}'),
        file_bytes({"a": 1}),
        file_bytes({"__metadata__": {"a": 1}}),
        file_bytes({"__metadata__": {"format": "pt"}}),
        file_bytes({"a": entry([1], 4)}, b"1234"),
        file_bytes({"metadata": entry([1], 4, more=7)}, b"1234"),
        file_bytes({"a": entry([], 4)}, b"1234"),
        file_bytes({"a": entry([0, 10**12], 0)}),
        file_bytes({"a": entry([1], 4)}, b"12345678"),
        file_bytes({"a": entry([2], 4)}, b"1234"),
        file_bytes({"a": entry([-1, -1], 4)}, b"1234"),
        file_bytes({"a": entry([1.0], 4)}, b"1234"),
        file_bytes({"a": entry(["1"], 4)}, b"1234"),
        file_bytes({"a": entry([1 << 40], 1 << 42)}, b"1234"),
        file_bytes({"a": entry([1 << 40], 4)}, b"1234"),
        file_bytes({"a": entry([1 << 62, 1 << 62], 4)}, b"1234"),
        file_bytes({"a": entry([1], 4), "b": entry([1], 4)}, b"1234"),
        file_bytes({"a": entry([1], 8, begin=4)}, b"12345678"),
        file_bytes(
            {"b": entry([1], 8, begin=4), "a": entry([1], 4, dtype="I32")}, b"12345678"
        ),
    ],
    ids=lambda content: ascii(content[8:60]),
)
def test_headers_are_judged_as_the_package_does(tmp_path, content):
    """And no memory is allocated for what they claim."""
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    try:
        expected = safetensors.numpy.load(content)
    except safetensors.SafetensorError:
        expected = None
    tracemalloc.start()
    if expected is None:
        with pytest.raises(safetensors_files.DamagedFile):
            read(path, needs_hashes=False)
    else:
        making.assert_same_arrays(read(path, needs_hashes=False), expected)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**21


class TestWriting:
    def test_one_array_at_a_time(self, tmp_path):
        size = 2**22
        path = tmp_path / "a.safetensors"
        layout = safetensors_files.Layout(np.dtype(np.uint8), (size,))
        layouts = {f"a{number}": layout for number in range(12)}
        arrays = ((name, np.full(size, 7, np.uint8)) for name in layouts)
        tracemalloc.start()
        safetensors_files.write(path, layouts, arrays, has_hashes=True)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert path.stat().st_size > 12 * size
        assert peak < 3 * size

    def test_an_error_on_the_way_leaves_what_was_there(self, path):
        before = path.read_bytes()
        layouts = safetensors_files.layouts_of(ARRAYS)
        wrong = {**ARRAYS, "none": np.zeros(3)}
        with pytest.raises(ValueError, match="expected .*'none', Layout"):
            safetensors_files.write(path, layouts, wrong.items(), has_hashes=True)
        assert path.read_bytes() == before
        assert [p.name for p in path.parent.iterdir()] == [path.name]
