"""Remote paths on stand-ins of Cloud Storage and S3, behind a proxy that fails."""

import contextlib
import json
import os
import random
import sys
import threading
import time
import urllib.request
from concurrent import futures
from datetime import timedelta
from pathlib import Path

import pytest

from bert_keras.commands import main as cli
from bert_keras.commands import parser
from bert_keras.core import files, ownership, stores
from bert_keras.core.errors import InputError, Unavailable

ENGINES = Path(__file__).parents[2] / "engines"
BUCKET = "bert-bucket"


@pytest.fixture(scope="module")
def stand_ins(start, tmp_path_factory) -> dict[str, tuple[int, Path]]:
    """The port of a proxy for each scheme, and the folder with its faults."""
    pytest.importorskip("gcp_storage_emulator")
    pytest.importorskip("moto")
    data = tmp_path_factory.mktemp("gs")
    emulator = [sys.executable, ENGINES / "cloud_storage.py", "--data-dir", data]
    emulator += ["start", "--host", "localhost", "--port", "PORT", "--quiet"]
    emulator += ["--default-bucket", BUCKET]
    moto = [sys.executable, "-c", "from moto import server; server.main()"]
    ports = {"gs": start(emulator), "s3": start([*moto, "-p", "PORT"])}
    url = f"http://localhost:{ports['s3']}/{BUCKET}"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()
    fronts = {}
    for scheme, port in ports.items():
        folder = tmp_path_factory.mktemp("front")
        command = [sys.executable, ENGINES / "store_front.py", "PORT"]
        fronts[scheme] = start([*command, f"localhost:{port}", "", "", folder]), folder
    return fronts


class Store:
    """A directory of a stand-in, whose requests can be made to fail."""

    def __init__(self, root: str, folder: Path):
        self.root, self._folder = root, folder

    def fail(self, *kinds: str, every: int = 1) -> None:
        rule = json.dumps({"every": every, "kinds": kinds}) if kinds else ""
        (self._folder / "faults").write_text(rule)

    def requests(self) -> list[str]:
        return (self._folder / "log").read_text().splitlines()


@pytest.fixture(params=["gs", "s3"])
def scheme(request) -> str:
    return request.param


EVERYWHERE = pytest.mark.parametrize("scheme", ["local", "gs", "s3"])


@pytest.fixture
def store(scheme, stand_ins, monkeypatch):
    port, folder = stand_ins[scheme]
    address = f"http://localhost:{port}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION"):
        monkeypatch.setenv(f"AWS_{name}", "us-east-1")
    wait = {"init_backoff": timedelta(milliseconds=1), "base": 2}
    retries = {"max_retries": 1, "backoff": wait | {"max_backoff": timedelta(0, 0.002)}}
    monkeypatch.setattr(stores, "_RETRIES", stores._RETRIES | retries)
    stores._client.cache_clear()
    found = Store(f"{scheme}://{BUCKET}/{time.monotonic_ns()}", folder)
    yield found
    found.fail()
    stores._client.cache_clear()


@pytest.fixture
def root(scheme, request, tmp_path, monkeypatch) -> str:
    """A directory that is empty; a remote one is on a store where every fifth request
    fails."""
    if scheme == "local":
        return str(tmp_path)
    store = request.getfixturevalue("store")
    monkeypatch.setattr(stores, "_FIRST_DELAY_SECONDS", 0.001)
    store.fail("503", "429", "cut", "down", every=5)
    return store.root


@EVERYWHERE
def test_bytes_come_back(root):
    path = files.join(root, "a/b.json")
    assert not files.exists(path) and files.list_directory(f"{root}/a") == []
    files.make_directory(f"{root}/a")
    files.write_json(path, {"a": 1})
    files.write_json(path, {"a": 2})
    assert files.exists(path) and files.read_json(path) == {"a": 2}
    assert files.size(path) == len(files.read_bytes(path)) == 13
    assert files.list_directory(root) == ["a"]
    first = files.fingerprint(path)
    assert files.fingerprint(path) == first
    files.write_atomically(path, b"other")
    assert files.fingerprint(path) != first
    with pytest.raises(KeyError), files.open_atomically(path) as file:
        file.write(b"new")
        assert files.read_bytes(path) == b"other"
        raise KeyError
    assert files.read_bytes(path) == b"other"
    assert files.list_directory(f"{root}/a") == ["b.json"]
    files.delete(path)
    files.delete(path)
    for ask in (files.size, files.open_to_read):
        with pytest.raises(FileNotFoundError):
            ask(path)


def test_inputs_of_verbs(root):
    files.write_atomically(files.join(root, "glue/RTE/dev.tsv"), b"")
    parser.check_paths(input=f"{root}/glue/RTE/dev.tsv", data=f"{root}/glue")
    with pytest.raises(InputError, match="--data .*/glu: no such file or"):
        parser.check_paths(data=f"{root}/glu")


def test_a_missing_bucket_is_an_empty_one(root):
    directory = root.replace(BUCKET, "no-such-bucket")
    assert files.list_directory(directory) == [] and files.is_new(directory)


def test_seeks(root):
    content = os.urandom(3_000_000)
    files.write_atomically(files.join(root, "f"), content)
    with files.open_to_read(files.join(root, "f")) as file:
        assert file.seek(-7, os.SEEK_END) == len(content) - 7
        assert file.read() == content[-7:]
        assert file.seek(11) == 11 and file.read(2_000_000) == content[11:2_000_011]
        assert file.tell() == 2_000_011 and file.seek(4, os.SEEK_CUR) == 2_000_015
        assert file.read(1) == content[2_000_015:2_000_016]
        assert file.seek(5_000_000) and file.read() == b""
        with pytest.raises(OSError, match="Invalid argument"):
            file.seek(-1)


def test_local_copies_and_what_programs_write(root, tmp_path):
    path = files.join(root, "model.safetensors")
    with files.open_atomically(path) as file:
        file.write(b"abc")
        assert not files.exists(path)
    with files.local_copy(path) as copy:
        assert (copy.name, copy.read_bytes()) == ("model.safetensors", b"abc")
    assert not copy.exists() and not os.path.exists(file.name)
    with files.added_to(root) as local:
        (local / "b").mkdir()
        (local / "b/c").write_text("2")
    assert files.list_directory(root) == ["b", "model.safetensors"]
    assert files.read_text(f"{root}/b/c") == "2"
    with files.added_to(tmp_path) as local:
        assert local == tmp_path


@EVERYWHERE
def test_new_directories(root):
    directory = files.join(root, "made")
    assert files.is_new(directory)
    with pytest.raises(KeyError), files.new_directory(directory) as local:
        (local / "a").touch()
        raise KeyError
    assert files.is_new(directory)
    for content in ("2", "3"):
        with files.new_directory(directory, replaces_earlier=content == "3") as local:
            (local / "variables").mkdir()
            (local / "variables/index").write_text(content)
            if content == "2":
                (local / "saved_model.pb").write_text("1")
        with pytest.raises(InputError, match="exists already"):
            files.check_is_new(directory)
    assert files.list_directory(directory) == ["variables"]
    assert files.read_text(f"{directory}/variables/index") == "3"
    files.delete_tree(root)
    files.delete_tree(root)
    assert files.is_new(directory)


def test_paths(root):
    path = files.path(root) / "a" / "b.txt"
    assert str(path) == os.fspath(path) == f"{root}/a/b.txt"
    parts = (path.name, path.suffix, str(path.parent))
    assert parts == ("b.txt", ".txt", f"{root}/a")
    assert files.path(path) == path and str(path.absolute()) == str(path)
    assert str((path.parent / ".." / "c").resolve()) == f"{root}/c"
    assert not path.exists() and not path.parent.is_dir()
    path.parent.mkdir(parents=True)
    files.write_atomically(path, "é".encode())
    assert path.is_file() and path.exists() and not path.is_dir()
    assert path.parent.is_dir() and not path.parent.is_file()
    assert path.read_text(encoding="utf-8") == "é"
    files.write_atomically(path.parent / "c", b"1")
    assert [str(p) for p in path.parent.iterdir()] == [str(path), f"{root}/a/c"]
    assert [str(p) for p in path.parent.glob("*.txt")] == [str(path)]
    moved = path.rename(path.with_name("d"))
    assert not path.exists() and moved.read_bytes() == "é".encode()
    moved.unlink()
    with pytest.raises(FileNotFoundError):
        moved.unlink()
    with pytest.raises(OSError, match="written whole"):
        path.open("a")
    assert not os.path.exists(str(path).partition("//")[0])


def test_odd_names(root):
    names = ["a b", "c#d%20~[é]*?&+", "x"]
    for name in names:
        files.write_atomically(f"{root}/in/{name}", b"1")
    assert files.list_directory(f"{root}/in") == names
    assert stores.below(root) == [f"{root}/in/{name}" for name in names]
    assert files.match(f"{root}/*/[ax]*") == [f"{root}/in/a b", f"{root}/in/x"]
    assert files.match(f"{root}/*") == []
    assert files.match(f"{root}/in/x") == [f"{root}/in/x"]


@pytest.mark.parametrize("kind", ["503", "429", "408", "500", "down"])
def test_transient_failures(store, monkeypatch, kind, caplog):
    """Each write and read fails until the third pause."""
    path, pauses = f"{store.root}/f", []
    files.write_atomically(path, b"abc")

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            store.fail()

    monkeypatch.setattr(stores.time, "sleep", pause)
    for ask in (
        lambda: files.write_atomically(path, b"abc"),
        lambda: files.read_bytes(path),
        lambda: files.list_directory(store.root),
        lambda: files.exists(path),
    ):
        del pauses[:]
        store.fail(kind)
        assert ask() in (None, b"abc", ["f"], True)
        # One more, where the stand-in had closed a connection that was used again.
        assert len(pauses) in (3, 4) and pauses == sorted(pauses)
    assert f"{path}: the store fails (" in caplog.text
    if kind.isdigit():
        assert f"status code: {kind}" in caplog.text


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("403", ".*403 Forbidden"),
        ("401", ".*401 Unauthorized"),
        ("404", "No such file or bucket"),
        ("400", ".*400 Bad Request"),
    ],
)
def test_what_is_refused(store, monkeypatch, kind, message):
    monkeypatch.setattr(stores.time, "sleep", lambda _: pytest.fail("tried again"))
    store.fail(kind)
    with pytest.raises(InputError, match=f"f: cannot be written: {message}"):
        files.write_atomically(f"{store.root}/f", b"abc")


def test_transient_errors_of_tensorflow():
    from tensorflow import errors

    for error in (
        TimeoutError("no answer"),
        errors.UnavailableError(None, None, "x"),
        errors.DeadlineExceededError(None, None, "x"),
        errors.FailedPreconditionError(None, None, "Couldn't resolve host"),
    ):
        assert stores.is_transient(error)
    for error in (ValueError("of our own"), errors.NotFoundError(None, None, "x")):
        assert not stores.is_transient(error)


def test_an_outage_of_a_minute_and_one_that_does_not_end(store, monkeypatch):
    clock = [0.0]

    def sleep(seconds):
        clock[0] += seconds
        if 60 < clock[0] < 100:
            store.fail()

    monkeypatch.setattr(stores.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(stores.time, "sleep", sleep)
    store.fail("down")
    files.write_atomically(f"{store.root}/f", b"abc")
    assert 60 < clock[0] < 80
    assert files.read_bytes(f"{store.root}/f") == b"abc"
    clock[0] = before = 1000.0
    store.fail("503")
    with pytest.raises(Unavailable, match="f: .* for 300 s .*503"):
        files.write_atomically(f"{store.root}/f", b"abc")
    assert 280 < clock[0] - before <= 300


def test_parts_and_cut_or_slow_reads(store, monkeypatch):
    monkeypatch.setattr(stores.time, "sleep", lambda _: None)
    content = os.urandom(11_000_000)
    store.fail("503", "cut", "slow", "down", every=3)
    files.write_atomically(f"{store.root}/f", content)
    with files.open_to_read(f"{store.root}/f") as file:
        assert file.read(10) + file.read() == content
    assert sum("partNumber" in line for line in store.requests()) >= 3


@pytest.mark.parametrize("content", [b"abc", b"ABCDEF", b"longer than before"])
def test_an_object_that_was_replaced_is_not_read_on(store, content):
    files.write_atomically(f"{store.root}/f", b"abcdef")
    with files.open_to_read(f"{store.root}/f") as file:
        files.write_atomically(f"{store.root}/f", content)
        with pytest.raises(InputError, match="f: was replaced while it was being re"):
            file.read()


def test_an_object_that_changes_or_goes_while_it_is_read(store, monkeypatch):
    path = f"{store.root}/f"
    files.write_atomically(path, b"abcdef")
    monkeypatch.setattr(stores.time, "sleep", lambda _: store.fail())
    store.fail("cut", "412")
    assert stores.read_version(path)[0] == b"abcdef"
    store.fail("cut", "404")
    with pytest.raises(FileNotFoundError):
        stores.read_version(path)


def test_a_missing_file_of_the_disk_is_not_looked_for_again(store, monkeypatch):
    monkeypatch.setattr(stores.time, "sleep", pytest.fail)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        stores.put("nowhere", f"{store.root}/f")


def test_conditional_writes(store):
    path = f"{store.root}/f"
    first = stores.write_if_unchanged(path, b"1", None)
    with pytest.raises(FileExistsError):
        stores.write_if_unchanged(path, b"2", None)
    stores.write_if_unchanged(path, b"2", first)
    with pytest.raises(FileExistsError):
        stores.write_if_unchanged(path, b"3", first)
    data, tag = stores.read_version(path)
    assert data == b"2"
    files.delete(path)
    with pytest.raises((FileExistsError, FileNotFoundError)):
        stores.write_if_unchanged(path, b"3", tag)
    assert not files.exists(path)


@pytest.mark.slow
def test_never_two_owners(store, monkeypatch):
    monkeypatch.setattr(ownership, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(ownership, "SILENCE_SECONDS", 10.0)
    monkeypatch.setattr(stores, "_FIRST_DELAY_SECONDS", 0.001)
    store.fail("503", "cut", "down", every=11)
    lock = threading.Lock()

    def take_turns(starts: int) -> int:
        turns = 0
        for _ in range(starts):
            with contextlib.suppress(InputError), ownership.owned(store.root) as owner:
                assert lock.acquire(blocking=False)
                try:
                    time.sleep(0.02 * random.random())
                    owner.check()
                    turns += 1
                finally:
                    lock.release()
        return turns

    with futures.ThreadPoolExecutor(2) as pool:
        assert all(pool.map(take_turns, (100, 100)))
    store.fail()
    assert files.list_directory(store.root) == []


def test_an_interrupted_sending_is_no_finished_directory(store, monkeypatch):
    directory, put = f"{store.root}/made", stores.put

    def refuse(local, path):
        if path.endswith("saved_model.pb"):
            store.fail("403")
        put(local, path)

    def write():
        with files.new_directory(directory) as local:
            # The order in which they were written.
            for second, name in enumerate(("weights", "zeta", "saved_model.pb")):
                (local / name).write_text(name)
                os.utime(local / name, (second, second))

    monkeypatch.setattr(stores, "put", refuse)
    with pytest.raises(InputError, match="cannot be written: .*403"):
        write()
    store.fail()
    assert files.list_directory(directory) == [".unfinished", "weights", "zeta"]
    assert files.is_new(directory)
    monkeypatch.setattr(stores, "put", put)
    write()
    assert files.list_directory(directory) == ["saved_model.pb", "weights", "zeta"]


@pytest.mark.parametrize("verb", ["sweep", "demo"])
def test_verbs_whose_processes_share_a_disk(verb, capsys):
    words = ["--task", "text", "--train", "t.tsv", "--dev", "d.tsv", "--init", "run"]
    words = [*words, "--sweep", "sweep_paper"] if verb == "sweep" else []
    assert cli.main([verb, *words, "--output_dir", "gs://bucket/out"]) == 2
    assert (
        f"gs://bucket/out: {'a ' * (verb == 'sweep')}{verb} needs a directory on this "
        "machine's disk"
    ) in capsys.readouterr().err
    assert not Path("gs:").exists()


def test_an_account_that_is_not_named(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(InputError, match="az://bucket: .*[Aa]ccount"):
        files.exists("az://bucket/f")
