"""Pipeline 3: documents and a vocabulary -> masked TFRecords.

Documents are tokenised where they are read and travel once, as packed ids, to the
bucket that a hash of their id names. One call makes a bucket into a shard: pairs,
masks, order and bytes. So the same corpus, configuration and number of shards give the
same bytes on any runner with any number of workers.
"""

import functools
import hashlib
import itertools
import logging
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bert_keras.core import files, manifest, ownership
from bert_keras.core.errors import InputError
from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import batch_tokenizer, corpora, tokenization
from bert_keras.pipelines import buckets, instances, records
from bert_keras.pipelines.engine import steps

logger = logging.getLogger(__name__)

DOCUMENTS_PER_SHARD = 500
"""Random next sentences come from the same shard: these are enough to choose from."""

MIN_SHARDS = 20
"""Training keeps the last shard for evaluation: no more than a twentieth."""
MIN_DOCUMENTS_PER_SHARD = 5
"""Fewer are hardly a choice: of 20 documents in 20 shards, 8 would be alone."""

LONG_DOCUMENTS_PER_SHARD = 20
BYTES_PER_SHARD = 2_500_000
"""Compressed bytes, about a million words: a shard of books, few but long, holds fewer
documents."""

MAX_DEFAULT_SHARDS = 1024

RARE = 10
"""Documents of a source for each shard: with fewer, some are alone in their shard."""

MUCH_RANDOM = 65
"""Percent of examples with a random B above which a warning says so: the original's
are 50, more where documents are short."""
FEW = 4
"""Documents of a source, two in each of two shards, one of them for evaluation: the
documents of a source with fewer are cut into parts."""
SENTENCES_PER_PART = 100
"""Smallest number of sentences of a part."""

_DOCUMENTS = "documents"


@dataclass(frozen=True, kw_only=True)
class ExamplesJob:
    output_dir: str
    config: ExamplesConfig
    do_lower_case: bool
    num_shards: int
    num_parts: Mapping[str, int] = field(default_factory=dict)
    """Parts of the documents that are cut, by id."""
    moves: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Moves from bucket to bucket, by source, from `instances.join_lone`."""

    @property
    def vocab_path(self) -> str:
        return files.join(self.output_dir, records.VOCABULARY_NAME)


@ownership.owns("output_dir")
def build_examples(
    corpus_dir: files.Path,
    vocab_path: files.Path,
    output_dir: files.Path,
    *,
    config: ExamplesConfig,
    do_lower_case: bool,
    num_shards: int | None,
    engine: steps.Engine,
) -> manifest.Manifest:
    """Makes `examples-00017-of-01024.tfrecord` and a manifest from documents.

    An empty bucket has no file, so shard numbers may be missing. The `output_dir` is
    new, or left by the same command, which then resumes. The bytes depend on
    `num_shards`; `None` stands for `default_num_shards`.
    """
    if num_shards is not None and num_shards < 1:
        raise InputError(f"--num_shards must be at least 1, got {num_shards}")
    vocabulary = tokenization.Vocabulary.load(vocab_path, do_lower_case=do_lower_case)
    corpus = corpora.open_corpus(corpus_dir)
    job = ExamplesJob(
        output_dir=str(output_dir),
        config=config,
        do_lower_case=do_lower_case,
        num_shards=num_shards or default_num_shards(corpus),
    )
    # 1. Everything that the bytes depend on.
    digests = "".join(f"{shard.sha256}\n" for shard in corpus.shards)
    settings = {
        **config.model_dump(mode="json"),
        "max_predictions_per_seq": config.num_predictions,
        "do_lower_case": do_lower_case,
        "num_shards": job.num_shards,
        "corpus_sha256": hashlib.sha256(digests.encode()).hexdigest(),
        "vocab_sha256": vocabulary.sha256,
        # Python's Unicode tables decide which characters are letters or marks.
        "unicode_version": unicodedata.unidata_version,
    }
    if manifest.claim_output_directory(output_dir, settings):
        return manifest.read_manifest(output_dir, kind="examples")
    # 2. The shards, where no document is alone among those of other sources.
    job = _place_rare(job, corpus_dir, corpus)
    # Workers read this copy: the file given may be on this machine alone.
    vocabulary.save(job.vocab_path)
    results = engine.run(
        steps.Job(
            title="examples",
            items=steps.items_of_corpus(corpus_dir, corpus),
            steps=(_Tokenize, _Write),
            settings=job,
            shuffles={_DOCUMENTS: job.num_shards},
            work_dir=files.join(job.output_dir, manifest.WORK_NAME),
        )
    )
    shards = steps.shards_of(results)
    if not shards:
        raise InputError(
            f"{corpus_dir}: no example could be made from {corpus.num_records} "
            "documents: expected at least two documents, or one with two sentences "
            "(with next_sentence=balanced, two documents of several sentences in a "
            "shard; with max_sentence_length, a sentence that is no longer); give more "
            "text to `bert-keras corpus`"
        )
    # 3. The manifest, last.
    finished = manifest.Manifest(
        kind="examples",
        shards=shards,
        config={**settings, "corpus": {"counters": corpus.counters}},
        vocab_sha256=vocabulary.sha256,
        vocab_size=len(vocabulary),
        counters=steps.sum_counters(results),
    )
    manifest.finish_output_directory(output_dir, finished)
    _log_summary(finished, corpus, output_dir)
    return finished


def default_num_shards(corpus: manifest.Manifest) -> int:
    """Returns the number of shards, which depends on the corpus alone. The number is at
    least `MIN_SHARDS` if the shards have enough documents then."""
    num_documents = corpus.num_records
    num_bytes = sum(shard.num_bytes for shard in corpus.shards)
    by_length = min(
        num_documents // LONG_DOCUMENTS_PER_SHARD, num_bytes // BYTES_PER_SHARD
    )
    least = min(MIN_SHARDS, max(1, num_documents // MIN_DOCUMENTS_PER_SHARD))
    number = max(least, num_documents // DOCUMENTS_PER_SHARD, by_length)
    return min(number, MAX_DEFAULT_SHARDS)


def _place_rare(
    job: ExamplesJob, corpus_dir: files.Path, corpus: manifest.Manifest
) -> ExamplesJob:
    """Places the documents of rare sources so that none is alone in its shard.

    The places depend on the corpus and the number of shards alone, so that examples of
    every length have the same documents in a shard. The corpus is read only if a source
    has few documents for so many shards.
    """
    # 1. The sentences of each document of these sources, by source and id.
    sizes: dict[str, dict[str, int]] = {
        name.removeprefix("documents/"): {}
        for name, number in corpus.counters.items()
        if name.startswith("documents/") and number < RARE * job.num_shards
    }
    if not sizes or job.num_shards == 1:
        return job
    title = "examples: find rare sources"
    for document in corpora.read_corpus(corpus_dir, corpus, title=title):
        source = instances.source_name(document["source"])
        if source in sizes:
            sizes[source][document["id"]] = sum(map(len, document["paragraphs"]))
    # 2. The parts of long ones, and another shard for lone ones.
    num_parts: dict[str, int] = {}
    moves: dict[str, dict[int, int]] = {}
    for source, num_sentences in sizes.items():
        ids = []
        for key, number in num_sentences.items():
            # Two for each shard, on average: a random B of one comes from the other.
            parts = min(number // SENTENCES_PER_PART, 2 * job.num_shards)
            if len(num_sentences) < FEW and parts > 1:
                num_parts[key] = parts
                ids += [instances.part_id(key, part) for part in range(parts)]
            else:
                ids.append(key)
        counts = Counter(instances.bucket_of(key, job.num_shards) for key in ids)
        moves[source] = instances.join_lone(counts)
    if num_parts:
        logger.info(
            f"examples: {len(num_parts):,} documents, of sources that have fewer than "
            f"{FEW}, are cut into {sum(num_parts.values()):,} parts, which count as "
            "documents"
        )
    joined = [f"{len(of):,} of {source}" for source, of in moves.items() if of]
    if joined:
        logger.info(
            "examples: documents that would be the only one of their source in one of "
            f"{job.num_shards:,} shards go to another shard: {', '.join(joined[:5])}"
            f"{', ...' if joined[5:] else ''}"
        )
    return replace(job, num_parts=num_parts, moves=moves)


# In a worker.


class _Tokenize(steps.Step):
    """A shard of documents -> each document packed, by bucket."""

    writes = (_DOCUMENTS,)

    @functools.cached_property
    def _tokenizer(self) -> batch_tokenizer.BatchTokenizer:
        vocabulary = tokenization.Vocabulary.load(self._job.vocab_path)
        lower = self._job.do_lower_case
        tokenizer = tokenization.Tokenizer(vocabulary, do_lower_case=lower)
        return batch_tokenizer.BatchTokenizer(tokenizer)

    def process(self, shard: tuple[str, int]) -> Iterator[Any]:
        path, num_bytes = shard
        counts: Counter[str] = Counter()
        read = corpora.read_shard(path)
        for document in buckets.tokenize_documents(read, self._tokenizer, counts):
            parts = [document]
            if num_parts := self._job.num_parts.get(document.id):
                parts = instances.parts_of(document, num_parts)
            moves = self._job.moves.get(document.source, {})
            for part in parts:
                if part.sentence_ends:
                    bucket = instances.bucket_of(part.id, self._job.num_shards)
                    bucket = moves.get(bucket, bucket)
                    yield steps.Send(_DOCUMENTS, bucket, buckets.pack(part))
        self._heartbeat.add(num_bytes)
        yield steps.counted(counts)


class _Write(steps.Step):
    """The packed documents of a bucket -> its shard, if they give any example."""

    reads = (_DOCUMENTS,)

    def __init__(self, job: ExamplesJob, heartbeat: steps.Heartbeat):
        super().__init__(job, heartbeat)
        # The packed documents twice, and the spans of their examples.
        self.memory_per_byte = 5 + 1.3 * job.config.num_duplicates

    @functools.cached_property
    def _vocabulary(self) -> tokenization.Vocabulary:
        return tokenization.Vocabulary.load(self._job.vocab_path)

    def process(self, element: tuple[int, Any]) -> Iterator[dict[str, Any]]:
        bucket, groups = element
        config, vocabulary = self._job.config, self._vocabulary
        counts: Counter[str] = Counter()
        examples = buckets.encode_bucket(
            (buckets.unpack(d, vocab_size=len(vocabulary)) for d in groups[_DOCUMENTS]),
            bucket=bucket,
            config=config,
            vocabulary=vocabulary,
            counts=counts,
        )
        first = next(examples, None)
        if first is None:
            yield steps.counted(counts)
            return
        suffix = ".gz" if config.compression == "gzip" else ""
        number = f"{bucket:05d}-of-{self._job.num_shards:05d}"
        shard = records.write_shard(
            files.join(self._job.output_dir, f"examples-{number}.tfrecord{suffix}"),
            itertools.chain([first], examples),
            compression=config.compression,
        )
        yield steps.counted(counts, shard=shard.model_dump(mode="json"))


def _log_summary(
    finished: manifest.Manifest, corpus: manifest.Manifest, output_dir: files.Path
) -> None:
    counts, settings = Counter(finished.counters), finished.config
    num_examples, num_rows = counts["examples"], finished.num_records
    num_random = counts["random_next_examples"]
    num_tokens = counts["example_tokens"]
    padding = 1 - num_tokens / (num_rows * settings["max_seq_length"])
    random_percent = 100 * num_random / num_examples
    has_pairs = settings["packing"] == "sentence_pairs"
    rows = f" in {num_rows:,} rows" if settings["pack_instances"] else ""
    chance = f"B is random in {random_percent:.1f} %; " if has_pairs else ""
    logger.info(
        f"examples: {num_examples:,}{rows} from {counts['documents']:,} documents, in "
        f"{len(finished.shards):,} files of {output_dir}; {num_tokens:,} tokens, which "
        f"are WordPieces, [CLS] and [SEP]; {100 * padding:.1f} % of the positions are "
        f"padding; {chance}{100 * counts['unknown_tokens'] / counts['tokens']:.2f} % "
        "of the corpus's WordPieces are [UNK]"
    )
    if has_pairs and random_percent > MUCH_RANDOM:
        short = settings["short_seq_prob"] or 0.0
        reason = f" (short_seq_prob={short:g} leaves many sentences alone)"
        logger.warning(
            f"B is random in {random_percent:.0f} % of the examples, so the next "
            f"sentence is rare{reason if short else ''}: next_sentence=balanced leaves "
            "the surplus out"
        )
    if number := counts["duplicate_documents"]:
        logger.warning(f"{number:,} documents left out: another one has the same id")
    for name, reason in (
        ("empty_documents", "documents left out: no sentence of theirs has a token"),
        ("dropped_unbalanced_pairs", "pairs left out: next_sentence=balanced"),
        ("dropped_single_sentences", "sentences left out: alone in their shard"),
        ("dropped_long_sentences", "sentences left out: over max_sentence_length"),
    ):
        if counts[name]:
            logger.info(f"examples: {counts[name]:,} {reason}")
    if number := counts["pairs_without_partner"]:
        more = ", or a larger --num_shards (20), for which a long one is cut into parts"
        logger.warning(
            f"{number:,} examples come from documents that are alone in their shard, "
            "so their B is never random: give more documents"
            f"{more if settings['num_shards'] == 1 else ''}"
        )
    num_foreign = counts["other_source_partners"]
    if num_foreign and settings["partner"] == "same_source":
        single = [
            name.removeprefix("documents/")
            for name, number in corpus.counters.items()
            if name.startswith("documents/") and number == 1
        ]
        share = num_foreign / (num_random + counts["dropped_unbalanced_pairs"])
        where = f"(one document: {', '.join(single[:5])})" if single else "in the shard"
        logger.warning(
            f"{num_foreign:,} random next sentences ({100 * share:.1f} %) come from "
            "another source than the text before them, so the subject tells that they "
            f"are random: there is no other document of the source {where}; give more "
            "of it, or leave it out"
        )
