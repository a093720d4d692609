"""Masking: the rule computed again one by one, counts and shares, whole words, runs."""

from collections import Counter

import numpy as np
import pytest

from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import features, masking, tokenization

CLS, SEP, MASK = 2, 3, 4
# Ids 5 to 59 begin a word, 60 to 99 continue one.
VOCABULARY = tokenization.Vocabulary(
    (
        *features.SPECIAL_TOKENS,
        *(str(token) for token in range(5, 60)),
        *(f"##{token}" for token in range(60, 100)),
    )
)
SEQUENCE = [CLS, *range(10, 40), SEP, *range(40, 60), *range(60, 80), SEP]


def mask(sequences, *, seeds=None, num_columns=None, **settings):
    num_columns = num_columns or max(map(len, sequences), default=16)
    input_ids = np.zeros((len(sequences), num_columns), np.int32)
    for row, sequence in enumerate(sequences):
        input_ids[row, : len(sequence)] = sequence
    settings = {"max_predictions_per_seq": 20} | settings
    seeds = range(len(sequences)) if seeds is None else seeds
    before = input_ids.copy()
    masked = masking.mask_batch(
        input_ids,
        np.array([len(sequence) for sequence in sequences]),
        np.array(seeds, np.uint64),
        vocabulary=VOCABULARY,
        config=ExamplesConfig(max_seq_length=128, **settings),
    )
    np.testing.assert_array_equal(input_ids, before)
    return masked


def lists(batch):
    return [array.tolist() for array in batch.values()]


def hidden(batch):
    """For each row, the positions with their labels and what is shown there."""
    return [
        [
            (place, label, shown[place])
            for place, label, weight in zip(*predictions, strict=True)
            if weight
        ]
        for shown, *predictions in zip(*lists(batch), strict=True)
    ]


def random_sequences(seed, number=60):
    rng = np.random.default_rng(seed)

    def part():
        return rng.integers(5, 100, rng.integers(1, 30)).tolist()

    return [[CLS, *part(), SEP, *part(), SEP] for _ in range(number)]


# The same rule in plain Python, one token at a time.


BITS = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(number):
    number &= BITS
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & BITS
    number = (number ^ number >> 27) * 0x94D049BB133111EB & BITS
    return number ^ number >> 31


def hash_of(seed):
    """SplitMix64 with a stream for each seed and purpose."""
    return lambda purpose, place: mix(
        mix(mix(seed + GOLDEN) ^ purpose << 32) + (place + 1) * GOLDEN
    )


def mask_one(sequence, seed, config):
    random_bits = hash_of(seed)
    wanted = max(1, round(len(sequence) * config.masked_lm_prob))
    wanted = min(wanted, config.num_predictions)
    if config.do_whole_word_mask or config.max_ngram_size > 1:
        runs = draw_runs(words_of(sequence), wanted, random_bits, config.max_ngram_size)
    else:
        places = [i for i, token in enumerate(sequence) if token not in (CLS, SEP)]
        places.sort(key=lambda i: (random_bits(0, i) >> 20, i))
        runs = [[place] for place in places[:wanted]]
    shown = {}
    for run in runs:
        for place in run:
            decides = run[0] if config.max_ngram_size > 1 else place
            choice = (random_bits(1, decides) >> 11) / 2**53
            shown[place] = sequence[place]
            if choice < config.mask_token_prob:
                shown[place] = MASK
            elif choice < config.mask_token_prob + config.random_token_prob:
                shown[place] = (random_bits(2, place) >> 32) * 100 >> 32
    return [(place, sequence[place], shown[place]) for place in sorted(shown)]


def words_of(sequence):
    words, last = [], CLS
    for place, token in enumerate(sequence):
        if token not in (CLS, SEP):
            if token >= 60 and last not in (CLS, SEP):
                words[-1].append(place)
            else:
                words.append([place])
        last = token
    return words


def draw_runs(words, wanted, random_bits, max_size):
    decks = []
    for size in range(1, max_size + 1):
        runs = [
            sum(words[first : first + size], [])
            for first in range(len(words) - size + 1)
        ]
        runs = [run for run in runs if run[-1] - run[0] == len(run) - 1]
        runs.sort(key=lambda run: (random_bits(3 + size, run[0]) >> 20, run[0]))  # noqa: B023
        decks.append(runs)
    total = sum(1 / size for size in range(1, max_size + 1))
    drawn, covered, step = [], set(), 0
    while len(covered) < wanted and any(decks):
        point, size = (random_bits(3, step) >> 11) / 2**53 * total, 1
        while size < max_size and point >= sum(1 / n for n in range(1, size + 1)):
            size += 1
        step += 1
        if len(covered) + size > wanted:
            decks[size - 1] = []
        if not decks[size - 1]:
            continue
        run = decks[size - 1].pop(0)
        if len(covered) + len(run) <= wanted and not covered & set(run):
            drawn.append(run)
            covered |= set(run)
    return drawn


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"masked_lm_prob": 0.9},
        {"mask_token_prob": 0.2, "random_token_prob": 0.7},
        {"mask_token_prob": 0, "random_token_prob": 1},
        {"do_whole_word_mask": True},
        {"do_whole_word_mask": True, "masked_lm_prob": 0.6},
        {"max_ngram_size": 3},
        {"max_ngram_size": 4, "masked_lm_prob": 0.5},
    ],
)
def test_the_rule_computed_again(settings):
    sequences = random_sequences(1)
    seeds = [2**64 - 1 - row**9 for row in range(len(sequences))]
    batch = mask(sequences, seeds=seeds, **settings)
    config = ExamplesConfig(max_seq_length=128, max_predictions_per_seq=20, **settings)
    for row, (sequence, found) in enumerate(zip(sequences, hidden(batch), strict=True)):
        assert found == mask_one(sequence, seeds[row], config)
        expected = np.zeros_like(batch["input_ids"][row])
        expected[: len(sequence)] = sequence
        for place, _, shown in found:
            expected[place] = shown
        assert (batch["input_ids"][row] == expected).all()
        for name in ("positions", "ids", "weights"):
            assert not batch[f"masked_lm_{name}"][row, len(found) :].any()
        # In another batch, and with more padding, too.
        if row < 5:
            alone = mask(
                [sequence], seeds=seeds[row : row + 1], num_columns=300, **settings
            )
            assert hidden(alone) == [found]


def test_whole_output():
    """Else a run that is resumed with a newer version trains on other masks."""
    sequence = [CLS, *range(10, 20), SEP, *range(20, 28), SEP]
    batch = mask([sequence] * 2, seeds=[5, 17], max_predictions_per_seq=5)
    masked, other = list(sequence), list(sequence)
    masked[7], masked[9], masked[17] = MASK, MASK, 86  # one random
    other[8], other[13] = MASK, MASK  # and one kept, at 18
    assert lists(batch) == [
        [masked, other],
        [[7, 9, 17, 0, 0], [8, 13, 18, 0, 0]],
        [[16, 18, 25, 0, 0], [17, 21, 26, 0, 0]],
        [[1.0, 1.0, 1.0, 0.0, 0.0]] * 2,
    ]
    *integers, weights = batch.values()
    assert all(array.dtype == np.int32 for array in integers)
    assert weights.dtype == np.float32


# What masks must be.


@pytest.mark.parametrize(
    ("num_tokens", "limit", "expected"),
    [
        (5, 20, 1),  # 0.75
        (3, 20, 1),  # 0.45, but never none
        (10, 20, 2),  # 1.5, half to even
        (30, 20, 4),  # 4.5, half to even
        (128, 20, 19),
        (128, 10, 10),
        (512, 77, 77),  # 76.8
    ],
)
def test_number_of_predictions_is_that_of_the_original(num_tokens, limit, expected):
    config = ExamplesConfig(max_predictions_per_seq=limit)
    assert masking.num_predictions(np.array([num_tokens]), config) == [expected]


def test_no_sequence_at_all():
    shapes = [array.shape for array in mask([]).values()]
    assert shapes == [(0, 16), (0, 20), (0, 20), (0, 20)]


def test_every_position_is_as_likely_for_consecutive_seeds():
    # Where a token is drawn, and in which company.
    batch = mask([SEQUENCE] * 20_000, max_predictions_per_seq=2)
    positions = batch["masked_lm_positions"]
    counts = np.bincount(positions.ravel(), minlength=len(SEQUENCE))
    pairs = Counter(map(tuple, positions.tolist()))
    candidates = [i for i, token in enumerate(SEQUENCE) if token not in (CLS, SEP)]
    assert np.flatnonzero(counts).tolist() == candidates
    expected = 40_000 / len(candidates)
    # 69 degrees of freedom: 119 has a probability of 0.0002.
    assert ((counts[candidates] - expected) ** 2 / expected).sum() < 119
    expected = 20_000 / (70 * 69 / 2)
    seen = np.array([*pairs.values(), *[0] * (70 * 69 // 2 - len(pairs))])
    # 2,414 degrees of freedom: 2,663 has a probability of 0.0003.
    assert ((seen - expected) ** 2 / expected).sum() < 2663
