"""Pipeline 3: documents and a vocabulary to masked TFRecords.

Documents are tokenised where they are read and travel once, as packed ids, to the
bucket that a hash of their id names. One bucket becomes one shard, made by one call:
pairs, masks, order and bytes. So the same corpus, configuration and number of shards
give the same bytes on any runner with any number of workers.
"""

import functools
import hashlib
import json
import logging
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from bert_keras import features, manifest, tokenization
from bert_keras.config import ExamplesConfig
from bert_keras.errors import InputError
from pipelines import documents, instances, masking, records, runners

logger = logging.getLogger(__name__)

DOCUMENTS_PER_SHARD = 500
"""Random next sentences come from the same shard: enough other documents for them."""

LONG_DOCUMENTS_PER_SHARD = 20
BYTES_PER_SHARD = 2_500_000
"""Books are few but long: a shard of them has fewer documents, and about a million
words (compressed bytes of documents)."""

MAX_DEFAULT_SHARDS = 1024


PackedDocument = tuple[str, str, bytes, bytes]
"""A document as it travels: id, source, token ids, sentence ends."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the workers are told."""

    vocab_path: str
    output_dir: str
    config: ExamplesConfig
    do_lower_case: bool
    num_shards: int


def build_examples(
    corpus_dir: str | Path,
    vocab_path: str | Path,
    output_dir: str | Path,
    *,
    config: ExamplesConfig,
    do_lower_case: bool,
    num_shards: int | None,
    options: PipelineOptions,
) -> manifest.Manifest:
    """Makes `examples-00017-of-01024.tfrecord` and a manifest from documents.

    A bucket to which no document falls has no file, so numbers may be missing.

    Args:
        corpus_dir: made by `corpus`.
        vocab_path: one WordPiece a line; copied into `output_dir`.
        output_dir: made here; must be new, or left unfinished by the same command.
        num_shards: buckets; `None`: see `default_num_shards`. Part of what decides the
            bytes.

    Raises:
        InputError: an unfinished or changed corpus, a bad vocabulary or one of the
            other casing, an output directory of another run, no example made.
    """
    if num_shards is not None and num_shards < 1:
        raise InputError(f"--num_shards must be at least 1, got {num_shards}")
    vocabulary = _load_vocabulary(vocab_path, do_lower_case)
    corpus = _read_corpus(corpus_dir)
    output_dir = Path(output_dir)
    job = Job(
        vocab_path=str(output_dir / records.VOCABULARY_NAME),
        output_dir=str(output_dir),
        config=config,
        do_lower_case=do_lower_case,
        num_shards=num_shards or default_num_shards(corpus),
    )
    settings = _settings(job, corpus, vocabulary)
    manifest.claim_output_directory(output_dir, settings)
    vocabulary.save(job.vocab_path)
    shards, counters = _run_pipeline(corpus_dir, corpus, job, options)
    if not shards:
        raise _no_examples(corpus_dir, corpus)
    finished = manifest.Manifest(
        kind="examples",
        shards=shards,
        config=settings,
        vocab_sha256=vocabulary.sha256,
        vocab_size=len(vocabulary),
        counters=counters,
    )
    manifest.write_manifest(output_dir, finished)
    _log_summary(finished)
    return finished


def default_num_shards(corpus: manifest.Manifest) -> int:
    """How many shards for a corpus; depends on nothing else."""
    num_documents = corpus.num_records
    num_bytes = sum(shard.num_bytes for shard in corpus.shards)
    by_length = min(
        num_documents // LONG_DOCUMENTS_PER_SHARD, num_bytes // BYTES_PER_SHARD
    )
    wanted = max(1, num_documents // DOCUMENTS_PER_SHARD, by_length)
    return min(wanted, MAX_DEFAULT_SHARDS)


def _read_corpus(corpus_dir: str | Path) -> manifest.Manifest:
    corpus = manifest.read_manifest(
        corpus_dir, kind="documents", verb="bert-keras corpus"
    )
    manifest.verify_shards(corpus_dir, corpus)
    return corpus


def _no_examples(corpus_dir: str | Path, corpus: manifest.Manifest) -> InputError:
    return InputError(
        f"{corpus_dir}: no example could be made from {corpus.num_records} documents: "
        "expected at least two documents, or one with two sentences; give more text to "
        "`bert-keras corpus`"
    )


def _load_vocabulary(
    vocab_path: str | Path, do_lower_case: bool
) -> tokenization.Vocabulary:
    vocabulary = tokenization.Vocabulary.load(vocab_path)
    try:
        tokenization.check_casing(vocabulary, do_lower_case)
    except InputError as error:
        raise InputError(f"{vocab_path}: {error}") from None
    return vocabulary


def _settings(
    job: Job, corpus: manifest.Manifest, vocabulary: tokenization.Vocabulary
) -> dict[str, Any]:
    """Everything that decides the bytes."""
    digests = "".join(f"{shard.sha256}\n" for shard in corpus.shards)
    return {
        **job.config.model_dump(mode="json"),
        "max_predictions_per_seq": job.config.num_predictions,
        "do_lower_case": job.do_lower_case,
        "num_shards": job.num_shards,
        "corpus_sha256": hashlib.sha256(digests.encode()).hexdigest(),
        "vocab_sha256": vocabulary.sha256,
        # Which characters are letters or marks changes with Python's Unicode tables.
        "unicode_version": unicodedata.unidata_version,
    }


def _run_pipeline(
    corpus_dir: str | Path,
    corpus: manifest.Manifest,
    job: Job,
    options: PipelineOptions,
) -> tuple[tuple[manifest.Shard, ...], dict[str, int]]:
    """Runs to the end; returns the shards by name, and the counters."""
    shard_list = Path(job.output_dir) / ".shards.json"
    paths = [str(Path(corpus_dir) / shard.name) for shard in corpus.shards]

    def build(pipeline: beam.Pipeline, heartbeat: runners.Heartbeat) -> None:
        _ = (
            pipeline
            | "DocumentShards" >> beam.Create(paths)
            | "TokenizeDocuments" >> beam.ParDo(TokenizeDocuments(job, heartbeat))
            | "GroupByBucket" >> beam.GroupByKey()
            | "WriteShards" >> beam.ParDo(WriteShard(job, heartbeat))
            | "ListShards" >> beam.combiners.ToList()
            | "SaveList" >> beam.Map(_save_shard_list, str(shard_list))
        )

    try:
        counters = runners.run(
            build,
            options=options,
            title="examples",
            # Every document is tokenised once and written `dupe_factor` times.
            total=corpus.num_records * (1 + job.config.num_duplicates),
            unit="passes over documents",
        )
        found = json.loads(shard_list.read_bytes())
    finally:
        shard_list.unlink(missing_ok=True)
        for leftover in Path(job.output_dir).glob(".examples-*.tmp"):
            leftover.unlink(missing_ok=True)
    return tuple(manifest.Shard(**shard) for shard in found), counters


def _save_shard_list(shards: list[dict[str, Any]], path: str) -> None:
    shards = sorted(shards, key=lambda shard: shard["name"])
    manifest.write_atomically(path, json.dumps(shards).encode())


# What a worker does.


class TokenizeDocuments(beam.DoFn):
    """Path of a documents shard -> (bucket, packed document) for each document."""

    def __init__(self, job: Job, heartbeat: runners.Heartbeat):
        self._job = job
        self._heartbeat = heartbeat

    def setup(self) -> None:
        vocabulary = tokenization.Vocabulary.load(self._job.vocab_path)
        self._tokenizer = tokenization.Tokenizer(
            vocabulary, do_lower_case=self._job.do_lower_case
        )

    def process(self, path: str) -> Iterator[tuple[int, PackedDocument]]:
        counts: Counter[str] = Counter()
        for record in documents.read_shard(path):
            document = tokenize_document(record, self._tokenizer, counts)
            self._heartbeat.add(1)
            if document.sentence_ends:
                bucket = instances.bucket_of(document.id, self._job.num_shards)
                yield bucket, _pack(document)
        _count(counts)


class WriteShard(beam.DoFn):
    """(bucket, its packed documents) -> what the manifest says of the shard, if any."""

    def __init__(self, job: Job, heartbeat: runners.Heartbeat):
        self._job = job
        self._heartbeat = heartbeat

    def setup(self) -> None:
        vocabulary = tokenization.Vocabulary.load(self._job.vocab_path)
        self._vocabulary = masking_vocabulary(vocabulary)

    def process(
        self, element: tuple[int, Iterable[PackedDocument]]
    ) -> Iterator[dict[str, Any]]:
        bucket, packed = element
        config, vocabulary = self._job.config, self._vocabulary
        arrived = [_unpack(document, vocab_size=vocabulary.size) for document in packed]
        kept = instances.unique_documents(arrived)
        counts = Counter(duplicate_documents=len(arrived) - len(kept))
        pairs = instances.make_bucket_pairs(kept, config=config, counts=counts)
        if pairs:
            made = instances.make_instances(
                kept,
                pairs,
                bucket=bucket,
                config=config,
                vocabulary=vocabulary,
                counts=counts,
            )
            num_passes = len(arrived) * config.num_duplicates
            made = self._advance(made, len(pairs), num_passes=num_passes)
            encoder = InstanceEncoder(config)
            name = f"examples-{bucket:05d}-of-{self._job.num_shards:05d}.tfrecord"
            path = Path(self._job.output_dir) / name
            shard = records.write_shard(path, map(encoder.encode, made))
            yield shard.model_dump(mode="json")
        _count(counts)

    def _advance(
        self, made: Iterable[instances.Instance], num_made: int, *, num_passes: int
    ) -> Iterator[instances.Instance]:
        """Passes instances on and moves the progress as they are written."""
        reported = 0
        for number, instance in enumerate(made, start=1):
            yield instance
            due = num_passes * number // num_made
            if due > reported:
                self._heartbeat.add(due - reported)
                reported = due


def _pack(document: instances.Document) -> PackedDocument:
    return (
        document.id,
        document.source,
        bytes(document.token_ids),
        bytes(document.sentence_ends),
    )


def _unpack(packed: PackedDocument, *, vocab_size: int) -> instances.Document:
    document_id, source, token_ids, sentence_ends = packed
    return instances.Document(
        id=document_id,
        source=source,
        token_ids=memoryview(token_ids).cast(_typecode(vocab_size)),
        sentence_ends=memoryview(sentence_ends).cast("I"),
    )


def _typecode(vocab_size: int) -> str:
    """Of the smallest array that holds every id: 2 bytes for most vocabularies."""
    return "H" if vocab_size <= 1 << 16 else "I"


def _count(counts: Counter[str]) -> None:
    for name, value in counts.items():
        beam.metrics.Metrics.counter("examples", name).inc(value)


def tokenize_document(
    record: dict[str, Any], tokenizer: tokenization.Tokenizer, counts: Counter[str]
) -> instances.Document:
    """Text to ids; a sentence without any token is left out.

    `counts` is raised in place: `documents`, `sentences`, `tokens`, `unknown_tokens`,
    `empty_documents`.
    """
    unk_id = tokenizer.vocabulary.unk_id
    token_ids: list[int] = []
    sentence_ends: list[int] = []
    for paragraph in record["paragraphs"]:
        for sentence in paragraph:
            ids = tokenizer.encode(sentence)
            if ids:
                token_ids += ids
                sentence_ends.append(len(token_ids))
    counts["documents"] += 1
    counts["sentences"] += len(sentence_ends)
    counts["tokens"] += len(token_ids)
    counts["unknown_tokens"] += token_ids.count(unk_id)
    counts["empty_documents"] += not sentence_ends
    return instances.Document(
        id=record["id"],
        source=record["source"],
        token_ids=array(_typecode(len(tokenizer.vocabulary)), token_ids),
        sentence_ends=array("I", sentence_ends),
    )


def masking_vocabulary(
    vocabulary: tokenization.Vocabulary,
) -> masking.MaskingVocabulary:
    """The part of a vocabulary that masking needs."""
    prefix = tokenization.CONTINUATION_PREFIX
    return masking.MaskingVocabulary(
        size=len(vocabulary),
        cls_id=vocabulary.cls_id,
        sep_id=vocabulary.sep_id,
        mask_id=vocabulary.mask_id,
        is_continuation=[token.startswith(prefix) for token in vocabulary.tokens],
    )


# What is written.


class InstanceEncoder:
    """Pads instances and serialises them, with the names that `features` states."""

    def __init__(self, config: ExamplesConfig):
        self._num_tokens = config.max_seq_length
        self._num_predictions = config.num_predictions
        self._names = [
            feature.name
            for feature in features.pretraining_features(
                self._num_tokens, self._num_predictions
            )
        ]

    def encode(self, instance: instances.Instance) -> bytes:
        """One serialised `tf.train.Example`."""
        input_ids, positions, labels = instance.masked
        length, num_masked = len(input_ids), len(positions)
        no_tokens = [0] * (self._num_tokens - length)
        no_predictions = [0] * (self._num_predictions - num_masked)
        values = (
            records.int64_feature(input_ids + no_tokens),
            _ones_feature(0, length, self._num_tokens),
            _ones_feature(instance.first_segment_length, length, self._num_tokens),
            records.int64_feature(positions + no_predictions),
            records.int64_feature(labels + no_predictions),
            _weights_feature(num_masked, self._num_predictions),
            records.int64_feature([instance.is_random_next]),
        )
        return records.encode_example(dict(zip(self._names, values, strict=True)))


# Few different ones are written again and again.


@functools.lru_cache(maxsize=10_000)
def _ones_feature(start: int, end: int, length: int) -> bytes:
    """`length` numbers, 1 from `start` to `end`, 0 elsewhere."""
    return records.int64_feature([start <= i < end for i in range(length)])


@functools.lru_cache(maxsize=1_000)
def _weights_feature(num_masked: int, length: int) -> bytes:
    return records.float_feature([float(i < num_masked) for i in range(length)])


def _log_summary(made: manifest.Manifest) -> None:
    counts = Counter(made.counters)
    num_examples = counts["examples"]
    capacity = num_examples * made.config["max_seq_length"]
    logger.info(
        "examples: %s from %s documents, in %s files; %s tokens, %.1f %% padding; "
        "B is random in %.1f %%; %.2f %% of the corpus's pieces are [UNK]",
        f"{num_examples:,}",
        f"{counts['documents']:,}",
        f"{len(made.shards):,}",
        f"{counts['example_tokens']:,}",
        100 * (1 - counts["example_tokens"] / capacity),
        100 * counts["random_next_examples"] / num_examples,
        100 * counts["unknown_tokens"] / counts["tokens"],
    )
    if counts["duplicate_documents"]:
        logger.warning(
            "%s documents left out: another one has the same id",
            f"{counts['duplicate_documents']:,}",
        )
    if counts["pairs_without_partner"]:
        logger.warning(
            "%s examples come from documents alone in their shard, so their B is never "
            "random: use fewer --num_shards or more documents",
            f"{counts['pairs_without_partner']:,}",
        )
