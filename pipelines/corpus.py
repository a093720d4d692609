"""Pipeline 1: dumps, books and JSON lines -> sentence-split documents.

One element is one document. Documents go to buckets by a hash of their id; a bucket is
sorted and written as one shard, so the bytes depend on the input alone.
"""

import glob
import hashlib
import json
import logging
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions

from bert_keras import manifest
from bert_keras.errors import InputError
from pipelines import documents, readers, runners, wikipedia

logger = logging.getLogger(__name__)

REJECTS_NAME = "rejects.jsonl"
_SUMMARY_NAME = ".summary.json"
_BYTES_PER_SHARD = 64_000_000
_MIN_SHARDS = 4
# Text in a compressed file, as a multiple of the file.
_EXPANSION = {b"BZ": 4, b"\x1f\x8b": 3}


@dataclass(frozen=True, kw_only=True)
class Input:
    """One file to read."""

    kind: str
    """`wikipedia`, `books` or `jsonl`."""
    path: str
    num_bytes: int
    text_bytes: int
    """About how much text that is, uncompressed."""


def build_corpus(
    output_dir: str,
    *,
    wikipedia: Sequence[str] = (),
    books: Sequence[str] = (),
    jsonl: Sequence[str] = (),
    max_bad_fraction: float = 0.01,
    options: PipelineOptions,
) -> manifest.Manifest:
    """Reads sources and writes documents, rejects and, last, the manifest.

    Args:
        output_dir: made here; one that holds anything else is refused.
        wikipedia: paths or patterns of MediaWiki dumps (`.xml`, `.xml.bz2`, `.xml.gz`).
        books: of plain-text books, one a file.
        jsonl: of files with `{"id": ..., "text": ...}` on each line; also `title` and
            `source`, if present. Paragraphs are divided by blank lines.
        max_bad_fraction: the share of items that may be unreadable.
        options: Beam's, from `runners.beam_options`.

    Raises:
        InputError: nothing to read, a file that is not what it should be, too many bad
            items, no document, or an output directory that is not ours.
    """
    _check_fraction(max_bad_fraction)
    inputs = find_inputs({"wikipedia": wikipedia, "books": books, "jsonl": jsonl})
    num_shards = _num_shards(inputs)
    settings = {
        "inputs": sorted([i.kind, Path(i.path).name, i.num_bytes] for i in inputs),
        "num_shards": num_shards,
    }
    manifest.claim_output_directory(output_dir, settings)
    counters = runners.run(
        lambda pipeline, heartbeat: _build(
            pipeline, heartbeat, inputs, output_dir, num_shards
        ),
        options=options,
        title="corpus",
        total=sum(item.num_bytes for item in inputs),
        unit="bytes",
    )
    summary = _take_summary(output_dir)
    _check(summary, counters, output_dir, max_bad_fraction)
    result = manifest.Manifest(
        kind="documents",
        shards=tuple(manifest.Shard(**shard) for shard in summary["shards"]),
        config=settings,
        counters=dict(sorted(counters.items())),
    )
    manifest.write_manifest(output_dir, result)
    _log(result)
    return result


def _check_fraction(max_bad_fraction: float) -> None:
    if not 0 <= max_bad_fraction <= 1:
        raise InputError(
            f"max_bad_fraction must be between 0 and 1, got {max_bad_fraction}"
        )


def find_inputs(patterns: dict[str, Sequence[str]]) -> list[Input]:
    """Expands patterns into files, each once, and looks at how each begins.

    Raises:
        InputError: no pattern at all, one that matches nothing, or a file that cannot
            be what it is said to be.
    """
    if not any(patterns.values()):
        raise InputError(
            "nothing to read: give at least one of --wikipedia, --books and --jsonl"
        )
    inputs: dict[tuple[str, str], Input] = {}
    for kind, kind_patterns in patterns.items():
        for pattern in kind_patterns:
            # What the shell has expanded may hold a bracket of its own.
            exists = os.path.exists(pattern)
            paths = [pattern] if exists else glob.glob(pattern, recursive=True)
            if not paths:
                raise InputError(f"--{kind}: no file matches {pattern!r}")
            for path in paths:
                inputs.setdefault((kind, os.path.realpath(path)), _input(kind, path))
    return sorted(inputs.values(), key=lambda item: (item.kind, item.path))


def _input(kind: str, path: str) -> Input:
    try:
        with open(path, "rb") as file:
            expansion = _EXPANSION.get(file.read(2), 1)
        num_bytes = os.path.getsize(path)
        if kind == "wikipedia":
            wikipedia.check_dump(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return Input(
        kind=kind, path=path, num_bytes=num_bytes, text_bytes=num_bytes * expansion
    )


def _num_shards(inputs: Iterable[Input]) -> int:
    # By the input alone: on any number of workers the shards are the same.
    num_bytes = sum(item.text_bytes for item in inputs)
    return max(_MIN_SHARDS, math.ceil(num_bytes / _BYTES_PER_SHARD))


def _take_summary(output_dir: str) -> dict[str, Any]:
    """Reads what the pipeline reports to its driver, and takes it away."""
    path = Path(output_dir) / _SUMMARY_NAME
    summary = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return summary


def _check(
    summary: dict[str, Any],
    counters: dict[str, int],
    output_dir: str,
    max_bad_fraction: float,
) -> None:
    if summary["problems"]:
        first, *others = summary["problems"]
        raise InputError(first + (f" (and {len(others)} more)" if others else ""))
    num_read, num_bad = counters.get("items_read", 0), summary["num_rejects"]
    rejects_path = Path(output_dir) / REJECTS_NAME
    if num_read and num_bad / num_read > max_bad_fraction:
        raise InputError(
            f"{num_bad} of {num_read} items ({num_bad / num_read:.2%}) could not be "
            f"read, at most {max_bad_fraction:.2%} may be: see {rejects_path}; mend "
            "the input or raise --max_bad_fraction"
        )
    if not counters.get("documents"):
        raise InputError(
            f"no document in {num_read} items read: empty, redirects, other namespaces "
            f"or no running text ({_drops(counters) or 'no items'})"
        )


def _drops(counters: dict[str, int]) -> str:
    return ", ".join(
        f"{name.split('/')[1]} {count:,}"
        for name, count in sorted(counters.items())
        if name.startswith(("dropped/", "rejected/")) and count
    )


def _log(result: manifest.Manifest) -> None:
    counters = result.counters
    logger.info(
        "corpus: %s documents, %s sentences, %s words in %d shards",
        *(f"{counters[name]:,}" for name in ("documents", "sentences", "words")),
        len(result.shards),
    )
    if drops := _drops(counters):
        logger.info("corpus: dropped of %s read: %s", counters["items_read"], drops)


# The pipeline.


def _build(
    pipeline: beam.Pipeline,
    heartbeat: runners.Heartbeat,
    inputs: Sequence[Input],
    output_dir: str,
    num_shards: int,
) -> None:
    read = (
        pipeline
        | "Files" >> beam.Create(inputs)
        | "Spread" >> beam.Reshuffle()
        | "Read" >> beam.ParDo(_Read(heartbeat)).with_outputs("rejects", "problems")
    )
    # One mark for each bucket, so that every shard is written, an empty one too.
    marks = pipeline | "Shards" >> beam.Create([(n, None) for n in range(num_shards)])
    keyed = read[None] | "Bucket" >> beam.Map(_keyed, num_shards=num_shards)
    shards = (
        (keyed, marks)
        | "Both" >> beam.Flatten()
        | "Group" >> beam.GroupByKey()
        | "Write" >> beam.ParDo(_Write(output_dir, num_shards))
    )
    _ = (
        pipeline
        | "Once" >> beam.Create([output_dir])
        | "Summary"
        >> beam.Map(
            _write_summary,
            beam.pvalue.AsList(shards),
            beam.pvalue.AsList(read.rejects),
            beam.pvalue.AsList(read.problems),
        )
    )


def _keyed(record: readers.Record, num_shards: int) -> tuple[int, readers.Record]:
    digest = hashlib.blake2b(record.id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % num_shards, record


class _Count:
    """Adds to Beam counters by name."""

    def __call__(self, name: str, amount: int = 1) -> None:
        Metrics.counter("corpus", name).inc(amount)


class _Read(beam.DoFn):
    """File -> documents; bad items and unreadable files go to side outputs."""

    def __init__(self, heartbeat: runners.Heartbeat):
        self._heartbeat = heartbeat
        self._count = _Count()

    def process(self, item: Input) -> Iterator[Any]:
        read = readers.READERS[item.kind]
        try:
            for result in read(item.path, self._heartbeat.add, self._count):
                if isinstance(result, readers.Reject):
                    self._count(f"rejected/{result.reason.split(':')[0]}")
                    yield beam.pvalue.TaggedOutput("rejects", result)
                else:
                    yield result
        except InputError as error:
            yield beam.pvalue.TaggedOutput("problems", str(error))


class _Write(beam.DoFn):
    """All documents of a bucket -> one shard, sorted by id."""

    def __init__(self, output_dir: str, num_shards: int):
        self._output_dir = output_dir
        self._num_shards = num_shards
        self._count = _Count()

    def process(
        self, bucket: tuple[int, Iterable[readers.Record | None]]
    ) -> Iterator[dict[str, Any]]:
        number, records = bucket
        kept, num_duplicates = newest(record for record in records if record)
        name = f"documents-{number:05d}-of-{self._num_shards:05d}.jsonl.gz"
        lines = (zlib.decompress(record.line) for record in kept)
        shard = documents.write_shard(Path(self._output_dir) / name, lines)
        yield shard.model_dump(mode="json")
        self._count("dropped/duplicate", num_duplicates)
        self._count("documents", len(kept))
        for record in kept:
            self._count(f"documents/{record.source}")
            self._count(f"words/{record.source}", record.num_words)
            self._count("words", record.num_words)
            self._count("sentences", record.num_sentences)


def newest(records: Iterable[readers.Record]) -> tuple[list[readers.Record], int]:
    """Keeps one record of each id: that of the greatest rank, then the first by text.

    Returns:
        The records in the order of their ids, and how many were left out.
    """
    kept: dict[str, readers.Record] = {}
    num_read = 0
    for record in records:
        num_read += 1
        other = kept.setdefault(record.id, record)
        if record.rank > other.rank or (
            record.rank == other.rank
            and zlib.decompress(record.line) < zlib.decompress(other.line)
        ):
            kept[record.id] = record
    return [kept[key] for key in sorted(kept)], num_read - len(kept)


def _write_summary(
    output_dir: str,
    shards: list[dict[str, Any]],
    rejects: list[readers.Reject],
    problems: list[str],
) -> None:
    lines = [json.dumps(r._asdict(), ensure_ascii=False) for r in sorted(rejects)]
    manifest.write_atomically(
        Path(output_dir) / REJECTS_NAME, "".join(f"{x}\n" for x in lines).encode()
    )
    summary = {
        "shards": sorted(shards, key=lambda shard: shard["name"]),
        "num_rejects": len(rejects),
        "problems": sorted(problems),
    }
    manifest.write_atomically(
        Path(output_dir) / _SUMMARY_NAME, json.dumps(summary).encode()
    )
