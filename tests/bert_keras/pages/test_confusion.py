"""What is taken for what, beside counts written out."""

import collections
import math
import random

import numpy as np
import pytest
import scipy.sparse

from bert_keras.pages import confusion

NAMES = ("b", "a", "c", "never")


@pytest.fixture(name="answers")
def random_answers() -> tuple[list[str], list[str]]:
    rng = random.Random(1)
    right = rng.choices(NAMES[:3], k=200)
    return right, [r if rng.random() < 0.6 else rng.choice(NAMES[:3]) for r in right]


def test_counts_and_scores_are_those_of_the_definition(answers):
    right, answered = answers
    pairs = collections.Counter(zip(right, answered, strict=True))
    whole = confusion.confusion(right, answered, NAMES)
    assert whole.names == NAMES
    expected = [[pairs[row, column] for column in NAMES] for row in NAMES]
    np.testing.assert_array_equal(whole.counts.toarray(), expected)
    for name, *found in confusion.class_scores(right, answered, NAMES)[:3]:
        hits = pairs[name, name]
        num_right, num_answered = right.count(name), answered.count(name)
        shares = hits / num_answered, hits / num_right
        f1 = 2 * hits / (num_right + num_answered)
        assert found == pytest.approx([*shares, f1, num_right, num_answered])


def test_the_share_of_nothing_is_no_number():
    found = confusion.class_scores(["a", "b"], ["a", "a"], ["a", "b", "c", "d"])
    assert found[0] == ("a", 0.5, 1.0, pytest.approx(2 / 3), 1, 2)
    name, precision, recall, f1, *counts = found[1]
    assert (name, math.isnan(precision), recall, f1, *counts) == ("b", True, 0, 0, 1, 0)
    assert all(math.isnan(share) for share in found[2][1:4])
    assert found[2][4:] == (0, 0)
    (never, always) = confusion.class_scores(["a"], ["b"], ["a", "b"])
    assert str(never.num_right) == str(always.num_answered) == "1"


def test_the_classes_of_fewest_mistakes_are_pooled():
    counts = np.diag([90, 80, 70, 60, 50])
    counts[1, 4], counts[4, 1], counts[0, 2], counts[3, 0] = 5, 4, 1, 2
    whole = confusion.Confusion(tuple("abcde"), scipy.sparse.csr_array(counts))
    of_four = [[90, 0, 0, 1], [0, 80, 5, 0], [0, 4, 50, 0], [2, 0, 0, 130]]
    for limit, expected_names, expected in (
        (5, tuple("abcde"), counts.tolist()),
        (4, ("a", "b", "e", "2 others"), of_four),
        (3, ("b", "e", "3 others"), [[80, 5, 0], [4, 50, 0], [0, 0, 223]]),
    ):
        names, pooled = confusion.pooled(whole, limit)
        assert (names, pooled.tolist()) == (expected_names, expected)


def test_the_commonest_confusions():
    counts = scipy.sparse.csr_array([[9, 1, 0], [3, 5, 2], [0, 0, 0]])
    whole = confusion.Confusion(("a", "b", "c"), counts)
    assert confusion.commonest(whole, 2) == [("b", "a", 3, 0.3), ("b", "c", 2, 0.2)]
    assert confusion.commonest(whole, 9)[2:] == [("a", "b", 1, 0.1)]


def test_many_classes_take_little_memory():
    """All pairs of these classes would take 80 GB."""
    names = [f"{number}" for number in range(100_000)]
    whole = confusion.confusion(["7", "7", "8"], ["8", "8", "8"], names)
    assert confusion.commonest(whole, 9) == [("7", "8", 2, 1.0)]
    shown, counts = confusion.pooled(whole, 3)
    assert shown == ("7", "8", "99,998 others")
    np.testing.assert_array_equal(counts, [[0, 2, 0], [0, 1, 0], [0, 0, 0]])
