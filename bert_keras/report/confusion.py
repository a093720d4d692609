"""Confusion of classes, and the scores of each class."""

# scikit-learn has no types of its own.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import sklearn.metrics


class Confusion(NamedTuple):
    """How often each class is answered for each."""

    names: tuple[str, ...]
    counts: np.ndarray
    """`(num_classes, num_classes)` int64: rows are right, columns were answered."""


class ClassScore(NamedTuple):
    """Scores of a class."""

    name: str
    precision: float
    """Share of its answers that are right; NaN if it was never answered."""
    recall: float
    """Share of its examples that were found; NaN if there are none."""
    f1: float
    """NaN if there are neither answers nor examples."""
    num_right: int
    """Its examples in the data."""
    num_answered: int


def confusion(
    right: Sequence[str], answered: Sequence[str], names: Sequence[str]
) -> Confusion:
    """Counts answers.

    Args:
        right: the class of each example.
        answered: the model's answer for it.
        names: all classes.
    """
    counts = sklearn.metrics.confusion_matrix(right, answered, labels=list(names))
    return Confusion(tuple(names), counts)


def class_scores(
    right: Sequence[str], answered: Sequence[str], names: Sequence[str]
) -> list[ClassScore]:
    """Scores of each class; the arguments are those of `confusion`."""
    precision, recall, f1, _ = sklearn.metrics.precision_recall_fscore_support(
        right, answered, labels=list(names), zero_division=np.nan
    )
    counts = confusion(right, answered, names).counts
    columns = (precision, recall, f1, counts.sum(axis=1), counts.sum(axis=0))
    rows = zip(names, *(column.tolist() for column in columns), strict=True)
    return [ClassScore(*row) for row in rows]


def pooled(whole: Confusion, max_classes: int) -> Confusion:
    """The classes with most mistakes; all others pooled as the last one.

    Mistakes among the others are then on the diagonal.
    """
    names, counts = whole
    if len(names) <= max_classes:
        return whole
    mistakes = counts.sum(axis=0) + counts.sum(axis=1) - 2 * np.diag(counts)
    kept = np.sort(np.argsort(-mistakes, kind="stable")[: max_classes - 1])
    place = np.full(len(names), len(kept))
    place[kept] = np.arange(len(kept))
    smaller = np.zeros((len(kept) + 1,) * 2, counts.dtype)
    np.add.at(smaller, (place[:, None], place[None, :]), counts)
    rest = f"{len(names) - len(kept):,} others"
    return Confusion((*(names[k] for k in kept), rest), smaller)


def commonest(whole: Confusion, limit: int) -> list[tuple[str, str, int, float]]:
    """The commonest confusions: right and answered class, count, share of the row."""
    names, counts = whole
    mistakes = counts - np.diag(np.diag(counts))
    totals = counts.sum(axis=1)
    order = np.argsort(-mistakes, axis=None, kind="stable")[:limit]
    pairs = zip(*np.unravel_index(order, counts.shape), strict=True)
    return [
        (names[r], names[c], int(mistakes[r, c]), float(mistakes[r, c] / totals[r]))
        for r, c in pairs
        if mistakes[r, c]
    ]
