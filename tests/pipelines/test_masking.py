"""Masking: the original's counts and shares, nothing special hidden, whole words."""

import random
from collections import Counter

import pytest

from pipelines import masking

CLS, SEP, MASK = 2, 3, 4
# Ids 5 to 59 begin a word, 60 to 99 continue one.
VOCABULARY = masking.MaskingVocabulary(
    size=100,
    cls_id=CLS,
    sep_id=SEP,
    mask_id=MASK,
    is_continuation=[token >= 60 for token in range(100)],
)
SEQUENCE = [CLS, *range(10, 40), SEP, *range(40, 60), *range(60, 80), SEP]
WORDS = [CLS, 10, 60, 61, 11, 62, 12, SEP, 63, 64, 13, 65, 14, 15, 66, SEP]


def mask(
    sequence,
    *,
    seed=0,
    masked_lm_prob=0.15,
    max_predictions_per_seq=20,
    do_whole_word_mask=False,
):
    return masking.mask_tokens(
        sequence,
        vocabulary=VOCABULARY,
        masked_lm_prob=masked_lm_prob,
        max_predictions_per_seq=max_predictions_per_seq,
        do_whole_word_mask=do_whole_word_mask,
        rng=random.Random(seed),
    )


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
    number = masking.num_predictions(
        num_tokens, masked_lm_prob=0.15, max_predictions_per_seq=limit
    )
    assert number == expected


@pytest.mark.parametrize(
    ("seed", "changes", "positions"),
    [
        (3, {5: 74, 8: MASK, 13: MASK}, [5, 8, 13]),  # one random
        (5, {9: MASK, 13: MASK}, [1, 9, 13]),  # one kept
    ],
)
def test_whole_output(seed, changes, positions):
    sequence = [CLS, *range(10, 20), SEP, *range(20, 28), SEP]
    masked_ids = [changes.get(i, token) for i, token in enumerate(sequence)]
    labels = [sequence[position] for position in positions]
    assert mask(sequence, seed=seed) == (masked_ids, positions, labels)


@pytest.mark.parametrize("seed", range(200))
def test_labels_are_the_truth_and_nothing_else_changes(seed):
    masked = mask(SEQUENCE, seed=seed)
    assert len(masked.positions) == round(0.15 * len(SEQUENCE))
    assert masked.positions == sorted(set(masked.positions))
    assert masked.labels == [SEQUENCE[position] for position in masked.positions]
    assert not {CLS, SEP} & set(masked.labels)
    restored = list(masked.input_ids)
    for position, label in zip(masked.positions, masked.labels, strict=True):
        restored[position] = label
    assert restored == SEQUENCE


def test_the_sequence_given_is_left_alone():
    sequence = list(SEQUENCE)
    mask(sequence)
    assert sequence == SEQUENCE


def test_at_most_all_candidates_are_hidden():
    masked = mask([CLS, 10, SEP, 11, SEP], masked_lm_prob=0.95)
    assert masked.positions == [1, 3]


@pytest.mark.parametrize("do_whole_word_mask", [False, True])
def test_eighty_ten_ten(do_whole_word_mask):
    kinds, replacements = Counter(), Counter()
    for seed in range(3000):
        masked = mask(SEQUENCE, seed=seed, do_whole_word_mask=do_whole_word_mask)
        for position, label in zip(masked.positions, masked.labels, strict=True):
            shown = masked.input_ids[position]
            kinds[
                "mask" if shown == MASK else "kept" if shown == label else "random"
            ] += 1
            replacements[shown] += shown not in (MASK, label)
    total = kinds.total()
    # One random id in a hundred is [MASK], one is the token itself.
    # Five standard deviations are 0.013 and 0.010.
    assert total > 24_000
    assert kinds["mask"] / total == pytest.approx(0.801, abs=0.013)
    assert kinds["kept"] / total == pytest.approx(0.101, abs=0.010)
    assert kinds["random"] / total == pytest.approx(0.098, abs=0.010)
    # From the whole vocabulary, as in the original: [PAD], [CLS], [SEP] included.
    assert {i for i, n in replacements.items() if n} == set(range(100)) - {MASK}


def test_every_position_is_as_likely():
    counts = Counter()
    for seed in range(5000):
        counts.update(mask(SEQUENCE, seed=seed).positions)
    candidates = [i for i, token in enumerate(SEQUENCE) if token not in (CLS, SEP)]
    assert sorted(counts) == candidates
    expected = counts.total() / len(candidates)
    chi_square = sum((n - expected) ** 2 / expected for n in counts.values())
    # 69 degrees of freedom: 119 has a probability of 0.0002.
    assert chi_square < 119


@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("probability", [0.2, 0.5])
def test_whole_words_are_hidden_whole(seed, probability):
    # A piece that goes on with a word cut away before it is a word of its own.
    words = [(1, 2, 3), (4, 5), (6,), (8, 9), (10, 11), (12,), (13, 14)]
    masked = mask(WORDS, seed=seed, masked_lm_prob=probability, do_whole_word_mask=True)
    hidden = [word for word in words if set(word) & set(masked.positions)]
    assert [position for word in hidden for position in word] == masked.positions
    assert len(masked.positions) <= round(probability * len(WORDS))


def test_whole_words_fill_the_number_where_they_can():
    lengths = Counter(
        len(mask(WORDS, seed=seed, do_whole_word_mask=True).positions)
        for seed in range(200)
    )
    assert set(lengths) == {2}  # round(0.15 x 16); words of three are passed over


def test_a_word_that_does_not_fit_is_never_hidden():
    masked = mask([CLS, 10, 60, 61, SEP, 11, 62, SEP], do_whole_word_mask=True)
    assert masked == ([CLS, 10, 60, 61, SEP, 11, 62, SEP], [], [])
