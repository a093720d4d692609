"""`manifest.json`: the last file written into a data directory.

A directory without a manifest is unfinished. The module needs neither TensorFlow nor
Beam: pipelines write a manifest, training checks it.
"""

import json
import logging
import os
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any, Self

from bert_keras import __version__
from bert_keras.core import files, ownership, progress
from bert_keras.core.errors import InputError
from bert_keras.core.settings.strict import StrictModel, build_config

logger = logging.getLogger(__name__)

MANIFEST_NAME = "manifest.json"
WORK_NAME = ".work"
"""Subdirectory for the files between the steps of a job."""
INPUTS_NAME = "inputs.json"


class Shard(StrictModel):
    name: str
    num_records: int
    num_bytes: int
    sha256: str

    @classmethod
    def of_file(cls, path: files.Path, num_records: int) -> Self:
        """Describes a file that is complete."""
        return cls(
            name=files.name_of(path),
            num_records=num_records,
            num_bytes=files.size(path),
            sha256=files.sha256(path),
        )


class Manifest(StrictModel):
    """The contents of a data directory, and how it was made."""

    kind: str
    """`documents`, `examples` or `index`."""
    shards: tuple[Shard, ...]
    config: dict[str, Any]
    """Every setting that affects the bytes; the same ones give the same bytes."""
    vocab_sha256: str | None = None
    vocab_size: int | None = None
    counters: dict[str, int] = {}
    code_version: str = __version__

    @property
    def num_records(self) -> int:
        return sum(shard.num_records for shard in self.shards)


def write_manifest(directory: files.Path, manifest: Manifest) -> None:
    path = files.join(directory, MANIFEST_NAME)
    values = manifest.model_dump(mode="json")
    files.write_json(path, values, indent=1, sort_keys=True)


def read_manifest(directory: files.Path, *, kind: str) -> Manifest:
    """Reads the manifest of a finished directory of one `kind`."""
    verb = f"bert-keras {'corpus' if kind == 'documents' else kind}"
    path = files.join(directory, MANIFEST_NAME)
    if not files.exists(path):
        problem = (
            f"no {MANIFEST_NAME}, so this is not a finished output of `{verb}`: run "
            f"`{verb}` again until it finishes"
        )
        if os.path.isfile(directory):
            problem = f"a file; give the directory that `{verb}` made"
        elif not files.is_remote(directory) and not os.path.isdir(directory):
            problem = f"no such directory; make it with `{verb}`"
        raise InputError(f"{directory}: {problem}")
    manifest = build_config(Manifest, files.read_json(path), origin=path)
    if manifest.kind != kind:
        raise InputError(f"{directory}: expected {kind}, found {manifest.kind}")
    # The file may be a stranger's, and the names are opened.
    for shard in manifest.shards:
        is_name = files.name_of(shard.name) == shard.name and shard.name.isprintable()
        if not is_name or shard.name in (".", ".."):
            raise InputError(f"{path}: shard name {shard.name!r} leaves the directory")
    return manifest


def verify_shards(
    directory: files.Path, manifest: Manifest, *, hashes: bool = True
) -> None:
    """Checks the size and, if requested, the hash of every shard."""
    paths = [files.join(directory, shard.name) for shard in manifest.shards]
    for shard, path in zip(manifest.shards, paths, strict=True):
        try:
            size = files.size(path)
        except OSError:
            raise InputError(f"{path}: listed in {MANIFEST_NAME} but missing") from None
        if size != shard.num_bytes:
            raise InputError(
                f"{path}: {size} bytes, {MANIFEST_NAME} says {shard.num_bytes}: the "
                "file was changed or truncated; make the directory again"
            )
    if not hashes:
        return
    done = 0
    # Several threads read a network disk faster than one.
    threads = futures.ThreadPoolExecutor(8)
    with progress.Progress(
        f"checking {directory}",
        total=sum(shard.num_bytes for shard in manifest.shards),
        unit="bytes",
        read=lambda: done,
        only_if_long=True,
    ):
        try:
            digests = threads.map(files.sha256, paths)
            checked = zip(manifest.shards, paths, digests, strict=True)
            for shard, path, sha256 in checked:
                if sha256 != shard.sha256:
                    raise InputError(
                        f"{path}: sha256 {sha256[:12]}…, {MANIFEST_NAME} says "
                        f"{shard.sha256[:12]}…: the file was changed; make the "
                        "directory again"
                    )
                done += shard.num_bytes
        except OSError as error:
            raise InputError(
                f"{error.filename or directory}: cannot be read: {error.strerror}"
            ) from None
        finally:
            threads.shutdown(cancel_futures=True)


def claim_output_directory(
    directory: files.Path,
    settings: Mapping[str, Any],
    *,
    compared: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    in_words: Callable[[str], str | None] = lambda key: None,
) -> bool:
    """Creates an output directory, or accepts one that has the same settings. Returns
    whether the directory is finished already.

    Args:
        settings: all that affect the bytes; `inputs.json` holds them, so that another
            run recognises an unfinished directory.
        compared: returns the settings that must not change; `dict`: all.
        in_words: returns what is wrong and what to do if a key has another value;
            `None`: both values are shown.
    """
    marker = files.join(directory, INPUTS_NAME)
    # As they come back from a file: tuples are lists.
    requested = compared(json.loads(json.dumps(settings)))
    is_finished = files.exists(files.join(directory, MANIFEST_NAME))
    if is_finished:
        # A run that was killed just before its end has left files.
        _delete_leftovers(directory)
    if files.exists(marker):
        # The directory is of a run like this one, or it is refused.
        begun = compared(files.read_json(marker))
        if difference := _difference(begun, requested):
            key, was, is_now = difference
            message = in_words(key) or (
                f"begun by another run, with {key}={was!r} where this one has "
                f"{is_now!r}; choose another directory or delete it"
            )
            raise InputError(f"{directory}: {message}")
    elif is_finished:
        raise InputError(
            f"{directory}: holds a finished output already, and no {INPUTS_NAME} that "
            "says of what; choose another directory or delete it"
        )
    elif any(
        name != ownership.OWNER_NAME and not _is_leftover(name)
        for name in files.list_directory(directory)
    ):
        raise InputError(
            f"{directory}: not empty and not made by this command; choose another "
            "directory"
        )
    if is_finished:
        logger.info(f"{directory}: finished already, with the same inputs and settings")
        return True
    files.make_directory(directory)
    files.write_json(marker, requested, indent=1, sort_keys=True)
    return False


def _difference(
    begun: Mapping[str, Any], requested: Mapping[str, Any], name: str = ""
) -> tuple[str, Any, Any] | None:
    for key in sorted(requested.keys() | begun.keys()):
        was, is_now = begun.get(key), requested.get(key)
        if isinstance(was, dict) and isinstance(is_now, dict):
            if difference := _difference(was, is_now, f"{name}{key}: "):
                return difference
        elif was != is_now:
            return name + key, was, is_now
    return None


def finish_output_directory(directory: files.Path, manifest: Manifest) -> None:
    """Checks the shards, writes the manifest, and deletes the working files."""
    verify_shards(directory, manifest, hashes=False)
    write_manifest(directory, manifest)
    _delete_leftovers(directory)


def _delete_leftovers(directory: files.Path) -> None:
    files.delete_tree(files.join(directory, WORK_NAME))
    for name in files.list_directory(directory):
        if _is_leftover(name):
            files.delete(files.join(directory, name))


def _is_leftover(name: str) -> bool:
    """Whether a file was being written when its process was killed."""
    return name.startswith(".") and name.endswith(".tmp")
