"""The rule of confident learning, beside cleanlab's."""

import numpy as np
import pytest

from bert_keras.labelled import dataset
from bert_keras.trust import confident_learning


def judge(probabilities, labels, *, groups=None) -> dataset.JudgedLabels:
    rows = np.arange(len(labels))
    names = np.broadcast_to("", np.shape(probabilities))
    groups = 0 * rows if groups is None else groups
    parts = np.full(len(rows), "")
    values = (np.array(labels), np.array(probabilities, float), names, parts, groups)
    return dataset.JudgedLabels(rows, *values)


def find(judged, is_known=None):
    everything = np.ones(len(judged.labels), bool)
    return confident_learning.find_suspects(
        judged, everything if is_known is None else is_known
    )


def draw(rng, num_labels, num_classes, sharpness):
    logits = sharpness * rng.standard_normal((num_labels, num_classes))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    # Some labels are the likeliest class, the others are drawn.
    labels = probabilities.argmax(axis=-1)
    is_drawn = rng.random(num_labels) < 0.3
    return probabilities, np.where(
        is_drawn, rng.integers(num_classes, size=num_labels), labels
    )


@pytest.mark.parametrize(("num_labels", "num_classes"), [(30, 2), (200, 3), (500, 20)])
def test_suspects_and_their_order_are_those_of_cleanlab(num_labels, num_classes):
    filters = pytest.importorskip("cleanlab.filter")
    rng = np.random.default_rng(3)
    num_suspects = 0
    for sharpness in (0.3, 1, 3) * 10:
        probabilities, labels = draw(rng, num_labels, num_classes, sharpness)
        is_suspected, margins = find(judge(probabilities, labels))
        ours = np.flatnonzero(is_suspected)
        theirs = filters.find_label_issues(
            labels,
            probabilities,
            filter_by="confident_learning",
            return_indices_ranked_by="normalized_margin",
            n_jobs=1,
        )
        assert ours[np.argsort(margins[ours])].tolist() == theirs.tolist()
        num_suspects += len(ours)
    assert num_suspects > 100


def test_several_labels_are_judged_by_themselves_as_cleanlab_does():
    filters = pytest.importorskip("cleanlab.multilabel_classification.filter")
    rng = np.random.default_rng(5)
    probabilities = rng.random((300, 4))
    holds = (rng.random((300, 4)) < probabilities**2).astype(int)
    both = np.stack([1 - probabilities, probabilities], axis=-1).reshape(-1, 2)
    groups = np.tile(np.arange(4), 300)
    is_suspected, _ = find(judge(both, holds.ravel(), groups=groups))
    theirs = filters.find_multilabel_issues_per_class(
        [np.flatnonzero(row).tolist() for row in holds],
        probabilities,
        filter_by="confident_learning",
        n_jobs=1,
    )
    assert is_suspected.sum() > 50
    np.testing.assert_array_equal(is_suspected.reshape(-1, 4), theirs)


CLASSES = [
    # Means where a class is the label: 0.5 and 0.6.
    ([0.9, 0.1], 0, False),
    ([0.1, 0.9], 0, True),
    ([0.45, 0.55], 0, False),  # not confident
    ([0.55, 0.45], 0, False),
    ([0.2, 0.8], 1, False),
    ([0.6, 0.4], 1, True),
]


def test_the_rule_by_hand():
    probabilities, labels, expected = zip(*CLASSES, strict=True)
    is_suspected, margins = find(judge(probabilities, labels))
    assert is_suspected.tolist() == [*expected]
    np.testing.assert_allclose(margins, [0.8, -0.8, -0.1, 0.1, 0.6, -0.2], atol=1e-9)


def test_an_unknown_label_is_no_suspect_and_no_class():
    """Without it, the mean of class 1 would be that of its one row, nearly 0."""
    probabilities = [[0.9, 0.05, 0.05], [0.5, 0.1, 0.4], [0.2, 0.1, 0.7], [1, 0, 0]]
    labels = [0, 2, 2, 1]
    is_known = np.array([True, True, True, False])
    assert find(judge(probabilities, labels))[0].tolist() == [False, True, False, True]
    assert not find(judge(probabilities, labels), is_known)[0].any()


def test_answers_that_are_all_right_ones_have_one_mean():
    probabilities = [[0.9, 0.1], [0.1, 0.5], [0.3, 0.7], [0.9, 0.0]]
    judged = judge(probabilities, [0, 0, 0, 0])
    assert find(judged)[0].tolist() == [False, False, True, False]
