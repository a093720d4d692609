"""Requests to the stores of `scheme://` paths, and the one rule for trying them again.

Where TensorFlow is loaded its own file systems (`tf.io.gfile`) speak to the store,
elsewhere Apache Beam's. An object of a store appears whole when its last byte has come;
there are no directories, and renaming is copying.
"""

import contextlib
import errno
import io
import logging
import os
import random
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar

from bert_keras.errors import InputError

logger = logging.getLogger(__name__)

GIVES_UP_SECONDS = 300.0
"""Time after the first failure of a request in which it is tried again."""
_FIRST_DELAY_SECONDS = 0.5
_LONGEST_DELAY_SECONDS = 16.0

_EMULATOR = "STORAGE_EMULATOR_HOST"
"""Address of a stand-in of Cloud Storage, which only Beam can be given."""

_CHUNK_BYTES = 1 << 20

Result = TypeVar("Result")


class Found(NamedTuple):
    """An object of a store."""

    path: str
    num_bytes: int


class Store(Protocol):
    """Requests to a store; each raises whatever its package raises."""

    def open(self, path: str) -> BinaryIO:
        """Opens an object for reading, with `seek`."""
        ...

    def size(self, path: str) -> int:
        """Bytes of an object."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is such an object."""
        ...

    def upload(self, local: str, path: str) -> None:
        """Makes an object of a local file's bytes, whole or not at all."""
        ...

    def rename(self, path: str, target: str) -> None:
        """Copies an object to another name, and deletes it."""
        ...

    def match(self, pattern: str) -> list[Found]:
        """Objects that match a pattern of `*`, `?` and `[...]`."""
        ...

    def below(self, directory: str) -> list[Found]:
        """Objects whose paths begin with the directory's, at any depth."""
        ...

    def names_in(self, directory: str) -> list[str]:
        """Names in a directory: of objects, and of directories below it."""
        ...

    def delete(self, paths: list[str]) -> None:
        """Deletes objects; one that is not there is no error."""
        ...

    def delete_tree(self, directory: str) -> None:
        """Deletes all objects below a directory."""
        ...

    def checksum(self, path: str) -> str:
        """Checksum of an object's bytes, or something else that changes with them."""
        ...


def of(path: str) -> Store:
    """Who speaks to the store of a path in this process.

    Raises:
        InputError: nobody can.
    """
    if "tensorflow" in sys.modules and _EMULATOR not in os.environ:
        return _TensorFlow(path)
    return _Beam(path)


def retried(path: str, request: Callable[[], Result]) -> Result:
    """Result of a request, which is made again while its failures may pass.

    429 (too many requests), 408, 5xx, cut connections, answers that do not come, and
    names that cannot be resolved may pass. The pauses double, from half a second to 16,
    with some chance in them, so that many workers do not come back at once.

    Raises:
        FileNotFoundError: there is no such object or bucket.
        OSError: refused, or still failing after `GIVES_UP_SECONDS`.
    """
    deadline, delay = None, _FIRST_DELAY_SECONDS
    while True:
        try:
            return request()
        except (InputError, FileNotFoundError):
            raise
        except Exception as error:
            now = time.monotonic()
            if deadline is None:
                deadline = now + GIVES_UP_SECONDS
            pause = delay * random.uniform(0.5, 1.0)
            if not _may_pass(error) or now + pause > deadline:
                raise _as_os_error(error, path) from error
            logger.warning(
                "%s: the store fails (%s): trying again for up to %.0f s",
                path,
                _reason(error)[:120],
                deadline - now,
            )
        time.sleep(pause)
        delay = min(2 * delay, _LONGEST_DELAY_SECONDS)


class Reader(io.RawIOBase):
    """An object's bytes; a read that fails is made again where it stopped."""

    def __init__(self, path: str):
        super().__init__()
        self.name = path
        self._store = of(path)
        self._position = 0
        self._file: BinaryIO | None = None
        # Now, so that opening what is not there fails as with a local file.
        self._size = retried(path, lambda: self._store.size(path))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}
        if starts[whence] + offset < 0:
            raise OSError(errno.EINVAL, "Invalid argument", self.name)
        self._position = starts[whence] + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._position)
        if wanted <= 0:
            return 0
        data = retried(self.name, lambda: self._read(wanted))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _read(self, num_bytes: int) -> bytes:
        try:
            if self._file is None:
                self._file = self._store.open(self.name)
            if self._file.tell() != self._position:
                self._file.seek(self._position)
            data = self._file.read(num_bytes)
            if not data:
                raise ConnectionError("the object ends before its last byte")
            return data
        except Exception:
            self._forget_file()
            raise

    def _forget_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            # Its connection may be the one that failed.
            with contextlib.suppress(Exception):
                file.close()

    def close(self) -> None:
        self._forget_file()
        super().close()


def open_to_read(path: str) -> BinaryIO:
    """Opens an object for reading, with `seek` and `tell`.

    Raises:
        OSError: see `retried`.
    """
    return io.BufferedReader(Reader(path), _CHUNK_BYTES)


@contextlib.contextmanager
def written(path: str) -> Iterator[BinaryIO]:
    """A file to write, which becomes an object when the block ends without error.

    It waits on the local disk, so that it can be sent again from its beginning.

    Raises:
        OSError: see `retried`; with the local disk's own errors.
    """
    with tempfile.NamedTemporaryFile(prefix="bert_keras_") as file:
        yield file.file
        file.flush()
        put(file.name, path)


def put(local: str | os.PathLike[str], path: str) -> None:
    """Makes an object of a local file; raises as `retried` does."""
    retried(path, lambda: of(path).upload(os.fspath(local), path))


def delete(paths: list[str]) -> None:
    """Deletes objects, if they exist; raises as `retried` does."""
    if paths:
        retried(paths[0], lambda: of(paths[0]).delete(paths))


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, those that Beam put into it, and its causes."""
    waiting: list[BaseException | None] = [error]
    seen = set()
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        details = getattr(found, "exception_details", None)
        inner = details.values() if isinstance(details, dict) else ()
        # Context too: some packages raise their own error while handling another.
        waiting += [e for e in inner if isinstance(e, BaseException)]
        waiting += [found.__cause__, found.__context__]


def _statuses(error: BaseException) -> Iterator[int]:
    """HTTP's status codes in an error."""
    for found in _chain(error):
        response = getattr(found, "response", None)
        for code in (
            getattr(response, "status_code", None),
            getattr(found, "code", None),
        ):
            if isinstance(code, int) and code >= 100:
                yield int(code)


_PASSING_NAMES = (
    # TensorFlow's, by `grpc`'s status codes.
    "AbortedError",
    "DeadlineExceededError",
    "InternalError",
    "ResourceExhaustedError",
    "UnavailableError",
    "UnknownError",
    # Of `requests`, `urllib3`, `http` and `google.auth`, which Beam speaks through.
    "ChunkedEncodingError",
    "ConnectTimeout",
    "IncompleteRead",
    "ProtocolError",
    "ReadTimeout",
    "ReadTimeoutError",
    "RetryError",
    "SSLError",
    "TransportError",
)
# Beam gives some errors as text alone.
_PASSING_TEXT = re.compile(
    r"TooManyRequests\(|ServiceUnavailable\(|InternalServerError\(|BadGateway\("
    r"|GatewayTimeout\(|Connection(?:Reset|Aborted|)Error\(|RemoteDisconnected\("
    r"|ReadTimeout\(|resolve host|resolve proxy"
)


def _may_pass(error: BaseException) -> bool:
    if _is_missing(error):
        return False
    statuses = list(_statuses(error))
    if statuses:
        return any(status in (408, 429) or status >= 500 for status in statuses)
    return any(
        isinstance(found, ConnectionError | TimeoutError)
        or type(found).__name__ in (*_PASSING_NAMES, "ConnectionError", "Timeout")
        or _PASSING_TEXT.search(str(found))
        for found in _chain(error)
    )


def _is_missing(error: BaseException) -> bool:
    return any(
        isinstance(found, FileNotFoundError)
        or type(found).__name__ in ("NotFoundError", "NotFound")
        or "NotFound(" in str(found)
        for found in _chain(error)
    ) or 404 in _statuses(error)


def _as_os_error(error: BaseException, path: str) -> OSError:
    """The `OSError` that a local file would raise.

    Every store's package has its own errors, and none has the path as an attribute.
    """
    if _is_missing(error):
        return FileNotFoundError(errno.ENOENT, "No such file or bucket", path)
    names = ("PermissionDeniedError", "UnauthenticatedError", "Forbidden")
    is_refused = any(
        type(found).__name__ in names or "Forbidden(" in str(found)
        for found in _chain(error)
    ) or {401, 403} & set(_statuses(error))
    number = errno.EACCES if is_refused else errno.EIO
    return OSError(number, _reason(error)[:300], path)


def _temporary(path: str) -> str:
    directory, _, name = path.rpartition("/")
    return f"{directory}/.{name}.{uuid.uuid4().hex[:8]}.tmp"


class _Beam:
    """Apache Beam's file systems."""

    def __init__(self, path: str):
        # Not at the top: loading Beam takes seconds, and local paths never need it.
        from apache_beam.io import filesystem, filesystems

        self._systems = filesystems.FileSystems
        self._uncompressed = filesystem.CompressionTypes.UNCOMPRESSED
        try:
            self._systems.get_filesystem(path)
        except ValueError:
            raise InputError(
                f"{path}: expected a local path, or one of a store that Apache Beam "
                "can reach; for gs:// it needs `pip install 'apache-beam[gcp]'`"
            ) from None

    def open(self, path: str) -> BinaryIO:
        return self._systems.open(path, compression_type=self._uncompressed)

    def size(self, path: str) -> int:
        found = self._matches(path)
        if not found:
            raise FileNotFoundError(errno.ENOENT, "No such file or bucket", path)
        return found[0].num_bytes

    def exists(self, path: str) -> bool:
        return self._systems.exists(path)

    def upload(self, local: str, path: str) -> None:
        # Under another name first: one that was cut off gives an object too.
        temporary = _temporary(path)
        try:
            with (
                open(local, "rb") as source,
                self._systems.create(
                    temporary, compression_type=self._uncompressed
                ) as target,
            ):
                while chunk := source.read(_CHUNK_BYTES):
                    target.write(chunk)
            self._systems.rename([temporary], [path])
        except Exception:
            with contextlib.suppress(Exception):
                self._systems.delete([temporary])
            raise

    def rename(self, path: str, target: str) -> None:
        self._systems.rename([path], [target])

    def match(self, pattern: str) -> list[Found]:
        return self._matches(pattern)

    def _matches(self, pattern: str) -> list[Found]:
        try:
            (result,) = self._systems.match([pattern])
        except Exception as error:
            # A missing bucket is an empty one.
            if _is_missing(error):
                return []
            raise
        return [Found(f.path, f.size_in_bytes) for f in result.metadata_list]

    def below(self, directory: str) -> list[Found]:
        return self._matches(f"{directory.rstrip('/')}/**")

    def names_in(self, directory: str) -> list[str]:
        prefix = f"{directory.rstrip('/')}/"
        paths = [found.path.removeprefix(prefix) for found in self.below(directory)]
        return [path.partition("/")[0] for path in paths]

    def delete(self, paths: list[str]) -> None:
        try:
            self._systems.delete(paths)
        except Exception as error:
            if not _is_missing(error):
                raise

    def delete_tree(self, directory: str) -> None:
        if paths := [found.path for found in self.below(directory)]:
            self.delete(paths)

    def checksum(self, path: str) -> str:
        return self._systems.checksum(path)


class _TensorFlow:
    """TensorFlow's file systems; only where TensorFlow is loaded."""

    def __init__(self, path: str):
        import tensorflow as tf

        self._gfile, self._errors = tf.io.gfile, tf.errors
        scheme = path.partition("://")[0]
        if scheme not in self._gfile.get_registered_schemes():
            raise InputError(
                f"{path}: expected a local path, or one of a store that TensorFlow can "
                f"reach: {scheme}:// is none of them"
            )

    def open(self, path: str) -> BinaryIO:
        return self._gfile.GFile(path, "rb")

    def size(self, path: str) -> int:
        found = self._gfile.stat(path)
        if found.is_directory:
            raise FileNotFoundError(errno.ENOENT, "No such file or bucket", path)
        return found.length

    def exists(self, path: str) -> bool:
        try:
            return not self._gfile.stat(path).is_directory
        except self._errors.NotFoundError:
            return False

    def upload(self, local: str, path: str) -> None:
        if path.startswith("gs://"):
            self._gfile.copy(local, path, overwrite=True)
            return
        # Some stores have directories, and files that grow while they are written.
        self._gfile.makedirs(path.rpartition("/")[0])
        temporary = _temporary(path)
        try:
            self._gfile.copy(local, temporary)
            self._gfile.rename(temporary, path, overwrite=True)
        except Exception:
            with contextlib.suppress(Exception):
                self._gfile.remove(temporary)
            raise

    def rename(self, path: str, target: str) -> None:
        self._gfile.rename(path, target, overwrite=True)

    def match(self, pattern: str) -> list[Found]:
        found = []
        for path in self._gfile.glob(pattern):
            status = self._gfile.stat(path)
            if not status.is_directory:
                found.append(Found(path, status.length))
        return found

    def below(self, directory: str) -> list[Found]:
        return [
            Found(path, self._gfile.stat(path).length)
            for folder, _, names in self._gfile.walk(directory)
            for path in (f"{folder.rstrip('/')}/{name}" for name in names)
        ]

    def names_in(self, directory: str) -> list[str]:
        try:
            names = self._gfile.listdir(directory)
        except self._errors.NotFoundError:
            return []
        return [name.rstrip("/") for name in names]

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with contextlib.suppress(self._errors.NotFoundError):
                self._gfile.remove(path)

    def delete_tree(self, directory: str) -> None:
        with contextlib.suppress(self._errors.NotFoundError):
            self._gfile.rmtree(directory)

    def checksum(self, path: str) -> str:
        # TensorFlow keeps the store's checksums to itself.
        return str(self._gfile.stat(path).mtime_nsec)
