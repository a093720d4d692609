"""Documents on their way to their shards: pure functions without Beam or files."""

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bert_keras.core.settings.pipelines import CorpusConfig
from bert_keras.pipelines import duplicates, filters, sentences
from bert_keras.pipelines.sources import source

Facts = Sequence[tuple[int, int | None]]
"""The words and the hash of each paragraph, from `duplicates.words_and_hash`."""


class Record(NamedTuple):
    id: str
    rank: str
    """Among documents with the same id, the greatest rank wins."""
    source: str
    num_sentences: int
    facts: Facts
    line: bytes
    """The document as a line of JSON, compressed."""

    @property
    def hashes(self) -> list[int | None]:
        return [value for _, value in self.facts]


def make_record(document: Mapping[str, Any], *, rank: str, facts: Facts) -> Record:
    line = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return Record(
        id=document["id"],
        rank=rank,
        source=document["source"],
        num_sentences=sum(map(len, document["paragraphs"])),
        facts=facts,
        line=zlib.compress(line.encode("utf-8", "replace"), 1),
    )


def pack(record: Record) -> bytes:
    """Packs a record as a line of JSON, and the bytes that come last."""
    return json.dumps(record[:-1]).encode() + b"\n" + record.line


def without_repeats(
    document: source.SourceDocument,
    *,
    config: CorpusConfig,
    overlap: filters.Overlap | None,
    counts: Counter[str],
) -> Record | None:
    """Returns the record of a document. Paragraphs that repeat go if `config` says so;
    `None`: all of the document does."""
    paragraphs = document.paragraphs
    least = config.min_duplicate_words
    facts = [duplicates.words_and_hash(one, least) for one in paragraphs]
    if config.deduplicate_paragraphs:
        places = duplicates.kept_places([value for _, value in facts], ())
        if num_repeats := len(paragraphs) - len(places):
            counts["dropped_paragraphs/repeated"] += num_repeats
            paragraphs = [paragraphs[place] for place in places]
            facts = [facts[place] for place in places]
    if sum(size for size, _ in facts) < config.min_document_words:
        counts["dropped/too short"] += 1
        return None
    if overlap is not None and overlap.find(map(duplicates.text_of, paragraphs)):
        counts["dropped/overlap with evaluation data"] += 1
        return None
    if not paragraphs:
        return None
    split = [
        sentences.split_sentences(one) if isinstance(one, str) else list(one)
        for one in paragraphs
    ]
    content = {
        "id": document.id,
        "source": document.source,
        "title": document.title,
        "paragraphs": [paragraph for paragraph in split if paragraph],
    }
    facts = [fact for paragraph, fact in zip(split, facts, strict=True) if paragraph]
    return make_record(content, rank=document.rank, facts=facts)


def without_marked(
    record: Record,
    marked: Collection[int],
    *,
    keeps: bool,
    config: CorpusConfig,
    counts: Counter[str],
) -> Record | None:
    """Returns a record without `marked` paragraphs; `None` if it is too short. A
    document that `keeps` a paragraph for others stays whole instead."""
    places = duplicates.kept_places(record.hashes, marked)
    facts = [record.facts[place] for place in places]
    num_words = sum(size for size, _ in facts)
    is_too_short = not places or num_words < config.min_document_words
    if is_too_short and keeps:
        return record
    num_dropped = len(record.facts) - len(places)
    counts["dropped_paragraphs/in another document"] += num_dropped
    if is_too_short:
        counts["dropped/too short without duplicates"] += 1
        return None
    document = json.loads(zlib.decompress(record.line))
    document["paragraphs"] = [document["paragraphs"][place] for place in places]
    return make_record(document, rank=record.rank, facts=facts)


def newest(packed: Iterable[bytes]) -> tuple[list[Record], int, list[str]]:
    """Keeps one record per id: of the greatest rank, then the first by text. Returns
    the records in the order of their ids, the number left out, and the ids left out
    although they have the rank of the kept record but other text."""
    by_id: defaultdict[str, list[Record]] = defaultdict(list)
    for data in packed:
        head, _, line = data.partition(b"\n")
        record = Record._make([*json.loads(head), line])
        by_id[record.id].append(record)
    num_read = sum(map(len, by_id.values()))
    kept, shared_ids = [], []
    for key, records in sorted(by_id.items()):
        greatest = max(record.rank for record in records)
        records = [record for record in records if record.rank == greatest]
        if len(records) > 1:
            records.sort(key=lambda record: zlib.decompress(record.line))
        kept.append(records[0])
        shared_ids += [key for other in records if other.line != records[0].line]
    return kept, num_read - len(kept), shared_ids
