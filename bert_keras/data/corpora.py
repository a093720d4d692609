"""The documents of a corpus that `bert-keras corpus` has made."""

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

from bert_keras.core import files, manifest, progress
from bert_keras.core.errors import InputError


def is_corpus(path: files.Path) -> bool:
    """Whether a path is of a corpus, or of another directory, and not of a file."""
    if files.is_remote(path):
        return files.exists(files.join(path, manifest.MANIFEST_NAME))
    return files.path(path).is_dir()


def open_corpus(directory: files.Path) -> manifest.Manifest:
    """Reads the manifest of a finished corpus, and checks its shards."""
    corpus = manifest.read_manifest(directory, kind="documents")
    manifest.verify_shards(directory, corpus)
    return corpus


def read_shard(path: files.Path) -> Iterator[dict[str, Any]]:
    """Yields documents: `id`, `source`, `paragraphs`, lists of sentences, and where the
    source has one, `title`."""
    line_number = 0
    try:
        with files.open_to_read(path) as file, gzip.open(file) as lines:
            for line in lines:
                line_number += 1
                document = json.loads(line)
                if not isinstance(document, dict):
                    raise ValueError(f"found a {type(document).__name__}")
                if missing := {"id", "source", "paragraphs"}.difference(document):
                    raise ValueError(f"{min(missing)} is missing")
                paragraphs = document["paragraphs"]
                if not all(isinstance(sentences, list) for sentences in paragraphs):
                    raise ValueError("paragraphs are not lists of sentences")
                # A type error, if any of these is no string.
                texts = [document.get("title") or "", document["id"]]
                "".join([*texts, *map("".join, paragraphs)])
                yield document
    except InputError:
        raise
    except (
        *(FileNotFoundError, gzip.BadGzipFile, EOFError, zlib.error),
        *(ValueError, TypeError, RecursionError),
    ) as e:
        raise InputError(
            f"{path}: line {line_number}: expected a document of `bert-keras corpus` "
            f"(JSON with id, source, paragraphs): {e}; recreate the corpus"
        ) from None


def read_corpus(
    directory: files.Path, corpus: manifest.Manifest, *, title: str
) -> Iterator[dict[str, Any]]:
    """Reads the documents of all shards, with a progress line if that takes long."""
    num_read = 0
    with progress.Progress(
        title,
        total=corpus.num_records,
        unit="documents",
        read=lambda: num_read,
        only_if_long=True,
    ):
        for shard in corpus.shards:
            for document in read_shard(files.join(directory, shard.name)):
                num_read += 1
                yield document
