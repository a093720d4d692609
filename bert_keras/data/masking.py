"""Masked-LM inputs and targets of many sequences of token ids at a time.

Masks made once (`bert-keras examples`) and masks made at loading, which differ in each
epoch, follow one rule. Chance is a hash of (seed of the sequence, place, purpose), see
`seeded_hash`: a sequence with the same seed gets the same masks in any batch, padded to
any length, on any version of NumPy. Masks made at loading have the seeds of its
`record_seeds`: they are the same from any number of workers, and in a resumed run.
"""

import itertools

import numpy as np

from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import packing, seeded_hash, tokenization

EVALUATION_EPOCH = -1
"""Epoch of the masks of every evaluation; training has no such epoch."""


def plain_examples(
    input_ids: np.ndarray,
    lengths: np.ndarray,
    *,
    vocabulary: tokenization.Vocabulary,
    config: ExamplesConfig,
) -> dict[str, np.ndarray]:
    """Returns `input_ids`, `input_mask` and `segment_ids` of records without masks,
    each int32, from `(n, L)` ids, padded with 0, and `(n,)` numbers of tokens."""
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
) -> dict[str, np.ndarray]:
    """Hides a random part of each sequence, as google-research/bert does.

    Returns `input_ids`, all tokens with the replacements, and the `masked_lm` features
    of `features.pretraining_features`: int32, and weights float32.

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
        is_continuation = vocabulary.is_continuation[input_ids]
        run_starts = _draw_runs(
            *(is_continuation, is_candidate, wanted, seeds),
            max_ngram_size=config.max_ngram_size,
        )
        is_masked = run_starts >= 0
        num_masked = is_masked.sum(axis=1)
        rows, columns = np.nonzero(is_masked)
        positions = np.zeros((len(input_ids), config.num_predictions), np.int64)
        positions[rows, packing.places_in_rows(rows)] = columns
    else:
        positions, num_masked = _draw_tokens(
            is_candidate, wanted, seeds, config.num_predictions
        )
    is_masked = np.arange(positions.shape[1]) < num_masked[:, np.newaxis]
    labels = np.take_along_axis(input_ids, positions, axis=1)
    # Each place decides by its hash what is shown there, for a run its first place:
    # `[MASK]`, a random id or the label.
    decided_at = positions
    if config.max_ngram_size > 1:
        decided_at = np.take_along_axis(run_starts, positions, axis=1)
    choice = seeded_hash.fractions(
        seeded_hash.hash_places(seeds, decided_at, purpose=seeded_hash.REPLACE)
    )
    # The upper half of a hash, a fraction of 2 ** 32, as the same of the vocabulary.
    hashes = seeded_hash.hash_places(seeds, positions, purpose=seeded_hash.RANDOM_ID)
    half, num_ids = np.uint64(32), np.uint64(len(vocabulary))
    random_ids = ((hashes >> half) * num_ids >> half).astype(np.int64)
    stays_from = config.mask_token_prob + config.random_token_prob
    shown = np.where(choice < stays_from, random_ids, labels)
    shown[choice < config.mask_token_prob] = vocabulary.mask_id
    masked_ids = input_ids.astype(np.int32)
    rows, slots = np.nonzero(is_masked)
    masked_ids[rows, positions[rows, slots]] = shown[rows, slots]
    return {
        "input_ids": masked_ids,
        "masked_lm_positions": positions.astype(np.int32),
        "masked_lm_ids": np.where(is_masked, labels, 0).astype(np.int32),
        "masked_lm_weights": is_masked.astype(np.float32),
    }


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


def _draw_runs(
    is_continuation: np.ndarray,
    is_candidate: np.ndarray,
    wanted: np.ndarray,
    seeds: np.ndarray,
    *,
    max_ngram_size: int,
) -> np.ndarray:
    """Draws runs of whole words that do not overlap, until enough tokens are covered.

    The algorithm of tf-models-official's `_masking_ngrams`: draw a number of words,
    take the next of the shuffled runs of that many words, and pass it over if it has
    too many tokens or shares one with a run that was taken before. One sequence, with
    runs of at most 2 words:

        column                 0      1   2     3   4      5
        token                  [CLS]  un  ##do  it  [SEP]
        a word starts                 x         x
        end of the 1-word run  0      3   0     4   0      0
        end of the 2-word run  0      4   0     0   0      0

    If "un ##do it" is taken, all its words are owned by column 1, where it starts.

    The probability of a run of k words is proportional to 1 / k. Continuations are the
    `##` pieces, candidates all but special tokens and padding, `(n, L)` bool each, and
    `wanted` are `(n,)` tokens to cover at most. Returns `(n, L)` int64: for each column
    the start of the run that covers it, or -1.
    """
    # A word starts where no `##` piece goes on. Such a piece right after a special
    # token (its word was cut in two) is a word of its own: google-research/bert would
    # join it to the word before the special token.
    goes_on = np.zeros_like(is_candidate)
    goes_on[:, 1:] = is_continuation[:, 1:] & is_candidate[:, :-1]
    is_start = is_candidate & ~goes_on
    # The ends of all runs: for each number of words, less one, and each column, the
    # column after the run that starts there; 0 if no run starts there, as in the last
    # column. No run has a special token within.
    num_rows, num_columns = is_start.shape
    columns = np.arange(num_columns)
    borders = np.full((num_rows, num_columns + 1), num_columns)
    borders[:, :-1] = np.where(is_start | ~is_candidate, columns, num_columns)
    next_border = np.minimum.accumulate(borders[:, ::-1], axis=1)[:, ::-1]
    ends = np.zeros((max_ngram_size, num_rows, num_columns + 1), np.int64)
    ends[0, :, :-1] = np.where(is_start, next_border[:, 1:], 0)
    for size in range(1, max_ngram_size):
        # One word more; a run that ends where no word starts cannot grow.
        longer = np.take_along_axis(ends[0], ends[size - 1], axis=1)
        ends[size] = np.where(ends[size - 1] > 0, longer, 0)
    owners = _draw_from_piles(ends, seeds, wanted)
    word_of = np.maximum.accumulate(np.where(is_start, columns, 0), axis=1)
    return np.where(is_candidate, np.take_along_axis(owners, word_of, axis=1), -1)


def _draw_from_piles(
    run_ends: np.ndarray, seeds: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """Draws from shuffled piles, one for each sequence and number of words, until
    nothing fits any more.

    All sequences go in step: a step draws one run in each unfinished sequence. `rows`
    are these sequences, and `sizes` the numbers of words of their runs, less one.
    Arrays that begin with `sizes` have `max_ngram_size` entries there.

    Returns `(n, L + 1)`: for each column where a word starts the start of the run that
    covers it, -1 elsewhere. `run_ends` are `(sizes, n, L + 1)` int64, see `_draw_runs`.
    """
    shares = 1 / np.arange(1, len(run_ends) + 1)
    limits = np.cumsum(shares)[:-1] / shares.sum()
    # Shuffled starts of the runs of each size; columns without a run come last.
    columns = np.arange(run_ends.shape[2], dtype=np.uint64)
    piles = np.empty(run_ends.shape, np.int64)
    for size, ends in enumerate(run_ends):
        purpose = seeded_hash.DRAW_RUN + size
        keys = seeded_hash.sort_keys(seeds, columns, purpose=purpose)
        keys[ends == 0] = seeded_hash.LAST_KEY
        keys.sort(axis=1)
        piles[size] = seeded_hash.places(keys)
    num_left = (run_ends > 0).sum(axis=2)  # (sizes, n), as the next one is
    num_drawn = np.zeros_like(num_left)
    owners = np.full(run_ends.shape[1:], -1)
    room = wanted.copy()
    unfinished = np.arange(len(seeds))
    for step in itertools.count():
        is_open = (room[unfinished] > 0) & num_left[:, unfinished].any(axis=0)
        rows = unfinished = unfinished[is_open]
        if not len(rows):
            break
        hashes = seeded_hash.hash_places(
            seeds[rows], np.array([step]), purpose=seeded_hash.RUN_SIZE
        )
        fractions = seeded_hash.fractions(hashes[:, 0])
        sizes = np.searchsorted(limits, fractions, "right")
        # With more words than there is room for tokens, no run of the pile can fit.
        is_hopeless = sizes + 1 > room[rows]
        num_left[sizes[is_hopeless], rows[is_hopeless]] = 0
        is_there = num_left[sizes, rows] > 0
        rows, sizes = rows[is_there], sizes[is_there]
        starts = piles[sizes, rows, num_drawn[sizes, rows]]
        num_drawn[sizes, rows] += 1
        num_left[sizes, rows] -= 1
        # (sizes, rows), columns where the words of the runs start. Runs of fewer words
        # have their last word several times.
        words = np.tile(starts, (len(run_ends), 1))
        for number in range(1, len(run_ends)):
            following = run_ends[0, rows, words[number - 1]]
            words[number] = np.where(sizes >= number, following, words[number - 1])
        num_tokens = run_ends[sizes, rows, starts] - starts
        fits = (owners[rows, words] < 0).all(axis=0) & (num_tokens <= room[rows])
        room[rows[fits]] -= num_tokens[fits]
        owners[rows[fits], words[:, fits]] = starts[fits]
    return owners
