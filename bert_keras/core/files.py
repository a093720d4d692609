"""Files of the local disk, by `os`, and of `gs://` and other stores, by `stores`."""

import contextlib
import glob
import hashlib
import itertools
import json
import os
import pathlib
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from bert_keras.core import stores
from bert_keras.core.errors import DISK_ERRORS, InputError, not_writable

Path = str | os.PathLike[str]

_MAX_NESTING = 100
"""Lists in lists that any of our walks and Python's `repr` can follow."""

_UNFINISHED_NAME = ".unfinished"
"""File in a remote directory that has not received all its files yet."""


def is_remote(path: Path) -> bool:
    """Whether a path begins with a scheme, such as `gs://`."""
    return "://" in str(path)


def path(name: Path) -> pathlib.Path:
    """Returns a `pathlib.Path` whose methods ask the store if `name` is remote."""
    return stores.StorePath(name) if is_remote(name) else pathlib.Path(name)


def join(directory: Path, name: str) -> str:
    if is_remote(directory):
        return f"{str(directory).rstrip('/')}/{name}"
    return os.path.join(directory, name)


def name_of(path: Path) -> str:
    return os.path.basename(os.path.normpath(path))


def open_to_read(path: Path) -> BinaryIO:
    """Opens a file for reading bytes. Refuses pipes and devices, which may not end."""
    if is_remote(path):
        return stores.open_to_read(str(path))
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        kinds = {stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
        raise InputError(
            f"{path}: expected a file, found a {kinds.get(stat.S_IFMT(mode), 'device')}"
            ": write the data to a file first"
        )
    return open(path, "rb")


def read_bytes(path: Path) -> bytes:
    with open_to_read(path) as file:
        return file.read()


def read_text(path: Path, *, expected: str = "a file of texts") -> str:
    """Reads a UTF-8 file, without a byte order mark; `expected` is for errors."""
    return "".join(read_lines(path, expected=expected))


def read_lines(path: Path, *, expected: str = "a file of texts") -> Iterator[str]:
    """Reads the lines of a UTF-8 file one by one, with their ends."""
    number = 0
    try:
        with open_to_read(path) as file:
            for number, line in enumerate(file, start=1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except OSError as error:
        raise InputError(
            f"{path}: expected {expected}, cannot read it: {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        raise InputError(
            f"{path}: line {number}: not UTF-8: save it as UTF-8 (Excel: CSV UTF-8; or "
            "iconv -f CP1252 -t UTF-8, if it is of Windows)"
        ) from None


def read_json(path: Path) -> dict[str, Any]:
    """Reads the keys and values of a JSON file; refuses JSON of another kind."""
    values = read_json_value(path)
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected keys and values, found {values!r:.80}")
    return values


def read_json_value(path: Path) -> Any:
    text = read_text(path, expected="JSON")
    if not text.strip():
        raise InputError(f"{path}: expected JSON, it is empty")
    try:
        return parse_json(text)
    except ValueError as error:
        raise InputError(f"{path}: expected JSON: {error}") from None


def parse_json(text: str, **options: Any) -> Any:
    """Calls `json.loads`; raises `ValueError` for more than a hundred nested lists."""
    try:
        value = json.loads(text, **options)
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None
    # Most texts have fewer brackets in all; those within strings do not count.
    if text.count("[") + text.count("{") > _MAX_NESTING:
        outside = re.sub(r'"[^"\\]*(?:\\.[^"\\]*)*"', "", text)
        if num_open_brackets(outside) > _MAX_NESTING:
            raise ValueError("brackets are nested too deeply")
    return value


def num_open_brackets(text: str) -> int:
    """Returns the greatest number of brackets `[` and `{` that are open at once."""
    steps = (1 if bracket in "[{" else -1 for bracket in re.findall(r"[][{}]", text))
    return max(itertools.accumulate(steps), default=0)


def exists(path: Path) -> bool:
    """Whether there is such a file (or local directory). Raises `OSError` if the disk
    does not say; `os.path.exists` would return `False`."""
    return stores.exists(str(path)) if is_remote(path) else pathlib.Path(path).exists()


def check_model_exists(path: Path) -> None:
    """Refuses a checkpoint's path where nothing is. What may be the name of a model of
    the Hugging Face hub gets the command that downloads it."""
    # A checkpoint of TensorFlow is named by what its files begin with.
    if exists(path) or list_directory(path) or exists(f"{path}.index"):
        return
    name, owner = str(path), os.path.dirname(path)
    if re.fullmatch("bert-(base|large)-(un)?cased|bert-base-multilingual-cased", name):
        name = f"google-bert/{name}"
    problem = f"{path}: does not exist"
    # A path in a folder that exists is a local one, mistyped or not made yet.
    if re.fullmatch(r"[\w-]+/[\w.-]+", name) and not (owner and exists(owner)):
        problem += (
            "; if it is a model of the Hugging Face hub, download it first: "
            f"hf download {name} --local-dir {name_of(path)}"
        )
    raise InputError(problem)


def size(path: Path) -> int:
    return stores.size(str(path)) if is_remote(path) else os.path.getsize(path)


def fingerprint(path: Path) -> dict[str, Any]:
    """Returns JSON values that change with a file's bytes and with nothing else. They
    are the size and, for a local file, a hash of its bytes, so that a copy is the same
    file; for a remote file, the entity tag that its store keeps."""
    if is_remote(path):
        return {"bytes": size(path), "checksum": stores.checksum(str(path))}
    return {"bytes": size(path), "sha256": sha256(path)}


def match(pattern: str) -> list[str]:
    """Returns sorted files that match `*`, `?`, `[...]` and (locally) `**`."""
    if is_remote(pattern):
        return stores.match(pattern)
    # A name that the shell expanded may contain brackets.
    if exists(pattern):
        return [pattern]
    return sorted(glob.glob(pattern, recursive=True))


def list_directory(directory: Path) -> list[str]:
    """Returns the sorted names in a directory; [] if it does not exist."""
    if is_remote(directory):
        return stores.names_in(str(directory))
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def make_directory(directory: Path) -> None:
    """Makes a directory and its parents; remote stores need none."""
    if is_remote(directory):
        return
    try:
        os.makedirs(directory, exist_ok=True)
    except FileExistsError:
        raise InputError(f"{directory}: expected a directory, found a file") from None
    except OSError as error:
        raise InputError(
            f"{directory}: cannot be made: {error.strerror}; choose another place"
        ) from None


def delete(name: Path) -> None:
    path(name).unlink(missing_ok=True)


def delete_tree(directory: Path) -> None:
    if is_remote(directory):
        stores.delete(stores.below(str(directory)))
    else:
        shutil.rmtree(directory, ignore_errors=True)


def sha256(path: Path) -> str:
    with open_to_read(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # pyright: ignore


def write_atomically(path: Path, data: bytes) -> None:
    with open_atomically(path) as file:
        file.write(data)


def write_json(path: Path, values: Mapping[str, Any], **layout: Any) -> None:
    """Writes a JSON file, whole or not at all, with options of `json.dumps`."""
    layout.setdefault("indent", 2)
    write_atomically(path, (to_json(values, **layout) + "\n").encode())


def to_json(values: Any, **layout: Any) -> str:
    """Writes values as JSON, with null for each number that is not finite."""
    # Python itself writes `NaN`, which no other reader of JSON takes.
    text = json.dumps(values, default=dict)
    plain = json.loads(text, parse_constant=lambda name: None)
    return json.dumps(plain, **layout)


@contextlib.contextmanager
def open_atomically(path: Path) -> Iterator[BinaryIO]:
    """Opens a file for writing that gets its name when the block ends without error.
    Until then it has a temporary name in the same directory, or, for a store, on the
    local disk. Two writers of one path do not disturb each other: the last one wins."""
    if is_remote(path):
        # From the local disk, the file can be sent again from its beginning.
        with _errors_of_writing(path), _local_directory() as directory:
            local = directory / name_of(path)
            with open(local, "wb") as file:
                yield file
            stores.put(local, str(path))
        return
    temporary = join(
        os.path.dirname(str(path)), f".{name_of(path)}.{uuid.uuid4().hex[:8]}.tmp"
    )
    try:
        with _errors_of_writing(path, temporary):
            with open(temporary, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        # It may not be there, and a read-only disk refuses even to look.
        with contextlib.suppress(OSError):
            delete(temporary)


@contextlib.contextmanager
def _local_directory() -> Iterator[pathlib.Path]:
    """Yields a temporary directory for copies of a store's files."""
    with tempfile.TemporaryDirectory(prefix="bert_keras_") as directory:
        yield pathlib.Path(directory)


@contextlib.contextmanager
def _errors_of_writing(path: Path, temporary: str = "") -> Iterator[None]:
    """Turns errors of the written file, or of files in it, into an `InputError`. Errors
    of files that are read meanwhile have other names."""
    try:
        yield
    except OSError as error:
        name = str(error.filename)
        is_ours = name == temporary if temporary else name.startswith(str(path))
        is_disk = error.filename is None and error.errno in DISK_ERRORS
        if not is_ours and not is_disk:
            raise
        raise not_writable(path, error) from error


@contextlib.contextmanager
def local_copy(path: Path) -> Iterator[pathlib.Path]:
    """Yields a local file with a file's bytes: the file, or a store's copy, deleted
    when the block ends. A file opened in the block stays readable."""
    if not is_remote(path):
        yield pathlib.Path(path)
        return
    with _local_directory() as directory:
        copy = directory / name_of(path)
        with open_to_read(path) as source, open(copy, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        yield copy


@contextlib.contextmanager
def added_to(directory: Path) -> Iterator[pathlib.Path]:
    """Yields a local directory, `directory` or one whose files then go to its store."""
    if not is_remote(directory):
        yield pathlib.Path(directory)
        return
    with _local_directory() as local:
        yield local
        with _errors_of_writing(directory):
            for path, item in _by_destination(local, directory).items():
                stores.put(item, path)


def _by_destination(local: pathlib.Path, directory: Path) -> dict[str, pathlib.Path]:
    """Returns all files in a local directory, in the order in which they were written,
    by their paths in another directory."""
    items = [item for item in local.rglob("*") if item.is_file()]
    # A file that marks its directory as whole is written last, so it is sent last.
    items.sort(key=lambda item: (item.stat().st_mtime_ns, item))
    return {join(directory, item.relative_to(local).as_posix()): item for item in items}


def is_new(directory: Path) -> bool:
    """Whether a path does not exist, or is an empty directory. On a store, a directory
    that `new_directory` was sending when it was killed is new."""
    if is_remote(directory):
        names = list_directory(directory)
        return _UNFINISHED_NAME in names or not (names or exists(directory))
    try:
        return not os.listdir(directory)
    except FileNotFoundError:
        # A link to nowhere is something.
        return not os.path.islink(directory)
    except NotADirectoryError:
        # Below a file there is nothing yet; making it says what is wrong.
        return not os.path.lexists(directory)


def check_is_new(directory: Path) -> None:
    if not is_new(directory):
        raise InputError(f"{directory}: exists already; choose another directory")


def new_file(name: Path) -> pathlib.Path:
    """Checks that a file does not exist and its directory does; returns its path."""
    new = path(name)
    if exists(new):
        raise InputError(f"{new}: exists already; choose another name")
    if not is_remote(new) and not new.parent.is_dir():
        raise InputError(f"{new.parent}: no such directory; make it first")
    return new


def check_is_local(directory: Path, what: str) -> None:
    """Refuses a store's directory for processes that share this machine's disk."""
    if is_remote(directory):
        raise InputError(
            f"{directory}: {what} needs a directory on this machine's disk, which its "
            "processes share: give one, and copy what you want to keep"
        )


@contextlib.contextmanager
def new_directory(
    directory: Path, *, replaces_earlier: bool = False
) -> Iterator[pathlib.Path]:
    """Makes a directory that gets its name when the block ends without error.

    Until then it is `.NAME.partial` next to it, which an error deletes. For a store it
    waits on the local disk; its files are then sent in the order in which they were
    written. With `replaces_earlier`, a directory with content is replaced at the end.
    """
    if is_remote(directory):
        with _local_directory() as local:
            temporary = local / name_of(directory)
            temporary.mkdir()
            yield temporary
            new = _by_destination(temporary, directory)
            mark = join(directory, _UNFINISHED_NAME)
            with _errors_of_writing(directory):
                # The directory has a mark until it is whole.
                write_atomically(mark, b"")
                stores.delete(sorted({*stores.below(str(directory))} - {mark, *new}))
                for path, item in new.items():
                    stores.put(item, path)
                delete(mark)
        return
    directory = pathlib.Path(directory).absolute()
    temporary = directory.with_name(f".{directory.name}.partial")
    earlier = directory.with_name(f".{directory.name}.old")
    shutil.rmtree(temporary, ignore_errors=True)
    # First, so that errors name it and not our own name.
    make_directory(directory.parent)
    make_directory(temporary)
    try:
        yield temporary
        # After a loss of power, a name may be there without its bytes.
        for item in _by_destination(temporary, directory).values():
            with open(item, "rb") as file:
                os.fsync(file.fileno())
        if replaces_earlier and directory.exists():
            # A directory with content cannot be replaced by renaming.
            os.rename(directory, earlier)
        os.rename(temporary, directory)
        shutil.rmtree(earlier, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
