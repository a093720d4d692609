"""Documents on their way to their shards: pure functions without Beam or files."""

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bert_keras.core.settings.pipelines import CorpusConfig
from bert_keras.pipelines import duplicates, filters, sentences
from bert_keras.pipelines.sources import source


class Record(NamedTuple):
    id: str
    rank: str
    """Among documents with the same id, the greatest rank wins."""
    source: str
    num_sentences: int
    num_words: int
    line: bytes
    """The document as a line of JSON, compressed."""


class Version(NamedTuple):
    """The paragraphs of a record, by their hashes alone."""

    id: str
    rank: str
    digest: str
    """Hash of the text."""
    hashes: bytes

    @classmethod
    def of(cls, record: Record, hashes: Iterable[int | None]) -> "Version":
        line = zlib.decompress(record.line)
        digest = hashlib.blake2b(line, digest_size=16).hexdigest()
        rows = duplicates.paragraph_block(0, hashes)
        return cls(record.id, record.rank, digest, rows[:, 0].tobytes())


def pack(values: Record | Version) -> bytes:
    """Packs values as a line of JSON, and the bytes that come last."""
    return json.dumps(values[:-1]).encode() + b"\n" + values[-1]


def unpack(data: bytes) -> list[Any]:
    head, _, content = data.partition(b"\n")
    return [*json.loads(head), content]


def without_repeats(
    document: source.SourceDocument,
    *,
    config: CorpusConfig,
    overlap: filters.Overlap | None,
    counts: Counter[str],
) -> tuple[Record, list[int | None]] | None:
    """Returns the record of a document and the hashes of its paragraphs.

    Paragraphs that repeat go if `config` says so; `None`: all of the document does.
    """
    paragraphs = document.paragraphs
    least = config.min_duplicate_words
    facts = [duplicates.words_and_hash(one, least) for one in paragraphs]
    if config.deduplicate_paragraphs:
        places = duplicates.kept_places([value for _, value in facts], ())
        if num_repeats := len(paragraphs) - len(places):
            counts["dropped_paragraphs/repeated"] += num_repeats
            paragraphs = [paragraphs[place] for place in places]
            facts = [facts[place] for place in places]
    num_words = sum(size for size, _ in facts)
    if num_words < config.min_document_words:
        counts["dropped/too short"] += 1
        return None
    if overlap is not None and overlap.find(map(duplicates.text_of, paragraphs)):
        counts["dropped/overlap with evaluation data"] += 1
        return None
    if not paragraphs:
        return None
    split = (
        sentences.split_sentences(one) if isinstance(one, str) else list(one)
        for one in paragraphs
    )
    content = {
        "id": document.id,
        "source": document.source,
        "title": document.title,
        "paragraphs": [paragraph for paragraph in split if paragraph],
    }
    record = make_record(content, rank=document.rank, num_words=num_words)
    return record, [value for _, value in facts]


def make_record(document: Mapping[str, Any], *, rank: str, num_words: int) -> Record:
    line = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return Record(
        id=document["id"],
        rank=rank,
        source=document["source"],
        num_sentences=sum(map(len, document["paragraphs"])),
        num_words=num_words,
        line=zlib.compress(line.encode("utf-8", "replace"), 1),
    )


def newest(records: Iterable[Record]) -> tuple[list[Record], int, list[str]]:
    """Keeps one record per id: the record of the greatest rank, then the first by text.

    Returns the records in the order of their ids, the number left out, and the ids left
    out although they have the rank of the record before them but other text.
    """
    kept: dict[str, Record] = {}
    num_read = 0
    shared_ids = []
    for record in records:
        num_read += 1
        other = kept.setdefault(record.id, record)
        if other is record:
            continue
        line, other_line = zlib.decompress(record.line), zlib.decompress(other.line)
        if record.rank == other.rank and line != other_line:
            shared_ids.append(record.id)
        if (record.rank, other_line) > (other.rank, line):
            kept[record.id] = record
    kept_records = [kept[key] for key in sorted(kept)]
    return kept_records, num_read - len(kept), shared_ids
