import math

import numpy as np
import pytest

from bert_keras.model import tagging


@pytest.fixture(scope="module")
def examples():
    """Labels, of which some do not count, and logits."""
    random = np.random.default_rng(0)
    return random.integers(-2, 3, (4, 7)), random.normal(size=(4, 7, 3))


def test_loss_and_accuracy_are_of_the_tokens_that_count(tiny_config, examples):
    labels, logits = examples
    model = tagging.BertTagger(tiny_config, 3, dropout_prob=0.1)
    features, outputs = {"label_ids": labels}, {"logits": np.float32(logits)}
    terms = model.loss_terms(features, outputs)
    loss = num_right = count = 0
    for label, scores in zip(labels.ravel(), logits.reshape(-1, 3), strict=True):
        if label >= 0:
            loss += math.log(sum(math.exp(x) for x in scores)) - scores[label]
            num_right += scores.argmax() == label
            count += 1
    assert 0 < count < labels.size and 0 < num_right < count
    assert float(terms["loss"][0]) == pytest.approx(loss, rel=1e-6)
    assert [float(x) for x in terms["accuracy"]] == [num_right, count]
    weights = model.loss_weights(features)
    assert {name: float(value) for name, value in weights.items()} == {"loss": count}
    assert float(terms["loss"][1]) == count
    assert set(model.loss_names) < set(terms)


def test_what_does_not_count_changes_no_term(tiny_config, examples):
    labels, logits = examples
    model = tagging.BertTagger(tiny_config, 3, dropout_prob=0.1)
    changed = np.where(labels[..., None] < 0, 100.0, logits)
    relabelled = np.where(labels < 0, -100, labels)
    terms, others = (
        model.loss_terms({"label_ids": ids}, {"logits": np.float32(values)})
        for ids, values in ((labels, logits), (relabelled, changed))
    )
    for name, pair in terms.items():
        assert [float(x) for x in others[name]] == [float(x) for x in pair]


def test_padding_changes_no_token(tiny_config, make_batch, randomize):
    model = tagging.BertTagger(tiny_config, 3, dropout_prob=0.1)
    model.build()
    randomize(model)
    batch = make_batch(tiny_config, lengths=(9, 6))
    names = ("input_ids", "input_mask", "segment_ids")
    longer = {name: np.pad(batch[name], ((0, 0), (0, 4))) for name in names}
    longer["input_ids"][:, 9:] = 5
    plain, padded = (np.array(model(x)["logits"]) for x in (batch, longer))
    for row, length in enumerate((9, 6)):
        np.testing.assert_allclose(padded[row, :length], plain[row, :length], atol=1e-5)
