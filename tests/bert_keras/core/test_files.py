import errno
import math
import os
import types

import pytest

from bert_keras.core import files
from bert_keras.core.errors import InputError


@pytest.mark.parametrize(
    ("directory", "path", "name"),
    [
        ("/a/b", "/a/b/c", "c"),
        ("a", "a/c", "c"),
        ("gs://bucket", "gs://bucket/c", "c"),
        ("gs://bucket/a/", "gs://bucket/a/c", "c"),
    ],
)
def test_paths(directory, path, name):
    assert files.join(directory, name) == path
    assert files.name_of(path) == name
    assert files.name_of(f"{path}/") == name
    assert files.is_remote(path) == directory.startswith("gs://")


def test_json_that_is_written_and_read(tmp_path):
    path = tmp_path / "f.json"
    files.write_json(path, {"b": "é", "a": [1.5]})
    assert path.read_text() == ('{\n  "b": "\\u00e9",\n  "a": [\n    1.5\n  ]\n}\n')
    assert files.read_json(path) == {"b": "é", "a": [1.5]}
    # JSON has no numbers that are not finite.
    values = {"d": (True, 2), "b": [1.5, {"c": -math.inf}], "a": math.nan, "e": "é"}
    files.write_json(path, types.MappingProxyType(values), indent=None, sort_keys=True)
    assert path.read_text() == (
        '{"a": null, "b": [1.5, {"c": null}], "d": [true, 2], "e": "\\u00e9"}\n'
    )
    # Brackets in strings are not nested, whatever is escaped there.
    text = {"a": ["[" * 200, '\\"' + "{" * 200]}
    files.write_json(path, text)
    assert files.read_json(path) == text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "expected JSON, cannot read it: No"),
        (b"{", r"expected JSON: Expecting property name"),
        (b"[1, 2]", r"expected keys and values, found \[1, 2\]"),
        (b'{"a":\n"\xff"}', r"line 2: not UTF-8: save it as UTF-8 \(Excel: CSV UTF-8"),
        (b" \n", "expected JSON, it is empty"),
        (b"[" * 200_000, "expected JSON: brackets are nested too deeply"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "expected JSON: brackets"),
    ],
)
def test_a_file_that_is_no_json_is_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "f.json").write_bytes(content)
    with pytest.raises(InputError, match=r"f\.json: " + message):
        files.read_json(tmp_path / "f.json")


def test_what_is_no_regular_file(tmp_path):
    """A pipe or a device may never end, or be empty when it is read again."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe: expected a file, found a pipe: wr"):
        files.read_text(tmp_path / "pipe")
    with pytest.raises(InputError, match="/dev/zero: expected a file, found a dev"):
        files.open_to_read("/dev/zero")
    with pytest.raises(IsADirectoryError):
        files.open_to_read(tmp_path)


def test_a_read_only_disk_is_named(tmp_path, monkeypatch):
    """Its temporary file can neither be made nor looked for."""

    def refuse(path, *rest):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(files, "open", refuse, raising=False)
    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(InputError, match="cannot be written: Read-only file system"):
        files.write_json(tmp_path / "f.json", {})


def test_a_new_directory_appears_when_it_is_whole(tmp_path):
    (tmp_path / "above/.made.partial/killed").mkdir(parents=True)
    directory = tmp_path / "above/made"
    with files.new_directory(directory) as temporary:
        (temporary / "a").write_text("1")
        assert os.listdir(tmp_path / "above") == [temporary.name] == [".made.partial"]
    assert (directory / "a").read_text() == "1"
    assert os.listdir(tmp_path / "above") == ["made"]
    assert os.listdir(directory) == ["a"]


def test_an_earlier_directory_stays(tmp_path):
    (tmp_path / "made/b").mkdir(parents=True)
    (tmp_path / "made/a").touch()
    with pytest.raises(OSError), files.new_directory(tmp_path / "made"):
        pass
    assert os.listdir(tmp_path) == ["made"]
    assert files.list_directory(tmp_path / "made") == ["a", "b"]
    message = "made/a: expected a directory, found a file"
    with pytest.raises(InputError, match=message):
        with files.new_directory(tmp_path / "made/a/b"):
            pass


def test_match(tmp_path):
    for name in ("b.txt", "a.txt", "d/e/c.txt", "x.csv", "book[1].txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = files.match(f"{tmp_path}/?.txt")
    assert [os.path.basename(path) for path in found] == ["a.txt", "b.txt"]
    assert len(files.match(f"{tmp_path}/**/*.txt")) == 4
    assert files.match(f"{tmp_path}/*.xml") == []
    # A name with brackets is a name.
    assert files.match(f"{tmp_path}/book[1].txt") == [f"{tmp_path}/book[1].txt"]


def test_an_error_of_another_file_is_not_one_of_writing(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        with files.open_atomically(tmp_path / "g"):
            open(tmp_path / "none")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_and_a_place_that_is_not_there(tmp_path, monkeypatch):
    message = "none/f: cannot be written: No such file or directory; choose an"
    with pytest.raises(InputError, match=message):
        files.write_atomically(tmp_path / "none/f", b"abc")

    def fail(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(InputError) as caught:
        files.write_atomically(tmp_path / "f", b"abc")
    assert str(caught.value) == (
        f"{tmp_path}/f: cannot be written: No space left on device; make room, or "
        "choose another place, and run the same command again"
    )
    assert os.listdir(tmp_path) == []


def test_new_directories_and_disks_that_do_not_say(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    names = {"file": False, "empty": True, "link": False, "none": True, "": False}
    for name, is_new in names.items():
        assert files.is_new(tmp_path / name) == is_new
        if not is_new:
            with pytest.raises(InputError, match=f"{name}: exists already; choose an"):
                files.check_is_new(tmp_path / name)

    def fail(*_, **__):
        raise OSError(errno.ESTALE, "Stale file handle")

    for ask in (files.is_new, files.list_directory):
        with monkeypatch.context() as patched:
            for name in ("lstat", "listdir", "scandir"):
                patched.setattr(os, name, fail)
            with pytest.raises(OSError, match="Stale"):
                ask(tmp_path / "empty")


@pytest.mark.parametrize("ask", [files.open_to_read, files.exists, files.match])
@pytest.mark.parametrize("path", ["nowhere://bucket/f", "hdfs://a/b", "gs://"])
def test_a_store_that_nobody_knows(ask, path):
    with pytest.raises(InputError) as caught:
        ask(path)
    assert str(caught.value) == (
        f"{path}: expected a local path or one of gs, s3, az, such as "
        "gs://bucket/directory"
    )
