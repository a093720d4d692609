"""Names in shared libraries, and what a damaged one says."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from bert_keras.errors import InputError
from bert_keras.tpu.doctor.shared_objects import SharedObject


def test_names_of_a_library(tmp_path, elf):
    path = tmp_path / "lib.so"
    path.write_bytes(elf(["TpuOne", "TpuTwo"], ["TpuOne", "a sentence", "Tpu_Three"]))
    library = SharedObject(path)
    assert library.exported() == {"TpuOne", "TpuTwo"}
    assert library.words() == {"TpuOne", "Tpu_Three"}


def test_names_of_a_real_library_are_those_that_the_loader_finds():
    """One that a compiler made: `nm` says the same."""
    (path,) = Path(np.__file__).parent.glob("_core/_multiarray_umath*.so")
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", path],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    names = {line.split()[-1].partition("@")[0] for line in listed}
    assert "PyInit__multiarray_umath" in names
    assert SharedObject(path).exported() == names


def test_a_library_that_is_cut_off_or_damaged_is_no_traceback(tmp_path, elf):
    whole = elf(["TpuOne"], ["TpuOne"])
    path = tmp_path / "lib.so"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError):
            library = SharedObject(path)
            library.exported(), library.words()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        try:
            library = SharedObject(path)
            library.exported(), library.words()
        except InputError:
            continue


def test_no_library(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        SharedObject(tmp_path / "none.so")
