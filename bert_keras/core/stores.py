"""Objects of `gs://`, `s3://` and `az://`, by way of `obstore`.

An object appears whole when its last byte is stored. Stores have no directories, and
renaming copies. `obstore` itself retries for some seconds; `Backoff` goes on for
minutes and tells the user.
"""

import contextlib
import datetime
import errno
import fnmatch
import functools
import importlib.util
import io
import json
import logging
import os
import pathlib
import posixpath
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar

import obstore
from obstore import exceptions, store

from bert_keras.core.errors import InputError, Unavailable

logger = logging.getLogger(__name__)

GIVES_UP_SECONDS = 300.0
"""Time after the first failure of a request in which the request is retried."""
_FIRST_DELAY_SECONDS = 0.5
_LONGEST_DELAY_SECONDS = 16.0
CHUNK_BYTES = 4 << 20

_STORES: Any = {"gs": store.GCSStore, "s3": store.S3Store, "az": store.AzureStore}
_RETRIES = {"max_retries": 6, "retry_timeout": datetime.timedelta(seconds=5)}
_CLIENT_OPTIONS = {
    "connect_timeout": "5s",
    "read_timeout": "20s",
    "timeout": "10m",
    # Only stand-ins, whose address the user sets, speak plain HTTP.
    "allow_http": True,
}

_TRANSIENT_NAMES = (
    # TensorFlow's, which is not loaded everywhere, by `grpc`'s status codes.
    *("AbortedError", "DeadlineExceededError", "InternalError"),
    *("ResourceExhaustedError", "UnavailableError", "UnknownError"),
)
# 412 is not the answer to a condition of ours, whose error has a name: the object
# changed while its bytes came.
_NOT_TRANSIENT = re.compile(
    r"status code: 4(?!08|12|29)\d\d|Generic (URL|Config) error|Received redirect"
)
# An object that was deleted while its bytes came: `obstore` has no name for that.
_NOT_FOUND = re.compile(r"status code: 404\b")
_NO_CREDENTIALS = re.compile(r"169\.254\.|metadata\.google\.internal|MissingCredential")

_USED: list[Any] = []
"""Clients of the buckets that this process has used."""

Result = TypeVar("Result")

Tag = dict[str, str]
"""Version of an object, which a conditional write must find unchanged."""


def client_for(path: str) -> tuple[Any, str]:
    """Returns the client for the bucket of `path`, and the object's key in it."""
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in _STORES or not bucket:
        raise InputError(
            f"{path}: expected a local path or one of {', '.join(_STORES)}, such as "
            "gs://bucket/directory"
        )
    return _client(scheme, bucket, os.getpid()), key.strip("/")


@functools.cache
def _client(scheme: str, bucket: str, process_id: int) -> Any:
    del process_id  # a forked process needs connections of its own
    options: dict[str, Any] = {}
    if scheme == "gs" and (address := os.environ.get("STORAGE_EMULATOR_HOST")):
        # obstore takes the address of a stand-in from a key like this one, and asks no
        # server for a token.
        url = address if "://" in address else f"http://{address}"
        key = {"gcs_base_url": url.rstrip("/"), "disable_oauth": True}
        key |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        options["service_account_key"] = json.dumps(key)
    elif (
        scheme == "s3"
        and "AWS_ACCESS_KEY_ID" not in os.environ
        and importlib.util.find_spec("boto3")
    ):
        # Profiles and logins of the `aws` command, which obstore does not read.
        from obstore.auth import boto3

        with contextlib.suppress(Exception):
            options["credential_provider"] = boto3.Boto3CredentialProvider()
    try:
        client = _STORES[scheme](
            bucket, client_options=_CLIENT_OPTIONS, retry_config=_RETRIES, **options
        )
    except exceptions.BaseError as error:
        raise InputError(f"{scheme}://{bucket}: {_reason(error)}") from None
    _USED.append(client)
    return client


def all_answer(*, seconds: float) -> bool:
    """Whether each bucket that this process has used answers within some seconds."""
    answers = []

    def ask(client: Any) -> None:
        try:
            # That there is no such object is an answer, too.
            obstore.head(client, "bert-keras-asks-for-an-answer")
        except (exceptions.BaseError, OSError) as error:
            if is_transient(error):
                return
        answers.append(client)

    clients = list(_USED)
    # Not a pool, whose end waits for its threads.
    threads = [threading.Thread(target=ask, args=(c,), daemon=True) for c in clients]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return len(answers) == len(clients)


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, exceptions.GenericError):
        text = str(error)
        return not (_NOT_TRANSIENT.search(text) or _NO_CREDENTIALS.search(text))
    if any(kind.__name__ in _TRANSIENT_NAMES for kind in type(error).__mro__):
        return True
    is_unresolved = bool(re.search("resolve (host|proxy)", str(error)))
    return is_unresolved or isinstance(error, ConnectionError | TimeoutError)


def _reason(error: BaseException) -> str:
    """Returns the cause that an error names; `obstore` puts its own state around it."""
    text = str(error).strip().partition("\n\nDebug source")[0]
    return " ".join(text.rpartition(" - ")[2].split()) or type(error).__name__


def _as_os_error(error: Exception, path: str) -> OSError:
    if isinstance(error, FileNotFoundError) or _NOT_FOUND.search(str(error)):
        return FileNotFoundError(errno.ENOENT, "No such file or bucket", path)
    if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
        return FileExistsError(errno.EEXIST, "Changed by another process", path)
    if _NO_CREDENTIALS.search(str(error)):
        return PermissionError(errno.EACCES, "no credentials for this store", path)
    names = ("PermissionDeniedError", "UnauthenticatedError")
    number = errno.EACCES if type(error).__name__ in names else errno.EIO
    return OSError(number, _reason(error)[:300], path)


class Backoff:
    """Pauses between the attempts of one request, until `GIVES_UP_SECONDS` are over.
    The pauses double, from half a second to 16, and are partly random, so that many
    workers do not come back at once. `path` is for messages."""

    def __init__(self, path: str):
        self._path = path
        self._deadline: float | None = None
        self._delay = _FIRST_DELAY_SECONDS

    def wait(self, error: Exception) -> None:
        """Waits before the next attempt. Raises the `OSError` of an object or bucket
        that does not exist, of a condition that does not hold, or of a refused request;
        `Unavailable` if the store still fails after `GIVES_UP_SECONDS`."""
        if not is_transient(error):
            raise _as_os_error(error, self._path) from error
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + GIVES_UP_SECONDS
        pause = self._delay * random.uniform(0.5, 1.0)
        if now + pause > self._deadline:
            raise Unavailable(
                f"{self._path}: the store failed for {GIVES_UP_SECONDS:.0f} s "
                f"({_reason(error)[:200]}); run the same command again when the store "
                "answers"
            ) from error
        logger.warning(
            "%s: the store fails (%s): trying again for up to %.0f s",
            self._path,
            _reason(error)[:120],
            self._deadline - now,
        )
        time.sleep(pause)
        self._delay = min(2 * self._delay, _LONGEST_DELAY_SECONDS)


def _retried(path: str, request: Callable[[Any, str], Result]) -> Result:
    """Returns the result of `request(client, key)`; raises as `Backoff.wait` does."""
    client, key = client_for(path)
    backoff = Backoff(path)
    while True:
        try:
            return request(client, key)
        except (exceptions.BaseError, OSError) as error:
            backoff.wait(error)


def _tag(facts: Any) -> Tag:
    return {name: facts[name] for name in ("e_tag", "version") if facts.get(name)}


def read_version(path: str) -> tuple[bytes, Tag]:
    def read(client: Any, key: str) -> tuple[bytes, Tag]:
        answer = obstore.get(client, key)
        return bytes(answer.bytes()), _tag(answer.meta)

    return _retried(path, read)


def write_if_unchanged(path: str, data: bytes, tag: Tag | None) -> Tag:
    """Writes an object if its version is still `tag`, or it does not exist for the tag
    `None`; returns the new version's tag. A `FileNotFoundError`: another process has
    deleted it. A `FileExistsError`: another has changed it, or our own write was made
    and its answer lost, so read the object then."""
    mode: Any = tag or "create"
    return _retried(
        path, lambda client, key: _tag(obstore.put(client, key, data, mode=mode))
    )


class _Reader(io.RawIOBase):
    def __init__(self, path: str):
        super().__init__()
        self.name = path
        self._position = 0
        # Now, so that opening a missing object fails as with a local file.
        facts = _retried(path, obstore.head)
        self._size = facts["size"]
        # With bytes of another version, a file would be parts of both.
        self._tag = facts.get("e_tag")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}
        if starts[whence] + offset < 0:
            raise OSError(errno.EINVAL, "Invalid argument", self.name)
        self._position = starts[whence] + offset
        return self._position

    def readall(self) -> bytes:
        # Python's own would ask for 8 KiB at a time.
        return b"".join(iter(lambda: self.read(CHUNK_BYTES) or b"", b""))

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._position)
        if length <= 0:
            return 0

        def read(client: Any, key: str) -> Any:
            options: Any = {"range": (self._position, self._position + length)}
            if self._tag is not None:
                options["if_match"] = self._tag
            answer = obstore.get(client, key, options=options)
            # Not every store knows conditional reads.
            if answer.meta.get("e_tag") != self._tag:
                raise exceptions.PreconditionError(self.name)
            data = answer.bytes()
            if len(data) != length:
                raise ConnectionError("the object ends before its last byte")
            return data

        try:
            buffer[:length] = memoryview(_retried(self.name, read))
        except FileExistsError:
            raise InputError(
                f"{self.name}: was replaced while it was being read: run the same "
                "command again once it no longer changes"
            ) from None
        self._position += length
        return length


def open_to_read(path: str) -> BinaryIO:
    return io.BufferedReader(_Reader(path), CHUNK_BYTES)


def put(local: str | os.PathLike[str], path: str) -> None:
    """Makes an object of a local file's bytes, whole or not at all."""

    def send(client: Any, key: str) -> None:
        try:
            obstore.put(client, key, pathlib.Path(local), max_concurrency=4)
        except FileNotFoundError as error:
            if "uploadId" in str(error):
                raise ConnectionError("the store has forgotten the upload") from error
            raise

    os.stat(local)  # a missing local file is not one of the store
    _retried(path, send)


def size(path: str) -> int:
    return _retried(path, obstore.head)["size"]


def checksum(path: str) -> str:
    """Returns the entity tag of an object, which changes with its bytes."""
    return str(_retried(path, obstore.head)["e_tag"])


def exists(path: str) -> bool:
    try:
        return size(path) >= 0
    except FileNotFoundError:
        return False


def below(directory: str) -> list[str]:
    """Returns the paths of all objects below a directory; [] if there is no object, or
    no such bucket."""
    try:
        return _listed(directory)
    except FileNotFoundError:
        return []


def _listed(directory: str) -> list[str]:
    bucket = "/".join(directory.split("/")[:3])
    # A prefix of obstore is a whole directory: `runs/one` is none of `runs/one_b`.
    batches = _retried(
        directory, lambda client, key: [*obstore.list(client, key or None)]
    )
    return [f"{bucket}/{item['path']}" for batch in batches for item in batch]


def names_in(directory: str) -> list[str]:
    """Returns the sorted names of objects and directories in a directory."""
    list_here = obstore.list_with_delimiter
    try:
        here = _retried(directory, lambda client, key: list_here(client, key or None))
    except FileNotFoundError:
        return []
    paths = [*here["common_prefixes"], *(item["path"] for item in here["objects"])]
    return sorted({*map(posixpath.basename, paths)})


def match(pattern: str) -> list[str]:
    """Returns the objects that match a pattern of `*`, `?` and `[...]`, sorted; raises
    a `FileNotFoundError` if there is no such bucket."""
    parts = pattern.split("/")
    fixed = next((n for n, part in enumerate(parts) if re.search(r"[*?[]", part)), None)
    if fixed is None:
        return [pattern] if exists(pattern) else []
    # Part by part, because the `*` of `fnmatch` would match slashes, too.
    return sorted(
        path
        for path in _listed("/".join(parts[:fixed]))
        if path.count("/") == len(parts) - 1
        and all(map(fnmatch.fnmatchcase, path.split("/"), parts))
    )


def delete(paths: list[str]) -> None:
    """Deletes objects of one bucket, many at a time; missing ones are skipped."""
    keys = [client_for(path)[1] for path in paths]
    try:
        if keys:
            _retried(paths[0], lambda client, _: obstore.delete(client, keys))
    except FileNotFoundError:
        for path in paths if len(paths) > 1 else ():
            delete([path])


class StorePath(pathlib.PosixPath):
    """A path such as `gs://bucket/runs/one`, whose methods ask the store. Making a
    directory does nothing, and a directory exists as long as there is something below
    it. Other methods of `Path` fail as for a missing local file."""

    def __str__(self) -> str:
        scheme, *names = self.parts or ("",)
        # `pathlib` takes two slashes for one.
        return f"{scheme}//{'/'.join(names)}" if scheme.endswith(":") else scheme

    def __fspath__(self) -> str:
        return str(self)

    def absolute(self) -> "StorePath":
        return self

    def resolve(self, strict: bool = False) -> "StorePath":
        scheme, rest = str(self).split("://", 1)
        return type(self)(f"{scheme}://{posixpath.normpath(rest)}")

    def exists(self, **_: Any) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self, **_: Any) -> bool:
        return exists(str(self))

    def is_dir(self, **_: Any) -> bool:
        return bool(names_in(str(self)))

    def iterdir(self) -> Iterator["StorePath"]:
        return (self / name for name in names_in(str(self)))

    def glob(self, pattern: str, **_: Any) -> Iterator["StorePath"]:
        names = (name for name in self.iterdir() if name.match(pattern))
        return iter([name for name in names if name.is_file()])

    def open(self, mode: str = "r", *_: Any, **options: Any) -> Any:
        if mode not in ("r", "rb"):
            raise OSError(errno.EINVAL, "a store's files are written whole", str(self))
        file = open_to_read(str(self))
        return file if mode == "rb" else io.TextIOWrapper(file, **options)

    def mkdir(self, *_: Any, **__: Any) -> None:
        pass

    def unlink(self, missing_ok: bool = False) -> None:
        if not missing_ok and not self.is_file():
            raise FileNotFoundError(errno.ENOENT, "No such file", str(self))
        delete([str(self)])

    def replace(self, target: Any) -> "StorePath":
        """Copies the object to another name in the same bucket, and deletes it."""
        _, new_key = client_for(str(target))
        _retried(str(self), lambda client, key: obstore.copy(client, key, new_key))
        delete([str(self)])
        return type(self)(target)

    rename = replace  # pyright: ignore
