"""Losses of labelled texts, beside torch's and transformers' own."""

import numpy as np
import pytest

from bert_keras.core.settings import finetuning
from bert_keras.kinds.text import network as text_network
from bert_keras.kinds.text import text

torch = pytest.importorskip("torch")
LABELS = ("a", "b", "c")
LOGITS = np.random.default_rng(1).normal(0, 2, (6, 3)).astype(np.float32)
TARGETS = np.float32(np.random.default_rng(2).random((6, 3)) < 0.4)
CLASSES = np.array([2, 0, 0, 1, 0, 2])


def settings(**changes) -> finetuning.FinetuningConfig:
    return finetuning.FinetuningConfig(**changes)


def mean_loss(network, features, logits=LOGITS) -> float:
    total, weight = network.loss_terms(features, {"logits": logits})["loss"]
    assert float(network.loss_weights(features)["loss"]) == float(weight)
    return float(total) / float(weight)


@pytest.fixture
def several(tiny_config):
    return text_network.BertMultiLabelClassifier(tiny_config, 3)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("class_weights", [None, {"a": 3.0, "c": 0.5}, "balanced"])
def test_several_labels_are_scored_as_by_torch(several, smoothing, class_weights):
    made = settings(
        multi_label=True, label_smoothing=smoothing, class_weights=class_weights
    )
    features = text.label_features(TARGETS, LABELS, made)
    if class_weights == "balanced":
        by_label = ((TARGETS == 0).sum(axis=0) / TARGETS.sum(axis=0)).tolist()
    else:
        by_label = [(class_weights or {}).get(label, 1.0) for label in LABELS]
    expected = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(by_label))(
        torch.tensor(LOGITS), torch.tensor(TARGETS * (1 - smoothing) + smoothing / 2)
    )
    assert mean_loss(several, features) == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("class_weights", [None, {"a": 3.0, "c": 0.5}])
def test_classes_are_scored_as_by_torch(tiny_config, smoothing, class_weights):
    made = settings(label_smoothing=smoothing, class_weights=class_weights)
    features = text.label_features(CLASSES, LABELS, made)
    by_label = torch.tensor([3.0, 1.0, 0.5] if class_weights else [1.0] * 3)
    theirs = torch.nn.CrossEntropyLoss(weight=by_label, label_smoothing=smoothing)
    expected = theirs(torch.tensor(LOGITS), torch.tensor(CLASSES))
    network = text_network.BertClassifier(tiny_config, 3)
    assert mean_loss(network, features) == pytest.approx(expected.item(), rel=1e-6)
    # The curve's name promises the share of texts, whatever they weigh.
    right, count = network.loss_terms(features, {"logits": LOGITS})["accuracy"]
    assert [float(right), float(count)] == [(LOGITS.argmax(1) == CLASSES).sum(), 6]


def test_a_text_counts_as_right_if_all_of_its_labels_are(several):
    logits = np.float32([[1, -1, 2], [1, -1, 2], [0, 0, 0]])
    targets = np.float32([[1, 0, 1], [1, 1, 1], [0, 0, 0]])
    features = text.label_features(targets, LABELS, settings(multi_label=True))
    terms = several.loss_terms(features, {"logits": logits})
    assert [float(x) for x in terms["accuracy"]] == [2, 3]
    features["example_weights"] = np.float32([1, 1, 0])
    terms = several.loss_terms(features, {"logits": logits})
    assert [float(x) for x in terms["accuracy"]] == [1, 2]


def test_losses_of_confident_logits_are_finite(several):
    logits = np.float32([[500, -500, 0]])
    features = text.label_features(
        np.float32([[0, 1, 0]]), LABELS, settings(multi_label=True)
    )
    expected = (500 + 500 + np.log(2)) / 3
    assert mean_loss(several, features, logits) == pytest.approx(expected)
