"""Losses of each network by hand; `test_networks.py` has what all promise."""

import math

import numpy as np
import pytest

from bert_keras.kinds.choice import network as choice_network
from bert_keras.kinds.span import network as span_network
from bert_keras.kinds.tagging import network as tagging_network
from bert_keras.kinds.text import network as text_network
from bert_keras.model import dropout

# === BertClassifier ===


@pytest.fixture
def batch(tiny_config, make_batch) -> dict[str, np.ndarray]:
    names = ("input_ids", "input_mask", "segment_ids")
    full = make_batch(tiny_config)
    return {name: full[name] for name in names}


def test_loss_and_accuracy_of_classes(tiny_config):
    model = text_network.BertClassifier(tiny_config, 3, dropout_prob=0.1)
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
    model = text_network.BertClassifier(tiny_config, 1, dropout_prob=0.1)
    logits = np.array([[1.0], [-2.0]], "float32")
    labels = np.array([0.5, 1.0], "float32")
    terms = model.loss_terms({"label_ids": labels}, {"logits": logits})
    assert terms.keys() == {"loss"}
    assert [float(x) for x in terms["loss"]] == [9.25, 2]


def test_left_to_right_the_last_token_is_read(tiny_config, batch, randomize):
    """The first one has seen nothing of the text."""
    left_to_right = tiny_config.model_copy(update={"attention": "left_to_right"})
    model = text_network.BertClassifier(left_to_right, 3, dropout_prob=0.1)
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


# === BertTagger ===


def test_loss_and_accuracy_are_of_the_tokens_that_count(tiny_config):
    random = np.random.default_rng(0)
    labels, logits = random.integers(-2, 3, (4, 7)), random.normal(size=(4, 7, 3))
    model = tagging_network.BertTagger(tiny_config, 3, dropout_prob=0.1)
    features, outputs = {"label_ids": labels}, {"logits": np.float32(logits)}
    terms = model.loss_terms(features, outputs)
    pairs = zip(labels.ravel(), logits.reshape(-1, 3), strict=True)
    counted = [(label, scores) for label, scores in pairs if label >= 0]
    loss = sum(cross_entropy(scores, label) for label, scores in counted)
    num_right = sum(scores.argmax() == label for label, scores in counted)
    assert 0 < num_right < len(counted) < labels.size
    assert float(terms["loss"][0]) == pytest.approx(loss, rel=1e-6)
    assert [float(x) for x in terms["accuracy"]] == [num_right, len(counted)]
    weights = model.loss_weights(features)
    assert {name: float(value) for name, value in weights.items()} == {
        "loss": len(counted)
    }
    assert float(terms["loss"][1]) == len(counted)
    assert set(model.loss_names) < set(terms)


# === BertSpanPredictor ===


def cross_entropy(logits, position):
    return math.log(sum(math.exp(x) for x in logits)) - logits[position]


def test_loss_is_the_mean_of_start_and_end(tiny_config):
    random = np.random.default_rng(0)
    start_logits, end_logits = random.normal(size=(2, 5, 9)).astype("float32")
    start, end = random.integers(0, 9, (2, 5))
    # Both right, one of them right.
    start[:2], end[1] = start_logits[:2].argmax(axis=1), end_logits[1].argmax()
    model = span_network.BertSpanPredictor(tiny_config)
    features = {"start_positions": start, "end_positions": end}
    outputs = {"start_logits": start_logits, "end_logits": end_logits}
    terms = model.loss_terms(features, outputs)
    terms = {name: [float(x) for x in pair] for name, pair in terms.items()}
    loss = sum(map(cross_entropy, start_logits, start))
    loss = (loss + sum(map(cross_entropy, end_logits, end))) / 2
    num_right = {
        "start_accuracy": [(start_logits.argmax(axis=1) == start).sum(), 5],
        "end_accuracy": [(end_logits.argmax(axis=1) == end).sum(), 5],
    }
    assert terms == {"loss": [pytest.approx(loss, rel=1e-6), 5], **num_right}
    assert 2 <= terms["start_accuracy"][0] < 5
    assert {n: float(x) for n, x in model.loss_weights(features).items()} == {"loss": 5}
    columns = {name: values[:, None] for name, values in features.items()}
    assert float(model.loss_weights(columns)["loss"]) == 5
    assert float(model.loss_terms(columns, outputs)["loss"][0]) == terms["loss"][0]


# === BertChooser ===


def test_loss_and_accuracy_are_over_the_endings(tiny_config):
    model = choice_network.BertChooser(tiny_config, dropout_prob=0.1)
    logits = np.array([[0, 0, 0, 0], [0, math.log(2), 0, 0]], "float32")
    labels = {"label_ids": np.array([2, 1])}
    terms = model.loss_terms(labels, {"logits": logits})
    # Probabilities 1/4, in a tie, and 2/5.
    assert float(terms["loss"][0]) == pytest.approx(math.log(4) + math.log(2.5))
    assert float(terms["loss"][1]) == float(model.loss_weights(labels)["loss"]) == 2
    assert [float(x) for x in terms["accuracy"]] == [1, 2]
    column = {"label_ids": labels["label_ids"][:, None]}
    again = model.loss_terms(column, {"logits": logits})
    assert float(again["loss"][0]) == float(terms["loss"][0])
    assert set(model.loss_names) < set(terms)


def test_the_seeds_of_the_endings_are_these():
    # Literal: a run that is taken up with a newer version must go on as it would have.
    seeds = dropout.seeds_of_parts(np.array([7, -8, 2**31 - 1], "int32"), 3)
    assert np.array(seeds).tolist() == [
        *(7, -1640531520, 1013904249),
        *(-8, -1640531535, 1013904234),
        *(2147483647, 506952120, -1133579407),
    ]
    seeds = np.array(dropout.seeds_of_parts(np.arange(-500, 500), 16))
    assert len(set(seeds.tolist())) == 16000
