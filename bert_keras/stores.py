"""Requests to the stores of `scheme://` paths, and the one rule for trying them again.

Where TensorFlow is loaded its own file systems (`tf.io.gfile`) speak to the store,
elsewhere Apache Beam's.
"""

import contextlib
import errno
import importlib.util
import io
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar, cast

from bert_keras import store_clients, store_errors
from bert_keras.errors import InputError, Unavailable

logger = logging.getLogger(__name__)

GIVES_UP_SECONDS = 300.0
"""Time after the first failure of a request in which it is tried again."""
_FIRST_DELAY_SECONDS = 0.5
_LONGEST_DELAY_SECONDS = 16.0

_EMULATOR = "STORAGE_EMULATOR_HOST"
"""Address of a stand-in of Cloud Storage, which only Beam can be given."""

Result = TypeVar("Result")


def of(path: str) -> store_clients.Store:
    """Who speaks to the store of a path in this process.

    Raises:
        InputError: nobody can.
    """
    is_loaded = "tensorflow" in sys.modules and _EMULATOR not in os.environ
    if is_loaded:
        with contextlib.suppress(InputError):
            return store_clients.TensorFlow(path)
    try:
        return store_clients.Beam(path)
    except InputError:
        # Beam speaks to few stores without its extras.
        if _EMULATOR in os.environ or not importlib.util.find_spec("tensorflow"):
            raise
    return store_clients.TensorFlow(path)


class Patience:
    """Pauses between the attempts of one thing, until it is in vain to go on.

    429 (too many requests), 408, 5xx, cut connections, answers that do not come, and
    names that cannot be resolved may pass. The pauses double, from half a second to 16,
    with some chance in them, so that many workers do not come back at once.

    Args:
        path: of what is asked for, for messages.
    """

    def __init__(self, path: str):
        self._path = path
        self._deadline: float | None = None
        self._delay = _FIRST_DELAY_SECONDS

    def wait(self, error: Exception) -> None:
        """Waits before the next attempt.

        Args:
            error: with which the last one ended.

        Raises:
            FileNotFoundError: there is no such object or bucket.
            OSError: refused.
            Unavailable: the store still fails after `GIVES_UP_SECONDS`.
        """
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + GIVES_UP_SECONDS
        pause = self._delay * random.uniform(0.5, 1.0)
        if not store_errors.may_pass(error):
            raise store_errors.as_os_error(error, self._path) from error
        if now + pause > self._deadline:
            raise Unavailable(
                f"{self._path}: the store failed for {GIVES_UP_SECONDS:.0f} s "
                f"({store_errors.reason(error)[:200]}); give the same command again "
                "when it answers"
            ) from error
        logger.warning(
            "%s: the store fails (%s): trying again for up to %.0f s",
            self._path,
            store_errors.reason(error)[:120],
            self._deadline - now,
        )
        time.sleep(pause)
        self._delay = min(2 * self._delay, _LONGEST_DELAY_SECONDS)


def retried(path: str, request: Callable[[], Result]) -> Result:
    """Result of a request, which is made again while its failures may pass.

    Raises:
        OSError: see `Patience`.
    """
    patience = Patience(path)
    while True:
        try:
            return request()
        except (InputError, FileNotFoundError):
            raise
        except Exception as error:
            patience.wait(error)


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
    return io.BufferedReader(Reader(path), store_clients.CHUNK_BYTES)


@contextlib.contextmanager
def written(path: str) -> Iterator[BinaryIO]:
    """A file to write, which becomes an object when the block ends without error.

    It waits on the local disk, so that it can be sent again from its beginning.

    Raises:
        OSError: see `retried`; with the local disk's own errors.
    """
    with tempfile.NamedTemporaryFile(prefix="bert_keras_") as file:
        yield cast(BinaryIO, file)
        file.flush()
        put(file.name, path)


def put(local: str | os.PathLike[str], path: str) -> None:
    """Makes an object of a local file; raises as `retried` does."""
    retried(path, lambda: of(path).upload(os.fspath(local), path))


def delete(paths: list[str]) -> None:
    """Deletes objects, if they exist; raises as `retried` does."""
    if paths:
        retried(paths[0], lambda: of(paths[0]).delete(paths))
