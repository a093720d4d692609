import errno
import fcntl
import json
import os
import time

import pytest

from bert_keras.commands import main as cli
from bert_keras.core import files, ownership, stores
from bert_keras.core.errors import InputError

HOST, IDS = os.uname().nodename, ("boot", "pid_namespace")


@pytest.fixture
def no_locks(monkeypatch):
    """A disk without locks, and little patience."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(ownership, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(ownership, "_SETTLING_SECONDS", 0.0)


def named(directory, **changes):
    """Writes an owner file as a process of another machine would; `None`: ours."""
    ours = ownership._place_of_pids()
    changes |= {name: ours[name] for name in IDS if name in changes}
    name = {"host": "gpu-3", "pid": 4711, "since": "2026-11-22 14:03:11", "token": "t"}
    name |= {"boot": "b", "pid_namespace": "n", "time": time.time(), **changes}
    files.make_directory(directory)
    files.write_atomically(files.join(directory, ".owner"), json.dumps(name).encode())


def test_the_second_owner_is_refused_and_told_of_the_first(tmp_path):
    message = (
        rf"{tmp_path}: in use by process {os.getpid()} on {HOST}, since "
        r"\d{4}(-\d\d){2} \d\d(:\d\d){2}: wait for its end, or choose another dir"
    )
    with ownership.owned(tmp_path):
        with pytest.raises(InputError, match=message):
            with ownership.owned(tmp_path):
                pass
    # Of a killed one on this machine the name is left, and not the lock.
    named(tmp_path, boot=None)
    start = time.monotonic()
    with ownership.owned(tmp_path):
        assert json.loads((tmp_path / ".owner").read_text())["pid"] == os.getpid()
    assert time.monotonic() - start < 5


def test_nothing_is_left(tmp_path):
    for made in (tmp_path / "new", tmp_path / "made"):
        (tmp_path / "made").mkdir(exist_ok=True)
        with ownership.owned(made):
            assert [path.name for path in made.iterdir()] == [".owner"]
    with ownership.owned(tmp_path / "vocab.txt", is_file=True):
        assert (tmp_path / ".vocab.txt.owner").is_file()
    assert [path.name for path in tmp_path.rglob("*")] == ["made"]


@pytest.mark.parametrize("locks", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        {},
        # A process id of another container says nothing, nor does a lock that does not
        # reach the other machine; both may have one host name.
        *({"host": HOST, "pid": 2**22 + 1, name: None} for name in IDS),
        {"host": HOST, "pid": 2**22 + 1},
        {"host": HOST, "pid": os.getpid()},
    ],
)
def test_an_owner_on_another_machine(tmp_path, request, monkeypatch, locks, change):
    """Whether its lock does not reach this one or there are no locks at all."""
    if not locks:
        request.getfixturevalue("no_locks")
    elif "boot" in change:
        pytest.skip("one machine, where a lock is a lock")
    named(tmp_path, **change)
    with monkeypatch.context() as beating:
        # Its heart beats while we wait, however late a busy machine runs us.
        beating.setattr(time, "sleep", lambda seconds: named(tmp_path, **change))
        with pytest.raises(InputError, match=r"in use by process \d+ on .*, since"):
            with ownership.owned(tmp_path):
                pass
    # Now it is silent.
    monkeypatch.setattr(ownership, "SILENCE_SECONDS", 0.3)
    with ownership.owned(tmp_path):
        assert json.loads((tmp_path / ".owner").read_text())["pid"] == os.getpid()


@pytest.mark.parametrize(
    "change",
    [
        {"time": time.time() - 3600},
        {"pid": 2**22 + 1, "boot": None, "pid_namespace": None},
    ],
)
def test_an_owner_long_gone_needs_no_waiting(tmp_path, no_locks, monkeypatch, change):
    monkeypatch.setattr(ownership, "SILENCE_SECONDS", 600.0)
    named(tmp_path, **{"host": HOST, **change})
    start = time.monotonic()
    with ownership.owned(tmp_path):
        assert time.monotonic() - start < 5


@pytest.mark.parametrize("is_finished", [False, True])
@pytest.mark.parametrize("place", ["tmp_path", "memory_store"])
def test_an_owner_who_slept(request, place, is_finished):
    """Its successor on another machine still writes, or has finished already."""
    output = request.getfixturevalue(place)
    owner_of_now = "another process" if is_finished else "process 4711 on gpu-3"
    with pytest.raises(InputError, match=f"in use by {owner_of_now}"):
        with ownership.owned(output) as owner:
            owner.check()
            files.delete(f"{output}/.owner")
            if not is_finished:
                named(output)
            owner.check()
            raise AssertionError
    assert files.exists(f"{output}/.owner") != is_finished


def test_an_answer_of_a_store_that_was_lost(memory_store, monkeypatch):
    write = stores.write_if_unchanged

    def write_twice(path, data, tag):
        write(path, data, tag)
        return write(path, data, tag)

    with ownership.owned(memory_store) as owner:
        monkeypatch.setattr(stores, "write_if_unchanged", write_twice)
        owner.check()
        owner.check()
    assert files.list_directory(memory_store) == []


def test_waiting_says_nothing_of_failures(memory_store, monkeypatch, caplog):
    monkeypatch.setattr(ownership, "HEARTBEAT_SECONDS", 0.001)
    monkeypatch.setattr(ownership, "SILENCE_SECONDS", 0.2)
    with ownership.owned(memory_store):
        for _ in range(3):
            with pytest.raises(InputError, match="in use by process"):
                with ownership.owned(memory_store):
                    pass
    assert "fails" not in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b'"x"',
        b"{}",
        b'{"host": "HOST", "pid": 1e99, "time": 0.0}',
        b'{"host": "HOST", "pid": 99999999999999999999, "time": 0.0}',
        b'{"host": "HOST", "pid": -1, "time": 1e99}',
        b'{"host": "HOST", "pid": 1, "time": "now"}',
    ],
)
def test_a_damaged_name_is_no_owner(tmp_path, no_locks, content):
    (tmp_path / ".owner").write_bytes(content.replace(b"HOST", HOST.encode()))
    with ownership.owned(tmp_path) as owner:
        owner.check()
    assert not (tmp_path / ".owner").exists()


def test_the_heart_beats_until_another_owner_takes_over(
    tmp_path, no_locks, monkeypatch
):
    monkeypatch.setattr(ownership, "HEARTBEAT_SECONDS", 0.05)
    with pytest.raises(InputError, match="in use by process 4711 on gpu-3"):
        with ownership.owned(tmp_path) as owner:
            owner.check()
            before = json.loads((tmp_path / ".owner").read_text())
            time.sleep(0.3)
            after = json.loads((tmp_path / ".owner").read_text())
            assert after.pop("time") > before.pop("time")
            assert after == before
            named(tmp_path)
            time.sleep(0.3)
            owner.check()
            raise AssertionError
    assert "gpu-3" in (tmp_path / ".owner").read_text()


def test_places_that_cannot_be_owned(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file: expected a directory, found a file"):
        with ownership.owned(tmp_path / "file"):
            pass
    with pytest.raises(InputError, match="below: cannot be made: Not a directory; cho"):
        with ownership.owned(tmp_path / "file/below"):
            pass


def test_data_commands_refuse_before_they_read(tmp_path, capsys):
    out, words, none = tmp_path / "out", tmp_path / "v.txt", tmp_path / "none"
    with ownership.owned(out), ownership.owned(words, is_file=True):
        for command, output in (
            (f"corpus --jsonl {none} --output {out}", out),
            (f"examples --corpus {none} --vocab {none} --output {out}", out),
            (f"vocab --corpus {none} --output {words}", words),
        ):
            assert cli.main(command.split()) == 2
            assert f"{output}: in use by process" in capsys.readouterr().err
