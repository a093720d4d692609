"""The rule of confident learning: which labels are probably wrong.

A model is confident of a class if its probability is at least the mean probability that
the class has where it is the label. A label is suspected if a model that was not
trained on it is confident of another class, and finds another class likelier than the
label (Northcutt, Jiang and Chuang, 2021; the off-diagonal counts of their confident
joint, less the labels that are the likeliest, as in cleanlab). The margin of a label is
its probability less that of the likeliest other class.
"""

import numpy as np

from bert_keras.labelled import dataset

CLOSE = 1e-6
"""Probabilities that are closer than this are equal."""


def find_suspects(
    judged: dataset.JudgedLabels, is_known: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns which labels are suspected, `(num_labels,)` bool, and their margins, from
    -1 to 1. Labels that are not `is_known` are neither judged nor counted."""
    probabilities, labels = judged.probabilities, judged.labels
    places, num_classes = np.arange(len(labels)), probabilities.shape[1]
    own = probabilities[places, labels]
    # 1. The mean probability that each class has where it is the label.
    cells = (judged.groups * num_classes + labels)[is_known]
    size = (judged.groups.max() + 1) * num_classes
    counts, sums = (np.bincount(cells, w, size) for w in (None, own[is_known]))
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)
    means = means.reshape(-1, num_classes)[judged.groups]
    # Where all labels are one class, the right answers, none has the other class.
    if not labels.any():
        means[:] = own.mean()
    # 2. The other classes, and whether the model is confident of one.
    others = probabilities.copy()
    others[places, labels] = -np.inf
    is_confident = (others >= np.maximum(means, 2 * CLOSE) - CLOSE).any(axis=-1)
    margins = own - others.max(axis=-1)
    return is_known & is_confident & (margins <= -CLOSE), margins
