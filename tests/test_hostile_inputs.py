"""The fuzzer reads a few inputs of each kind that loads no TensorFlow and draws
nothing."""

import itertools
import subprocess
import sys
from collections import Counter

import pytest

from benchmarks.hostile_inputs import kinds, page, reading, run
from bert_keras.errors import InputError

SLOW = (
    *("drawn reports", "drawn sweeps", "vectors"),
    *("native", "Hugging Face", "Google", "KerasHub", "Model Garden"),
)
QUICK = [name for name in kinds.KINDS if not name.startswith(SLOW)]


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    return reading.unpack(tmp_path_factory.mktemp("golden"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", QUICK)
def test_inputs_are_read_or_refused(name, golden, tmp_path):
    kind = kinds.KINDS[name]
    healthy = reading.prepare(kind, tmp_path, golden)
    results = [
        reading.read_input(
            kind, name, tmp_path / "input", healthy, seed=2, number=number
        )
        for number in range(10)
    ]
    assert {result.outcome for result in results} <= {"read", "refused"}, results
    left = {p: p.read_bytes() for p in (tmp_path / "input").rglob("*") if p.is_file()}
    expected = {} if kind.alone else healthy.contents
    assert {p.relative_to(tmp_path / "input"): c for p, c in left.items()} == expected


def fail(folder):
    raise KeyError("a")


def hang(folder):
    for _ in itertools.count():
        pass


def run_out_of_memory(folder):
    try:
        raise MemoryError
    except MemoryError:
        raise InputError("too large") from None


@pytest.mark.parametrize(
    ("read", "fault"),
    [
        (fail, "KeyError: 'a' test_hostile_inputs.py"),
        (hang, "not read within 0.02 processor s"),
        (run_out_of_memory, "memory: too large"),
    ],
)
def test_faults_are_found(read, fault, golden, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "HANG_SECONDS", 0.02)
    kind = kinds.KINDS["inputs.json"]
    healthy = reading.prepare(kind, tmp_path, golden)
    found = reading.read_input(
        kind._replace(read=read), "x", tmp_path / "input", healthy, seed=1, number=0
    )
    assert (found.outcome, found.file) == ("fault", "inputs.json")
    assert found.fault.startswith(fault)


def test_the_page_is_made_of_all_calls(tmp_path):
    program = [sys.executable, "-m", "benchmarks.hostile_inputs.run", "--inputs", "9"]
    program += [
        "--outcomes",
        tmp_path / "kept.jsonl",
        "--results",
        tmp_path / "page.md",
    ]
    program += ["--kind", "inputs.json"]
    subprocess.run(program, cwd=reading.REPOSITORY, check=True)
    (found,) = run.read_outcomes(tmp_path / "kept.jsonl").values()
    assert found.num_inputs == 9
    assert page.page([found]) == (tmp_path / "page.md").read_text()
    fault = {"number": 7, "file": "a.txt", "fault": "KeyError: 'a'"}
    other = found._replace(
        name="x", counts=Counter(read=1, fault=1), faults=[fault], worst=2.5
    )
    text = page.page([found, other])
    assert "| inputs.json | 9 |" in text
    assert "| x | 2 | 1 | 0 | 1 | 2,500 |" in text
    assert "| all | 11 |" in text
    assert "- x, 7, a.txt: `KeyError: 'a'`" in text
