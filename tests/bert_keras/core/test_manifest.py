import json
import re

import pytest

from bert_keras.core import files, manifest
from bert_keras.core.errors import InputError


@pytest.fixture
def finished(tmp_path):
    """A finished directory with one shard of three bytes."""
    (tmp_path / "shard").write_bytes(b"abc")
    shard = {"name": "shard", "num_records": 2, "num_bytes": 3}
    shard["sha256"] = files.sha256(tmp_path / "shard")
    made = manifest.Manifest(
        kind="documents", shards=[shard], config={"random_seed": 1}
    )
    manifest.write_manifest(tmp_path, made)
    return tmp_path


def read(directory, kind="documents"):
    return manifest.read_manifest(directory, kind=kind)


def test_round_trip(finished):
    found = read(finished)
    assert (found.num_records, found.config) == (2, {"random_seed": 1})
    manifest.verify_shards(finished, found)
    before = (finished / "manifest.json").read_bytes()
    manifest.write_manifest(finished, found)
    assert (finished / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"abd", "sha256 .*, manifest.json says ba7816bf8f01.*: the file was changed"),
        (b"abcd", "4 bytes, manifest.json says 3"),
        (None, "listed in manifest.json but missing"),
    ],
)
def test_a_shard_that_differs(finished, data, message):
    found = read(finished)
    (finished / "shard").unlink()
    if data is not None:
        (finished / "shard").write_bytes(data)
    with pytest.raises(InputError, match=message):
        manifest.verify_shards(finished, found)


def test_directories_that_cannot_be_read(finished):
    (finished / "new").mkdir()
    (finished / "cut").mkdir()
    (finished / "cut/manifest.json").write_text("{")
    for name, kind, message in (
        ("none", "examples", "no such directory; make it with `bert-keras examples`"),
        ("shard", "documents", "a file; give the directory that `bert-keras corpus` m"),
        ("new", "documents", "not a finished output of `bert-keras corpus`: run"),
        ("cut", "documents", r"manifest\.json: expected JSON: "),
        ("", "examples", "expected examples, found documents"),
    ):
        with pytest.raises(InputError, match=message):
            read(finished / name, kind=kind)


@pytest.mark.parametrize("name", ["../shard", "..", "a\nb", "a\0b"])
def test_a_shard_name_cannot_leave_the_directory(finished, name):
    values = json.loads((finished / "manifest.json").read_text())
    values["shards"][0]["name"] = name
    (finished / "manifest.json").write_text(json.dumps(values))
    message = re.escape(f"{name!r} leaves the directory")
    with pytest.raises(InputError, match=message):
        read(finished)


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ({"seed": 1}, {"seed": 2}, "with seed=1 where this one has 2"),
        ({"seed": 1}, {"seed": 1, "size": 8}, "with size=None where this one has 8"),
        (
            {"a": {"b": {"c": 1, "d": 2}}, "e": 3},
            {"a": {"b": {"c": 1, "d": 4}}, "e": 5},
            "with a: b: d=2 where this one has 4; choose",
        ),
    ],
)
def test_claim_of_the_directory_of_another_run(tmp_path, before, now, message):
    manifest.claim_output_directory(tmp_path, before)
    with pytest.raises(InputError, match=message):
        manifest.claim_output_directory(tmp_path, now)


def test_claim_of_something_else(tmp_path):
    # What a killed process left is no other file.
    (tmp_path / ".inputs.json.0123abcd.tmp").touch()
    (tmp_path / "thesis.doc").touch()
    with pytest.raises(InputError, match="not empty and not made by this command"):
        manifest.claim_output_directory(tmp_path, {"seed": 1})
    with pytest.raises(InputError, match="expected a directory, found a file"):
        manifest.claim_output_directory(tmp_path / "thesis.doc", {})
    (tmp_path / "thesis.doc").unlink()
    for _ in range(2):  # the same run again
        manifest.claim_output_directory(tmp_path, {"seed": 1, "n": (1, 2)})
    inputs = json.loads((tmp_path / "inputs.json").read_text())
    assert inputs == {"n": [1, 2], "seed": 1}


def test_claim_of_a_finished_directory(finished, caplog):
    """The same command has nothing to do, and another one must not touch it."""
    with pytest.raises(InputError, match="holds a finished output already, and no"):
        manifest.claim_output_directory(finished, {"seed": 1})
    made = read(finished)
    (finished / "manifest.json").unlink()
    (finished / "inputs.json").write_text('{"seed": 1}')
    assert manifest.claim_output_directory(finished, {"seed": 1}) is False
    manifest.finish_output_directory(finished, made)
    before = {path.name: path.read_bytes() for path in finished.iterdir()}
    caplog.set_level("INFO")
    assert manifest.claim_output_directory(finished, {"seed": 1}) is True
    assert f"{finished}: finished already, with the same inputs" in caplog.text
    with pytest.raises(InputError, match="begun by another run, with seed=1 wh"):
        manifest.claim_output_directory(finished, {"seed": 2})
    assert before == {path.name: path.read_bytes() for path in finished.iterdir()}


def test_finishing_removes_what_killed_processes_left(finished):
    made = read(finished)
    (finished / "manifest.json").unlink()
    (finished / ".work/Read").mkdir(parents=True)
    (finished / ".work/Read/0.spill").touch()
    (finished / "shard").rename(finished / ".shard.0123.tmp")
    with pytest.raises(InputError, match="shard: listed .* but missing"):
        manifest.finish_output_directory(finished, made)
    assert files.list_directory(finished) == [".shard.0123.tmp", ".work"]
    (finished / "shard").write_bytes(b"abc")
    manifest.finish_output_directory(finished, made)
    assert files.list_directory(finished) == ["manifest.json", "shard"]
    assert read(finished) == made
    # It may be killed just before.
    (finished / ".work").mkdir()
    with pytest.raises(InputError, match="holds a finished output already"):
        manifest.claim_output_directory(finished, {})
    assert files.list_directory(finished) == ["manifest.json", "shard"]
