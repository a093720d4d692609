"""Who speaks to a store: Apache Beam's file systems, or TensorFlow's.

An object of a store appears whole when its last byte has come; there are no
directories, and renaming is copying.
"""

import contextlib
import errno
import uuid
from collections.abc import Iterable
from typing import BinaryIO, NamedTuple, Protocol

from bert_keras import store_errors
from bert_keras.errors import InputError

CHUNK_BYTES = 1 << 20


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


def _temporary(path: str) -> str:
    directory, _, name = path.rpartition("/")
    return f"{directory}/.{name}.{uuid.uuid4().hex[:8]}.tmp"


class Beam:
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
                while chunk := source.read(CHUNK_BYTES):
                    target.write(chunk)
            self.rename(temporary, path)
        except Exception as error:
            with contextlib.suppress(Exception):
                self._systems.delete([temporary])
            if not (store_errors.is_missing(error) and self._has_bucket_of(path)):
                raise
        else:
            return
        # An answer was lost, and what it was about is asked for again.
        raise ConnectionError("the store has forgotten the upload")

    def _has_bucket_of(self, path: str) -> bool:
        try:
            self._systems.match([path])
        except Exception as error:
            return not store_errors.is_missing(error)
        return True

    def rename(self, path: str, target: str) -> None:
        # Beam's own renaming fails if the answer to its deletion is lost: the deletion
        # is asked for again, and there is nothing any more.
        self._systems.copy([path], [target])
        self.delete([path])

    def match(self, pattern: str) -> list[Found]:
        return self._matches(pattern)

    def _matches(self, pattern: str) -> list[Found]:
        try:
            (result,) = self._systems.match([pattern])
        except Exception as error:
            # A missing bucket is an empty one.
            if store_errors.is_missing(error):
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
            if not store_errors.is_missing(error):
                raise

    def delete_tree(self, directory: str) -> None:
        if paths := [found.path for found in self.below(directory)]:
            self.delete(paths)

    def checksum(self, path: str) -> str:
        return self._systems.checksum(path)


class TensorFlow:
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

    def _children(self, directory: str) -> list[str]:
        """Names in a directory; on some stores those of directories end in `/`."""
        # `tf.io.gfile.listdir` and `walk` ask whether it is a directory first, and take
        # a store that does not answer for a no: all checkpoints would be gone.
        from tensorflow.python.lib.io import _pywrap_file_io

        try:
            return _pywrap_file_io.GetChildren(directory)
        except self._errors.NotFoundError:
            return []

    def below(self, directory: str) -> list[Found]:
        found = []
        for name in self._children(directory):
            path = f"{directory.rstrip('/')}/{name.rstrip('/')}"
            if name.endswith("/") or (status := self._gfile.stat(path)).is_directory:
                found += self.below(path)
            else:
                found.append(Found(path, status.length))
        return found

    def names_in(self, directory: str) -> list[str]:
        return [name.rstrip("/") for name in self._children(directory)]

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
