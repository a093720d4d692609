"""Rows of the position table that begin as a repetition of those trained before."""

import numpy as np
import pytest
import tensorflow as tf

from bert_keras import config
from bert_keras.checkpoints import training_state
from bert_keras.model import pretrainer
from bert_keras.training import optimization, position_growth

SMALL = config.BertConfig(
    vocab_size=11,
    hidden_size=4,
    num_hidden_layers=1,
    num_attention_heads=1,
    intermediate_size=4,
    max_position_embeddings=24,
)


def test_rows_between_cls_and_sep_are_repeated():
    table = np.arange(14.0)[:, None]
    grown = position_growth.repeated(table, num_trained=5, num_rows=12)
    expected = [0, 1, 2, 3, 4, 2, 3, 1, 2, 3, 1, 2, 12, 13]
    np.testing.assert_array_equal(grown[:, 0], expected)
    np.testing.assert_array_equal(table[:, 0], range(14))


@pytest.mark.parametrize(("num_trained", "num_rows"), [(8, 9), (8, 24), (23, 24)])
def test_neighbours_are_those_of_before(num_trained, num_rows):
    """But where a repetition begins: as a plain loop finds them."""
    table = np.random.default_rng(0).normal(size=(24, 3))
    grown = position_growth.repeated(table, num_trained=num_trained, num_rows=num_rows)
    expected, source = table.copy(), 2
    for row in range(num_trained, num_rows):
        expected[row] = table[source]
        source = 1 if source == num_trained - 2 else source + 1
    np.testing.assert_array_equal(grown, expected)


@pytest.mark.parametrize("name", ["adamw", "lamb", "muon"])
def test_table_and_squares_change_on_all_replicas_and_nothing_else(name):
    strategy = tf.distribute.MirroredStrategy(
        ["/cpu:0", "/cpu:1"],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    with strategy.scope():
        network = pretrainer.BertPretrainer(SMALL, name="bert_pretrainer")
        network.encoder.build({})
        settings = config.OptimizerConfig(name=name, warmup_steps=1)
        optimizer = optimization.build_optimizer(settings, num_train_steps=2)
        optimizer.build(network.encoder.trainable_variables)
    state = training_state.named_variables(network.encoder, optimizer)
    random = np.random.default_rng(0)
    for variable in state.values():
        if variable.dtype == "float32":
            variable.assign(random.uniform(size=variable.shape))
    before = training_state.copy_of(state)

    for _ in range(2):
        position_growth.repeat(state, num_trained=10, num_rows=20)
        after = training_state.copy_of(state)
        changed = [key for key in state if not np.array_equal(before[key], after[key])]
        assert len(changed) == 2
        assert {key.partition("/")[0] for key in changed} == {"weights", "optimizer"}
        for key in changed:
            assert key.endswith(("/position_embeddings", "position_embeddings_v"))
            np.testing.assert_array_equal(
                after[key][10:18], before[key][[2, 3, 4, 5, 6, 7, 8, 1]]
            )
            for copy in strategy.experimental_local_results(state[key].value):
                np.testing.assert_array_equal(copy, after[key])
