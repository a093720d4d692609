import random

import numpy as np
import pytest

from bert_keras.pipelines.engine import spills

VALUES = {0: [b"a", b""], 3: [b"bcd" * 1000], 4: [b"\0\n", b"x"]}


def spill(prefix, pairs, num_keys=5):
    writer = spills.SpillWriter(str(prefix), num_keys=num_keys)
    for pair in pairs:
        writer.add(*pair)
    return writer.close()


@pytest.fixture
def path(tmp_path):
    pairs = [(key, value) for key, values in VALUES.items() for value in values]
    (path,) = spill(tmp_path / "s", pairs)
    return path


def read(paths, key, advance=lambda _: None):
    return spills.read_values(paths, key, advance=advance)


def test_bytes_of_each_key(path):
    sizes = spills.spilled_bytes(path)
    # Each value has four bytes before it.
    np.testing.assert_array_equal(sizes, [9, 0, 0, 3004, 11])
    passed = []
    for key in range(5):
        list(read([path], key, passed.append))
    assert sum(passed) == sizes.sum()


def test_what_a_worker_spills_is_all_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(spills, "_FLUSH_BYTES", 9_000)
    choose = random.Random(3)
    pairs = [(choose.randrange(7), choose.randbytes(9)) for _ in range(500)]
    paths = spill(tmp_path / "w", pairs, num_keys=7)
    assert len(paths) == 5
    assert sorted(map(str, tmp_path.iterdir())) == paths
    for key in range(7):
        assert list(read(paths, key)) == [value for k, value in pairs if k == key]


def test_nothing_spilled_makes_no_file(tmp_path):
    assert spill(tmp_path / "w", []) == []
    assert list(tmp_path.iterdir()) == []
