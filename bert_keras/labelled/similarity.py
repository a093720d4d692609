"""Likeness of texts by the cosines of their vectors. No TensorFlow."""

from typing import NamedTuple

import numpy as np

from bert_keras.labelled import logit_scores

RANK = 10
"""`recall_at_10`: a text is found if it is among as many."""

# Rows of cosines in memory at once, `(_CHUNK, num_candidates)`.
_CHUNK = 1024
_TINY = 1e-12


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """Returns vectors `(..., size)` of length 1, float32; zeros stay as they are."""
    vectors = vectors.astype(np.float32)
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    # Not `maximum(lengths, ...)` of all: NaN stays NaN.
    return vectors / np.where(lengths < _TINY, np.float32(_TINY), lengths)


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the cosine of each pair of vectors, `(num_pairs,)` float32."""
    return (unit_length(first) * unit_length(second)).sum(axis=-1)


class Search(NamedTuple):
    """Places of the right texts among those that a search would show."""

    ranks: np.ndarray
    """`(num_pairs,)` int64, from 1. As low as can be where cosines are equal or not
    numbers: a model that gives all texts one vector finds none."""
    nearest: np.ndarray
    """`(num_pairs,)` int64: the pair whose second text is the nearest of the wrong
    ones; the own one if there is none."""
    num_candidates: int
    """Different texts that were searched."""


def search(
    first: np.ndarray, second: np.ndarray, first_ids: np.ndarray, second_ids: np.ndarray
) -> Search:
    """Looks for the second text of each pair among all second texts.

    Other second texts of the same first text are right too, so they are neither counted
    nor searched; nor is the first text itself. Vectors are `(num_pairs, size)`; ids are
    `(num_pairs,)` whole numbers, equal for equal texts.
    """
    _, rows, places = np.unique(second_ids, return_index=True, return_inverse=True)
    candidates, candidate_ids = unit_length(second[rows]).T, second_ids[rows]
    queries = unit_length(first)
    others: dict[int, list[int]] = {}
    for query, place in zip(first_ids.tolist(), places.tolist(), strict=True):
        others.setdefault(query, []).append(place)
    ranks = np.zeros(len(first), np.int64)
    nearest = np.arange(len(first))
    for begin in range(0, len(first), _CHUNK):
        found = queries[begin : begin + _CHUNK] @ candidates
        chunk = np.arange(begin, begin + len(found))
        # Copied before the right texts, of which this is one, are struck out.
        own = found[chunk - begin, places[chunk]]
        found[first_ids[chunk, None] == candidate_ids] = -np.inf
        for row, query in enumerate(first_ids[chunk].tolist()):
            found[row, others[query]] = -np.inf
        # Not a number is not below: it counts against the model.
        is_left = found > -np.inf
        is_before = ~(found < own[:, None]) & ~(found == -np.inf)
        ranks[chunk] = 1 + is_before.sum(axis=1)
        has_wrong = is_left.any(axis=1)
        best = rows[np.where(is_left, found, -np.inf).argmax(axis=1)]
        nearest[chunk[has_wrong]] = best[has_wrong]
    return Search(ranks, nearest, len(rows))


def search_scores(ranks: np.ndarray) -> dict[str, float]:
    """Returns `recall_at_1`, `recall_at_10` and `mrr`, the mean of 1 / rank."""
    return {
        "recall_at_1": float((ranks <= 1).mean()),
        f"recall_at_{RANK}": float((ranks <= RANK).mean()),
        "mrr": float((1 / ranks).mean()),
    }


def label_scores(found: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Returns `spearman` and `pearson` correlation of cosines with labels; 0 for
    constants, and for cosines that are not numbers."""
    if not np.isfinite(found).all():
        found = np.zeros_like(found)
    values = logit_scores.scores(found[:, None], labels)
    return {name: values[name] for name in ("spearman", "pearson")}
