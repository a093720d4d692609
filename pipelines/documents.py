"""Shards of documents: gzipped JSON lines."""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_keras.core import files, manifest, progress
from bert_keras.core.errors import InputError
from bert_keras.pipelines import records
from bert_keras.pipelines.engine import steps

_LEVEL = 4
"""gzip level: three times as fast as 6, for files 6 % larger."""


def write_shard(path: str | Path, lines: Iterable[bytes]) -> manifest.Shard:
    """Writes documents, each a line of JSON: the same lines give the same bytes."""
    return records.write_hashed(path, (line + b"\n" for line in lines), level=_LEVEL)


def check_paths(arguments: Mapping[str, Any]) -> None:
    """Checks that workers see the corpus and the output of a job with an engine."""
    output = arguments.get("output_dir", arguments.get("output_path"))
    arguments["engine"].check_paths(arguments["corpus_dir"], output)


def open_corpus(directory: str | Path) -> manifest.Manifest:
    """Reads the manifest of a finished corpus, and checks its shards."""
    corpus = manifest.read_manifest(directory, kind="documents")
    manifest.verify_shards(directory, corpus)
    return corpus


def shard_items(directory: str | Path, corpus: manifest.Manifest) -> list[steps.Item]:
    """Returns the items of a job that reads a corpus: (path, bytes) of each shard."""
    return [
        steps.Item((files.join(directory, one.name), one.num_bytes), one.num_bytes)
        for one in corpus.shards
    ]


def read_shard(path: str | Path) -> Iterator[dict[str, Any]]:
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
                yield document
    except InputError:
        raise
    except (FileNotFoundError, gzip.BadGzipFile, EOFError, zlib.error, ValueError) as e:
        raise InputError(
            f"{path}: line {line_number}: expected a document of `bert-keras corpus` "
            f"(JSON with id, source, paragraphs): {e}; recreate the corpus"
        ) from None


def read_corpus(
    directory: str | Path, corpus: manifest.Manifest, *, title: str
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
