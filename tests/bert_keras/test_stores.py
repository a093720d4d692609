"""Remote paths, in TensorFlow's file system in memory and in a store that fails."""

import io
import json
import os
import time
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.python.lib.io import file_io

from bert_keras import cli, files, ownership, store_clients, stores
from bert_keras.errors import InputError, Unavailable


class FailingStore:
    """Objects in a dictionary; each request fails as often as it is told to."""

    def __init__(self):
        self.objects: dict[str, bytes] = {}
        self.failures: list[Exception] = []
        self.num_requests = 0
        self.largest_read = 1 << 30

    def _ask(self) -> None:
        self.num_requests += 1
        if self.failures:
            raise self.failures.pop(0)

    def open(self, path):
        self._ask()
        store, content = self, self.objects[path]

        class File(io.BytesIO):
            def read(self, size=-1):
                store._ask()
                return super().read(min(size, store.largest_read))

        return File(content)

    def size(self, path):
        self._ask()
        if path not in self.objects:
            raise FileNotFoundError(2, "No such file", path)
        return len(self.objects[path])

    def exists(self, path):
        self._ask()
        return path in self.objects

    def upload(self, local, path):
        content = Path(local).read_bytes()
        self._ask()
        self.objects[path] = content

    def rename(self, path, target):
        self._ask()
        self.objects[target] = self.objects.pop(path)

    def below(self, directory):
        self._ask()
        return [
            store_clients.Found(path, len(content))
            for path, content in self.objects.items()
            if path.startswith(f"{directory.rstrip('/')}/")
        ]

    def names_in(self, directory):
        start = len(directory.rstrip("/")) + 1
        return [f.path[start:].partition("/")[0] for f in self.below(directory)]

    def delete(self, paths):
        self._ask()
        for path in paths:
            self.objects.pop(path, None)

    def delete_tree(self, directory):
        self.delete([found.path for found in self.below(directory)])

    def checksum(self, path):
        return str(hash(self.objects[path]))


class HttpError(Exception):
    def __init__(self, code):
        super().__init__(f"answered {code}")
        self.code = code


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    found = []
    monkeypatch.setattr(stores.time, "sleep", found.append)
    return found


@pytest.fixture
def failing(monkeypatch, pauses) -> FailingStore:
    store = FailingStore()
    monkeypatch.setattr(stores, "of", lambda path: store)
    return store


@pytest.fixture(params=["ram", "failing"])
def root(request, tmp_path) -> str:
    """A remote directory that is empty."""
    if request.param == "failing":
        store = request.getfixturevalue("failing")
        store.failures = [HttpError(503), ConnectionResetError("cut")]
        return "gs://bucket/dir"
    request.getfixturevalue("monkeypatch").delenv("STORAGE_EMULATOR_HOST", False)
    return f"ram://{tmp_path.name}{time.monotonic_ns()}/dir"


class TestTheDoor:
    def test_bytes_come_back(self, root):
        path = files.join(root, "a/b.json")
        assert not files.exists(path) and files.list_directory(root) == []
        files.write_json(path, {"a": 1})
        files.write_json(path, {"a": 2})
        assert files.exists(path) and files.read_json(path) == {"a": 2}
        assert files.size(path) == len(files.read_bytes(path)) == 13
        assert files.list_directory(root) == ["a"]
        first = files.fingerprint(path)
        assert files.fingerprint(path) == first
        files.write_atomically(path, b"other")
        assert files.fingerprint(path) != first
        files.delete(path)
        files.delete(path)
        assert not files.exists(path)
        with pytest.raises(FileNotFoundError):
            files.open_to_read(path)

    def test_an_interrupted_write_leaves_what_was(self, root):
        path = files.join(root, "f")
        files.write_atomically(path, b"old")
        with pytest.raises(KeyError), files.open_atomically(path) as file:
            file.write(b"new")
            raise KeyError
        with pytest.raises(KeyError), files.written_whole(path) as local:
            local.write_bytes(b"new")
            raise KeyError
        assert files.read_bytes(path) == b"old"
        assert files.list_directory(root) == ["f"]

    def test_seeks(self, root):
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

    def test_local_copies_and_files_written_by_programs(self, root):
        path = files.join(root, "model.weights.h5")
        with files.written_whole(path) as local:
            assert local.name == "model.weights.h5"
            local.write_bytes(b"abc")
            assert not files.exists(path)
        with files.local_copy(path) as copy:
            assert (copy.name, copy.read_bytes()) == ("model.weights.h5", b"abc")
        assert not copy.exists() and not local.exists()

    def test_what_programs_add_to_a_directory(self, root, tmp_path):
        files.write_atomically(files.join(root, "a"), b"1")
        with files.added_to(root) as local:
            (local / "b").mkdir()
            (local / "b/c").write_text("2")
        assert files.list_directory(root) == ["a", "b"]
        assert files.read_text(f"{root}/b/c") == "2"
        with files.added_to(tmp_path) as local:
            assert local == tmp_path

    def test_new_directories(self, root):
        directory = files.join(root, "made")
        assert files.is_new(directory)
        with pytest.raises(KeyError), files.new_directory(directory) as local:
            (local / "a").touch()
            raise KeyError
        assert files.is_new(directory)
        with files.new_directory(directory) as local:
            (local / "saved_model.pb").write_text("1")
            (local / "variables").mkdir()
            (local / "variables/index").write_text("2")
        with pytest.raises(InputError, match="exists already"):
            files.check_is_new(directory)
        with files.new_directory(directory, replaces_earlier=True) as local:
            (local / "variables").mkdir()
            (local / "variables/index").write_text("3")
        assert files.list_directory(directory) == ["variables"]
        assert files.read_text(f"{directory}/variables/index") == "3"
        files.delete_tree(root)
        files.delete_tree(root)
        assert files.is_new(directory)

    def test_paths(self, root):
        path = files.path(root) / "a" / "b.txt"
        assert str(path) == os.fspath(path) == f"{root}/a/b.txt"
        assert (path.name, path.suffix, str(path.parent)) == (
            "b.txt",
            ".txt",
            f"{root}/a",
        )
        assert files.path(path) == path and str(path.absolute()) == str(path)
        assert str((path.parent / ".." / "c").resolve()) == f"{root}/c"
        assert not path.exists() and not path.parent.is_dir()
        path.parent.mkdir(parents=True)
        path.write_text("é")
        assert path.is_file() and path.exists() and not path.is_dir()
        assert path.parent.is_dir() and not path.parent.is_file()
        assert path.read_text(encoding="utf-8") == "é"
        (path.parent / "c").write_bytes(b"1")
        assert [str(p) for p in path.parent.iterdir()] == [str(path), f"{root}/a/c"]
        assert [str(p) for p in path.parent.glob("*.txt")] == [str(path)]
        assert [str(p) for p in files.path(root).rglob("*.txt")] == [str(path)]
        assert str(path.relative_to(root)) == "a/b.txt"
        moved = path.rename(path.with_name("d"))
        assert not path.exists() and moved.read_bytes() == "é".encode()
        moved.unlink()
        with pytest.raises(FileNotFoundError):
            moved.unlink()
        with pytest.raises(OSError, match="written whole"):
            path.open("a")
        assert not os.path.exists(str(path).partition("//")[0])

    def test_owners(self, root, monkeypatch):
        monkeypatch.setattr(ownership, "_SETTLING_SECONDS", 0.0)
        with ownership.owned(root):
            owner = files.read_json(files.join(root, ownership.OWNER_NAME))
            assert owner["pid"] == os.getpid()
        assert files.list_directory(root) == []


class TestTryingAgain:
    @pytest.mark.parametrize(
        "error",
        [
            HttpError(429),
            HttpError(503),
            HttpError(408),
            ConnectionResetError("cut"),
            TimeoutError("no answer"),
            tf.errors.UnavailableError(None, None, "x"),
            tf.errors.DeadlineExceededError(None, None, "x"),
            tf.errors.FailedPreconditionError(None, None, "Couldn't resolve host"),
            Exception("{'gs://b/f': ServiceUnavailable('503 POST')}"),
        ],
    )
    def test_what_may_pass(self, failing, pauses, error):
        failing.failures = [error] * 3
        files.write_atomically("gs://bucket/f", b"abc")
        assert failing.objects == {"gs://bucket/f": b"abc"}
        assert len(pauses) == 3 and pauses == sorted(pauses)

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (HttpError(403), "gs://bucket/f: cannot be written: answered 403"),
            (tf.errors.PermissionDeniedError(None, None, "x"), "cannot be written: x"),
            (HttpError(404), "cannot be written: No such file or bucket"),
            (ValueError("of our own"), "of our own"),
        ],
    )
    def test_what_does_not_pass(self, failing, pauses, error, message):
        failing.failures = [error] * 3
        with pytest.raises(InputError, match=message):
            files.write_atomically("gs://bucket/f", b"abc")
        assert not pauses and not failing.objects and failing.num_requests == 1

    def test_an_outage_of_a_minute_and_one_that_does_not_end(
        self, failing, monkeypatch, caplog
    ):
        clock = [0.0]
        monkeypatch.setattr(stores.time, "monotonic", lambda: clock[0])
        monkeypatch.setattr(
            stores.time, "sleep", lambda s: clock.__setitem__(0, clock[0] + s)
        )
        ends = 60.0

        def ask():
            if clock[0] < ends:
                raise HttpError(503)

        monkeypatch.setattr(failing, "_ask", ask)
        files.write_atomically("gs://bucket/f", b"abc")
        assert 60 < clock[0] < 80 and failing.objects
        assert "gs://bucket/f: the store fails (answered 503): trying again" in (
            caplog.text
        )
        ends = float("inf")
        before = clock[0]
        with pytest.raises(
            Unavailable, match="gs://bucket/f: .* for 300 s .answered 503"
        ):
            files.write_atomically("gs://bucket/f", b"abc")
        assert 280 < clock[0] - before <= 300

    def test_a_read_goes_on_where_it_was_cut(self, failing, pauses):
        content = os.urandom(100_000)
        failing.objects["gs://bucket/f"] = content
        failing.largest_read = 30_000
        with files.open_to_read("gs://bucket/f") as file:
            found = file.read(10)
            failing.failures = [HttpError(503), ConnectionResetError("cut")]
            found += file.read()
        assert found == content and len(pauses) == 2

    def test_an_object_that_became_shorter_is_no_end(self, failing, monkeypatch):
        failing.objects["gs://bucket/f"] = b"abcdef"
        monkeypatch.setattr(stores, "GIVES_UP_SECONDS", 0)
        with files.open_to_read("gs://bucket/f") as file:
            failing.objects["gs://bucket/f"] = b"abc"
            with pytest.raises(Unavailable, match="ends before its last byte"):
                file.read()

    def test_a_store_that_does_not_answer_is_no_empty_directory(
        self, monkeypatch, pauses, tmp_path
    ):
        """A run would take its checkpoints for gone, and begin again."""
        monkeypatch.delenv("STORAGE_EMULATOR_HOST", False)
        root = f"ram://{tmp_path.name}"
        for name in ("a", "b/c"):
            files.path(f"{root}/{name}").write_bytes(b"xyz")
        failing = []

        def failing_first(ask):
            def asked(*arguments):
                if failing:
                    raise failing.pop()
                return ask(*arguments)

            return asked

        io = file_io._pywrap_file_io
        for name in ("IsDirectory", "GetChildren"):
            monkeypatch.setattr(io, name, failing_first(getattr(io, name)))
        down = tf.errors.UnavailableError(None, None, "down")
        failing.append(down)
        assert sorted(files.list_directory(root)) == ["a", "b"]
        failing.append(down)
        found = sorted(path.name for path in files.path(root).rglob("*"))
        assert found == ["a", "c"]
        assert len(pauses) == 2

    @pytest.mark.parametrize("has_bucket", [True, False])
    def test_an_upload_that_the_store_forgot(
        self, monkeypatch, pauses, tmp_path, has_bucket
    ):
        """Its last answer was lost: the second attempt has nothing to go on with."""
        (tmp_path / "local").write_bytes(b"all of it")
        (tmp_path / "store").mkdir()
        beam = store_clients.Beam(f"{tmp_path}/store/a")
        monkeypatch.setattr(stores, "of", lambda path: beam)
        create, failures = beam._systems.create, [HttpError(404)]

        def create_or_fail(*arguments, **options):
            if failures:
                raise failures.pop()
            return create(*arguments, **options)

        def no_bucket(patterns):
            raise HttpError(404)

        monkeypatch.setattr(beam._systems, "create", create_or_fail)
        if not has_bucket:
            monkeypatch.setattr(beam._systems, "match", no_bucket)
            with pytest.raises(FileNotFoundError, match="No such file or bucket"):
                stores.put(tmp_path / "local", f"{tmp_path}/store/a")
            return
        stores.put(tmp_path / "local", f"{tmp_path}/store/a")
        assert len(pauses) == 1
        found = {
            path.name: path.read_bytes() for path in (tmp_path / "store").iterdir()
        }
        assert found == {"a": b"all of it"}

    def test_a_deletion_whose_answer_was_lost(self, monkeypatch, tmp_path):
        """Its second attempt finds nothing; what was to be renamed is there."""
        (tmp_path / "local").write_bytes(b"all of it")
        (tmp_path / "store").mkdir()
        beam = store_clients.Beam(f"{tmp_path}/store/a")
        delete = beam._systems.delete

        def delete_twice(paths):
            delete(paths)
            raise HttpError(404)

        def rename_as_on_gs(paths, targets):
            beam._systems.copy(paths, targets)
            beam._systems.delete(paths)

        monkeypatch.setattr(beam._systems, "delete", delete_twice)
        monkeypatch.setattr(beam._systems, "rename", rename_as_on_gs)
        beam.upload(f"{tmp_path}/local", f"{tmp_path}/store/a")
        beam.rename(f"{tmp_path}/store/a", f"{tmp_path}/store/b")
        found = {
            path.name: path.read_bytes() for path in (tmp_path / "store").iterdir()
        }
        assert found == {"b": b"all of it"}

    def test_an_upload_is_sent_from_its_beginning(self, failing):
        failing.failures = [ConnectionResetError("cut")]
        with files.open_atomically("gs://bucket/f") as file:
            file.write(json.dumps({"a": 1}).encode())
        assert failing.objects == {"gs://bucket/f": b'{"a": 1}'}


def test_an_interrupted_sending_is_no_finished_directory(failing, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(stores, "of", lambda path: failing)
    directory = "gs://bucket/made"
    sent = failing.upload

    def upload(local, path):
        if path.endswith("saved_model.pb"):
            raise HttpError(403)
        sent(local, path)

    def write():
        with files.new_directory(directory) as local:
            for name in ("weights", "zeta", "saved_model.pb"):
                (local / name).write_text(name)
                # Clocks of disks have steps.
                time.sleep(0.02)

    failing.upload = upload
    with pytest.raises(InputError, match="cannot be written: answered 403"):
        write()
    assert set(failing.objects) == {
        f"{directory}/{name}" for name in (".unfinished", "weights", "zeta")
    }
    assert files.is_new(directory)
    failing.upload = sent
    write()
    assert sorted(files.list_directory(directory)) == [
        "saved_model.pb",
        "weights",
        "zeta",
    ]


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


def test_a_store_that_tensorflow_does_not_know(monkeypatch):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", False)
    with pytest.raises(InputError, match="TensorFlow can reach: nowhere:// is none of"):
        files.exists("nowhere://bucket/f")
