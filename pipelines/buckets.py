"""The documents of one bucket -> the records of one shard, without Beam.

`instances` chooses the sentences of each instance, `masking` the hidden tokens. Here
instances become matrices of some thousand tokens, which are masked and serialised as a
whole.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import batch_tokenizer, features, masking, packing, tokenization
from bert_keras.pipelines import instances, records

TOKENS_PER_BATCH = 1 << 18
"""Tokens of a batch, padding included: its matrices take some megabytes."""

# Short documents go together: a call for each would cost more than its work.
_CHARACTERS_AT_ONCE = 1 << 18


def tokenize_documents(
    documents: Iterable[dict[str, Any]],
    tokenizer: batch_tokenizer.BatchTokenizer,
    counts: Counter[str],
) -> Iterator[instances.Document]:
    """Yields documents of `corpus` as ids; leaves out sentences without a token."""
    for batch in _batches_of_texts(documents):
        texts = [sentences for _, sentences in batch]
        # `ids`: (tokens,) of the batch; `sizes`: (sentences,), the tokens of each.
        ids, sizes = tokenizer.encode([*itertools.chain.from_iterable(texts)])
        is_unknown = ids == tokenizer.tokenizer.vocabulary.unk_id
        counts["documents"] += len(batch)
        counts["sentences"] += int(np.count_nonzero(sizes))
        counts["tokens"] += len(ids)
        counts["unknown_tokens"] += int(np.count_nonzero(is_unknown))
        for document, sentences in batch:
            own, sizes = sizes[: len(sentences)], sizes[len(sentences) :]
            ends = np.cumsum(own, dtype=np.uint32)
            num_tokens = int(ends[-1]) if len(ends) else 0
            ends = ends[own > 0]
            counts["empty_documents"] += not len(ends)
            yield instances.Document(
                id=document["id"],
                source=instances.source_name(document["source"]),
                token_ids=ids[:num_tokens].data,
                sentence_ends=ends.data,
            )
            ids = ids[num_tokens:]


def _batches_of_texts(
    documents: Iterable[dict[str, Any]],
) -> Iterator[list[tuple[dict[str, Any], list[str]]]]:
    """Yields some documents at a time, each with its sentences."""
    batch, num_characters = [], 0
    for document in documents:
        sentences = [*itertools.chain.from_iterable(document["paragraphs"])]
        batch.append((document, sentences))
        num_characters += sum(map(len, sentences))
        if num_characters >= _CHARACTERS_AT_ONCE:
            yield batch
            batch, num_characters = [], 0
    yield batch


def pack(document: instances.Document) -> bytes:
    token_ids = bytes(document.token_ids)
    # JSON escapes line ends in ids: the first one of all ends the head.
    head = json.dumps([document.id, document.source, len(token_ids)])
    return b"".join((head.encode(), b"\n", token_ids, bytes(document.sentence_ends)))


def unpack(packed: bytes, *, vocab_size: int) -> instances.Document:
    head, _, numbers = packed.partition(b"\n")
    document_id, source, num_bytes = json.loads(head)
    return instances.Document(
        id=document_id,
        source=source,
        token_ids=memoryview(numbers[:num_bytes]).cast(
            tokenization.typecode_for(vocab_size)
        ),
        sentence_ends=memoryview(numbers[num_bytes:]).cast("I"),
    )


def encode_bucket(
    documents: Iterable[instances.Document],
    *,
    bucket: int,
    config: ExamplesConfig,
    vocabulary: tokenization.Vocabulary,
    counts: Counter[str],
) -> Iterator[bytes]:
    """Yields all examples of a bucket, serialised, in the order of the shard.
    Increments the counters of the manifest, `rows` too for packed rows."""
    arrived = list(documents)
    unique = instances.unique_documents(arrived)
    counts["duplicate_documents"] += len(arrived) - len(unique)
    del arrived
    dtype = np.dtype(tokenization.typecode_for(len(vocabulary)))
    options: dict[str, Any] = {"dtype": dtype, "config": config, "counts": counts}
    if config.packing != "sentence_pairs":
        tokens, spans = instances.make_full_sentence_spans(
            unique, separator=vocabulary.sep_id, **options
        )
    else:
        tokens, spans = instances.make_pair_spans(unique, **options)
    if config.next_sentence == "balanced":
        num_pairs = len(spans.seeds)
        spans = instances.balanced(spans, seed=config.random_seed, bucket=bucket)
        counts["dropped_unbalanced_pairs"] += num_pairs - len(spans.seeds)
    order = instances.shuffled(len(spans.seeds), seed=config.random_seed, bucket=bucket)
    for chosen, row_of in _batches(spans, order, config):
        batch = make_batch(
            tokens, spans.take(chosen), vocabulary=vocabulary, config=config
        )
        counts["examples"] += len(batch.lengths)
        counts["example_tokens"] += int(batch.lengths.sum())
        counts["random_next_examples"] += int(batch.is_random_next.sum())
        if batch.masked:
            is_masked = batch.masked["masked_lm_weights"] > 0
            counts["masked_tokens"] += int(is_masked.sum())
        if row_of is not None:
            counts["rows"] += int(row_of[-1]) + 1
        yield from encode_batch(batch, config, row_of)


def _batches(
    spans: instances.Spans, order: np.ndarray, config: ExamplesConfig
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Yields the indices of each batch, and for packed rows the rows."""
    num_rows = max(1, TOKENS_PER_BATCH // config.max_seq_length)
    if not config.pack_instances:
        for first in range(0, len(order), num_rows):
            yield order[first : first + num_rows], None
        return
    for first in range(0, len(order), packing.WINDOW):
        window = order[first : first + packing.WINDOW]
        lengths = _lengths(spans.take(window))
        num_masked = masking.num_predictions(lengths, config)
        row_of = packing.plan_rows(lengths, num_masked, config)
        by_row = np.argsort(row_of, kind="stable")
        window, row_of = window[by_row], row_of[by_row]
        # The first row of each batch, then one beyond all rows, whose cut is the end.
        limits = range(0, int(row_of[-1]) + 1 + num_rows, num_rows)
        cuts = np.searchsorted(row_of, limits)
        for row, (start, end) in zip(limits, itertools.pairwise(cuts), strict=False):
            yield window[start:end], row_of[start:end] - row


class Batch(NamedTuple):
    """`n` instances of at most `L` tokens."""

    true_ids: np.ndarray
    """`(n, L)` int32: `[CLS] A [SEP] B [SEP]` or `[CLS] A [SEP]`, padded with 0."""
    lengths: np.ndarray
    """`(n,)` tokens that are not padding."""
    first_lengths: np.ndarray
    """`(n,)` tokens of `[CLS] A [SEP]`."""
    is_random_next: np.ndarray
    masked: Mapping[str, np.ndarray]
    """See `masking.mask_batch`; empty: masks are made when the records are loaded."""


def make_batch(
    tokens: np.ndarray,
    spans: instances.Spans,
    *,
    vocabulary: tokenization.Vocabulary,
    config: ExamplesConfig,
) -> Batch:
    first_lengths, lengths = spans.a_ends - spans.a_starts + 2, _lengths(spans)
    columns = np.arange(config.max_seq_length)
    is_first = columns < first_lengths[:, np.newaxis]
    # Offsets in `tokens` of column 0, if the segment began there.
    a_origins, b_origins = spans.a_starts - 1, spans.b_starts - first_lengths
    origins = np.where(is_first, a_origins[:, np.newaxis], b_origins[:, np.newaxis])
    # One gather for all rows. Columns of special tokens and padding get any token, or
    # are clipped at the ends; they are overwritten below.
    true_ids = tokens.take(origins + columns, mode="clip").astype(np.int32)
    rows = np.arange(len(lengths))
    true_ids[:, 0] = vocabulary.cls_id
    true_ids[rows, first_lengths - 1] = vocabulary.sep_id
    true_ids[rows, lengths - 1] = vocabulary.sep_id
    true_ids[columns >= lengths[:, np.newaxis]] = 0
    masked = {}
    if config.masking == "static":
        masked = masking.mask_batch(
            true_ids, lengths, spans.seeds, vocabulary=vocabulary, config=config
        )
    return Batch(true_ids, lengths, first_lengths, spans.is_random_next, masked)


def _lengths(spans: instances.Spans) -> np.ndarray:
    b_lengths = spans.b_ends - spans.b_starts
    return spans.a_ends - spans.a_starts + 2 + b_lengths + (b_lengths > 0)


def encode_batch(
    batch: Batch, config: ExamplesConfig, row_of: np.ndarray | None = None
) -> list[bytes]:
    """Serialises a batch; `row_of` is the packed row of each, ascending from 0."""
    columns = np.arange(config.max_seq_length)
    is_token = columns < batch.lengths[:, np.newaxis]
    values = {
        "input_ids": batch.true_ids,
        "input_mask": is_token,
        "segment_ids": is_token & (columns >= batch.first_lengths[:, np.newaxis]),
        "next_sentence_labels": batch.is_random_next[:, np.newaxis].astype(np.int64),
        **batch.masked,
    }
    lengths = {}
    if row_of is not None:
        values = packing.join_rows(values, row_of, config)
        labels = values["next_sentence_labels"]
        lengths["next_sentence_labels"] = (labels >= 0).sum(axis=1)
        # Empty slots have -1; they come last, and the lengths leave them out.
        values["next_sentence_labels"] = np.maximum(labels, 0)
    if not batch.masked:
        is_token = values["input_mask" if row_of is None else "instance_ids"] > 0
        lengths["input_ids"] = is_token.sum(axis=1)
    values = {features.stored_name(name, config): v for name, v in values.items()}
    if not batch.masked or row_of is not None:
        stored = {feature.name for feature in features.record_features(config)}
        values = {name: v for name, v in values.items() if name in stored}
    return records.encode_examples(
        values,
        lengths={features.stored_name(name, config): n for name, n in lengths.items()},
    )
