"""Shapes of batches: padded to fixed lengths, filled up and cut into shares."""

import numpy as np

from bert_keras.labelled import shapes


def test_a_batch_is_padded_where_it_has_tokens():
    ids = np.arange(12).reshape(2, 6) + 1
    batch = dict.fromkeys(("input_ids", "input_mask", "label_ids"), ids)
    batch |= {"vectors": np.ones((2, 6, 3)), "weights": np.ones(2)}
    made = shapes.padded(batch, 8)
    for name, padding in (("input_ids", 0), ("label_ids", -1)):
        np.testing.assert_array_equal(made[name][:, :6], ids)
        np.testing.assert_array_equal(made[name][:, 6:], np.full((2, 2), padding))
    assert made["vectors"].shape == (2, 8, 3)
    assert made["weights"].tolist() == [1, 1]
    assert shapes.padded(batch, 5)["input_ids"].shape == (2, 6)


def test_lengths_that_batches_are_padded_to():
    multiple = shapes.multiple_length(4, 7)
    assert [multiple(longest) for longest in (3, 4, 5, 7, 9)] == [4, 4, 7, 7, 9]
    assert shapes.multiple_length(1, 7) is None
    ladder = shapes.ladder_length([4, 7])
    assert [ladder(longest) for longest in (1, 4, 5, 7)] == [4, 4, 7, 7]


def test_shares_of_replicas_are_filled_up():
    """Five rows for two processes of two replicas each, two rows a replica."""
    rows = np.array([7, 3, 9, 1, 5])
    found = [
        (part.tolist(), weights.tolist())
        for begin in (0, 2)
        for part, weights in shapes.ReplicaShare(
            num_rows=2, num_replicas=4, begin=begin, end=begin + 2
        ).rows(rows)
    ]
    assert found == [
        *(([7, 3], [1, 1]), ([9, 1], [1, 1])),
        *(([5, 7], [1, 0]), ([7, 7], [0, 0])),
    ]
