import math

import numpy as np
import pytest

from bert_keras.model import choice


def test_an_ending_is_scored_by_itself(tiny_config, make_batch, randomize):
    model = choice.BertChooser(tiny_config, dropout_prob=0.5)
    model.build()
    randomize(model)
    batch = make_batch(tiny_config, lengths=(16, 11, 5, 16, 7, 9))
    names = ("input_ids", "input_mask", "segment_ids")
    features = {name: batch[name].reshape(2, 3, 16) for name in names}
    pooled = np.array(model.encoder(batch)["pooled_output"])
    kernel, bias = (w.numpy() for w in model.head.trainable_weights)
    expected = (pooled @ kernel + bias).reshape(2, 3)
    np.testing.assert_allclose(model(features)["logits"], expected, atol=1e-5)


def test_loss_and_accuracy_are_over_the_endings(tiny_config):
    model = choice.BertChooser(tiny_config, dropout_prob=0.1)
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
    seeds = choice.ending_seeds(np.array([7, -8, 2**31 - 1], "int32"), 3)
    assert np.array(seeds).tolist() == [
        *(7, -1640531520, 1013904249),
        *(-8, -1640531535, 1013904234),
        *(2147483647, 506952120, -1133579407),
    ]


def test_no_two_endings_share_a_seed():
    seeds = np.array(choice.ending_seeds(np.arange(-500, 500), 16))
    assert len(set(seeds.tolist())) == 16000


def test_equal_endings_meet_different_dropout(tiny_config, make_batch, randomize):
    model = choice.BertChooser(tiny_config, dropout_prob=0.1, seed=2)
    model.build()
    randomize(model)
    batch = make_batch(tiny_config, lengths=(9, 9))
    features = {
        name: np.repeat(batch[name][:, None], 4, axis=1)
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    plain = np.array(model(features)["logits"])
    assert np.ptp(plain, axis=1).max() < 1e-5
    seeded = features | {"dropout_seeds": np.array([5, 6])}
    dropped, same = (np.array(model(seeded, training=True)["logits"]) for _ in range(2))
    np.testing.assert_array_equal(dropped, same)
    for row in dropped:
        assert np.diff(np.sort(row)).min() > 1e-3
