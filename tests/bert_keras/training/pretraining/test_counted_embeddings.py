"""First word embeddings from neighbours in the text."""

import dataclasses
import logging

import numpy as np
import pytest
import tensorflow as tf
from scipy import sparse

from bert_keras.checkpoints import conversion
from bert_keras.core.errors import InputError
from bert_keras.training.pretraining import (
    counted_embeddings,
    phases,
    record_batches,
)
from tests import make
from tests.bert_keras.training import test_resumed_runs as resuming
from tests.bert_keras.training.step import test_learner

PAD, CLS, SEP, A, B, C = range(6)


def counted(rows) -> list[np.ndarray]:
    blocks = [np.array(rows[:1]), np.array(rows[1:])]
    counts = counted_embeddings.count_neighbours(
        blocks, vocab_size=6, cls_id=CLS, pad_id=PAD
    )
    return [each.toarray() for each in counts]


def test_neighbours_of_one_text_by_distance():
    """Neither across texts of a row, nor rows, nor with padding."""
    rows = [[CLS, A, B, SEP, CLS, C, SEP, PAD], [CLS, A, B, C, A, SEP, PAD, PAD]]
    expected = np.zeros((3, 6, 6), "float32")
    for place, pairs in enumerate(
        (
            [(CLS, A), (A, B), (B, SEP), (CLS, C), (C, SEP)]
            + [(CLS, A), (A, B), (B, C), (C, A), (A, SEP)],
            [(CLS, B), (A, SEP), (CLS, SEP)] + [(CLS, B), (A, C), (B, A), (C, SEP)],
            # Three and four places away.
            [(CLS, SEP)] + [(CLS, C), (A, A), (B, SEP)] + [(CLS, A), (A, SEP)],
        )
    ):
        for pair in pairs:
            expected[place][pair] += 1
    np.testing.assert_array_equal(counted(rows), expected)


def side_by_side(counts: list[np.ndarray]) -> np.ndarray:
    return np.hstack([side for each in counts for side in (each, each.T)])


def plain_vectors(pairs: np.ndarray, size: int) -> np.ndarray:
    """The same by whole matrices, one pair after the other, and not turned."""
    columns = pairs.sum(axis=0) ** 0.75
    matrix = np.zeros(pairs.shape)
    for row, column in np.argwhere(pairs):
        expected = pairs[row].sum() * columns[column] / columns.sum()
        matrix[row, column] = max(np.log(pairs[row, column] / expected), 0)
    left, values, _ = np.linalg.svd(matrix, full_matrices=False)
    vectors = left[:, :size] * np.sqrt(values[:size])
    vectors /= np.sqrt(np.mean(vectors**2, axis=1, keepdims=True)) + 1e-12
    vectors[pairs.sum(axis=1) < 5] = 0
    return vectors


def random_counts(num_pieces: int) -> list[np.ndarray]:
    """Counts of four kinds of pieces, each beside kinds of its own; one is rare."""
    random = np.random.default_rng(1)
    kinds = np.arange(num_pieces) % 4
    counts = []
    for _ in counted_embeddings.DISTANCES:
        means = random.gamma(1.0, 8.0, (4, 4))[kinds][:, kinds]
        counts.append(random.poisson(means).astype("float32"))
        counts[-1][7] = counts[-1][:, 7] = 0
        counts[-1][7, 3] = 1
    return counts


@pytest.mark.parametrize("size", [3, 30])
def test_vectors_are_those_of_whole_matrices(size):
    """But for a rotation; exactly only if no values are left out."""
    counts = random_counts(20)
    vectors = counted_embeddings.vectors_of(
        [sparse.csr_array(each) for each in counts], size, seed=1
    )
    assert vectors.shape == (20, size)
    assert vectors.dtype == np.float32
    expected = plain_vectors(side_by_side(counts), size)
    assert not vectors[7].any()
    assert not expected[7].any()
    scale = expected.shape[1] / size
    np.testing.assert_allclose(
        vectors @ vectors.T * scale, expected @ expected.T, atol=1e-3 * size
    )


def test_the_rarest_neighbours_do_not_count(monkeypatch):
    monkeypatch.setattr(counted_embeddings, "NUM_CONTEXTS", 12)
    counts = random_counts(20)
    vectors = counted_embeddings.vectors_of(
        [sparse.csr_array(each) for each in counts], 30, seed=1
    )
    # A column of zeros tells nothing.
    rarest = np.argsort(-counts[0].sum(axis=0), kind="stable")[12:]
    pairs = side_by_side(counts)
    pairs[:, [20 * block + rare for block in range(6) for rare in rarest]] = 0
    expected = plain_vectors(pairs, 30)
    scale = expected.shape[1] / 30
    np.testing.assert_allclose(
        vectors @ vectors.T * scale, expected @ expected.T, atol=0.03
    )


def test_no_pair_is_often_enough():
    """Of a text of a few words, or of none."""
    for number in (0, 4):
        counts = np.zeros((20, 20), "float32")
        counts[1, 2] = number
        vectors = counted_embeddings.vectors_of(
            [sparse.csr_array(counts)] * 3, 8, seed=1
        )
        expected = [] if number == 0 else [1, 2]
        assert np.flatnonzero(vectors.any(axis=1)).tolist() == expected
        assert np.isfinite(vectors).all()


def phase_of(directory) -> phases.Phase:
    settings = make.pretraining_config(word_embeddings="counts")
    [phase] = phases.read_phases(settings, [directory], vocab_path=None, num_replicas=1)
    return phase


@pytest.mark.parametrize("pack", [False, True])
def test_texts_without_masks_however_they_are_stored(pack, examples_of):
    """All records once, the same whether they were masked before or not."""
    options = {"pack_instances": pack, "dupe_factor": 1}
    ids = []
    for masking in ("static", "dynamic"):
        phase = phase_of(examples_of(masking=masking, max_seq_length=64, **options))
        blocks = list(phase.batches.texts(phase.train_shards))
        ids.append(np.concatenate(blocks))
        assert ids[-1].shape == (phase.num_train_records, 64)
        assert phase.vocabulary.ids["[MASK]"] not in ids[-1]
    np.testing.assert_array_equal(*ids)


def test_a_run_begins_with_them_once(tiny_examples, tmp_path):
    """Only rows of pieces of the text differ from those of a random start, at a rate of
    0; a run that goes on does not begin again, and two replicas have the same."""
    options = {"num_train_steps": 3, "save_checkpoint_steps": 1, "num_checkpoints": 9}
    runs = {None: tmp_path / "random", "counts": tmp_path / "counts"}
    for kind, run in runs.items():
        settings = make.pretraining_config(word_embeddings=kind, **options)
        make.pretrain([tiny_examples], run, settings)
    random, counts = (
        resuming.newest_state(resuming.broken_off(run, tmp_path / f"{kind}_1", 1))
        for kind, run in runs.items()
    )
    weights = [name for name in random if name.startswith("weights/")]
    changed = [n for n in weights if not np.array_equal(random[n], counts[n])]
    [table] = changed
    assert table.endswith("/word_embeddings")
    phase = phase_of(tiny_examples)
    blocks = list(phase.batches.texts(phase.train_shards))
    rows = np.flatnonzero((random[table] != counts[table]).any(axis=1))
    numbers = np.bincount(np.concatenate(blocks).ravel())
    assert set(rows) <= set(np.flatnonzero(numbers)) - {PAD}
    assert len(rows) > 20
    sizes = [np.sqrt(np.mean(state[table][rows] ** 2)) for state in (random, counts)]
    np.testing.assert_allclose(*sizes, rtol=0.1)
    resumed = resuming.broken_off(runs["counts"], tmp_path / "resumed", 2)
    make.pretrain([tiny_examples], resumed, settings)
    resuming.assert_same_state(runs["counts"], resumed)
    two = tmp_path / "two"
    make.pretrain([tiny_examples], two, settings, strategy=test_learner.mirrored(2))
    resuming.assert_same_state(runs["counts"], two, atol=1e-6)


def test_other_weights_have_embeddings_of_their_own(tiny_examples, tmp_path):
    settings = make.pretraining_config(word_embeddings="counts")
    init = conversion.init(tmp_path / "any")
    with pytest.raises(InputError, match="leave one of them out"):
        make.pretrain([tiny_examples], tmp_path / "run", settings, init=init)


def test_a_large_text_is_counted_in_part(tiny_examples, monkeypatch, caplog):
    """Blocks of records are read until there are enough tokens, of the phase that has
    the most."""
    phase = phase_of(tiny_examples)
    smaller = dataclasses.replace(phase, train_shards=phase.train_shards[:1])
    monkeypatch.setattr(counted_embeddings, "MAX_TOKENS", 1)
    read = []
    blocks = list(phase.batches.texts(phase.train_shards))
    halves = [half for block in blocks for half in np.array_split(block, 2)]

    def texts(_, shards):
        assert shards == phase.train_shards
        for half in halves:
            read.append(half)
            yield half

    monkeypatch.setattr(record_batches.RecordBatches, "texts", texts)
    with caplog.at_level(logging.INFO):
        counted_embeddings.begin(
            {}, [smaller, phase, smaller], strategy=tf.distribute.get_strategy()
        )
    assert len(read) == 2
    number = np.count_nonzero(halves[0])
    assert caplog.messages[-1].endswith(f"neighbours of {number} tokens")
