"""Masking of plain examples while they are loaded, differently in each epoch.

The masks of an example are a function of (seed of the run, epoch, number of the
record): the same in a batch of any size, from any number of workers, and in a resumed
run. Token ids are `(n, max_seq_length)` int32, padded with 0; lengths are `(n,)` tokens
that are not padding.
"""

import numpy as np

from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import masking, seeded_hash, tokenization

EVALUATION_EPOCH = -1
"""Epoch of the masks of every evaluation; training has no such epoch."""


def record_seeds(seed: int, epochs: np.ndarray, records: np.ndarray) -> np.ndarray:
    """Returns the seeds of the examples' masks, `(n,)` uint64.

    `mix(mix(mix(seed + c) ^ epoch + c) ^ record + c)` modulo 2 ** 64, where `mix` is
    the last step of SplitMix64 and `c` its increment, 0x9E3779B97F4A7C15.

    Args:
        epochs: `(n,)` integers, from 0.
        records: `(n,)` integers: places of the records in all shards of the directory,
            in the manifest's order.
    """
    states = np.full(len(records), seed & (1 << 64) - 1, np.uint64)
    for numbers in (np.zeros_like(records), epochs, records):
        states ^= numbers.astype(np.uint64)
        states = seeded_hash.mix(states + seeded_hash.INCREMENT)
    return states


def plain_examples(
    input_ids: np.ndarray,
    lengths: np.ndarray,
    *,
    vocabulary: tokenization.Vocabulary,
    config: ExamplesConfig,
) -> dict[str, np.ndarray]:
    """Returns `input_ids`, `input_mask` and `segment_ids` of records without masks,
    each int32."""
    is_token = np.arange(input_ids.shape[1]) < lengths[:, np.newaxis]
    segment_ids = np.zeros_like(input_ids, np.int32)
    if config.packing == "sentence_pairs":
        is_sep = (input_ids == vocabulary.sep_id).astype(np.int32)
        num_sep_before = np.cumsum(is_sep, axis=1) - is_sep
        segment_ids = ((num_sep_before > 0) & is_token).astype(np.int32)
    return {
        "input_ids": input_ids,
        "input_mask": is_token.astype(np.int32),
        "segment_ids": segment_ids,
    }


def mask_examples(
    input_ids: np.ndarray,
    lengths: np.ndarray,
    seeds: np.ndarray,
    *,
    vocabulary: tokenization.Vocabulary,
    config: ExamplesConfig,
    shares: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Masks plain records by `record_seeds`; see `masking.mask_batch`.

    Returns `features.pretraining_features` without `next_sentence_labels`: int32, and
    `masked_lm_weights` float32.
    """
    masked = masking.mask_batch(
        input_ids, lengths, seeds, vocabulary=vocabulary, config=config, shares=shares
    )
    num_slots = masked.positions.shape[1]
    is_prediction = np.arange(num_slots) < masked.num_masked[:, np.newaxis]
    plain = plain_examples(input_ids, lengths, vocabulary=vocabulary, config=config)
    return plain | {
        "input_ids": masked.input_ids,
        "masked_lm_positions": masked.positions,
        "masked_lm_ids": masked.labels,
        "masked_lm_weights": is_prediction.astype(np.float32),
    }
