import math

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.model import classification


@pytest.fixture
def batch(tiny_config, make_batch) -> dict[str, np.ndarray]:
    names = ("input_ids", "input_mask", "segment_ids")
    full = make_batch(tiny_config)
    return {name: full[name] for name in names}


def test_logits_are_a_linear_map_of_the_pooled_output(tiny_config, batch, randomize):
    model = classification.BertClassifier(tiny_config, 3, dropout_prob=0.5)
    model.build()
    randomize(model)
    pooled = np.array(model.encoder(batch)["pooled_output"])
    kernel, bias = (w.numpy() for w in model.head.trainable_weights)
    np.testing.assert_allclose(
        model(batch)["logits"], pooled @ kernel + bias, atol=1e-5
    )


def test_loss_and_accuracy_of_classes(tiny_config):
    model = classification.BertClassifier(tiny_config, 3, dropout_prob=0.1)
    logits = np.array([[0, 0, 0], [0, math.log(2), 0], [5, 0, 0]], "float32")
    # Right, with probability 1/2; wrong; right.
    labels = np.array([2, 1, 0])
    terms = model.loss_terms({"label_ids": labels}, {"logits": logits})
    expected = math.log(3) + math.log(2) + math.log(1 + 2 * math.exp(-5))
    assert float(terms["loss"][0]) == pytest.approx(expected, rel=1e-6)
    assert float(terms["loss"][1]) == 3
    assert [float(x) for x in terms["accuracy"]] == [2, 3]
    assert set(model.loss_names) < set(terms)
    column = model.loss_terms({"label_ids": labels[:, None]}, {"logits": logits})
    assert float(column["loss"][0]) == float(terms["loss"][0])


def test_loss_of_numbers_is_the_squared_error(tiny_config):
    model = classification.BertClassifier(tiny_config, 1, dropout_prob=0.1)
    logits = np.array([[1.0], [-2.0]], "float32")
    labels = np.array([0.5, 1.0], "float32")
    terms = model.loss_terms({"label_ids": labels}, {"logits": logits})
    assert terms.keys() == {"loss"}
    assert [float(x) for x in terms["loss"]] == [9.25, 2]


def test_the_seed_alone_decides_weights_and_dropout(tiny_config, batch):
    first, same, other = (
        np.array(
            classification.BertClassifier(tiny_config, 2, dropout_prob=0.1, seed=seed)(
                batch, training=True
            )["logits"]
        )
        for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, same)
    assert (first != other).all()


def test_dropout_before_the_classifier_follows_the_seeds_too(tiny_config, batch):
    quiet = tiny_config.model_copy(
        update={"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    )
    model = classification.BertClassifier(quiet, 2, dropout_prob=0.5, seed=3)
    seeded = batch | {"dropout_seeds": np.arange(4)}
    first, same = (np.array(model(seeded, training=True)["logits"]) for _ in range(2))
    np.testing.assert_array_equal(first, same)
    one, another = (np.array(model(batch, training=True)["logits"]) for _ in range(2))
    assert (one != another).all()


def test_gradients_are_dense(tiny_config, batch):
    # Keras' optimizers are wrong for the sparse kind: see `operations.take_rows`.
    model = classification.BertClassifier(tiny_config, 2, dropout_prob=0.1)
    labels = {"label_ids": np.zeros(4, "int32")}
    with tf.GradientTape() as tape:
        total, _ = model.loss_terms(labels, model(batch))["loss"]
    for gradient in tape.gradient(total, model.trainable_variables):
        assert isinstance(gradient, tf.Tensor)


def test_left_to_right_the_last_token_is_read(tiny_config, batch, randomize):
    """The first one has seen nothing of the text."""
    left_to_right = tiny_config.model_copy(update={"attention": "left_to_right"})
    model = classification.BertClassifier(left_to_right, 3, dropout_prob=0.1)
    model.build()
    randomize(model)
    states = np.array(model.encoder(batch)["sequence_output"])
    lengths = batch["input_mask"].sum(axis=1)
    assert len(set(lengths)) > 1
    last = states[np.arange(len(lengths)), lengths - 1]
    pooled = np.tanh(last @ model.encoder.pooler.kernel + model.encoder.pooler.bias)
    kernel, bias = (w.numpy() for w in model.head.trainable_weights)
    logits = np.array(model(batch)["logits"])
    np.testing.assert_allclose(logits, pooled @ kernel + bias, atol=1e-5)
    changed = batch | {"input_ids": batch["input_ids"].copy()}
    changed["input_ids"][:, 1] = 1 + changed["input_ids"][:, 1] % 30
    assert (np.abs(model(changed)["logits"] - logits).max(axis=1) > 1e-3).all()
