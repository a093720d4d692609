"""Training on packed rows: the same weights as from the instances row by row."""

import numpy as np
import pytest

from bert_keras.core.settings import pretraining
from tests import make
from tests.bert_keras.model import test_packed_rows
from tests.bert_keras.training.step import test_learner

CPU = test_learner.CPU
# A large epsilon: noise around a gradient of 0 is no step then.
OPTIMIZER = pretraining.OptimizerConfig(
    learning_rate=1e-2, warmup_steps=1, epsilon=1e-3
)


def trained(batch, strategy=CPU, **options):
    """Weights and scalars after five steps on one batch."""
    learner, logs = test_learner.trained(
        *(batch, strategy),
        num_steps=5,
        batch_size=len(batch["input_ids"]),
        bert=test_packed_rows.CONFIG,
        optimizer=OPTIMIZER,
        **options,
    )
    return test_learner.values_of(learner.trainable_variables), logs


@pytest.fixture(scope="module")
def alone():
    """Trained on the ten instances, each in a row of its own."""
    return trained(test_packed_rows.alone_batch())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_replicas", "options"),
    [
        (1, {}),
        (1, {"num_parts": 4}),
        (2, {"num_parts": 2}),
        (1, {"compile_step": True, "branches": False}),
        (1, {"recompute": "layers"}),
    ],
)
def test_packed_rows_train_the_weights_of_their_instances(alone, num_replicas, options):
    """Over replicas and parts with other numbers of instances and predictions each."""
    strategy = CPU if num_replicas == 1 else test_learner.mirrored(2)
    weights, logs = trained(test_packed_rows.packed_batch(), strategy, **options)
    for name in ("loss", "masked_lm_loss", "next_sentence_loss", "gradient_norm"):
        np.testing.assert_allclose(logs[name], alone[1][name], rtol=1e-5, err_msg=name)
    for path, expected in alone[0].items():
        np.testing.assert_allclose(weights[path], expected, atol=1e-6, err_msg=path)


@pytest.mark.slow
def test_a_packed_evaluation_is_that_of_the_examples_row_by_row(
    examples_of, tiny_examples, tmp_path
):
    """All of the held-out shard, which has the same documents packed or not."""
    # The weights hardly move: they are those of the start.
    optimizer = {"learning_rate": 1e-12, "warmup_steps": 1}
    settings = make.pretraining_config(optimizer=optimizer, num_train_steps=2)
    packed = examples_of(max_seq_length=32, dupe_factor=2, pack_instances=True)
    of_packed, alone = (
        make.pretrain([directory], tmp_path / name, settings)["eval"]
        for name, directory in (("packed", packed), ("alone", tiny_examples))
    )
    assert of_packed == pytest.approx(alone, rel=1e-5)
