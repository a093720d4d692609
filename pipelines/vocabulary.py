"""Pipeline 2: documents -> word counts -> WordPiece vocabulary.

Words are counted where documents are read, and travel as packed blocks to the partition
that a hash of the word names. A partition keeps its most frequent words in a file; the
driver merges these files up to the number of words that it learns from. So no process
holds all words of a text (a large one has tens of millions), and yet the words and
their counts are exact.
"""

import gzip
import hashlib
import heapq
import io
import itertools
import logging
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bert_keras.core import files, ownership
from bert_keras.core.errors import InputError
from bert_keras.data import corpora, tokenization
from bert_keras.pipelines import wordpiece
from bert_keras.pipelines.engine import steps

logger = logging.getLogger(__name__)

WORDS_PER_ENTRY = 10
"""Words that the learner sees for each entry, the most frequent ones. Ten times as many
make no visible difference, and its time grows with them."""

MAX_WORDS = 1_000_000
"""Words that the learner sees at most, whatever the size of the vocabulary."""

MAX_PARTITIONS = 256
BYTES_PER_PARTITION = 16_000_000
"""Compressed bytes of documents."""

_COUNTS = "counts"
_MAX_CHUNKS_IN_MEMORY = 1_000_000

WordCount = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class VocabularyJob:
    work_dir: str
    num_words: int
    """Words that a partition keeps."""
    num_partitions: int
    do_lower_case: bool

    def words_path(self, partition: int) -> str:
        return files.join(self.work_dir, f"words-{partition:05d}.bin")


@ownership.owns("output_path", is_file=True)
def build_vocabulary(
    corpus_dir: files.Path,
    output_path: files.Path,
    *,
    vocab_size: int,
    do_lower_case: bool,
    engine: steps.Engine,
) -> None:
    """Writes a vocabulary of exactly `vocab_size` entries, reserved ones included.

    The same documents give the same bytes on any engine; the order of entries is that
    of `wordpiece.assemble`. The file must be new or this command's. Until it is
    written, counts lie next to it, from which an interrupted command resumes.
    `do_lower_case` also strips accents.
    """
    corpus = corpora.open_corpus(corpus_dir)
    num_bytes = sum(shard.num_bytes for shard in corpus.shards)
    settings = [vocab_size, do_lower_case, *(shard.sha256 for shard in corpus.shards)]
    digest = hashlib.sha256(repr(settings).encode()).hexdigest()
    # Hidden beside the file, which people copy next to models.
    directory, name = os.path.split(str(output_path))
    inputs_path = files.join(directory, f".{name}.inputs.json")
    work_dir = files.join(directory, f".{name}.{digest[:12]}.job")
    if files.exists(output_path):
        inputs = files.read_json(inputs_path) if files.exists(inputs_path) else {}
        if inputs != {"inputs": digest, "sha256": files.sha256(output_path)}:
            raise InputError(
                f"{output_path}: exists already; choose another --output or delete it"
            )
        logger.info(
            f"{output_path}: finished already, with the same corpus and settings"
        )
        # A command that was killed at its end has left its counts.
        files.delete_tree(work_dir)
        return
    job = VocabularyJob(
        work_dir=work_dir,
        num_words=min(WORDS_PER_ENTRY * vocab_size, MAX_WORDS),
        num_partitions=min(MAX_PARTITIONS, 1 + num_bytes // BYTES_PER_PARTITION),
        do_lower_case=do_lower_case,
    )
    merged = engine.run(
        steps.Job(
            title="vocab",
            items=steps.items_of_corpus(corpus_dir, corpus),
            steps=(_Count, _Merge),
            settings=job,
            shuffles={_COUNTS: job.num_partitions},
            work_dir=job.work_dir,
        )
    )
    characters: Counter[str] = Counter()
    for result in merged:
        characters.update(result["characters"])
    # The most frequent words of all partitions contain those of the text.
    paths = [job.words_path(result["partition"]) for result in merged]
    by_partition = [unpack(files.read_bytes(path)) for path in paths]
    in_order = heapq.merge(*by_partition, key=wordpiece.rank)
    words = list(itertools.islice(in_order, job.num_words))
    try:
        if not words:
            raise InputError(f"{corpus_dir}: no words in it; give `corpus` more text")
        tokens = wordpiece.learn_vocabulary(
            words,
            character_counts=characters,
            vocab_size=vocab_size,
            do_lower_case=do_lower_case,
        )
    except InputError:
        # The next command will differ, and cannot use these counts.
        files.delete_tree(job.work_dir)
        raise
    # The inputs first: a vocabulary without them would be somebody else's.
    vocabulary = tokenization.Vocabulary(tuple(tokens))
    files.write_json(inputs_path, {"inputs": digest, "sha256": vocabulary.sha256})
    vocabulary.save(output_path)
    files.delete_tree(job.work_dir)
    num_different = sum(result["num_words"] for result in merged)
    logger.info(
        f"vocab: {len(tokens):,} entries in {output_path}, learnt from the "
        f"{len(words):,} most frequent of {num_different:,} different words"
    )


# In a worker.


class _Count(steps.Step):
    """A shard of documents -> blocks of words and counts, by partition."""

    writes = (_COUNTS,)

    def process(self, shard: tuple[str, int]) -> Iterator[Any]:
        path, num_bytes = shard
        # Distinct stretches between white space are few: splitting each of them only
        # once saves time.
        chunks: Counter[str] = Counter()
        for document in corpora.read_shard(path):
            sentences = itertools.chain.from_iterable(document["paragraphs"])
            chunks.update(tokenization.split_at_white_space(" ".join(sentences)))
            if len(chunks) >= _MAX_CHUNKS_IN_MEMORY:
                yield from self._send(chunks)
                chunks.clear()
        yield from self._send(chunks)
        self._heartbeat.add(num_bytes)

    def _send(self, chunks: Mapping[str, int]) -> Iterator[steps.Send]:
        """Yields the counts of the words in stretches, packed by partition."""
        words: defaultdict[str, int] = defaultdict(int)
        do_lower_case = self._job.do_lower_case
        for chunk, count in chunks.items():
            for word in tokenization.basic_tokenize(chunk, do_lower_case=do_lower_case):
                words[word] += count
        parts: defaultdict[int, list[WordCount]] = defaultdict(list)
        for item in words.items():
            # The same in every process, unlike `hash`: a word's counts have to meet.
            hashed = zlib.crc32(item[0].encode("utf-8", "surrogatepass"))
            parts[hashed % self._job.num_partitions].append(item)
        for number, part in parts.items():
            yield steps.Send(_COUNTS, number, pack(sorted(part)))


class _Merge(steps.Step):
    """All blocks of a partition -> a file of its most frequent words."""

    reads = (_COUNTS,)
    # Of a word in a table (characters, entry, count), for each byte that it takes
    # packed: about five in all, and most words arrive more than once.
    memory_per_byte = 30

    def process(
        self, element: tuple[int, Mapping[str, Iterable[bytes]]]
    ) -> Iterator[dict[str, Any]]:
        number, groups = element
        sums: defaultdict[str, int] = defaultdict(int)
        for block in groups[_COUNTS]:
            for word, count in unpack(block):
                sums[word] += count
        characters: defaultdict[str, int] = defaultdict(int)
        for word, count in sums.items():
            for char in word:
                characters[char] += count
        # By falling count, then by the word: a stable sort keeps equal counts in the
        # order of the words, without memory for keys, which would take more than the
        # counts themselves.
        words = sorted(sums)
        words.sort(key=sums.__getitem__, reverse=True)
        frequent = [(word, sums[word]) for word in words[: self._job.num_words]]
        files.write_atomically(self._job.words_path(number), pack(frequent))
        yield {"partition": number, "num_words": len(sums), "characters": characters}


def pack(items: Iterable[WordCount]) -> bytes:
    """Returns words without white space, and their counts, as compressed lines."""
    lines = "".join(f"{word} {count}\n" for word, count in items)
    return gzip.compress(lines.encode("utf-8", "surrogatepass"), 1, mtime=0)


def unpack(data: bytes) -> Iterator[WordCount]:
    """Yields words and counts; only some are in memory at a time."""
    with gzip.open(io.BytesIO(data), "rt", 1, "utf-8", "surrogatepass", "\n") as lines:
        for line in lines:
            word, count = line.split(" ")
            yield word, int(count)
