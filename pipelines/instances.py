"""Tokenised documents -> training instances, as in google-research/bert; without Beam.

An instance is one or two spans of a bucket's tokens: nothing is copied before a batch
is made, so that all instances of a bucket can be shuffled in little memory.

The pairs equal those of the original's `create_instances_from_document` in
distribution, except that

- B is never drawn from the document of A (the original tries ten times, then takes
  it anyway, and calls it random), but for parts of documents, see `parts_of`;
- a random B comes from a document of the same source, unless `partner` is
  `any_source`. Books are a few hundredths of the documents but a quarter of the words:
  drawn among all documents, the B of nearly every book would be encyclopedia, and the
  domain would give the label away;
- randomness depends on (seed, document id, duplicate index) alone.
"""

import bisect
import hashlib
import itertools
import random
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import seeded_hash, tokenization

_SITE = re.compile(r"[a-z][a-z0-9+.-]*://([^/?#]+)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Document:
    id: str
    source: str
    """Origin, such as `wikipedia`, `books` or `en.wikipedia.org`; see `source_name`."""
    token_ids: Sequence[int]
    """Ids of all its sentences, one after the other."""
    sentence_ends: Sequence[int]
    """For each sentence, the offset in `token_ids` after its last token; rising."""


class Pair(NamedTuple):
    """Two segments for one example, as offsets in all tokens of a bucket."""

    a_start: int
    a_end: int
    b_start: int
    b_end: int
    is_random_next: int
    """1: B is random; 0: B follows A."""
    seed: int
    """64 bits that determine the masks, drawn from the document's generator."""


class Spans(NamedTuple):
    """`n` instances: `[CLS] A [SEP] B [SEP]`, or `[CLS] A [SEP]` where B is empty."""

    a_starts: np.ndarray
    """`(n,)` int64, like the other three: offsets in all tokens of a bucket."""
    a_ends: np.ndarray
    b_starts: np.ndarray
    b_ends: np.ndarray
    is_random_next: np.ndarray
    """`(n,)` bool: B is random; else it follows A."""
    seeds: np.ndarray
    """`(n,)` uint64, which determine the masks."""

    def take(self, indices: np.ndarray) -> "Spans":
        return Spans(*(values[indices] for values in self))


def document_hash(document_id: str) -> int:
    """Returns 64 bits that place a document, from its id alone."""
    digest = hashlib.blake2b(document_id.encode(), digest_size=8, person=b"bucket")
    return int.from_bytes(digest.digest(), "big")


def bucket_of(document_id: str, num_buckets: int) -> int:
    """Returns the bucket of a document: buckets are equal ranges of its hash."""
    # Not the remainder: `duplicates.partition` sends marks to the bucket of their
    # document by this product.
    return document_hash(document_id) * num_buckets >> 64


def source_name(source: str) -> str:
    """Returns the name by which documents of a source are counted and put together. A
    URL, which may differ for each document, gives the name of its host."""
    site = _SITE.match(source)
    return site[1].lower() if site else source


def part_id(document_id: str, part: int) -> str:
    return f"{document_id}#{part}"


def parts_of(document: Document, num_parts: int) -> Iterator[Document]:
    """Cuts a document into parts of about as many sentences, each a document. This is
    for sources with hardly another document: a sentence of another part is not the next
    sentence either, except for the first of the part that follows."""
    ends = document.sentence_ends
    limits = [len(ends) * part // num_parts for part in range(num_parts + 1)]
    start = 0
    for part, (first, last) in enumerate(itertools.pairwise(limits)):
        end = ends[last - 1] if last else 0
        yield replace(
            document,
            id=part_id(document.id, part),
            token_ids=document.token_ids[start:end],
            sentence_ends=array("I", [e - start for e in ends[first:last]]),
        )
        start = end


def join_lone(counts: Mapping[int, int]) -> dict[int, int]:
    """Returns another bucket for documents that are alone in theirs.

    Two lone documents share the later bucket of both; the last of an odd number joins
    the bucket with the fewest, so that random next sentences can come from another
    document. The only document of a source stays. `counts` has the documents of one
    source by bucket.
    """
    # From the end on: the last buckets are those that models are evaluated on.
    lone = sorted((b for b, number in counts.items() if number == 1), reverse=True)
    moves = dict(zip(lone[1::2], lone[::2], strict=False))
    if len(lone) % 2:
        left = lone[-1]
        sizes = Counter(moves.get(b, b) for b in lone[:-1])
        sizes |= {b: number for b, number in counts.items() if number > 1}
        if sizes:
            moves[left] = min(sizes, key=lambda bucket: (sizes[bucket], bucket))
    return moves


def document_rng(seed: int, document_id: str, duplicate_index: int) -> random.Random:
    # The id comes last, since it may contain colons: no two triples give one text.
    return _content_rng(f"{seed}:{duplicate_index}:{document_id}", person=b"document")


def shuffled(number: int, *, seed: int, bucket: int, purpose: int = 0) -> np.ndarray:
    """Returns `0` to `number - 1` in a random order that depends on `purpose` too."""
    rng = _content_rng(f"{seed}:{bucket}", person=b"order")
    base = np.array([rng.getrandbits(64)], np.uint64)
    # Sorted hashes stay the same in every version; `random.shuffle` and numpy's
    # `Generator` do not promise that of theirs.
    hashes = seeded_hash.hash_places(base, np.arange(number), purpose=purpose)[0]
    return np.argsort(hashes, kind="stable")


def _content_rng(content: str, *, person: bytes) -> random.Random:
    digest = hashlib.blake2b(content.encode(), digest_size=16, person=person).digest()
    return random.Random(int.from_bytes(digest, "big"))


def below(limit: int, rng: random.Random) -> int:
    """Returns a number from 0 to `limit - 1`. Only the numbers of `random()` are
    guaranteed to stay the same in later Pythons."""
    return int(rng.random() * limit)


def peers_of(
    sources: Sequence[str], *, any_source: bool = False
) -> list[Sequence[int]]:
    """Returns the documents among which the random B of each document is drawn. They
    ascend, and are those of its source, itself included; if there is no other one, or
    with `any_source`, they are all documents."""
    by_source: defaultdict[str, list[int]] = defaultdict(list)
    for index, source in enumerate(sources):
        by_source[source].append(index)
    every = range(len(sources))
    is_rare = {s: any_source or len(peers) == 1 for s, peers in by_source.items()}
    return [every if is_rare[s] else by_source[s] for s in sources]


def draw_partner(index: int, peers: Sequence[int], rng: random.Random) -> int:
    """Returns one of the peers but `index`, each as likely as the others."""
    choice = below(len(peers) - 1, rng)
    # Peers ascend: from the document on, the choice is the next one.
    return peers[choice + (peers[choice] >= index)]


def make_pairs(
    index: int,
    borders: Sequence[Sequence[int]],
    *,
    sources: Sequence[str],
    peers: Sequence[int],
    config: ExamplesConfig,
    rng: random.Random,
    counts: Counter[str],
) -> list[Pair]:
    """Cuts the document of that index into sentence pairs.

    Sentences, of a token or more, are gathered up to the target length: usually the
    longest that fits, with `short_seq_prob` a random shorter one for the whole
    document. A random number of them, from the first on, are A. Half of the time the
    rest is B; otherwise, and always when there is no rest, B starts at a random
    sentence of a partner and the rest is used again. Pairs longer than
    `max_seq_length`, `[CLS]` and both `[SEP]` included, are cut at random ends of the
    longer segment.

    A document alone in its bucket gives only real next pairs (of at least two
    sentences, whatever the target), and a single remaining sentence gives nothing:
    calling any of its own text random would teach a lie. These are counted as
    `pairs_without_partner` and `dropped_single_sentences`.

    Args:
        borders: for each document of the bucket, the offset of its first sentence in
            all tokens, then the offset after each sentence.
        sources: for each document its source.
        peers: the documents from which a random B may come, see `peers_of`.
    """
    max_num_tokens = config.max_seq_length - 3  # [CLS] A [SEP] B [SEP]
    target_length = max_num_tokens
    short_prob = config.short_seq_prob
    # Each draw moves the generator on: draws in another order, or one more of them,
    # change all later examples of the document.
    if rng.random() < (0.1 if short_prob is None else short_prob):
        target_length = 2 + below(max_num_tokens - 1, rng)
    own = borders[index]
    has_partners = len(peers) > 1
    num_needed = 1 if has_partners else 2
    pairs = []
    num_other_sources = 0
    first = 0
    while first < len(own) - 1:
        # 1. Whole sentences until they reach the target, cut into A and a rest.
        last = _chunk_end(own, first, target_length, at_least=num_needed)
        num_sentences = last - first
        if num_sentences < num_needed:
            counts["dropped_single_sentences"] += 1
            break
        split = first + 1
        if num_sentences > 2:
            split += below(num_sentences - 1, rng)
        a = (own[first], own[split])
        # 2. B: sentences of a partner, or the rest. Only a rest that is B is used up.
        wants_random = num_sentences == 1 or rng.random() < 0.5
        is_random = wants_random and has_partners
        if is_random:
            partner = draw_partner(index, peers, rng)
            num_other_sources += sources[partner] != sources[index]
            # Whole sentences from a random one on, at least one, up to the target.
            other = borders[partner]
            start = below(len(other) - 1, rng)
            rest_length = target_length - (a[1] - a[0])
            b = (other[start], other[_chunk_end(other, start, rest_length)])
            first = split
        else:
            b = (own[split], own[last])
            first = last
        # 3. The pair, as offsets alone. Its last draw is the seed of its masks.
        if a[1] - a[0] + b[1] - b[0] > max_num_tokens:
            a, b = _truncate_pair(a, b, max_num_tokens, rng)
        pairs.append(Pair(*a, *b, int(is_random), rng.getrandbits(64)))
    counts["other_source_partners"] += num_other_sources
    counts["pairs_without_partner"] += 0 if has_partners else len(pairs)
    return pairs


def _chunk_end(
    borders: Sequence[int], first: int, target_length: int, *, at_least: int = 1
) -> int:
    """Returns the sentence after the one that reaches the target length. The chunk has
    at least `at_least` sentences, if there are so many."""
    last = bisect.bisect_left(borders, borders[first] + target_length, first + at_least)
    return min(last, len(borders) - 1)


def _truncate_pair(
    a: tuple[int, int], b: tuple[int, int], max_num_tokens: int, rng: random.Random
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Cuts both spans, which have more, to `max_num_tokens` together.

    The original removes one token at a time from the longer span, each from a random
    end. Here it is one step: the final lengths follow from the lengths, and the part
    of the surplus that goes at the front is a sum of fair coins.
    """
    sizes = tokenization.truncated_lengths(a[1] - a[0], b[1] - b[0], max_num_tokens)
    cut = []
    for (start, end), size in zip((a, b), sizes, strict=True):
        if surplus := end - start - size:
            start += rng.getrandbits(surplus).bit_count()
        cut.append((start, start + size))
    return cut[0], cut[1]


def unique_documents(documents: Iterable[Document]) -> list[Document]:
    """Returns documents in the order of their ids; of equal ids, the smallest tokens.
    This choice does not depend on the order of `documents`."""
    by_id: dict[str, Document] = {}
    for document in documents:
        other = by_id.get(document.id)
        # As lists: memoryviews have no order.
        if other is None or list(document.token_ids) < list(other.token_ids):
            by_id[document.id] = document
    return [by_id[document_id] for document_id in sorted(by_id)]


def make_pair_spans(
    documents: Sequence[Document],
    *,
    dtype: np.dtype,
    config: ExamplesConfig,
    counts: Counter[str],
) -> tuple[np.ndarray, Spans]:
    """Returns all tokens of a bucket, and the pairs of every use of every document."""
    sources = [document.source for document in documents]
    peers = peers_of(sources, any_source=config.partner == "any_source")
    borders = sentence_borders(documents)
    # 48 bytes for each pair, where Python objects take 300.
    fields = array("Q")
    for duplicate_index in range(config.num_duplicates):
        for index, document in enumerate(documents):
            pairs = make_pairs(
                index,
                borders,
                sources=sources,
                peers=peers[index],
                config=config,
                rng=document_rng(config.random_seed, document.id, duplicate_index),
                counts=counts,
            )
            fields.extend(itertools.chain.from_iterable(pairs))
    # (6, pairs), contiguous by field; offsets are below 2**63, the same as int64.
    table = np.array(fields, np.uint64).reshape(-1, len(Pair._fields)).T.copy()
    spans = Spans._make([*table[:4].view(np.int64), table[4].astype(bool), table[5]])
    tokens = [np.asarray(document.token_ids, dtype) for document in documents]
    return np.concatenate([np.empty(0, dtype), *tokens]), spans


def sentence_borders(documents: Iterable[Document]) -> list[list[int]]:
    """Returns the `borders` that `make_pairs` takes. They are lists, which are much
    faster to read than views of bytes."""
    borders, start = [], 0
    for document in documents:
        borders.append([start, *(start + end for end in document.sentence_ends)])
        start = borders[-1][-1]
    return borders


def balanced(spans: Spans, *, seed: int, bucket: int) -> Spans:
    """Keeps as many pairs with a random B as with the real one, in the same order. All
    pairs of the rarer kind stay, and a random choice of as many of the commoner kind,
    usually a random B: a single sentence left of a document has no real next one."""
    order = shuffled(len(spans.seeds), seed=seed, bucket=bucket, purpose=1)
    kinds = [order[spans.is_random_next[order] == kind] for kind in (False, True)]
    number = min(map(len, kinds))
    return spans.take(np.sort(np.concatenate([kind[:number] for kind in kinds])))


def make_full_sentence_spans(
    documents: Sequence[Document],
    *,
    separator: int,
    dtype: np.dtype,
    config: ExamplesConfig,
    counts: Counter[str],
) -> tuple[np.ndarray, Spans]:
    """Packs consecutive sentences, across documents, once for each duplicate.

    RoBERTa's FULL-SENTENCES (Liu et al., 2019, section 4.2): as many whole sentences as
    fit, with one separator between documents. Each duplicate has another random order
    of the documents. Nothing is left out: a sentence longer than an instance continues
    in the next instance. A share of the instances, `short_seq_prob`, aims at a random
    shorter length: as many whole sentences as fit, or one that is longer. With
    `single_sentences` each instance aims at one, and sentences of more tokens than
    `max_sentence_length` are left out and counted as `dropped_long_sentences`. Returns
    the tokens of all duplicates, with separators, and instances with an empty B.
    """
    limit = config.max_seq_length - 2  # [CLS] A [SEP]
    longest = config.max_sentence_length
    num_tokens = sum(len(document.token_ids) + 1 for document in documents)
    tokens = np.empty(config.num_duplicates * num_tokens, dtype)
    starts, ends, seeds = [], [], []
    for duplicate_index in range(config.num_duplicates):
        draws = []
        for document in documents:
            rng = document_rng(config.random_seed, document.id, duplicate_index)
            draws.append((rng.getrandbits(64), rng.getrandbits(64), document))
        draws.sort(key=lambda draw: (draw[0], draw[2].id))
        bases = np.array([base for _, base, _ in draws], np.uint64)
        # 1. The documents in that order, a separator after each.
        offset = duplicate_index * num_tokens
        firsts: list[int] = []
        sentence_starts: list[int] = []
        sentence_ends: list[int] = []
        first = 0
        for _, _, document in draws:
            firsts.append(first)
            end = first + len(document.token_ids)
            tokens[offset + first : offset + end] = document.token_ids
            tokens[offset + end] = separator
            borders = [first, *(first + e for e in document.sentence_ends)]
            sentence_starts += borders[:-1]
            sentence_ends += borders[1:]
            first = end + 1
        # 2. Spans of at most `limit` tokens: whole sentences, unless longer.
        rng = random.Random(draws[0][0] if draws else 0)
        packed: list[tuple[int, int]] = []
        index = 0  # of the sentence in which the next span begins
        while index < len(sentence_starts):
            start = sentence_starts[index]
            if longest is not None and sentence_ends[index] - start > longest:
                counts["dropped_long_sentences"] += 1
                index += 1
                continue
            # A longer sentence gives spans of full length; the next span begins with
            # its remainder.
            while sentence_ends[index] - start > limit:
                packed.append((start, start + limit))
                start += limit
            target = 1 if config.packing == "single_sentences" else limit
            if config.short_seq_prob and rng.random() < config.short_seq_prob:
                target = 1 + below(limit, rng)
            # A sentence longer than its target is an instance too.
            index = bisect.bisect_right(sentence_ends, start + target, lo=index + 1)
            packed.append((start, sentence_ends[index - 1]))
        # 3. Instances, whose masks depend on the document in which they begin.
        spans = np.array(packed, np.int64).reshape(-1, 2)
        # (instances,) the document of each, and (instances, 1) the first token's place
        # in it.
        of = np.searchsorted(firsts, spans[:, 0], side="right") - 1
        places = spans[:, :1] - np.array(firsts, np.int64)[of, np.newaxis]
        seeds.append(seeded_hash.hash_places(bases[of], places, purpose=0)[:, 0])
        starts.append(spans[:, 0] + offset)
        ends.append(spans[:, 1] + offset)
    a_starts, a_ends = np.concatenate(starts), np.concatenate(ends)
    is_random_next = np.zeros(len(a_ends), bool)
    return tokens, Spans(
        *(a_starts, a_ends, a_ends, a_ends, is_random_next, np.concatenate(seeds))
    )
