"""Figures of some of a phase's training examples, for `report.diagnosis`."""

import dataclasses

import numpy as np

from bert_keras.core.settings import config
from bert_keras.report.diagnosis import TextSample
from bert_keras.training.pretraining import phases

NUM_EXAMPLES = 2000
_RUN_LENGTH = 16
"""Pieces in a run that is looked for again."""


def read(settings: config.PretrainingConfig, phase: phases.Phase) -> TextSample:
    """Reads examples of all shards in turn."""
    examples, vocabulary = phase.examples, phase.vocabulary
    # Left to right nothing would be masked.
    reader = phases.batches_of(settings, phase)
    reader = dataclasses.replace(reader, attention="bidirectional")
    data, num_batches = reader.to_evaluate(
        phase.train_shards, num_batches=-(-NUM_EXAMPLES // phase.batch_size)
    )
    batches = list(data.take(num_batches).as_numpy_iterator())
    batch = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
    mask = batch["instance_ids" if "instance_ids" in batch else "input_mask"] > 0
    # The last batch is filled up with examples of a `[CLS]` alone.
    mask, ids = (a[mask.sum(axis=1) > 1] for a in (mask, _without_masks(batch)))
    special = [vocabulary.cls_id, vocabulary.sep_id]
    pieces = ids[mask & ~np.isin(ids, special)]
    counts = np.bincount(pieces, minlength=len(vocabulary))
    shares = counts[counts > 0] / max(len(pieces), 1)
    is_continuation = np.asarray(reader.vocabulary.is_continuation)
    num_words = max(counts[~is_continuation].sum(), 1)
    return TextSample(
        num_examples=len(ids),
        num_shards=len(phase.train_shards),
        num_records=phase.num_train_records,
        pieces_per_word=len(pieces) / num_words,
        unknown_share=counts[vocabulary.unk_id] / max(len(pieces), 1),
        # A random next sentence comes once more.
        repeated_share=_repeated_share(ids, mask, 3 * examples.num_duplicates),
        padding_share=float(1 - mask.mean()),
        masked_share=float(batch["masked_lm_weights"].sum() / max(len(pieces), 1)),
        entropy=float(-(shares * np.log(shares)).sum()),
    )


def _without_masks(batch: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the ids as the text has them."""
    ids = batch["input_ids"].copy()
    rows, slots = np.nonzero(batch["masked_lm_weights"])
    columns = batch["masked_lm_positions"][rows, slots]
    ids[rows, columns] = batch["masked_lm_ids"][rows, slots]
    return ids


def _repeated_share(ids: np.ndarray, mask: np.ndarray, usual: int) -> float:
    """Returns the share of runs of pieces that more than `usual` rows have.

    Of all runs those are looked at whose hash is in a certain eighth: the same ones
    wherever a row begins.
    """
    runs = np.lib.stride_tricks.sliding_window_view(ids, _RUN_LENGTH, axis=1)
    is_whole = np.lib.stride_tricks.sliding_window_view(mask, _RUN_LENGTH, axis=1)
    factors = np.random.default_rng(0).integers(1, 2**62, _RUN_LENGTH, np.uint64)
    hashes = (runs.astype(np.uint64) * (factors | np.uint64(1))).sum(axis=2)
    chosen = is_whole.all(axis=2) & (hashes >> np.uint64(61) == 0)
    rows, columns = np.nonzero(chosen)
    pairs = np.unique(np.stack([hashes[rows, columns], rows.astype(np.uint64)]), axis=1)
    _, counts = np.unique(pairs[0], return_counts=True)
    return float(counts[counts > usual].sum() / max(counts.sum(), 1))
