"""Rows of the position table that go on from those trained before."""

import numpy as np
import pytest

from bert_keras.checkpoints import training_state
from bert_keras.core.settings import pretraining
from bert_keras.model import pretrainer
from bert_keras.training.pretraining import position_growth
from bert_keras.training.step import optimization
from tests import make
from tests.bert_keras.training.step import test_learner

SMALL = make.small_config(11, hidden_size=4, num_attention_heads=1)


def waves(rows, random) -> np.ndarray:
    """Sinusoids of four frequencies in any directions, and an offset."""
    angles = rows[:, None] * 2 * np.pi * np.array([1, 3, 7, 20]) / 62
    directions, _ = np.linalg.qr(random.normal(size=(16, 8)))
    offset = random.normal(size=16)
    return offset + np.hstack([np.sin(angles), np.cos(angles)]) @ directions.T


def test_waves_go_on_as_waves():
    """Whatever stands at `[CLS]`, at the last trained position, and beyond."""
    expected = waves(np.arange(300.0), np.random.default_rng(1)).astype("float32")
    table = expected.copy()
    table[[0, 63]] = 9
    table[64:] = np.random.default_rng(2).normal(size=(236, 16))
    before = table.copy()
    grown = position_growth.extrapolated(table, num_trained=64, num_rows=256)
    assert grown.dtype == np.float32
    np.testing.assert_allclose(grown[1:256], expected[1:256], atol=1e-5)
    np.testing.assert_array_equal(
        grown[[0, *range(256, 300)]], table[[0, *range(256, 300)]]
    )
    np.testing.assert_array_equal(table, before)


def test_noise_of_single_rows_is_left_behind():
    random = np.random.default_rng(3)
    expected = waves(np.arange(126.0), random)
    noise = 0.1 * random.normal(size=expected.shape)
    grown = position_growth.extrapolated(expected + noise, num_trained=64, num_rows=126)
    error = np.sqrt(np.mean((grown[64:] - expected[64:]) ** 2))
    assert error < 0.1


@pytest.mark.parametrize("num_trained", [8, 24])
def test_few_rows_and_equal_ones(num_trained):
    """As long as rows have been, and finite."""
    table = np.random.default_rng(4).normal(size=(64, 8)).astype("float32")
    grown = position_growth.extrapolated(table, num_trained=num_trained, num_rows=64)
    assert np.abs(grown).max() < 3 * np.abs(table).max()
    equal = np.full((64, 8), 0.5, "float32")
    grown = position_growth.extrapolated(equal, num_trained=num_trained, num_rows=64)
    np.testing.assert_allclose(grown, equal, atol=1e-6)


@pytest.mark.parametrize("name", ["adamw", "lamb", "muon"])
def test_table_and_squares_change_on_all_replicas_and_nothing_else(name):
    strategy = test_learner.mirrored(2)
    with strategy.scope():
        network = pretrainer.BertPretrainer(SMALL, name="bert_pretrainer")
        network.encoder.build({})
        settings = pretraining.OptimizerConfig(name=name, warmup_steps=1)
        optimizer = optimization.build_optimizer(settings, num_train_steps=2)
        optimizer.build(network.encoder.trainable_variables)
    state = training_state.named_variables(network.encoder, optimizer)
    random = np.random.default_rng(0)
    for variable in state.values():
        if variable.dtype == "float32":
            variable.assign(random.uniform(size=variable.shape))
    before = training_state.copy_of(state)

    for _ in range(2):
        position_growth.grow(state, strategy=strategy, num_trained=10, num_rows=20)
        after = training_state.copy_of(state)
        changed = [key for key in state if not np.array_equal(before[key], after[key])]
        assert len(changed) == 2
        assert {key.partition("/")[0] for key in changed} == {"weights", "optimizer"}
        for key in changed:
            assert key.endswith(("/position_embeddings", "position_embeddings_v"))
            kept = [*range(9), *range(20, 24)]
            np.testing.assert_array_equal(after[key][kept], before[key][kept])
            if key.endswith("_v"):
                expected = np.tile(before[key][1:9].mean(axis=0), (11, 1))
            else:
                expected = position_growth.extrapolated(
                    before[key], num_trained=10, num_rows=20
                )[9:20]
            np.testing.assert_array_equal(after[key][9:20], expected)
            for copy in strategy.experimental_local_results(state[key].value):
                np.testing.assert_array_equal(copy, after[key])
