"""Rows of several instances against the same instances in rows of their own."""

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.core.settings import pipelines
from bert_keras.data import packing
from bert_keras.model import pretrainer
from tests import conftest

LENGTH, NUM_SLOTS, NUM_PREDICTIONS = 32, 4, 6
PREDICTIONS = ("positions", "ids", "weights")
ROWS = ((9, 12, 11), (32,), (5, 6, 7, 8), (20, 3))
"""Tokens of the instances of each row: a full one, one alone, all slots, padding."""

CONFIG = conftest.TINY.model_copy(
    update={
        "num_hidden_layers": 2,
        "hidden_dropout_prob": 0.2,
        "attention_probs_dropout_prob": 0.3,
    }
)


def alone_batch() -> dict[str, np.ndarray]:
    """The instances of `ROWS`, each in a plain row."""
    random = np.random.default_rng(5)
    lengths = [length for row in ROWS for length in row]
    shape, slots = (len(lengths), LENGTH), (len(lengths), NUM_PREDICTIONS)
    names = ("input_ids", "input_mask", "segment_ids")
    batch = {name: np.zeros(shape, "int32") for name in names}
    batch |= {f"masked_lm_{name}": np.zeros(slots, "int32") for name in PREDICTIONS}
    for row, length in enumerate(lengths):
        batch["input_ids"][row, :length] = random.integers(1, CONFIG.vocab_size, length)
        batch["input_mask"][row, :length] = 1
        batch["segment_ids"][row, length // 2 : length] = 1
        count = max(1, round(length / 7))
        positions = np.sort(random.choice(np.arange(1, length), count, replace=False))
        batch["masked_lm_positions"][row, :count] = positions
        labels = random.integers(1, CONFIG.vocab_size, count)
        batch["masked_lm_ids"][row, :count] = labels
        batch["masked_lm_weights"][row, :count] = 1
    batch["masked_lm_weights"] = np.float32(batch["masked_lm_weights"])
    batch["next_sentence_labels"] = np.int32(random.integers(0, 2, len(lengths)))
    seeds = random.integers(-(2**31), 2**31, len(lengths))
    return batch | {"dropout_seeds": np.int32(seeds)}


def packed_batch() -> dict[str, np.ndarray]:
    """The same in rows; `data/test_packing.py` joins rows by hand."""
    row_of = np.repeat(range(len(ROWS)), list(map(len, ROWS)))
    batch = alone_batch()
    for name in ("next_sentence_labels", "dropout_seeds"):
        batch[name] = batch[name][:, np.newaxis]
    config = pipelines.ExamplesConfig(max_seq_length=LENGTH, pack_instances=True)
    return packing.join_rows(batch, row_of, config)


@pytest.fixture(params=["bidirectional", "left_to_right"])
def model(request, randomize) -> pretrainer.BertPretrainer:
    config = CONFIG.model_copy(update={"attention": request.param})
    model = pretrainer.BertPretrainer(config, seed=3, name="pretrainer")
    model.build()
    randomize(model)
    return model


def losses_and_gradients(model, batch) -> dict[str, np.ndarray]:
    with tf.GradientTape() as tape:
        terms = model.loss_terms(batch, model(batch, training=True))
        loss = sum(terms[name][0] / terms[name][1] for name in model.loss_names)
    gradients = tape.gradient(loss, model.trainable_variables)
    found = {f"terms/{name}": tf.stack(pair) for name, pair in terms.items()}
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        found[variable.path.partition("/")[2]] = tf.convert_to_tensor(gradient)
    return found


@pytest.mark.parametrize(
    "kind",
    [
        "eager",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("compiled", "layers", "attention")
        ),
    ],
)
def test_packed_equals_alone_with_dropout(model, kind):
    """As it is; with the chains that XLA fuses; recomputed."""
    if kind in ("layers", "attention"):
        model.encoder.recompute = kind

    def compute(batch):
        if kind == "eager":
            return losses_and_gradients(model, batch)
        return tf.function(lambda: losses_and_gradients(model, batch))()

    packed, alone = compute(packed_batch()), compute(alone_batch())
    assert packed.keys() == alone.keys()
    for name, expected in alone.items():
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(
            packed[name] / scale, expected / scale, atol=1e-6, rtol=0, err_msg=name
        )
    predicted = packed["terms/masked_lm_loss"][1]
    assert predicted == packed_batch()["masked_lm_weights"].sum()
    assert packed["terms/next_sentence_loss"][1] == sum(len(row) for row in ROWS)


def test_a_call_without_seeds_draws_them(model):
    batch = packed_batch()
    del batch["dropout_seeds"]
    outputs = model(batch, training=True)
    assert outputs["next_sentence_logits"].shape == (len(ROWS), NUM_SLOTS, 2)
