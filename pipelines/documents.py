"""Shards of documents: gzipped JSON lines."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bert_keras.core import files, manifest
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


def shard_items(directory: str | Path, corpus: manifest.Manifest) -> list[steps.Item]:
    """Returns the items of a job that reads a corpus: (path, bytes) of each shard."""
    return [
        steps.Item((files.join(directory, one.name), one.num_bytes), one.num_bytes)
        for one in corpus.shards
    ]
