"""Texts with any number of labels each: targets, thresholds, scores. No TensorFlow."""

# Labels are None only in files without any, which are not asked for them.
# scikit-learn and scipy have no types of their own.
# pyright: reportArgumentType=false, reportOptionalIterable=false

import functools
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.special
import sklearn.metrics

from bert_keras.core.settings import finetuning
from bert_keras.data import features
from bert_keras.kinds.text import text

THRESHOLD = 0.5
"""Probability from which on a label holds, where none was chosen."""


def label_features(
    true_targets: np.ndarray,
    labels: Sequence[str],
    settings: finetuning.FinetuningConfig,
) -> dict[str, np.ndarray]:
    """Returns the features of all texts that the loss reads, see `data.features`."""
    # A share of the targets is spread over both answers, yes and no.
    smoothing = settings.label_smoothing
    targets = true_targets * np.float32(1 - smoothing) + np.float32(smoothing / 2)
    found = {features.LABEL_TARGETS: targets[:, None]}
    balanced = positive_weights(true_targets)
    by_label = text.label_weights(settings, labels, balanced=balanced)
    if by_label is not None:
        found[features.LABEL_WEIGHTS] = 1 + (by_label - 1) * targets[:, None]
    return found


def positive_weights(true_targets: np.ndarray) -> np.ndarray:
    """Returns weights that make texts with a label count as much as texts without it.

    They are `(num_labels,)` float32, texts without over texts with it: the `pos_weight`
    of torch's `BCEWithLogitsLoss`. 1 for a label that no text or every text has.
    """
    num_with = true_targets.sum(axis=0, dtype=np.float64)
    num_without = len(true_targets) - num_with
    is_varied = (num_with > 0) & (num_without > 0)
    odds = num_without / np.maximum(num_with, 1)
    return np.where(is_varied, odds, 1.0).astype(np.float32)


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Returns each label's own probability, `(num_examples, num_labels)` float32."""
    return scipy.special.expit(logits.astype(np.float32))


def threshold_row(
    thresholds: Mapping[str, float] | None, labels: Sequence[str]
) -> np.ndarray:
    """Returns thresholds in the order of the labels, `(num_labels,)` float32."""
    chosen = thresholds or {}
    return np.array([chosen.get(label, THRESHOLD) for label in labels], np.float32)


def best_thresholds(
    label_probabilities: np.ndarray, true_targets: np.ndarray
) -> np.ndarray:
    """Returns the threshold with the highest F1 for each label, `(num_labels,)`
    float32.

    Both arguments are `(num_examples, num_labels)`: float32, and 1 or 0. Between two
    probabilities the threshold is their middle. Among equally good ones, the one
    nearest to 0.5 is taken; 0.5 where no example has the label.
    """
    thresholds = np.full(len(true_targets.T), THRESHOLD, np.float32)
    for label in np.flatnonzero(true_targets.any(axis=0)):
        probabilities, true = label_probabilities[:, label], true_targets[:, label]
        # The label is given to all examples from a value on, the lowest first.
        order = np.argsort(probabilities, kind="stable")
        values, num_below = np.unique(probabilities[order], return_index=True)
        right_below = np.concatenate([[0], np.cumsum(true[order])])[num_below]
        num_given = len(true) - num_below
        f1 = 2 * (true.sum() - right_below) / (num_given + true.sum())
        middles = (values[1:].astype(np.float64) + values[:-1]) / 2
        # Between neighbours in float32 there is none.
        middles = middles.astype(np.float32)
        middles = np.where(middles > values[:-1], middles, values[1:])
        candidates = np.concatenate([[values[0] / 2], middles])
        if candidates[0] < THRESHOLD <= values[0]:
            candidates[0] = THRESHOLD
        best = candidates[f1 == f1.max()]
        thresholds[label] = best[np.abs(best - THRESHOLD).argmin()]
    return thresholds


def scores(
    logits: np.ndarray, true_targets: np.ndarray, thresholds: np.ndarray
) -> dict[str, float]:
    """Returns scores of logits `(num_examples, num_labels)`.

    `loss` (mean binary cross entropy of a label, nats), and with `(num_labels,)`
    `thresholds`: `accuracy` (share of examples of which all labels are right),
    `micro_f1` (over all labels of all examples) and `macro_f1` (mean over labels that
    occur or are given); `best_micro_f1` and `best_macro_f1` with the thresholds that
    are best for each label on these very examples.
    """
    given = probabilities(logits)
    values = logits.astype(float)
    losses = np.logaddexp(0, values) - values * true_targets
    found = _f1_scores(given >= thresholds, true_targets)
    best = _f1_scores(given >= best_thresholds(given, true_targets), true_targets)
    is_right = (given >= thresholds) == (true_targets > 0)
    return {
        "loss": float(losses.mean()),
        "accuracy": float(is_right.all(axis=1).mean()),
        **found,
        **{f"best_{name}": score for name, score in best.items()},
    }


def _f1_scores(given: np.ndarray, true_targets: np.ndarray) -> dict[str, float]:
    is_true = true_targets > 0
    occurs = (given | is_true).any(axis=0)
    if not occurs.any():
        return {"micro_f1": 0.0, "macro_f1": 0.0}
    f1_score = functools.partial(sklearn.metrics.f1_score, zero_division=0.0)
    columns = np.flatnonzero(occurs)
    by_label = [f1_score(is_true[:, c], given[:, c]) for c in columns]
    micro = f1_score(is_true.ravel(), given.ravel())
    return {"micro_f1": float(micro), "macro_f1": float(np.mean(by_label))}
