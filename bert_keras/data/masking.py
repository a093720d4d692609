"""Token ids to masked-LM input and targets, many sequences at a time.

The same rule for masks made once (`examples`) and masks made at each loading
(`inputs.py`). All chance is a hash of (seed of the sequence, place, purpose), so a
sequence with the same seed gets the same masks in any batch, padded to any length, on
any version of NumPy.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bert_keras.config import ExamplesConfig
from bert_keras.data import tokenization


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskingVocabulary:
    """What masking must know of a vocabulary."""

    size: int
    """Random replacements are drawn from all ids below it, special ones included."""
    cls_id: int
    sep_id: int
    mask_id: int
    is_continuation: np.ndarray | Sequence[bool]
    """`(size,)` bool: is the piece a `##` one, that goes on with a word?"""

    def __post_init__(self) -> None:
        as_array = np.asarray(self.is_continuation, dtype=bool)
        object.__setattr__(self, "is_continuation", as_array)


def masking_vocabulary(vocabulary: tokenization.Vocabulary) -> MaskingVocabulary:
    """The part of a vocabulary that masking needs."""
    prefix = tokenization.CONTINUATION_PREFIX
    return MaskingVocabulary(
        size=len(vocabulary),
        cls_id=vocabulary.cls_id,
        sep_id=vocabulary.sep_id,
        mask_id=vocabulary.mask_id,
        is_continuation=[token.startswith(prefix) for token in vocabulary.tokens],
    )


class MaskedBatch(NamedTuple):
    """`n` sequences with some of their tokens hidden; `P` predictions at most."""

    input_ids: np.ndarray
    """`(n, L)` int32: all tokens, the replacements in place."""
    positions: np.ndarray
    """`(n, P)` int32: where a prediction is asked for, ascending, padded with 0."""
    labels: np.ndarray
    """`(n, P)` int32: the true ids there, padded with 0."""
    num_masked: np.ndarray
    """`(n,)` int32: how many of the `P` are predictions."""


# Chance.

# What a hash is for: equal places give unrelated numbers for unequal purposes.
_DRAW_TOKEN, _REPLACE, _RANDOM_ID, _RUN_SIZE = 0, 1, 2, 3
_DRAW_RUN = 4  # And one more for each further word of a run.

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(numbers: np.ndarray) -> np.ndarray:
    """Hashes uint64 numbers, in place: the last step of SplitMix64 (Vigna, 2015)."""
    numbers ^= numbers >> np.uint64(30)
    numbers *= np.uint64(0xBF58476D1CE4E5B9)
    numbers ^= numbers >> np.uint64(27)
    numbers *= np.uint64(0x94D049BB133111EB)
    numbers ^= numbers >> np.uint64(31)
    return numbers


def hash_places(seeds: np.ndarray, places: np.ndarray, *, purpose: int) -> np.ndarray:
    """64 random bits for each place of each sequence.

    Args:
        seeds: `(n,)` uint64.
        places: `(places,)` or `(n, places)`, counted from 0.
        purpose: below 2 ** 31; another one gives unrelated numbers.

    Returns:
        `(n, places)` uint64. SplitMix64 with one stream for each (seed, purpose).
    """
    streams = mix(seeds.astype(np.uint64) + _GOLDEN)
    streams = mix(streams ^ (np.uint64(purpose) << np.uint64(32)))
    steps = (places.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    return mix(streams[:, np.newaxis] + steps)


def fractions(hashes: np.ndarray) -> np.ndarray:
    """Hashes as float64 numbers, uniform from 0 to below 1."""
    return (hashes >> np.uint64(11)) * 2.0**-53


def below(hashes: np.ndarray, limits: np.ndarray | int) -> np.ndarray:
    """Hashes as int64 numbers, uniform from 0 to below `limits` (at most 2 ** 32)."""
    limits = np.asarray(limits).astype(np.uint64)
    return ((hashes >> np.uint64(32)) * limits >> np.uint64(32)).astype(np.int64)


# Masking.


def num_predictions(lengths: np.ndarray, config: ExamplesConfig) -> np.ndarray:
    """How many tokens are hidden in sequences of `lengths` tokens, specials counted.

    Halves are rounded to even, as in the original: 0.15 x 10 gives 2, and 0.15 x 30 =
    4.5 gives 4.
    """
    wanted = np.rint(lengths * config.masked_lm_prob).astype(np.int64)
    return np.minimum(np.maximum(wanted, 1), config.num_predictions)


def mask_batch(
    input_ids: np.ndarray,
    lengths: np.ndarray,
    seeds: np.ndarray,
    *,
    vocabulary: MaskingVocabulary,
    config: ExamplesConfig,
) -> MaskedBatch:
    """Hides a random part of each sequence, as google-research/bert has it.

    Positions are drawn without replacement from all but `[CLS]` and `[SEP]`. Each
    drawn token becomes `[MASK]` (by default in 80 % of the cases), a random id of the
    whole vocabulary (10 %), or stays.

    With `config.do_whole_word_mask`, whole words are drawn (a piece and the `##` pieces
    after it); a word that would exceed the number of predictions is passed over, so
    fewer tokens than that number, even none, may be hidden. What a hidden token becomes
    is still chosen for each piece. With `config.max_ngram_size` above 1, runs of whole
    words are drawn, and what becomes of it is chosen once for a run, as in
    tf-models-official (each token of a randomly replaced run gets its own random id).

    Args:
        input_ids: `(n, L)` ids, padded with 0.
        lengths: `(n,)` tokens that are not padding.
        seeds: `(n,)` uint64, which alone decide the masks. Any numbers, consecutive
            ones too.

    Returns:
        See `MaskedBatch`; `P` is `config.num_predictions`. `input_ids` is a copy.
    """
    columns = np.arange(input_ids.shape[1])
    is_candidate = columns < lengths[:, np.newaxis]
    is_candidate &= input_ids != vocabulary.cls_id
    is_candidate &= input_ids != vocabulary.sep_id
    wanted = num_predictions(lengths, config)
    if config.do_whole_word_mask or config.max_ngram_size > 1:
        run_starts = _draw_runs(
            input_ids,
            is_candidate,
            wanted,
            seeds,
            vocabulary=vocabulary,
            max_ngram_size=config.max_ngram_size,
        )
        positions, num_masked = _marked(run_starts >= 0, config.num_predictions)
    else:
        run_starts = None
        positions, num_masked = _draw_tokens(
            is_candidate, wanted, seeds, config.num_predictions
        )
    chosen_at = positions
    if run_starts is not None and config.max_ngram_size > 1:
        chosen_at = np.take_along_axis(run_starts, positions, axis=1)
    is_masked = np.arange(positions.shape[1]) < num_masked[:, np.newaxis]
    labels = np.take_along_axis(input_ids, positions, axis=1)
    shown = _replacements(
        labels, positions, chosen_at, seeds, vocabulary=vocabulary, config=config
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
    chosen_at: np.ndarray,
    seeds: np.ndarray,
    *,
    vocabulary: MaskingVocabulary,
    config: ExamplesConfig,
) -> np.ndarray:
    """`(n, P)` ids that are shown in place of `labels`.

    `chosen_at`: for each position, that whose hash decides what becomes of it.
    """
    choice = fractions(hash_places(seeds, chosen_at, purpose=_REPLACE))
    random_ids = below(
        hash_places(seeds, positions, purpose=_RANDOM_ID), vocabulary.size
    )
    stays_from = config.mask_token_prob + config.random_token_prob
    shown = np.where(choice < stays_from, random_ids, labels)
    shown[choice < config.mask_token_prob] = vocabulary.mask_id
    return shown


def _draw_tokens(
    is_candidate: np.ndarray, wanted: np.ndarray, seeds: np.ndarray, num_slots: int
) -> tuple[np.ndarray, np.ndarray]:
    """Positions `(n, num_slots)` of single tokens, and how many they are."""
    num_columns = is_candidate.shape[1]
    num_masked = np.minimum(wanted, is_candidate.sum(axis=1))
    columns = np.arange(num_columns, dtype=np.uint64)
    keys = _keyed_places(seeds, columns, purpose=_DRAW_TOKEN)
    keys[~is_candidate] = ~np.uint64(0)
    num_kept = min(num_slots, num_columns)
    smallest = np.partition(keys, num_kept - 1, axis=1)[:, :num_kept]
    smallest.sort(axis=1)
    is_drawn = np.arange(num_kept) < num_masked[:, np.newaxis]
    positions = np.where(is_drawn, smallest & _PLACE, num_columns).astype(np.int64)
    positions.sort(axis=1)
    positions[~is_drawn] = 0
    return _padded(positions, num_slots), num_masked


# The lowest bits of a key are the place itself: no two keys are equal, and a key says
# whose it is.
_PLACE = np.uint64((1 << 20) - 1)


def _keyed_places(
    seeds: np.ndarray, columns: np.ndarray, *, purpose: int
) -> np.ndarray:
    """`(n, columns)` uint64 random keys, which sort into a random order of places."""
    keys = hash_places(seeds, columns, purpose=purpose)
    keys &= ~_PLACE
    keys |= columns
    return keys


def _marked(is_marked: np.ndarray, num_slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Columns `(n, num_slots)` that are marked, and how many they are."""
    num_marked = is_marked.sum(axis=1)
    rows, columns = np.nonzero(is_marked)
    first_of_row = np.cumsum(num_marked) - num_marked
    positions = np.zeros((len(is_marked), num_slots), np.int64)
    positions[rows, np.arange(len(rows)) - first_of_row[rows]] = columns
    return positions, num_marked


def _padded(values: np.ndarray, num_columns: int) -> np.ndarray:
    return np.pad(values, ((0, 0), (0, num_columns - values.shape[1])))


# Words and runs of words.


def _draw_runs(
    input_ids: np.ndarray,
    is_candidate: np.ndarray,
    wanted: np.ndarray,
    seeds: np.ndarray,
    *,
    vocabulary: MaskingVocabulary,
    max_ngram_size: int,
) -> np.ndarray:
    """Draws runs of words that do not overlap, until enough tokens are covered.

    The algorithm of tf-models-official's `_masking_ngrams`, all sequences in step: draw
    a size, then the next of the shuffled runs of this size, and pass it over if it
    covers too many tokens or some a second time.

    Returns:
        `(n, L)`: for each place the start of the run that covers it, or -1.
    """
    num_rows, num_columns = input_ids.shape
    is_start = _word_starts(input_ids, is_candidate, vocabulary)
    runs = _run_ends(is_start, is_candidate, max_ngram_size)
    draws = _Draws(
        runs=runs,
        orders=_shuffled_starts(runs, seeds),
        num_left=(runs > 0).sum(axis=2),
        num_popped=np.zeros((max_ngram_size, num_rows), np.int64),
        room=wanted.copy(),
        owners=np.full((num_rows, num_columns + 1), -1),
    )
    shares = 1 / np.arange(1, max_ngram_size + 1)
    limits = np.cumsum(shares)[:-1] / shares.sum()
    rows = np.arange(num_rows)
    for step in itertools.count():
        rows = rows[(draws.room[rows] > 0) & draws.num_left[:, rows].any(axis=0)]
        if not len(rows):
            break
        hashes = hash_places(seeds[rows], np.array([step]), purpose=_RUN_SIZE)[:, 0]
        _draw_one_run(draws, rows, np.searchsorted(limits, fractions(hashes), "right"))
    columns = np.arange(num_columns)
    word_of = np.maximum.accumulate(np.where(is_start, columns, 0), axis=1)
    owners = np.take_along_axis(draws.owners, word_of, axis=1)
    return np.where(is_candidate, owners, -1)


def _word_starts(
    input_ids: np.ndarray, is_candidate: np.ndarray, vocabulary: MaskingVocabulary
) -> np.ndarray:
    """`(n, L)` bool: does a word begin there?

    A `##` piece right after a special token (its word was cut in two) is a word of
    its own: google-research/bert would join it to the word before the special token.
    """
    goes_on = vocabulary.is_continuation[input_ids]
    goes_on[:, :1] = False
    goes_on[:, 1:] &= is_candidate[:, :-1]
    return is_candidate & ~goes_on


def _run_ends(
    is_start: np.ndarray, is_candidate: np.ndarray, max_ngram_size: int
) -> np.ndarray:
    """Ends of all runs of 1 to `max_ngram_size` words; none has a special token within.

    Returns:
        `(max_ngram_size, n, L + 1)`: for each number of words and each place, where
        the run that begins there ends; 0 if none does, as in the last column.
    """
    num_rows, num_columns = is_start.shape
    borders = np.full((num_rows, num_columns + 1), num_columns)
    is_border = is_start | ~is_candidate
    borders[:, :-1] = np.where(is_border, np.arange(num_columns), num_columns)
    next_border = np.minimum.accumulate(borders[:, ::-1], axis=1)[:, ::-1]
    ends = np.zeros((max_ngram_size, num_rows, num_columns + 1), np.int64)
    ends[0, :, :-1] = np.where(is_start, next_border[:, 1:], 0)
    for size in range(1, max_ngram_size):
        # One word more; a run that ends where no word begins cannot grow.
        longer = np.take_along_axis(ends[0], ends[size - 1], axis=1)
        ends[size] = np.where(ends[size - 1] > 0, longer, 0)
    return ends


def _shuffled_starts(runs: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """`(sizes, n, L + 1)`: starts of the runs in a random order, then what is none."""
    columns = np.arange(runs.shape[2], dtype=np.uint64)
    orders = np.empty(runs.shape, np.int64)
    for size, ends in enumerate(runs):
        keys = _keyed_places(seeds, columns, purpose=_DRAW_RUN + size)
        keys[ends == 0] = ~np.uint64(0)
        keys.sort(axis=1)
        orders[size] = keys & _PLACE
    return orders


class _Draws(NamedTuple):
    """Where the drawing of runs stands; the arrays are changed in place."""

    runs: np.ndarray
    """From `_run_ends`."""
    orders: np.ndarray
    """From `_shuffled_starts`."""
    num_left: np.ndarray
    """`(sizes, n)`: runs that were not drawn yet."""
    num_popped: np.ndarray
    """`(sizes, n)`: runs that were drawn."""
    room: np.ndarray
    """`(n,)`: tokens that may still be covered."""
    owners: np.ndarray
    """`(n, L + 1)`: where a covered word begins, the start of its run; else -1."""


def _draw_one_run(draws: _Draws, rows: np.ndarray, sizes: np.ndarray) -> None:
    """One draw in each of `rows`; `sizes`: words of the run, less one."""
    too_large = sizes + 1 > draws.room[rows]
    draws.num_left[sizes[too_large], rows[too_large]] = 0
    possible = draws.num_left[sizes, rows] > 0
    rows, sizes = rows[possible], sizes[possible]
    starts = draws.orders[sizes, rows, draws.num_popped[sizes, rows]]
    ends = draws.runs[sizes, rows, starts]
    draws.num_popped[sizes, rows] += 1
    draws.num_left[sizes, rows] -= 1
    words = [starts]
    fits = (ends - starts <= draws.room[rows]) & (draws.owners[rows, starts] < 0)
    for number in range(1, len(draws.runs)):
        # The next word of longer runs, the last one again of shorter ones.
        following = draws.runs[0, rows, words[-1]]
        words.append(np.where(sizes >= number, following, words[-1]))
        fits &= draws.owners[rows, words[-1]] < 0
    rows, starts, ends = rows[fits], starts[fits], ends[fits]
    draws.room[rows] -= ends - starts
    for word in words:
        draws.owners[rows, word[fits]] = starts
