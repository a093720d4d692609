import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.kinds.choice import network as choice_network
from bert_keras.kinds.span import network as span_network
from bert_keras.kinds.tagging import network as tagging_network
from bert_keras.kinds.text import network as text_network
from bert_keras.model import losses
from tests import conftest

RANDOM = np.random.default_rng(0)
LOGITS = (30 * RANDOM.standard_normal((6, 11))).astype("float32")
LABELS = np.array([0, 10, 3, 3, 7, 1], "int32")


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
def test_cross_entropy_equals_kerass_with_its_gradient(shift):
    logits = tf.constant(LOGITS + np.float32(shift))
    upstream = tf.constant([1.0, 2.0, 0.0, -1.0, 0.5, 3.0])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        ours = losses.cross_entropy(logits, LABELS)
        theirs = keras.losses.sparse_categorical_crossentropy(
            LABELS, logits, from_logits=True
        )
        ours_sum = tf.reduce_sum(ours * upstream)
        theirs_sum = tf.reduce_sum(theirs * upstream)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-3 if shift else 1e-5)
    np.testing.assert_allclose(
        tape.gradient(ours_sum, logits), tape.gradient(theirs_sum, logits), atol=1e-5
    )


def test_right_is_what_argmax_says_but_a_tie_is_wrong():
    best = np.argmax(LOGITS, axis=-1)
    np.testing.assert_array_equal(losses.is_right(LOGITS, LABELS), best == LABELS)
    np.testing.assert_array_equal(losses.is_right(LOGITS, best), np.ones(6))
    logits = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]], "float32")
    np.testing.assert_array_equal(losses.is_right(logits, np.array([0, 0])), [0, 1])


def test_terms_count_by_weight():
    logits = np.array([[[9.0, 0.0], [9.0, 0.0]], [[0.0, 9.0], [0.0, 0.0]]], "float32")
    labels = np.array([[0, 1], [1, 0]])
    weights = np.array([[1.0, 0.5], [1.0, 0.0]], "float32")
    terms = losses.classification_terms(logits, labels, weights)
    small, large = np.log1p(np.exp(-9)), np.log1p(np.exp(9))
    np.testing.assert_allclose(terms["loss"], [2 * small + 0.5 * large, 2.5], rtol=1e-5)
    np.testing.assert_allclose(terms["accuracy"], [2.0, 2.5])


# === Networks of tasks ===


def by_hand(logits, labels):
    """Returns the summed cross entropy, the right answers and all of them; a label
    below 0 does not count."""
    logits, labels = np.float64(logits[labels >= 0]), labels[labels >= 0]
    own = np.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    num_right = (logits.argmax(axis=-1) == labels).sum()
    assert 0 < num_right < len(labels)
    loss = (np.log(np.exp(logits).sum(axis=-1)) - own).sum()
    return loss, num_right, len(labels)


def of_classes(logits, labels):
    loss, num_right, count = by_hand(logits, labels)
    terms = {"loss": (loss, count), "accuracy": (num_right, count)}
    return {"label_ids": labels}, {"logits": logits}, terms


def of_spans(logits, labels):
    outputs = {"start_logits": logits[0], "end_logits": logits[1]}
    features = {"start_positions": labels[0], "end_positions": labels[1]}
    start, end = map(by_hand, logits, labels)
    terms = {"loss": ((start[0] + end[0]) / 2, 20), "start_accuracy": (start[1], 20)}
    return features, outputs, terms | {"end_accuracy": (end[1], 20)}


def of_numbers(logits, labels):
    squares = np.square(logits[:, 0] - labels).sum()
    return {"label_ids": labels}, {"logits": logits}, {"loss": (squares, len(labels))}


NETWORKS = {
    "classes": (lambda c: text_network.BertClassifier(c, 5), of_classes, (20,)),
    "number": (lambda c: text_network.BertClassifier(c, 1), of_numbers, (20,)),
    "tokens": (lambda c: tagging_network.BertTagger(c, 5), of_classes, (4, 7)),
    "span": (span_network.BertSpanPredictor, of_spans, (2, 20)),
    "choice": (choice_network.BertChooser, of_classes, (20,)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_losses_of_networks_by_hand(name):
    build, by_task, shape = NETWORKS[name]
    random, size = np.random.default_rng(1), 1 if name == "number" else 5
    labels = random.integers(-2 if name == "tokens" else 0, 5, shape)
    logits = random.normal(size=(*shape, size)).astype("float32")
    features, outputs, expected = by_task(logits, labels)
    network = build(conftest.TINY)
    assert set(network.loss_names) <= set(expected)
    columns = {key: values[:, None] for key, values in features.items()}
    for form in (features, columns) if name != "tokens" else (features,):
        terms = network.loss_terms(form, outputs)
        found = {key: tuple(map(float, pair)) for key, pair in terms.items()}
        assert found == {k: pytest.approx(v, rel=1e-5) for k, v in expected.items()}
        weights = network.loss_weights(form)
        assert {k: float(v) for k, v in weights.items()} == {"loss": found["loss"][1]}
