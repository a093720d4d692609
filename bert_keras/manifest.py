"""`manifest.json`: the last file written into a data directory.

A directory without one is unfinished. No TensorFlow, no Beam: pipelines write it,
training checks it.
"""

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from bert_keras import __version__
from bert_keras.config import StrictModel, build_config
from bert_keras.errors import InputError

MANIFEST_NAME = "manifest.json"


class Shard(StrictModel):
    """One file of a data directory."""

    name: str
    num_records: int
    num_bytes: int
    sha256: str


class Manifest(StrictModel):
    """What a data directory holds and how it was made."""

    kind: str
    """`documents` or `examples`."""
    shards: tuple[Shard, ...]
    config: dict[str, Any]
    """Everything that decides the bytes; the same configuration gives them again."""
    vocab_sha256: str | None = None
    vocab_size: int | None = None
    counters: dict[str, int] = {}
    code_version: str = __version__

    @property
    def num_records(self) -> int:
        """Records in all shards together."""
        return sum(shard.num_records for shard in self.shards)


def write_manifest(directory: str | Path, manifest: Manifest) -> None:
    """Writes `manifest.json` in one piece: whoever finds it finds all of it."""
    text = json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True)
    write_atomically(Path(directory) / MANIFEST_NAME, (text + "\n").encode())


def read_manifest(directory: str | Path, *, kind: str, verb: str) -> Manifest:
    """Reads the manifest of a finished directory.

    Args:
        directory: made by the command `verb`.
        kind: what the reader expects the directory to hold.
        verb: the command to name in the error.

    Raises:
        InputError: no such directory, unfinished, or of another kind.
    """
    path = Path(directory) / MANIFEST_NAME
    if not Path(directory).is_dir():
        raise InputError(f"{directory}: no such directory; make it with `{verb}`")
    if not path.is_file():
        raise InputError(
            f"{directory}: no {MANIFEST_NAME}, so this is not a finished output of "
            f"`{verb}`: run that command (again) to the end"
        )
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    manifest = build_config(Manifest, values, origin=path)
    if manifest.kind != kind:
        raise InputError(f"{directory}: expected {kind}, found {manifest.kind}")
    for shard in manifest.shards:
        if Path(shard.name).name != shard.name:
            raise InputError(f"{path}: shard name {shard.name!r} leaves the directory")
    return manifest


def verify_shards(
    directory: str | Path, manifest: Manifest, *, hashes: bool = True
) -> None:
    """Checks that every shard is there, whole and, if asked, unchanged.

    Raises:
        InputError: names the first shard that differs, and how.
    """
    for shard in manifest.shards:
        path = Path(directory) / shard.name
        if not path.is_file():
            raise InputError(f"{path}: listed in {MANIFEST_NAME} but missing")
        size = path.stat().st_size
        if size != shard.num_bytes:
            raise InputError(
                f"{path}: {size} bytes, {MANIFEST_NAME} says {shard.num_bytes}: the "
                "file was changed or cut; make the directory again"
            )
        if hashes and (found := file_sha256(path)) != shard.sha256:
            raise InputError(
                f"{path}: sha256 {found[:12]}…, {MANIFEST_NAME} says "
                f"{shard.sha256[:12]}…: the file was changed; make the directory again"
            )


def file_sha256(path: str | Path) -> str:
    """Hex digest of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: str | Path, data: bytes) -> None:
    """Writes a file so that no reader ever sees a part of it under its name."""
    with open_atomically(path) as file:
        file.write(data)


@contextlib.contextmanager
def open_atomically(path: str | Path) -> Iterator[BinaryIO]:
    """Opens a file for writing that gets its name when the block ends without error.

    Until then it has a temporary name beside it. Two writers of one path do not disturb
    each other: the last one replaces.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def claim_output_directory(directory: str | Path, settings: Mapping[str, Any]) -> None:
    """Makes a data directory ours, or refuses one that holds something else.

    `settings` (everything that decides the bytes) go into `inputs.json`, so that an
    unfinished directory can be told apart from another run's and done again.

    Raises:
        InputError: the directory is finished already, holds other files, or was begun
            with other settings (the first that differs is named).
    """
    directory = Path(directory)
    marker = directory / "inputs.json"
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory}: expected a directory to write into, is a file")
    if (directory / MANIFEST_NAME).exists():
        raise InputError(
            f"{directory}: holds a finished output already; choose another directory "
            "or delete it"
        )
    wanted = json.loads(json.dumps(settings))
    if marker.is_file():
        found = json.loads(marker.read_text(encoding="utf-8"))
        for key in sorted(wanted.keys() | found.keys()):
            if wanted.get(key) != found.get(key):
                raise InputError(
                    f"{directory}: begun by another run, with {key}="
                    f"{found.get(key)!r} where this one has {wanted.get(key)!r}; "
                    "choose another directory or delete it"
                )
    elif directory.is_dir() and any(directory.iterdir()):
        raise InputError(
            f"{directory}: not empty and not made by this command; choose another "
            "directory"
        )
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(marker, json.dumps(wanted, indent=1, sort_keys=True).encode())
