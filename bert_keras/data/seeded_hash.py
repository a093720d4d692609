"""Random numbers as a function of (seed, place, purpose): hashes, no generator.

No number depends on how many were drawn before it, on the batch or on its padding.
"""

import numpy as np

# Purposes: equal places give unrelated numbers for unequal purposes.
DRAW_TOKEN, REPLACE, RANDOM_ID, RUN_SIZE = 0, 1, 2, 3
DRAW_RUN = 4  # One word; the next number is for two words, and so on.

DROPOUT_SALT = 0x64726F706F757473
"""Makes seeds of dropout other numbers than those of masks."""

INCREMENT = np.uint64(0x9E3779B97F4A7C15)
"""Step of SplitMix64: 2 ** 64 divided by the golden ratio."""

MIX_ROUNDS = tuple(
    (np.uint64(shift), np.uint64(factor))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
)
"""Shift and factor of each round of `mix`."""

# The lowest bits of a key are the place itself: no two keys of a sequence are equal,
# and a sorted key still says whose it is.
_PLACE_BITS = np.uint64((1 << 20) - 1)

LAST_KEY = ~np.uint64(0)
"""Sorts behind all other keys."""


def mix(numbers: np.ndarray) -> np.ndarray:
    """Hashes uint64 numbers in place: the last step of SplitMix64 (Vigna, 2015)."""
    for shift, factor in MIX_ROUNDS:
        numbers ^= numbers >> shift
        numbers *= factor
    return numbers


def record_seeds(seed: int, epochs: np.ndarray, records: np.ndarray) -> np.ndarray:
    """Returns the seeds of records or examples of a run, `(n,)` uint64.

    `mix(mix(mix(seed + c) ^ epoch + c) ^ record + c)` modulo 2 ** 64, where `mix` is
    the last step of SplitMix64 and `c` its increment, 0x9E3779B97F4A7C15. Epochs and
    records, `(n,)` integers, count from 0: records in all shards of the directory, in
    the manifest's order.
    """
    states = np.full(len(records), seed & (1 << 64) - 1, np.uint64)
    for numbers in (np.zeros_like(records), epochs, records):
        states ^= numbers.astype(np.uint64)
        states = mix(states + INCREMENT)
    return states


def hash_places(seeds: np.ndarray, places: np.ndarray, *, purpose: int) -> np.ndarray:
    """Returns 64 random bits for each place of each sequence, `(n, places)` uint64,
    from SplitMix64 with one stream for each seed, `(n,)` uint64, and purpose, below
    2 ** 31. The places, `(places,)` or `(n, places)`, count from 0."""
    streams = mix(seeds.astype(np.uint64) + INCREMENT)
    streams = mix(streams ^ (np.uint64(purpose) << np.uint64(32)))
    steps = (places.astype(np.uint64) + np.uint64(1)) * INCREMENT
    return mix(streams[:, np.newaxis] + steps)


def fractions(hashes: np.ndarray) -> np.ndarray:
    """Turns hashes into float64 numbers, uniform from 0 to below 1."""
    return (hashes >> np.uint64(11)) * 2.0**-53


def sort_keys(seeds: np.ndarray, columns: np.ndarray, *, purpose: int) -> np.ndarray:
    """Returns keys, `(n, columns)` uint64, whose sorted order is a random order.
    `columns` are `(columns,)` uint64 places, below 2 ** 20."""
    keys = hash_places(seeds, columns, purpose=purpose)
    keys &= ~_PLACE_BITS
    keys |= columns
    return keys


def places(keys: np.ndarray) -> np.ndarray:
    return (keys & _PLACE_BITS).astype(np.int64)
