"""Masked-LM inputs and targets of many sequences of token ids at a time.

Masks made once (`bert-keras examples`) and masks made at loading (`dynamic_masking`)
follow one rule. Chance is a hash of (seed of the sequence, place, purpose), see
`seeded_hash`: a sequence with the same seed gets the same masks in any batch, padded to
any length, on any version of NumPy.
"""

from typing import NamedTuple

import numpy as np

from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import ngram_masking, seeded_hash, tokenization


class MaskedBatch(NamedTuple):
    """A batch of `n` sequences of `L` tokens with at most `P` hidden tokens each."""

    input_ids: np.ndarray
    """`(n, L)` int32: all tokens, with the replacements."""
    positions: np.ndarray
    """`(n, P)` int32: places of the hidden tokens, ascending, padded with 0."""
    labels: np.ndarray
    """`(n, P)` int32: true ids of the hidden tokens, padded with 0."""
    num_masked: np.ndarray
    """`(n,)` int32: number of hidden tokens; the rest of `P` is padding."""


def num_predictions(
    lengths: np.ndarray, config: ExamplesConfig, shares: np.ndarray | None = None
) -> np.ndarray:
    """Returns how many tokens to hide in sequences of `lengths` tokens, with specials.
    Halves are rounded to even, as in the original: 0.15 x 30 = 4.5 gives 4."""
    wanted = lengths * (config.masked_lm_prob if shares is None else shares)
    wanted = np.rint(wanted).astype(np.int64)
    return np.minimum(np.maximum(wanted, 1), config.num_predictions)


def mask_batch(
    input_ids: np.ndarray,
    lengths: np.ndarray,
    seeds: np.ndarray,
    *,
    vocabulary: tokenization.Vocabulary,
    config: ExamplesConfig,
    shares: np.ndarray | None = None,
) -> MaskedBatch:
    """Hides a random part of each sequence, as google-research/bert does.

    Positions are drawn without replacement from all but `[CLS]` and `[SEP]`. Each drawn
    token becomes `[MASK]` (by default in 80 % of the cases), a random id of the whole
    vocabulary (10 %), or stays.

    With `config.do_whole_word_mask`, whole words are drawn (a piece and the `##` pieces
    after it); a word that would exceed the number of predictions is passed over, so
    fewer tokens than that number, even none, may be hidden. The replacement is still
    chosen for each piece. With `config.max_ngram_size` above 1, runs of whole words are
    drawn, and the kind of replacement is chosen once for a run, as in
    tf-models-official (each token of a randomly replaced run gets its own random id).

    Args:
        input_ids: `(n, L)` ids, padded with 0; the result holds a copy.
        lengths: `(n,)` tokens that are not padding.
        seeds: `(n,)` uint64, which alone decide the masks. They may be consecutive.
        shares: `(n,)` float64 shares of tokens to hide, `None`:
            `config.masked_lm_prob` of all. Of a sequence, a smaller share hides a part
            of what a larger one does, if tokens are drawn one by one.
    """
    columns = np.arange(input_ids.shape[1])
    is_candidate = columns < lengths[:, np.newaxis]
    is_candidate &= input_ids != vocabulary.cls_id
    is_candidate &= input_ids != vocabulary.sep_id
    wanted = num_predictions(lengths, config, shares)
    if config.do_whole_word_mask or config.max_ngram_size > 1:
        run_starts = ngram_masking.draw(
            input_ids,
            is_candidate,
            wanted,
            seeds,
            is_continuation=vocabulary.is_continuation,
            max_ngram_size=config.max_ngram_size,
        )
        positions, num_masked = _marked(run_starts >= 0, config.num_predictions)
    else:
        positions, num_masked = _draw_tokens(
            is_candidate, wanted, seeds, config.num_predictions
        )
    decided_at = positions
    if config.max_ngram_size > 1:
        decided_at = np.take_along_axis(run_starts, positions, axis=1)
    is_masked = np.arange(positions.shape[1]) < num_masked[:, np.newaxis]
    labels = np.take_along_axis(input_ids, positions, axis=1)
    shown = _replacements(
        labels, positions, decided_at, seeds, vocabulary=vocabulary, config=config
    )
    masked_ids = input_ids.astype(np.int32)
    rows, slots = np.nonzero(is_masked)
    masked_ids[rows, positions[rows, slots]] = shown[rows, slots]
    return MaskedBatch(
        input_ids=masked_ids,
        positions=positions.astype(np.int32),
        labels=np.where(is_masked, labels, 0).astype(np.int32),
        num_masked=num_masked.astype(np.int32),
    )


def _replacements(
    labels: np.ndarray,
    positions: np.ndarray,
    decided_at: np.ndarray,
    seeds: np.ndarray,
    *,
    vocabulary: tokenization.Vocabulary,
    config: ExamplesConfig,
) -> np.ndarray:
    """Returns the ids to show in place of `labels`, `(n, P)`: `[MASK]`, a random id or
    the label, by the hash of the place `decided_at`, which a whole run shares."""
    choice = seeded_hash.fractions(
        seeded_hash.hash_places(seeds, decided_at, purpose=seeded_hash.REPLACE)
    )
    random_ids = seeded_hash.below(
        seeded_hash.hash_places(seeds, positions, purpose=seeded_hash.RANDOM_ID),
        len(vocabulary),
    )
    stays_from = config.mask_token_prob + config.random_token_prob
    shown = np.where(choice < stays_from, random_ids, labels)
    shown[choice < config.mask_token_prob] = vocabulary.mask_id
    return shown


def _draw_tokens(
    is_candidate: np.ndarray, wanted: np.ndarray, seeds: np.ndarray, num_slots: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws positions of single tokens, `(n, num_slots)`, and counts them, `(n,)`."""
    num_columns = is_candidate.shape[1]
    num_masked = np.minimum(wanted, is_candidate.sum(axis=1))
    columns = np.arange(num_columns, dtype=np.uint64)
    keys = seeded_hash.sort_keys(seeds, columns, purpose=seeded_hash.DRAW_TOKEN)
    keys[~is_candidate] = seeded_hash.LAST_KEY
    num_kept = min(num_slots, num_columns)
    smallest = np.partition(keys, num_kept - 1, axis=1)[:, :num_kept]
    smallest.sort(axis=1)
    is_drawn = np.arange(num_kept) < num_masked[:, np.newaxis]
    positions = np.where(is_drawn, seeded_hash.places(smallest), num_columns)
    positions.sort(axis=1)
    positions[~is_drawn] = 0
    return np.pad(positions, ((0, 0), (0, num_slots - num_kept))), num_masked


def _marked(is_marked: np.ndarray, num_slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the marked columns, `(n, num_slots)`, and their number, `(n,)`."""
    num_marked = is_marked.sum(axis=1)
    rows, columns = np.nonzero(is_marked)
    first_of_row = np.cumsum(num_marked) - num_marked
    positions = np.zeros((len(is_marked), num_slots), np.int64)
    positions[rows, np.arange(len(rows)) - first_of_row[rows]] = columns
    return positions, num_marked
