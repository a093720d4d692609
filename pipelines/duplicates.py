"""Paragraphs that several documents share, found by hashes alone; without Beam.

Four steps, with shuffles of some 20 bytes for each paragraph:

1. Where the newest version of each document is known: `rows_of` gives the rows
   (paragraph hash, document hash) of one document, and `partition` packs rows of any
   number of documents as bytes by partition, so that all rows of one paragraph meet in
   one partition.
2. In each partition: `find` gives the rows (document hash, paragraph hash) to drop, and
   the rows that a document keeps for others: the document with the smallest hash keeps
   the paragraph. `partition` packs these rows again, now by document: a partition's
   number is that of the document's bucket, `floor(hash * num_buckets / 2**64)`.
3. Where documents are written: `marks_by_document` reads the rows of a bucket, and
   `kept_places` leaves out the marked paragraphs of one document, and repeats within
   the document.
4. A document that would be too short after that, but keeps a paragraph for others,
   stays whole: no paragraph vanishes from all documents.

The result depends on the set of rows alone, not on their order or distribution.

A hash has 64 bits, so two different paragraphs among n are taken for one with a
probability of about n * n / 2**65: for the 10**8 paragraphs of the English Wikipedia,
1 in 3,700 that a single paragraph of the whole corpus is lost. Two documents with the
same hash, just as unlikely, would both keep the paragraphs they share.
"""

import array
import functools
import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from bert_keras.pipelines import words

Paragraph = str | Sequence[str]
"""A paragraph's text, or its sentences: both have the same hash."""


def paragraph_hash(paragraph: Paragraph) -> int:
    """Returns 64 bits that tell paragraphs apart, regardless of white space."""
    # All white space goes: Chinese has no space between sentences.
    text = "".join(text_of(paragraph).split()).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def words_and_hash(paragraph: Paragraph, min_words: int) -> tuple[int, int | None]:
    """Returns the number of words, and the hash, `None` below `min_words` words."""
    num_words = words.count_words(text_of(paragraph))
    return num_words, paragraph_hash(paragraph) if num_words >= min_words else None


def rows_of(document_hash: int, hashes: Iterable[int | None]) -> list[tuple[int, int]]:
    """Returns the rows (paragraph hash, document hash) of a document, each once. The
    hash of a document has 64 bits, the same for all of its versions."""
    return [(value, document_hash) for value in {*hashes} if value is not None]


def partition(rows: Iterable[Iterable[int]], num_partitions: int) -> dict[int, bytes]:
    """Packs rows of two numbers below 2**64 by the partition of the first number. A
    partition is `floor(first number * num_partitions / 2**64)`. Empty partitions are
    left out."""
    parts = defaultdict(functools.partial(array.array, "Q"))
    for row in rows:
        # Numbers of Python, unlike numpy's, are exact beyond 64 bits.
        first, second = map(int, row)
        parts[first * num_partitions >> 64].extend((first, second))
    return {number: part.tobytes() for number, part in parts.items()}


def find(blocks: Iterable[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Finds the paragraphs to drop among all rows of a partition.

    A paragraph of several documents stays in the document with the smallest hash; a
    repeated row makes no duplicate. Returns two arrays `(num_rows, 2)` uint64 of
    document hash and paragraph hash: the paragraphs that documents lose, and those that
    documents keep for others.
    """
    rows = _unpack(blocks)
    # By the first column, then the second: `lexsort` takes its last key first.
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    is_new = np.append(True, (rows[1:] != rows[:-1]).any(axis=1))
    # Of no rows, `is_new` still has one element.
    rows = rows[is_new[: len(rows)]]
    # Sorted by paragraph, then document: the first document of a run keeps it.
    is_marked = rows[1:, 0] == rows[:-1, 0]
    keeps = is_marked & ~np.append(False, is_marked[:-1])
    return rows[1:][is_marked][:, ::-1], rows[:-1][keeps][:, ::-1]


def marks_by_document(blocks: Iterable[bytes]) -> dict[int, set[int]]:
    """Returns the hashes to drop, by document hash, from packed rows of `find`."""
    marks: defaultdict[int, set[int]] = defaultdict(set)
    for document, paragraph in _unpack(blocks).tolist():
        marks[document].add(paragraph)
    return marks


def kept_places(hashes: Iterable[int | None], marks: Collection[int]) -> list[int]:
    """Returns the places of paragraphs that are neither in `marks` nor repeats."""
    seen: set[int | None] = set(marks)
    kept = []
    for place, value in enumerate(hashes):
        if value is None or value not in seen:
            seen.add(value)
            kept.append(place)
    return kept


def _unpack(blocks: Iterable[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(blocks), np.uint64).reshape(-1, 2)


def text_of(paragraph: Paragraph) -> str:
    """Returns the text of a paragraph, with a blank between sentences."""
    return paragraph if isinstance(paragraph, str) else " ".join(paragraph)
