"""Paths of stores that can be used where a `pathlib.Path` is."""

import errno
import io
import pathlib
import posixpath
from collections.abc import Iterator
from typing import Any

from bert_keras import stores


class StorePath(pathlib.PosixPath):
    """A path such as `gs://bucket/runs/one`, whose methods ask the store.

    Stores have no directories: making one does nothing, and one exists as long as
    there is something below it. What is not defined here is not for stores: Python
    looks for it on the disk, and does not find it.
    """

    def __str__(self) -> str:
        scheme, *names = self.parts or ("",)
        # `pathlib` takes two slashes for one.
        return f"{scheme}//{'/'.join(names)}" if scheme.endswith(":") else scheme

    def __fspath__(self) -> str:
        return str(self)

    def relative_to(self, *other: Any) -> pathlib.PurePosixPath:  # pyright: ignore
        parts = super().relative_to(*other).parts
        return pathlib.PurePosixPath(*parts)

    def absolute(self) -> "StorePath":
        return self

    def resolve(self, strict: bool = False) -> "StorePath":
        scheme, rest = str(self).split("://", 1)
        return type(self)(f"{scheme}://{posixpath.normpath(rest)}")

    def exists(self, **_: Any) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self, **_: Any) -> bool:
        path = str(self)
        return stores.retried(path, lambda: stores.of(path).exists(path))

    def is_dir(self, **_: Any) -> bool:
        return bool(self._names())

    def _names(self) -> list[str]:
        path = str(self)
        return stores.retried(path, lambda: stores.of(path).names_in(path))

    def iterdir(self) -> Iterator["StorePath"]:
        return (self / name for name in sorted(set(self._names())))

    def glob(self, pattern: str, **_: Any) -> Iterator["StorePath"]:
        names = (name for name in self.iterdir() if name.match(pattern))
        return iter([name for name in names if name.is_file()])

    def rglob(self, pattern: str, **_: Any) -> Iterator["StorePath"]:
        path = str(self)
        found = stores.retried(path, lambda: stores.of(path).below(path))
        paths = (type(self)(item.path) for item in found)
        return (path for path in paths if path.match(pattern))

    def open(self, mode: str = "r", *_: Any, **options: Any) -> Any:
        if mode not in ("r", "rb"):
            raise OSError(errno.EINVAL, "a store's files are written whole", str(self))
        file = stores.open_to_read(str(self))
        return file if mode == "rb" else io.TextIOWrapper(file, **options)

    def read_bytes(self) -> bytes:
        with self.open("rb") as file:
            return file.read()

    def read_text(self, encoding: str | None = None, *_: Any, **__: Any) -> str:
        return self.read_bytes().decode(encoding or "utf-8")

    def write_bytes(self, data: Any) -> int:
        with stores.written(str(self)) as file:
            return file.write(data)

    def write_text(self, data: str, encoding: str | None = None, *_: Any) -> int:  # pyright: ignore
        return self.write_bytes(data.encode(encoding or "utf-8"))

    def mkdir(self, *_: Any, **__: Any) -> None:
        pass

    def unlink(self, missing_ok: bool = False) -> None:
        if not missing_ok and not self.is_file():
            raise FileNotFoundError(errno.ENOENT, "No such file", str(self))
        stores.delete([str(self)])

    def replace(self, target: Any) -> "StorePath":
        path, moved = str(self), type(self)(target)
        stores.retried(path, lambda: stores.of(path).rename(path, str(moved)))
        return moved

    rename = replace  # pyright: ignore
