"""Batches of labelled examples: every row once an epoch, the same for every run."""

import types

import numpy as np
import pytest

from bert_keras.training.finetuning import learning as task_batches
from bert_keras.training.step import batch_features


def batches_of(lengths, **settings):
    inputs = types.SimpleNamespace(lengths=lengths, batch=lambda rows: {"ids": rows})
    return task_batches.Batches(inputs=inputs, **settings)


@pytest.mark.parametrize("by_length", [True, False])
def test_an_epoch_has_every_row_once_and_perhaps_batches_of_like_length(by_length):
    lengths = np.random.default_rng(0).integers(3, 128, 10_007)
    settings = {"batch_size": 32, "by_length": by_length, "seed": 5}
    batches = batches_of(lengths, **settings).epoch(0)
    assert sorted(np.concatenate(batches)) == list(range(10_007))
    assert sorted({len(rows) for rows in batches}) == [10_007 % 32, 32]
    if by_length:
        padded = sum(lengths[rows].max() * len(rows) for rows in batches)
        assert padded < 1.05 * lengths.sum()
        # Shuffled: neither the batches nor the rows come in order of length.
        means = np.array([lengths[rows].mean() for rows in batches])
        assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.2
    else:
        same = batches_of(np.full(10_007, 9), **settings).epoch(0)
        assert [sorted(rows) for rows in same] == [sorted(rows) for rows in batches]


@pytest.mark.parametrize("by_length", [True, False])
def test_epochs_differ_and_repeat_exactly(by_length):
    lengths = np.arange(3, 103)

    def batches(seed, epoch):
        order = batches_of(lengths, batch_size=8, by_length=by_length, seed=seed)
        return [sorted(rows) for rows in order.epoch(epoch)]

    assert batches(seed=1, epoch=0) == batches(seed=1, epoch=0)
    assert batches(seed=1, epoch=0) != batches(seed=2, epoch=0)
    first, second = batches(seed=1, epoch=0), batches(seed=1, epoch=1)
    shared = [rows for rows in first if rows in second]
    assert len(shared) <= 1
    few = batches_of(np.array([5]), batch_size=8, by_length=by_length, seed=0)
    assert [rows.tolist() for rows in few.epoch(0)] == [[0]]


def test_training_batches_are_those_of_every_epoch():
    """With seeds of seed, epoch and row; resumed at any step."""
    batches = batches_of(np.arange(3, 24), batch_size=8, by_length=True, seed=4)
    expected = [
        (rows.tolist(), batch_features.dropout_seeds(4, 0 * rows + epoch, rows))
        for epoch in range(3)
        for rows in batches.epoch(epoch)
    ]
    for start_step, count in ((0, 7), (2, 2), (3, 2), (5, 2)):
        stream = batches.stream(start_step=start_step).take(count)
        for batch, (rows, seeds) in zip(stream, expected[start_step:], strict=False):
            assert batch["ids"].numpy().tolist() == rows
            np.testing.assert_array_equal(batch["dropout_seeds"], seeds)
