"""Calls that are killed, find no room or no right to write, or are made twice."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from bert_keras.checkpoints import run_directory
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.trust import explaining
from tests import conftest
from tests.bert_keras.search.test_search import limited_files
from tests.bert_keras.trust.test_calibrating import Made, write_rows

NAME = run_directory.CALIBRATION_NAME


@pytest.fixture(scope="module")
def made(tmp_path_factory, randomize) -> Made:
    made = Made(tmp_path_factory.mktemp("calls"), randomize)
    made.texts = made.texts[:12]
    path = made.run.parent / "texts.jsonl"
    path.write_text("".join(f"{json.dumps({'text': t})}\n" for t in made.texts))
    return made


def explain(made, output):
    return explaining.explain(made.run, made.run.parent / "texts.jsonl", output)


def test_a_calibration_that_is_killed_or_finds_no_room(made, tmp_path, monkeypatch):
    """The promise before stays, or there is none."""
    run = made.copy(tmp_path)
    before = {path.name for path in run.iterdir()}

    def kill(*_):
        raise KeyboardInterrupt

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(os, name, kill)
            made.calibrate(run)
        assert {path.name for path in run.iterdir()} == before
    made.calibrate(run)
    content = (run / NAME).read_bytes()
    full = pytest.raises(InputError, match=f"{NAME}: cannot be written: File too large")
    with limited_files(300), full:
        made.calibrate(run, precision=0.9)
    assert (run / NAME).read_bytes() == content
    assert {path.name for path in run.iterdir()} == {*before, NAME}
    # A second call writes the same bytes.
    made.calibrate(run)
    assert (run / NAME).read_bytes() == content


def test_a_folder_that_is_read_only(made, tmp_path, monkeypatch):
    run = made.copy(tmp_path)

    def refuse(path, mode="r"):
        if "w" in mode:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return open(path, mode)

    monkeypatch.setattr(files, "open", refuse, raising=False)
    message = "cannot be written: Read-only file system; get the right to write there"
    with pytest.raises(InputError, match=message):
        made.calibrate(run)
    with pytest.raises(InputError, match=message):
        explain(made, tmp_path / "why.jsonl")
    assert not [*tmp_path.glob("why*")]
    assert not (run / NAME).exists()


def test_copies_of_a_text_are_counted_but_warned_of(made, tmp_path, caplog):
    lines = [line.split("\t") for line in made.data.read_text().splitlines()[1:]]
    right = [pair for pair in lines if pair[1] == "good"][:6]
    path = write_rows(tmp_path / "rows.tsv", *zip(*right * 100, strict=True))
    other = next(pair for pair in lines if pair[1] != "good")
    path.write_text(path.read_text() + "\t".join(other) + "\n")
    with pytest.raises(InputError):
        made.calibrate(data=path, precision=0.999)
    assert "different things" not in caplog.text
    promise = made.calibrate(made.copy(tmp_path), data=path, precision=0.1)
    assert promise.num_rows > 400
    assert "different things" not in caplog.text
    made.calibrate(made.copy(tmp_path / "other"), data=path, precision=0.7)
    assert (
        "rows.tsv: the rows are about 7 different things, fewer than the 9 that the "
        "promise needs: it is only for texts that repeat as often"
    ) in caplog.text


PROGRAM = """
import os, signal, sys

name, times_left = sys.argv[1], int(sys.argv[2])
call = getattr(os, name)

def call_or_die(*arguments, **options):
    global times_left
    times_left -= 1
    if times_left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return call(*arguments, **options)

setattr(os, name, call_or_die)
from bert_keras.commands import main
sys.exit(main.main(sys.argv[3:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("verb", ["calibrate", "explain"])
def test_a_process_that_is_killed_where_it_writes(verb, call, made, tmp_path):
    """The same command goes on, until its files are those of an undisturbed one."""
    run, output = made.copy(tmp_path), tmp_path / "why.jsonl"
    options = {
        "calibrate": ["--data", made.data],
        "explain": ["--input", made.run.parent / "texts.jsonl", "--output", output],
    }[verb]
    written = {"calibrate": run / NAME, "explain": output}[verb]
    codes = []
    while not codes or codes[-1]:
        assert not written.exists()
        command = [verb, "--model", run, *options]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, call, str(len(codes)), *map(str, command)],
            env={**os.environ, "PYTHONPATH": str(conftest.REPOSITORY)},
            capture_output=True,
            text=True,
        )
        codes.append(done.returncode)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
    assert len(codes) == {"calibrate": 2, "explain": 3}[verb]
    if verb == "calibrate":
        made.calibrate(shutil.copytree(made.run, tmp_path / "other"))
        expected = tmp_path / "other" / NAME
    else:
        explain(made, tmp_path / "other.jsonl")
        pages = [path.with_suffix(".html") for path in (output, tmp_path / "other")]
        assert pages[0].read_bytes() == pages[1].read_bytes()
        expected = tmp_path / "other.jsonl"
    assert written.read_bytes() == expected.read_bytes()
