import math

import numpy as np
import pytest

from bert_keras.model import span


def test_logits_are_products_with_the_vectors_s_and_e(
    tiny_config, make_batch, randomize
):
    model = span.BertSpanPredictor(tiny_config)
    model.build()
    randomize(model)
    batch = make_batch(tiny_config)
    sequence_output = np.array(model.encoder(batch)["sequence_output"])
    (start, end), bias = (
        model.head.classifier.kernel.numpy().T,
        model.head.classifier.bias,
    )
    outputs = model(batch)
    np.testing.assert_allclose(
        outputs["start_logits"], sequence_output @ start + bias[0], atol=1e-5
    )
    # Padding, too: nothing is masked.
    np.testing.assert_allclose(
        outputs["end_logits"], sequence_output @ end + bias[1], atol=1e-5
    )


def cross_entropy(logits, position):
    return math.log(sum(math.exp(x) for x in logits)) - logits[position]


def test_loss_is_the_mean_of_start_and_end(tiny_config):
    random = np.random.default_rng(0)
    start_logits, end_logits = random.normal(size=(2, 5, 9)).astype("float32")
    start, end = random.integers(0, 9, (2, 5))
    # Both right, one of them right.
    start[:2], end[1] = start_logits[:2].argmax(axis=1), end_logits[1].argmax()
    model = span.BertSpanPredictor(tiny_config)
    features = {"start_positions": start, "end_positions": end}
    outputs = {"start_logits": start_logits, "end_logits": end_logits}
    terms = {
        name: [float(x) for x in pair]
        for name, pair in model.loss_terms(features, outputs).items()
    }
    loss = sum(map(cross_entropy, start_logits, start))
    loss = (loss + sum(map(cross_entropy, end_logits, end))) / 2
    num_right = {
        f"{name}_accuracy": [float((logits.argmax(axis=1) == positions).sum()), 5]
        for name, logits, positions in (
            ("start", start_logits, start),
            ("end", end_logits, end),
        )
    }
    assert terms == {"loss": [pytest.approx(loss, rel=1e-6), 5], **num_right}
    assert 2 <= terms["start_accuracy"][0] < 5
    assert {n: float(x) for n, x in model.loss_weights(features).items()} == {"loss": 5}
    columns = {name: values[:, None] for name, values in features.items()}
    assert float(model.loss_weights(columns)["loss"]) == 5
    assert float(model.loss_terms(columns, outputs)["loss"][0]) == terms["loss"][0]


def test_a_loss_far_from_0_is_finite(tiny_config):
    model = span.BertSpanPredictor(tiny_config)
    logits = np.array([[0.0, 1e4, -1e4]], "float32")
    terms = model.loss_terms(
        {"start_positions": np.array([0]), "end_positions": np.array([1])},
        {"start_logits": logits, "end_logits": logits},
    )
    assert float(terms["loss"][0]) == 5000
