"""Confusion of classes, and the scores of each class."""

# scikit-learn has no types of its own.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse
import sklearn.metrics


class ClassScore(NamedTuple):
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
) -> scipy.sparse.csr_array:
    """Counts the answers for examples of each right class; `names` are all classes.

    Returns `(num_classes, num_classes)` int64: rows are right, columns were answered.
    Only the pairs that occur take memory, as classes may be many thousands.
    """
    place = {name: number for number, name in enumerate(names)}
    pairs = ([place[name] for name in right], [place[name] for name in answered])
    ones = np.ones(len(right), np.int64)
    # Equal pairs are summed.
    return scipy.sparse.csr_array((ones, pairs), shape=(len(names),) * 2)


def class_scores(
    right: Sequence[str], answered: Sequence[str], names: Sequence[str]
) -> list[ClassScore]:
    """Returns the scores of each class, from the arguments of `confusion`."""
    precision, recall, f1, _ = sklearn.metrics.precision_recall_fscore_support(
        right, answered, labels=list(names), zero_division=np.nan
    )
    counts = confusion(right, answered, names)
    columns = (precision, recall, f1, counts.sum(axis=1), counts.sum(axis=0))
    rows = zip(names, *(column.tolist() for column in columns), strict=True)
    return [ClassScore(*row) for row in rows]


def pooled(
    names: Sequence[str], counts: scipy.sparse.csr_array, max_classes: int
) -> tuple[Sequence[str], np.ndarray]:
    """Returns the classes with most mistakes, all others pooled as the last one, and
    all counts, `(num_names, num_names)`; mistakes among the others are on the
    diagonal."""
    if len(names) <= max_classes:
        return names, counts.toarray()
    mistakes = counts.sum(axis=0) + counts.sum(axis=1) - 2 * counts.diagonal()
    kept = np.sort(np.argsort(-mistakes, kind="stable")[: max_classes - 1])
    place = np.full(len(names), len(kept))
    place[kept] = np.arange(len(kept))
    smaller = np.zeros((len(kept) + 1,) * 2, counts.dtype)
    pairs = counts.tocoo()
    np.add.at(smaller, (place[pairs.row], place[pairs.col]), pairs.data)
    rest = f"{len(names) - len(kept):,} others"
    return (*(names[int(k)] for k in kept), rest), smaller


def commonest(
    names: Sequence[str], counts: scipy.sparse.csr_array, limit: int
) -> list[tuple[str, str, int, float]]:
    """Returns the commonest confusions: right and answered class, count, row share."""
    totals = counts.sum(axis=1)
    pairs = counts.tocoo()
    mistakes = sorted(
        (-count, row, column)
        for row, column, count in zip(pairs.row, pairs.col, pairs.data, strict=True)
        if row != column
    )
    return [
        (names[int(row)], names[int(column)], int(-count), float(-count / totals[row]))
        for count, row, column in mistakes[:limit]
    ]
