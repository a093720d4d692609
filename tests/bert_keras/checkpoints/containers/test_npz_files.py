import re
import struct
import subprocess
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest

from bert_keras.checkpoints.containers import npz_files
from bert_keras.core.errors import InputError

ARRAYS = {
    "weights/kernel": np.arange(6, dtype=np.float32).reshape(2, 3) / 7,
    "optimizer/iteration": np.array(2**53 + 1, np.int64),
    "none": np.zeros((0, 4), np.int32),
}
HEADERS = {
    name: npz_files.ArrayHeader(shape=array.shape, dtype=array.dtype)
    for name, array in ARRAYS.items()
}


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "a.npz"
    npz_files.write_arrays(made, ARRAYS.items())
    return made


def write_member(path, name, data, **options):
    with zipfile.ZipFile(path, "w", **options) as made:
        made.writestr(name, data)


def npy(header, data=b"", *, version=b"\x01\x00"):
    """A `.npy` file with a header that numpy would not write."""
    padded = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(padded)) + padded + data


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name].dtype == expected[name].dtype, name
        assert found[name].shape == expected[name].shape, name
        assert found[name].tobytes() == expected[name].tobytes(), name


def test_bit_for_bit(tmp_path):
    nans = np.array([0x7FC00000, 0x7FC01234, 0xFFC00001, 0x7F800001], np.uint32)
    arrays = ARRAYS | {
        "nans": nans.view(np.float32),
        "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "every second": np.arange(10, dtype=np.int32)[::2],
        "true": np.array(True),
        "größe": np.float16([1, -0.0]),
    }
    npz_files.write_arrays(tmp_path / "a.npz", arrays.items())
    assert_same_bits(npz_files.read_arrays(tmp_path / "a.npz"), arrays)


def test_numpy_reads_it_and_is_read(path, tmp_path):
    with np.load(path, allow_pickle=False) as loaded:
        assert_same_bits(dict(loaded), ARRAYS)
    np.savez(tmp_path / "numpy.npz", **ARRAYS)
    assert_same_bits(npz_files.read_arrays(tmp_path / "numpy.npz"), ARRAYS)


def test_equal_arrays_give_equal_bytes(path, tmp_path):
    npz_files.write_arrays(tmp_path / "again.npz", ARRAYS.items())
    assert (tmp_path / "again.npz").read_bytes() == path.read_bytes()


def test_some_of_the_arrays(path):
    found = npz_files.read_arrays(path, ["none", "optimizer/iteration"])
    assert set(found) == {"none", "optimizer/iteration"}
    with pytest.raises(npz_files.UnreadableArchive, match="no a, b in it"):
        npz_files.read_arrays(path, ["none", "b", "a"])


def test_arrays_that_are_not_those_expected(path):
    expected = HEADERS | {"none": HEADERS["optimizer/iteration"]}
    assert npz_files.read_arrays_like(path, expected) == (HEADERS, None)


class TestDamage:
    def test_every_byte(self, path):
        """A flipped byte is found, or means nothing: a date, say. Never another value,
        never another name, never another error."""
        whole = path.read_bytes()
        num_found = 0
        for index in range(len(whole)):
            data = bytearray(whole)
            data[index] ^= 1 << index % 8
            path.write_bytes(data)
            try:
                _, arrays = npz_files.read_arrays_like(path, HEADERS)
            except npz_files.UnreadableArchive:
                num_found += 1
                continue
            assert_same_bits(arrays, ARRAYS)
        assert num_found > len(whole) * 2 // 3

    def test_a_header_without_its_end(self, path):
        """Of an array so long that its header is read before its checksum."""
        npz_files.write_arrays(path, [("long", np.zeros(100_000))])
        whole = path.read_bytes()
        path.write_bytes(whole.replace(b"(100000,)", b"(100000,(", 1))
        with pytest.raises(npz_files.UnreadableArchive, match="cannot be parsed"):
            npz_files.read_headers(path)

    def test_cut_anywhere(self, path):
        whole = path.read_bytes()
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises(npz_files.UnreadableArchive, match="not a zip file"):
                npz_files.read_arrays(path)

    def test_something_else(self, tmp_path):
        path = tmp_path / "a.npz"
        with pytest.raises(InputError, match="cannot be read: No such file"):
            npz_files.read_arrays(path)
        message = f"{re.escape(str(path))}: cannot be read as a checkpoint: "
        path.write_text("no checkpoint")
        with pytest.raises(npz_files.UnreadableArchive, match=message + ".*not a zip"):
            npz_files.read_arrays(path)
        write_member(path, "readme.txt", b"hello")
        with pytest.raises(
            InputError, match="'readme.txt' is not an uncompressed .npy"
        ):
            npz_files.read_arrays(path)


class TestTrap:
    def test_python_objects(self, tmp_path):
        np.savez(tmp_path / "a.npz", a=np.array([{"a": 1}], dtype=object))
        with pytest.raises(
            npz_files.UnreadableArchive, match="'a.npy' holds Python obj"
        ):
            npz_files.read_arrays(tmp_path / "a.npz")

    def test_compressed_members(self, tmp_path):
        np.savez_compressed(tmp_path / "a.npz", a=np.zeros(3))
        with pytest.raises(InputError, match="'a.npy' is not an uncompressed .npy"):
            npz_files.read_arrays(tmp_path / "a.npz")

    @pytest.mark.parametrize("shape", ["(1000000000000,)", "(-1, -2)", "(1,)"])
    def test_a_header_that_lies(self, tmp_path, shape):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"
        write_member(tmp_path / "a.npz", "a.npy", npy(header, bytes(8)))
        message = re.escape(f"{shape} of float32 do not fill its 136 bytes")
        with pytest.raises(npz_files.UnreadableArchive, match=message):
            npz_files.read_arrays(tmp_path / "a.npz")

    def test_header_and_directory_that_lie_alike(self, tmp_path):
        header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}"
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as made:
            made.writestr("a.npy", npy(header))
            member = made.getinfo("a.npy")
            member.file_size += 4 * 10**12
            member.compress_size += 4 * 10**12
        tracemalloc.start()
        with pytest.raises(npz_files.UnreadableArchive, match="claims more than its"):
            npz_files.read_arrays(tmp_path / "a.npz")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**20

    def test_a_later_version_of_the_format(self, tmp_path):
        header = "{'descr': '<f4', 'fortran_order': False, 'shape': ()}"
        data = npy(header, bytes(4), version=b"\x03\x00")
        write_member(tmp_path / "a.npz", "a.npy", data)
        with pytest.raises(InputError, match=r"'a.npy': unknown version \(3, 0\)"):
            npz_files.read_arrays(tmp_path / "a.npz")

    def test_a_name_that_is_there_twice(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as made:
            made.writestr("a.npy", b"1")
            made.filelist.append(made.getinfo("a.npy"))
        with pytest.raises(npz_files.UnreadableArchive):
            npz_files.read_arrays(tmp_path / "a.npz")


class TestWriting:
    def test_one_array_at_a_time(self, tmp_path):
        size = 2**22

        def arrays():
            for number in range(12):
                yield f"a{number}", np.full(size, number, np.uint8)

        tracemalloc.start()
        npz_files.write_arrays(tmp_path / "a.npz", arrays())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (tmp_path / "a.npz").stat().st_size > 12 * size
        assert peak < 5 * size

    def test_an_error_on_the_way_leaves_what_was_there(self, path):
        before = path.read_bytes()

        def arrays():
            yield "a", np.zeros(3)
            raise RuntimeError("the second cannot be had")

        with pytest.raises(RuntimeError):
            npz_files.write_arrays(path, arrays())
        assert path.read_bytes() == before
        assert [p.name for p in path.parent.iterdir()] == ["a.npz"]

    def test_killed_on_the_way(self, path):
        """Nothing half-written gets the name; the old file stays as it was."""
        before = path.read_bytes()
        killed = (
            "import os, sys\n"
            "import numpy as np\n"
            "from bert_keras.checkpoints.containers import npz_files\n"
            "def arrays():\n"
            "    yield 'a', np.zeros(10**5)\n"
            "    os._exit(9)\n"
            "npz_files.write_arrays(sys.argv[1], arrays())\n"
        )
        run = subprocess.run([sys.executable, "-c", killed, str(path)])
        assert run.returncode == 9
        assert path.read_bytes() == before
        (partial,) = (p for p in path.parent.iterdir() if p != path)
        assert partial.stat().st_size > 10**5
        assert re.fullmatch(r"\.a\.npz\.\w+\.tmp", partial.name)
