"""Pipeline 1: dumps, books and JSON lines -> sentence-split documents.

A hash of its id sends a document to a bucket, sorted and written as one shard, so the
bytes depend on the input alone. A second shuffle, of paragraph hashes, finds the
paragraphs that several documents share.
"""

import functools
import hashlib
import json
import logging
import math
import os
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_keras.core import files, manifest, ownership
from bert_keras.core.errors import InputError
from bert_keras.core.settings.pipelines import CorpusConfig
from bert_keras.pipelines import (
    document_records,
    duplicates,
    filters,
    instances,
    records,
)
from bert_keras.pipelines.engine import steps
from bert_keras.pipelines.sources import reading, source

logger = logging.getLogger(__name__)

REJECTS_NAME = "rejects.jsonl"
_BYTES_PER_SHARD = 16_000_000
_MIN_SHARDS = 4
_MAX_SHARDS = 1024
# Bytes of text for each byte of a compressed file.
_EXPANSION = {".bz2": 4, ".gz": 3, ".xz": 4, ".zst": 3}
# Bytes of text whose paragraph hashes, of 16 bytes each, go into one partition.
_BYTES_PER_PARTITION = 100_000_000

_MAX_SOURCES = 100
"""Sources that the counters name, of each shard and of all; the documents of the
smaller sources are counted together."""
_OTHER_SOURCES = "other sources"

_SHARED_ID = "dropped/id of another document"
_DOCUMENTS, _VERSIONS, _PARAGRAPHS = "documents", "versions", "paragraphs"
_MARKS, _KEEPERS = "marks", "keepers"

# Keys of the configuration, and an option, that say what is dropped.
_KEYS = {
    "overlap with evaluation data": "--exclude_overlap_with",
    "repeated": "deduplicate_paragraphs",
    "in another document": "deduplicate_paragraphs",
    "too short": "min_document_words",
    "too short without duplicates": "min_document_words",
    "list page": "drop_lists",
    "disambiguation page": "drop_lists",
}


@ownership.owns("output_dir")
def build_corpus(
    output_dir: str,
    *,
    sources: Mapping[str, Sequence[str]],
    config: CorpusConfig,
    exclude_overlap_with: Sequence[str] = (),
    max_bad_fraction: float = 0.01,
    allow_cut_dumps: bool = False,
    encoding: Sequence[str] = (),
    engine: steps.Engine,
) -> manifest.Manifest:
    """Reads sources and writes documents, rejects and, last, the manifest.

    An empty bucket has no file, so shard numbers may be missing. The `output_dir` is
    new, or left by the same command, which then resumes.

    Args:
        sources: paths or patterns by kind: `wikipedia` (MediaWiki dumps), `books`
            (plain text, one or many in a file), `sentences` (a sentence on each line; a
            blank line or a new file begins a document), `jsonl` (lines of `{"id": ...,
            "text": ...}`, optionally `title` and `source`; blank lines in the text, or
            all of its lines, divide paragraphs).
        exclude_overlap_with: evaluation files; documents with their lines are left out.
        max_bad_fraction: largest share of items that may be unreadable, and of
            documents that may have the id of another document with other text.
        allow_cut_dumps: read dumps without `</mediawiki>` at their end.
        encoding: `NAME`, `PATTERN=NAME`, or `auto` for the likeliest, of books and
            sentences that are not UTF-8 and do not state their encoding.
    """
    if not 0 <= max_bad_fraction <= 1:
        raise InputError(f"max_bad_fraction: expected 0 to 1, got {max_bad_fraction}")
    # 1. The inputs. Their sizes alone decide on the number of shards, so any number of
    # workers gives the same shards.
    inputs = reading.find_inputs(
        sources, allow_cut_dumps=allow_cut_dumps, encoding=encoding
    )
    excluded = filters.read_evaluation_files(exclude_overlap_with)
    num_bytes = sum(
        item.num_bytes * _EXPANSION.get(os.path.splitext(item.path)[1], 1)
        for item in inputs
    )
    num_shards = max(_MIN_SHARDS, math.ceil(num_bytes / _BYTES_PER_SHARD))
    job = CorpusJob(
        output_dir=str(output_dir),
        config=config,
        overlap_sha256=filters.Overlap(excluded).sha256 if excluded else None,
        allow_cut_dumps=allow_cut_dumps,
        num_shards=min(num_shards, _MAX_SHARDS),
        num_partitions=min(math.ceil(num_bytes / _BYTES_PER_PARTITION), _MAX_SHARDS),
    )
    # 2. The output directory, unless the same command has finished it.
    settings = {
        # By name and size, not by directory: the files may be moved between two runs.
        "inputs": sorted([i.kind, files.name_of(i.path), i.num_bytes] for i in inputs),
        "num_shards": job.num_shards,
        **config.model_dump(mode="json"),
        "exclude_overlap_sha256": job.overlap_sha256,
    }
    named = sorted([files.name_of(i.path), *i.encoding] for i in inputs if i.encoding)
    settings |= {"encodings": named} if named else {}
    # Not in the manifest: the same text copied elsewhere gives the same manifest.
    states = {"input": reading.fingerprints(inputs)}
    problem = "begun with another --encoding; choose another directory or delete it"
    if manifest.claim_output_directory(
        output_dir, settings | states, in_words={"encodings": problem}.get
    ):
        return manifest.read_manifest(output_dir, kind="documents")
    if excluded:
        files.make_directory(job.work_dir)
        with files.open_atomically(job.overlap_path) as file:
            lines = (f"{line}\n".encode("utf-8", "surrogatepass") for line in excluded)
            file.writelines(lines)
        excluded.clear()  # There may be many, and the job takes long.
    # 3. The documents.
    by_shard = (_DOCUMENTS, _VERSIONS, _MARKS, _KEEPERS)
    results = engine.run(
        steps.Job(
            title="corpus",
            items=[
                steps.Item(part, num_bytes=part.stop - part.start)
                for item in inputs
                for part in reading.split_input(item)
            ],
            steps=(_Read, _FindNewest, _FindDuplicates, _Write),
            settings=job,
            shuffles=dict.fromkeys(by_shard, job.num_shards)
            | {_PARAGRAPHS: job.num_partitions},
            work_dir=job.work_dir,
        )
    )
    # 4. The rejects, which may be too many; last, the manifest.
    counters = _name_largest(steps.sum_counters(results))
    # Sorted, since an engine returns its results in any order.
    rejects = sorted(
        source.Reject(*reject) for r in results for reject in r.get("rejects", ())
    )
    lines = [json.dumps(one._asdict(), ensure_ascii=False) + "\n" for one in rejects]
    # Before the check: its error sends people to this file.
    path = files.join(output_dir, REJECTS_NAME)
    files.write_atomically(path, "".join(lines).encode())
    shared_ids = [key for r in results for key in r.get("shared_ids", ())]
    _check(counters, rejects, shared_ids, job, max_bad_fraction)
    result = manifest.Manifest(
        kind="documents",
        shards=steps.shards_of(results),
        config=settings,
        counters=counters,
    )
    manifest.finish_output_directory(output_dir, result)
    _log(result, config)
    return result


@dataclass(frozen=True, kw_only=True)
class CorpusJob:
    output_dir: str
    config: CorpusConfig
    overlap_sha256: str | None
    """Hash of the evaluation lines to keep out. There may be many, so workers read
    them from `overlap_path` instead of the job's graph."""
    allow_cut_dumps: bool
    num_shards: int
    num_partitions: int

    @property
    def work_dir(self) -> str:
        return files.join(self.output_dir, manifest.WORK_NAME)

    @property
    def overlap_path(self) -> str:
        return files.join(self.work_dir, "overlap.txt")


def _name_largest(counters: Mapping[str, int]) -> dict[str, int]:
    """Returns counters that name only the sources with the most documents."""
    names = sorted(
        {name.partition("/")[2] for name in counters if name.startswith("documents/")}
        - {_OTHER_SOURCES},
        key=lambda name: (-counters[f"documents/{name}"], name),
    )
    named: Counter[str] = Counter(counters)
    for name in names[_MAX_SOURCES:]:
        for group in ("documents", "words"):
            named[f"{group}/{_OTHER_SOURCES}"] += named.pop(f"{group}/{name}")
    return dict(sorted(named.items()))


def _check(
    counters: Mapping[str, int],
    rejects: Sequence[source.Reject],
    shared_ids: Sequence[str],
    job: CorpusJob,
    max_bad_fraction: float,
) -> None:
    num_read = counters.get("items_read", 0)
    share = len(rejects) / max(num_read, 1)
    if num_read and share > max_bad_fraction:
        first = rejects[0]
        place = ": ".join(filter(None, [first.file, first.item]))
        raise InputError(
            f"{len(rejects)} of {num_read} items ({share:.2%}) could not be read, the "
            f"limit is {max_bad_fraction:.2%}: {place}: {first.reason}; all are in "
            f"{files.join(job.output_dir, REJECTS_NAME)}: mend the input, or get it "
            "again; to leave them out, raise --max_bad_fraction"
        )
    if not counters.get("documents"):
        raise InputError(
            f"no document in {num_read} items read: empty, redirects, other namespaces "
            "or too little running text "
            f"({_drops(counters, job.config) or 'no items'})"
        )
    num_lost = counters.get(_SHARED_ID, 0)
    share = num_lost / max(num_read, 1)
    if share > max_bad_fraction:
        raise InputError(
            f"{num_lost:,} documents ({share:.2%} of the items read) have the id of "
            f"another document with other text, such as {min(shared_ids)!r}; the limit "
            f"is {max_bad_fraction:.2%}: give each an 'id' of its own, for example "
            "with the name of its file; to keep only one for each id, raise "
            "--max_bad_fraction"
        )


def _drops(
    counters: Mapping[str, int],
    config: CorpusConfig,
    groups: Collection[str] = ("dropped", "rejected"),
) -> str:
    reasons = []
    for name, amount in sorted(counters.items()):
        group, _, reason = name.partition("/")
        if group in groups and amount:
            key = _KEYS.get(reason)
            if key in CorpusConfig.model_fields:
                key += f"={json.dumps(getattr(config, key))}"
            reasons.append(f"{reason}{f' ({key})' if key else ''} {amount:,}")
    return ", ".join(reasons)


def _log(result: manifest.Manifest, config: CorpusConfig) -> None:
    counters = result.counters
    names = ("documents", "sentences", "words")
    numbers = ", ".join(f"{counters[name]:,} {name}" for name in names)
    logger.info(f"corpus: {numbers} in {len(result.shards)} shards")
    codecs = ", ".join(
        f"{amount:,} in {name.removeprefix('encoding/')}"
        for name, amount in counters.items()
        if name.startswith("encoding/") and not name.startswith("encoding/utf-")
    )
    if codecs:
        logger.info("corpus: texts that are not UTF-8: %s", codecs)
    for name, amount in counters.items():
        if name.startswith("faults/"):
            share = amount / counters["items_read"]
            logger.warning(
                f"corpus: {name.removeprefix('faults/')} in {amount:,} texts of "
                f"--jsonl, {100 * share:.2f} % of the items read: they are kept as "
                "they are; clean the texts for a model that shall not learn them"
            )
    if drops := _drops(counters, config):
        logger.info("corpus: dropped of %s read: %s", counters["items_read"], drops)
    if drops := _drops(counters, config, ["dropped_paragraphs"]):
        logger.info("corpus: dropped paragraphs: %s", drops)


# In a worker.


class _Read(steps.Step):
    """Reads a range of a file: documents, and the hashes of their paragraphs."""

    writes = (_DOCUMENTS, _VERSIONS)

    @functools.cached_property
    def _overlap(self) -> filters.Overlap | None:
        if self._job.overlap_sha256 is None:
            return None
        with files.open_to_read(self._job.overlap_path) as file:
            lines = (line.decode("utf-8", "surrogatepass") for line in file)
            return filters.Overlap(line.rstrip("\n") for line in lines)

    def process(self, part: source.Range) -> Iterator[Any]:
        config = self._job.config
        counts: Counter[str] = Counter()
        rejects = []
        context = source.Context(
            drop_lists=config.drop_lists,
            allow_cut_dumps=self._job.allow_cut_dumps,
            advance=self._heartbeat.add,
            counts=counts,
        )
        for document in reading.read_range(part, context):
            if isinstance(document, source.Reject):
                counts[f"rejected/{document.reason.split(':')[0]}"] += 1
                rejects.append(document)
                continue
            record = document_records.without_repeats(
                document, config=config, overlap=self._overlap, counts=counts
            )
            if record is None:
                continue
            bucket = instances.bucket_of(record.id, self._job.num_shards)
            yield steps.Send(_DOCUMENTS, bucket, document_records.pack(record))
            if config.deduplicate_paragraphs:
                # Versions are told apart by a hash, in place of their text.
                digest = hashlib.blake2b(record.line, digest_size=16).digest()
                # Compressed like a text: `document_records.newest` unpacks lines of
                # equal rank.
                version = record._replace(line=zlib.compress(digest))
                yield steps.Send(_VERSIONS, bucket, document_records.pack(version))
        yield steps.counted(counts, rejects=rejects)


def _tagged(
    shuffle: str, rows: Iterable[Iterable[int]], num_keys: int
) -> Iterator[steps.Send]:
    for keyed in duplicates.partition(rows, num_keys).items():
        yield steps.Send(shuffle, *keyed)


class _FindNewest(steps.Step):
    """Versions of documents -> hashes of the newest of each, by paragraph. An older
    version must not keep a paragraph for others. If versions of the same rank have
    different texts, none counts, so all of their paragraphs stay."""

    reads, writes = (_VERSIONS,), (_PARAGRAPHS,)
    memory_per_byte = 8  # the words and the hash of a paragraph: about 160, packed 25

    def process(self, element: tuple[int, Any]) -> Iterator[steps.Send]:
        _, groups = element
        kept, _, shared_ids = document_records.newest(groups[_VERSIONS])
        different = frozenset(shared_ids)
        rows = (
            row
            for one in kept
            if one.id not in different
            for row in duplicates.rows_of(instances.document_hash(one.id), one.hashes)
        )
        yield from _tagged(_PARAGRAPHS, rows, self._job.num_partitions)


class _FindDuplicates(steps.Step):
    """Hashes of paragraphs -> the paragraphs that documents lose, by shard."""

    reads, writes = (_PARAGRAPHS,), (_MARKS, _KEEPERS)
    memory_per_byte = 8

    def process(self, element: tuple[int, Any]) -> Iterator[steps.Send]:
        _, groups = element
        marked, keeping = duplicates.find(groups[_PARAGRAPHS])
        yield from _tagged(_MARKS, marked, self._job.num_shards)
        yield from _tagged(_KEEPERS, keeping, self._job.num_shards)


class _Write(steps.Step):
    """All documents of a bucket -> one shard, sorted by id."""

    reads = (_DOCUMENTS, _MARKS, _KEEPERS)
    memory_per_byte = 3

    def process(self, element: tuple[int, Any]) -> Iterator[dict[str, Any]]:
        number, groups = element
        counts: Counter[str] = Counter()
        marks = duplicates.marks_by_document(groups[_MARKS])
        keepers = duplicates.marks_by_document(groups[_KEEPERS])
        kept, num_dropped, shared_ids = document_records.newest(groups[_DOCUMENTS])
        counts["dropped/duplicate"] += num_dropped - len(shared_ids)
        if shared_ids:
            counts[_SHARED_ID] = len(shared_ids)
        result: dict[str, Any] = {"shared_ids": sorted(shared_ids)[:1]}
        written = []
        for record in kept:
            document_hash = instances.document_hash(record.id)
            if marked := marks.get(document_hash):
                record = document_records.without_marked(
                    record,
                    marked,
                    keeps=document_hash in keepers,
                    config=self._job.config,
                    counts=counts,
                )
            if record is not None:
                written.append(record)
        del kept
        if written:
            name = f"documents-{number:05d}-of-{self._job.num_shards:05d}.jsonl.gz"
            path = files.join(self._job.output_dir, name)
            lines = (zlib.decompress(record.line) + b"\n" for record in written)
            # Three times as fast as level 6, for files 6 % larger.
            shard = records.write_hashed(path, lines, level=4)
            result["shard"] = shard.model_dump(mode="json")
        for record in written:
            name = instances.source_name(record.source)
            counts["sentences"] += record.num_sentences
            num_words = sum(size for size, _ in record.facts)
            for group, amount in (("documents", 1), ("words", num_words)):
                counts[group] += amount
                counts[f"{group}/{name}"] += amount
        yield steps.counted(_name_largest(counts), **result)
