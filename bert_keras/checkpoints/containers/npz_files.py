"""`.npz` archives of named arrays, written as a stream and read with suspicion.

No pickle, no compression, and no memory is allocated before a header's claims were
checked against the size of the file. The module needs `numpy` alone, so third-party
checkpoints are imported and ours exported without TensorFlow.
"""

import contextlib
import dataclasses
import errno
import math
import os
import tokenize
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import numpy as np

from bert_keras.core import files
from bert_keras.core.errors import InputError, one_line


class UnreadableArchive(InputError):
    """A file that is truncated, damaged, or no archive. A disk or network that does not
    answer is another `InputError`: the file may be whole."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrayHeader:
    shape: tuple[int, ...]
    dtype: np.dtype


def write_arrays(path: str | Path, arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes an archive, whole or not at all, from arrays that are consumed one by one.
    Equal arrays give equal bytes. Afterwards the file survives a power failure."""
    with files.open_atomically(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    if not files.is_remote(path):
        _sync_directory(Path(path).parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        # Some network file systems do not support it.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_headers(path: str | Path) -> dict[str, ArrayHeader]:
    with _open(path) as archive:
        return _read_headers(archive)


def read_arrays(
    path: str | Path, names: Collection[str] | None = None
) -> dict[str, np.ndarray]:
    """Reads the arrays with these names; `None`: all. Raises `UnreadableArchive` for
    Python objects and compressed members too."""
    with _open(path) as archive:
        headers = _read_headers(archive, names)
        return {name: _read_array(archive, name) for name in headers}


def read_arrays_like(
    path: str | Path, expected: dict[str, ArrayHeader]
) -> tuple[dict[str, ArrayHeader], dict[str, np.ndarray] | None]:
    """Reads the headers and, if they are as expected, all arrays. `None` instead of
    arrays: the headers differ, but the file is intact."""
    with _open(path) as archive:
        headers = _read_headers(archive)
        if headers == expected:
            return headers, {name: _read_array(archive, name) for name in headers}
        # Damage may be the reason why a header differs.
        if damaged := archive.testzip():
            raise ValueError(f"bad checksum of {damaged!r}")
        return headers, None


@contextlib.contextmanager
def _open(path: str | Path) -> Iterator[zipfile.ZipFile]:
    try:
        with files.open_to_read(path) as file, zipfile.ZipFile(file) as archive:
            size = files.size(path)
            if sum(member.file_size for member in archive.infolist()) > size:
                raise ValueError(f"claims more than its {size} bytes")
            yield archive
    except (OSError, *_SIGNS_OF_DAMAGE) as error:
        # A damaged offset leads to a place before the file's beginning.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise InputError(
                f"{path}: cannot be read: {error.strerror}; run the same command "
                "again when it can be"
            ) from None
        raise UnreadableArchive(
            f"{path}: cannot be read as a checkpoint: {one_line(error)}"
        ) from None


# NotImplementedError: zipfile meets an archive of a later version.
_SIGNS_OF_DAMAGE = (
    ValueError,
    EOFError,
    NotImplementedError,
    zipfile.BadZipFile,
)

_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

# Flags of a member that do not matter here: sizes that follow the data, a UTF-8 name.
_HARMLESS_FLAGS = 0x808


def _read_headers(
    archive: zipfile.ZipFile, names: Collection[str] | None = None
) -> dict[str, ArrayHeader]:
    headers = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        is_plain = (
            member.compress_type == zipfile.ZIP_STORED
            and not member.flag_bits & ~_HARMLESS_FLAGS
            # A damaged length turns the members that follow into a comment.
            and not member.comment
        )
        if not is_plain or name == member.filename or name in headers:
            raise ValueError(
                f"{member.filename!r} is not an uncompressed .npy, or there twice"
            )
        if names is None or name in names:
            headers[name] = _read_header(archive, member)
    if names is not None and (missing := set(names) - headers.keys()):
        raise ValueError(f"no {', '.join(sorted(missing))} in it")
    return headers


def _read_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> ArrayHeader:
    name, num_bytes = member.filename, member.file_size
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in _HEADER_READERS:
            raise ValueError(f"{name!r}: unknown version {version}")
        try:
            shape, _, dtype = _HEADER_READERS[version](file)
        except (tokenize.TokenError, SyntaxError):
            # NumPy takes what it cannot parse for a header that Python 2 wrote.
            raise ValueError(f"{name!r}: its header cannot be parsed") from None
        num_header_bytes = file.tell()
    if dtype.hasobject:
        raise ValueError(f"{name!r} holds Python objects")
    data_bytes = math.prod(shape) * dtype.itemsize
    # Only if every byte is accounted for does reading reach the checksum.
    if min(shape, default=0) < 0 or num_header_bytes + data_bytes != num_bytes:
        raise ValueError(
            f"{name!r}: {shape} of {dtype} do not fill its {num_bytes} bytes"
        )
    return ArrayHeader(shape=shape, dtype=dtype)


def _read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as file:
        return np.lib.format.read_array(file, allow_pickle=False)
