"""Batches of labelled examples: every row once an epoch, the same for every run."""

import numpy as np
import pytest

from bert_keras.training.finetuning import batches as task_batches
from bert_keras.training.pretraining import record_parsing


def test_an_epoch_has_every_row_once_and_batches_of_like_length():
    lengths = np.random.default_rng(0).integers(3, 128, 10_007)
    batches = task_batches.epoch_batches(
        lengths, batch_size=32, by_length=True, seed=5, epoch=0
    )
    assert sorted(np.concatenate(batches)) == list(range(10_007))
    assert sorted({len(rows) for rows in batches}) == [10_007 % 32, 32]
    assert len(batches) == 313
    padded = sum(lengths[rows].max() * len(rows) for rows in batches)
    assert padded < 1.05 * lengths.sum()
    # Shuffled: neither the batches nor the rows come in order of length.
    means = np.array([lengths[rows].mean() for rows in batches])
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.2


def test_shuffled_batches_do_not_depend_on_length():
    lengths = np.random.default_rng(0).integers(3, 128, 10_007)
    place = {"batch_size": 32, "by_length": False, "seed": 5, "epoch": 0}
    batches = task_batches.epoch_batches(lengths, **place)
    assert sorted(np.concatenate(batches)) == list(range(10_007))
    assert sorted({len(rows) for rows in batches}) == [10_007 % 32, 32]
    same = task_batches.epoch_batches(np.full(10_007, 9), **place)
    assert [sorted(rows) for rows in same] == [sorted(rows) for rows in batches]


@pytest.mark.parametrize("by_length", [True, False])
def test_epochs_differ_and_repeat_exactly(by_length):
    lengths = np.arange(3, 103)

    def batches(**place):
        return [
            sorted(rows)
            for rows in task_batches.epoch_batches(
                lengths, batch_size=8, by_length=by_length, **place
            )
        ]

    assert batches(seed=1, epoch=0) == batches(seed=1, epoch=0)
    assert batches(seed=1, epoch=0) != batches(seed=2, epoch=0)
    first, second = batches(seed=1, epoch=0), batches(seed=1, epoch=1)
    shared = [rows for rows in first if rows in second]
    assert len(shared) <= 1
    few = task_batches.epoch_batches(
        np.array([5]), batch_size=8, by_length=by_length, seed=0, epoch=0
    )
    assert [rows.tolist() for rows in few] == [[0]]


def test_training_batches_are_those_of_every_epoch():
    lengths = np.arange(3, 24)
    order = {"batch_size": 8, "by_length": True, "seed": 4}
    dataset = task_batches.example_batches(
        lengths, lambda rows: {"rows": rows}, **order
    )
    drawn = [batch["rows"].numpy().tolist() for batch in dataset.take(7)]
    wanted = [
        rows.tolist()
        for epoch in range(3)
        for rows in task_batches.epoch_batches(lengths, epoch=epoch, **order)
    ]
    assert drawn == wanted[:7]
    for start_step in (2, 3, 5):
        resumed = task_batches.example_batches(
            lengths, lambda rows: {"rows": rows}, start_step=start_step, **order
        )
        rest = [batch["rows"].numpy().tolist() for batch in resumed.take(2)]
        assert rest == wanted[start_step : start_step + 2]


def test_dropout_seeds_of_labelled_examples():
    lengths = np.arange(3, 24)
    dataset = task_batches.example_batches(
        lengths, lambda rows: {"rows": rows}, batch_size=8, by_length=True, seed=4
    )
    for index, batch in enumerate(dataset.take(7).as_numpy_iterator()):
        epochs = np.full(len(batch["rows"]), index // 3)
        expected = record_parsing.dropout_seeds(4, epochs, batch["rows"])
        np.testing.assert_array_equal(batch["dropout_seeds"], expected)
