"""Pure: tokenised documents to training instances, as google-research/bert has it.

An instance is a masked pair of segments. A pair is four token offsets into two
documents: nothing is copied until an instance is asked for, so that all pairs of a
bucket can be shuffled in little memory.

The pairs are those of `create_instances_from_document` of the original, equal to it in
distribution, except that

- B is never drawn from the document of A (the original tries ten times, then takes
  it all the same, and calls it random);
- a random B comes from a document of the same source. Books are a few hundredths of
  the documents but a quarter of the words: drawn among all documents, the B of nearly
  every book would be encyclopedia, and the domain would give the label away;
- chance follows from (seed, document id, duplicate index) alone.
"""

import bisect
import hashlib
import operator
import random
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bert_keras import tokenization
from bert_keras.config import ExamplesConfig
from pipelines import masking


@dataclass(frozen=True, kw_only=True)
class Document:
    """A tokenised document."""

    id: str
    source: str
    """Where it comes from, such as `wikipedia` or `books`."""
    token_ids: Sequence[int]
    """The ids of all its sentences, one after the other."""
    sentence_ends: Sequence[int]
    """For each sentence, the offset in `token_ids` behind its last token; rising."""


class Pair(NamedTuple):
    """Two segments for one example, as spans of tokens in documents of a bucket."""

    document: int
    """Index of the document of A."""
    a_start: int
    a_end: int
    partner: int
    """Index of the document of B."""
    b_start: int
    b_end: int
    is_random_next: int
    """1: B is random; 0: B follows A."""
    mask_seed: int
    """64 bits that decide the masks, drawn from the document's generator."""


class Instance(NamedTuple):
    """One masked example, not padded."""

    masked: masking.MaskedTokens
    """`[CLS] A [SEP] B [SEP]` with some tokens hidden."""
    first_segment_length: int
    """Tokens of `[CLS] A [SEP]`."""
    is_random_next: int
    """1: B is random; 0: B follows A."""


# Chance. All of it comes from these two generators.


def bucket_of(document_id: str, num_buckets: int) -> int:
    """The bucket of a document: a hash of its id alone."""
    digest = hashlib.blake2b(document_id.encode(), digest_size=8, person=b"bucket")
    return int.from_bytes(digest.digest(), "big") % num_buckets


def document_rng(seed: int, document_id: str, duplicate_index: int) -> random.Random:
    """The generator of all chance in one use of one document."""
    return _content_rng(f"{seed}:{duplicate_index}:{document_id}", person=b"document")


def bucket_rng(seed: int, bucket: int) -> random.Random:
    """The generator that shuffles the examples of one bucket."""
    return _content_rng(f"{seed}:{bucket}", person=b"order")


def _content_rng(content: str, *, person: bytes) -> random.Random:
    digest = hashlib.blake2b(content.encode(), digest_size=16, person=person).digest()
    return random.Random(int.from_bytes(digest, "big"))


# Pairs.


class PartnerChooser:
    """Draws, for a document of a bucket, another one to take a random B from.

    Uniform among the other documents of the same source; if there are none, among
    all others; a document alone in its bucket has no partner.
    """

    def __init__(self, sources: Sequence[str]):
        """`sources`: the source of each document of the bucket."""
        self._all = list(range(len(sources)))
        by_source: dict[str, list[int]] = {}
        self._ranks = []
        for index, source in enumerate(sources):
            peers = by_source.setdefault(source, [])
            self._ranks.append(len(peers))
            peers.append(index)
        self._peers = [by_source[source] for source in sources]

    @property
    def has_partners(self) -> bool:
        """Whether there is more than one document."""
        return len(self._all) > 1

    def draw(self, document: int, rng: random.Random) -> int:
        """The index of a partner; `has_partners` must hold."""
        peers, rank = self._peers[document], self._ranks[document]
        if len(peers) == 1:
            peers, rank = self._all, document
        choice = rng.randrange(len(peers) - 1)
        return peers[choice + (choice >= rank)]


def make_pairs(
    documents: Sequence[Document],
    index: int,
    *,
    partners: PartnerChooser,
    max_seq_length: int,
    short_seq_prob: float,
    rng: random.Random,
    counts: Counter[str],
) -> list[Pair]:
    """Cuts one document into sentence pairs.

    Sentences are gathered until they reach the target length: usually what fits, with
    `short_seq_prob` a random shorter one for the whole document. The first of them,
    a random number, are A. Half of the time the rest is B; otherwise, and always when
    there is no rest, B starts at a random sentence of a partner and the rest is used
    again. Pairs that are too long are cut at random ends of the longer segment.

    A document alone in its bucket gives real next pairs only (of two sentences or
    more, whatever the target), and a single sentence that is left over gives nothing:
    calling any of its own text random would teach a lie.

    Args:
        documents: the bucket; every document has at least one token in each sentence.
        index: which of them.
        counts: raised in place: `pairs_without_partner`, `dropped_single_sentences`
            (both for documents alone in their bucket), and `other_source_partners`.
    """
    max_num_tokens = max_seq_length - 3  # [CLS] A [SEP] B [SEP]
    target_length = max_num_tokens
    if rng.random() < short_seq_prob:
        target_length = rng.randint(2, max_num_tokens)
    ends = documents[index].sentence_ends
    num_needed = 1 if partners.has_partners else 2
    pairs = []
    first = 0
    while first < len(ends):
        last = _chunk_end(ends, first, target_length, at_least=num_needed)
        num_sentences = last - first
        if num_sentences < num_needed:
            counts["dropped_single_sentences"] += 1
            break
        split = first + (rng.randint(1, num_sentences - 1) if num_sentences > 1 else 1)
        a = (_start(ends, first), ends[split - 1])
        wants_random = num_sentences == 1 or rng.random() < 0.5
        if wants_random and partners.has_partners:
            label, partner = 1, partners.draw(index, rng)
            other = documents[partner]
            counts["other_source_partners"] += other.source != documents[index].source
            b = _random_span(other.sentence_ends, target_length - (a[1] - a[0]), rng)
            first = split
        else:
            counts["pairs_without_partner"] += not partners.has_partners
            label, partner, b = 0, index, (a[1], ends[last - 1])
            first = last
        a, b = _truncate_pair(a, b, max_num_tokens, rng)
        pairs.append(Pair(index, *a, partner, *b, label, rng.getrandbits(64)))
    return pairs


def _start(ends: Sequence[int], sentence: int) -> int:
    return ends[sentence - 1] if sentence else 0


def _chunk_end(
    ends: Sequence[int], first: int, target_length: int, *, at_least: int = 1
) -> int:
    """The sentence behind the first that brings a chunk to the target length.

    `at_least`: how many sentences are taken in any case, if there are so many.
    """
    wanted = _start(ends, first) + target_length
    last = bisect.bisect_left(ends, wanted, lo=first) + 1
    return min(max(last, first + at_least), len(ends))


def _random_span(
    ends: Sequence[int], target_length: int, rng: random.Random
) -> tuple[int, int]:
    """Whole sentences from a random one on, one at least, up to the target length."""
    first = rng.randrange(len(ends))
    return _start(ends, first), ends[_chunk_end(ends, first, target_length) - 1]


def _truncate_pair(
    a: tuple[int, int], b: tuple[int, int], max_num_tokens: int, rng: random.Random
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Cuts both spans so that together they have `max_num_tokens` at most.

    The original takes one token at a time from the longer span, each from a random
    end. Here at once: what is left in the end follows from the lengths, and how much
    of the surplus goes at the front is a sum of fair coins.
    """
    kept_a, kept_b = tokenization.truncated_lengths(
        a[1] - a[0], b[1] - b[0], max_num_tokens
    )
    return _cut_ends(a, kept_a, rng), _cut_ends(b, kept_b, rng)


def _cut_ends(span: tuple[int, int], kept: int, rng: random.Random) -> tuple[int, int]:
    surplus = span[1] - span[0] - kept
    from_front = rng.getrandbits(surplus).bit_count() if surplus else 0
    return span[0] + from_front, span[0] + from_front + kept


# Instances of a bucket.


def unique_documents(documents: Iterable[Document]) -> list[Document]:
    """Documents in the order of their ids, one for each id.

    Among several with the same id, that with the smallest tokens stays: a choice that
    does not depend on the order in which they came.
    """
    by_id: dict[str, Document] = {}
    for document in documents:
        other = by_id.setdefault(document.id, document)
        if list(document.token_ids) < list(other.token_ids):
            by_id[document.id] = document
    return [by_id[document_id] for document_id in sorted(by_id)]


class PairTable(Sequence[Pair]):
    """Many pairs, at 64 bytes each instead of the 400 of Python objects."""

    def __init__(self) -> None:
        self._fields = array("Q")

    def append(self, pair: Pair) -> None:
        """Adds one pair."""
        self._fields.extend(pair)

    def __len__(self) -> int:
        return len(self._fields) // len(Pair._fields)

    def __getitem__(self, index: int) -> Pair:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index * len(Pair._fields)
        return Pair(*self._fields[start : start + len(Pair._fields)])


def make_bucket_pairs(
    documents: Sequence[Document], *, config: ExamplesConfig, counts: Counter[str]
) -> PairTable:
    """The pairs of every use of every document of a bucket, in that order.

    Args:
        documents: of the bucket, from `unique_documents`.
        counts: raised in place, see `make_pairs`.
    """
    partners = PartnerChooser([document.source for document in documents])
    table = PairTable()
    for duplicate_index in range(config.num_duplicates):
        for index, document in enumerate(documents):
            pairs = make_pairs(
                documents,
                index,
                partners=partners,
                max_seq_length=config.max_seq_length,
                short_seq_prob=config.short_seq_prob,
                rng=document_rng(config.random_seed, document.id, duplicate_index),
                counts=counts,
            )
            for pair in pairs:
                table.append(pair)
    return table


def make_instances(
    documents: Sequence[Document],
    pairs: Sequence[Pair],
    *,
    bucket: int,
    config: ExamplesConfig,
    vocabulary: masking.MaskingVocabulary,
    counts: Counter[str],
) -> Iterator[Instance]:
    """The masked instance of every pair, shuffled, each one checked.

    Args:
        documents: of the bucket, which the pairs point into.
        bucket: its number, which decides the order together with the seed.
        counts: raised in place: `examples`, `example_tokens`, `masked_tokens`,
            `random_next_examples`.
    """
    order = list(range(len(pairs)))
    bucket_rng(config.random_seed, bucket).shuffle(order)
    for index in order:
        instance = _mask_pair(
            documents, pairs[index], config=config, vocabulary=vocabulary
        )
        check_instance(instance, config=config, vocabulary=vocabulary)
        counts["examples"] += 1
        counts["example_tokens"] += len(instance.masked.input_ids)
        counts["masked_tokens"] += len(instance.masked.positions)
        counts["random_next_examples"] += instance.is_random_next
        yield instance


def _mask_pair(
    documents: Sequence[Document],
    pair: Pair,
    *,
    config: ExamplesConfig,
    vocabulary: masking.MaskingVocabulary,
) -> Instance:
    segment_a = documents[pair.document].token_ids[pair.a_start : pair.a_end]
    segment_b = documents[pair.partner].token_ids[pair.b_start : pair.b_end]
    cls_id, sep_id = vocabulary.cls_id, vocabulary.sep_id
    masked = masking.mask_tokens(
        [cls_id, *segment_a, sep_id, *segment_b, sep_id],
        vocabulary=vocabulary,
        masked_lm_prob=config.masked_lm_prob,
        max_predictions_per_seq=config.num_predictions,
        do_whole_word_mask=config.do_whole_word_mask,
        rng=random.Random(pair.mask_seed),
    )
    return Instance(masked, len(segment_a) + 2, pair.is_random_next)


def check_instance(
    instance: Instance,
    *,
    config: ExamplesConfig,
    vocabulary: masking.MaskingVocabulary,
) -> None:
    """Checks what every instance must be, whatever came before.

    Raises:
        RuntimeError: a mistake of this program: names the first rule that is broken.
    """
    masked_ids, positions, labels = instance.masked
    true_ids = list(masked_ids)
    for position, label in zip(positions, labels, strict=True):
        true_ids[position] = label
    cls_id, sep_id = vocabulary.cls_id, vocabulary.sep_id
    first_sep = instance.first_segment_length - 1
    expected = masking.num_predictions(
        len(true_ids),
        masked_lm_prob=config.masked_lm_prob,
        max_predictions_per_seq=config.num_predictions,
    )
    expected = min(expected, len(true_ids) - 3)
    rules = {
        "is too long": len(true_ids) <= config.max_seq_length,
        "has an id beyond the vocabulary": max(masked_ids) < vocabulary.size
        and max(true_ids) < vocabulary.size,
        "does not begin with its only [CLS]": true_ids[0] == cls_id
        and true_ids.count(cls_id) == 1,
        "is not [CLS] A [SEP] B [SEP]": true_ids.count(sep_id) == 2
        and true_ids[first_sep] == true_ids[-1] == sep_id
        and 1 < first_sep < len(true_ids) - 2,
        "hides a special token": cls_id not in labels and sep_id not in labels,
        "hides a position twice or out of order": all(
            map(operator.lt, positions, positions[1:])
        ),
        "hides another number of tokens than asked for": len(positions) == expected
        or (config.do_whole_word_mask and len(positions) < expected),
    }
    for violation, holds in rules.items():
        if not holds:
            raise RuntimeError(
                f"an instance {violation}, which is a mistake in this program: "
                f"{instance}"
            )
