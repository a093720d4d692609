"""Runs of whole words to hide, drawn in many sequences at once.

The algorithm of tf-models-official's `_masking_ngrams`: draw a number of words, take
the next of the shuffled runs of that many words, and pass it over if it has too many
tokens or shares one with a run that was taken before. One sequence, with runs of at
most 2 words:

    column                 0      1   2     3   4      5
    token                  [CLS]  un  ##do  it  [SEP]
    a word starts                 x         x
    end of the 1-word run  0      3   0     4   0      0
    end of the 2-word run  0      4   0     0   0      0

If "un ##do it" is taken, all its words are owned by column 1, where it starts.
"""

import itertools

import numpy as np

from bert_keras.data import seeded_hash


def draw(
    input_ids: np.ndarray,
    is_candidate: np.ndarray,
    wanted: np.ndarray,
    seeds: np.ndarray,
    *,
    is_continuation: np.ndarray,
    max_ngram_size: int,
) -> np.ndarray:
    """Draws runs that do not overlap, until enough tokens are covered.

    Args:
        input_ids: `(n, L)`.
        is_candidate: `(n, L)` bool; false at special tokens and padding.
        wanted: `(n,)` tokens to cover at most.
        seeds: `(n,)` uint64.
        is_continuation: `(vocab_size,)` bool, true for `##` pieces.
        max_ngram_size: words of the longest runs. The probability of a run of k words
            is proportional to 1 / k.

    Returns:
        `(n, L)` int64: for each column the start of the run that covers it, or -1.
    """
    is_start = _word_starts(input_ids, is_candidate, is_continuation)
    run_ends = _run_ends(is_start, is_candidate, max_ngram_size)
    owners = _draw_runs(run_ends, seeds, wanted)
    columns = np.arange(input_ids.shape[1])
    word_of = np.maximum.accumulate(np.where(is_start, columns, 0), axis=1)
    return np.where(is_candidate, np.take_along_axis(owners, word_of, axis=1), -1)


def _word_starts(
    input_ids: np.ndarray, is_candidate: np.ndarray, is_continuation: np.ndarray
) -> np.ndarray:
    """Marks the columns where a word starts, `(n, L)` bool.

    A `##` piece right after a special token (its word was cut in two) is a word of its
    own: google-research/bert would join it to the word before the special token.
    """
    goes_on = is_continuation[input_ids]
    goes_on[:, :1] = False
    goes_on[:, 1:] &= is_candidate[:, :-1]
    return is_candidate & ~goes_on


def _run_ends(
    is_start: np.ndarray, is_candidate: np.ndarray, max_ngram_size: int
) -> np.ndarray:
    """Returns the ends of all runs, `(max_ngram_size, n, L + 1)` int64: for each number
    of words, less one, and each column, the column after the run that starts there; 0
    if no run starts there, as in the last column. No run has a special token within."""
    num_rows, num_columns = is_start.shape
    borders = np.full((num_rows, num_columns + 1), num_columns)
    is_border = is_start | ~is_candidate
    borders[:, :-1] = np.where(is_border, np.arange(num_columns), num_columns)
    next_border = np.minimum.accumulate(borders[:, ::-1], axis=1)[:, ::-1]
    ends = np.zeros((max_ngram_size, num_rows, num_columns + 1), np.int64)
    ends[0, :, :-1] = np.where(is_start, next_border[:, 1:], 0)
    for size in range(1, max_ngram_size):
        # One word more; a run that ends where no word starts cannot grow.
        longer = np.take_along_axis(ends[0], ends[size - 1], axis=1)
        ends[size] = np.where(ends[size - 1] > 0, longer, 0)
    return ends


def _draw_runs(
    run_ends: np.ndarray, seeds: np.ndarray, wanted: np.ndarray
) -> np.ndarray:
    """Draws from shuffled piles, one for each sequence and number of words, until
    nothing fits any more.

    All sequences go in step: a step draws one run in each unfinished sequence. `rows`
    are these sequences, and `sizes` the numbers of words of their runs, less one.
    Arrays that begin with `sizes` have `max_ngram_size` entries there.

    Args:
        run_ends: `(sizes, n, L + 1)` from `_run_ends`.
        seeds: `(n,)` uint64.
        wanted: `(n,)` tokens that may be covered.

    Returns:
        `(n, L + 1)`: for each column where a word starts the start of the run that
        covers it, -1 elsewhere.
    """
    shares = 1 / np.arange(1, len(run_ends) + 1)
    limits = np.cumsum(shares)[:-1] / shares.sum()
    piles = _shuffled_starts(run_ends, seeds)
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


def _shuffled_starts(run_ends: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Shuffles the starts of the runs of each size; columns without one come last."""
    columns = np.arange(run_ends.shape[2], dtype=np.uint64)
    starts = np.empty(run_ends.shape, np.int64)
    for size, ends in enumerate(run_ends):
        purpose = seeded_hash.DRAW_RUN + size
        keys = seeded_hash.sort_keys(seeds, columns, purpose=purpose)
        keys[ends == 0] = seeded_hash.LAST_KEY
        keys.sort(axis=1)
        starts[size] = seeded_hash.places(keys)
    return starts
