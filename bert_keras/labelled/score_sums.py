"""Scores that are functions of sums over examples, for resampling the examples.

A resample draws examples with replacement, so its sums are a product of counts with
the rows of `ScoreSums`: 2,000 resamples cost one multiplication of matrices.
"""

# scipy's sparse arrays have no types of their own.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# SciPy is imported where it is needed, because all kinds of tasks import this module.
_TINY, _CHUNK = 1e-12, 100


@dataclass(frozen=True, kw_only=True)
class ScoreSums:
    """Numbers of each example, and the score of their sums."""

    rows: Any
    """`(num_examples, num_sums)`, NumPy's or SciPy's."""
    score: Callable[[np.ndarray], np.ndarray]
    """From sums `(..., num_sums)` to scores `(...)`."""


def resample(
    runs: Mapping[Any, ScoreSums], *, seed: int, num_resamples: int = 2000
) -> dict[Any, np.ndarray]:
    """Returns `(num_resamples,)` scores of each run in the same resamples."""
    (num_examples,) = {run.rows.shape[0] for run in runs.values()}
    parts: dict[Any, list[np.ndarray]] = {key: [] for key in runs}
    generator = np.random.default_rng(seed)
    for begin in range(0, num_resamples, _CHUNK):
        # How often each example is in each of some resamples: `(size, num_examples)`.
        size = min(_CHUNK, num_resamples - begin)
        drawn = generator.integers(num_examples, size=(size, num_examples))
        drawn += np.arange(size)[:, None] * num_examples
        counts = np.bincount(drawn.ravel(), minlength=size * num_examples)
        counts = counts.reshape(size, num_examples).astype(float)
        for key, run in runs.items():
            sums = np.asarray((run.rows.T @ counts.T).T)
            parts[key].append(run.score(sums))
    return {key: np.concatenate(values) for key, values in parts.items()}


def ratio(parts: Sequence[float], wholes: Sequence[float]) -> ScoreSums:
    """Returns the score `sum(parts) / sum(wholes)`; with wholes of 1 it is a mean."""
    rows = np.stack([parts, wholes], axis=-1).astype(float)
    return ScoreSums(
        rows=rows, score=lambda sums: sums[..., 0] / np.maximum(sums[..., 1], _TINY)
    )


def f1(truth: Sequence[set], answered: Sequence[set]) -> ScoreSums:
    """Returns F1 of sets: right, true and answered elements of all examples."""
    rows = [(len(t & a), len(t), len(a)) for t, a in zip(truth, answered, strict=True)]
    rows = np.array(rows, float)
    return ScoreSums(rows=rows, score=lambda sums: _f1(*np.moveaxis(sums, -1, 0)))


def _f1(right: np.ndarray, true: np.ndarray, answered: np.ndarray) -> np.ndarray:
    return 2 * right / np.maximum(true + answered, _TINY)


def classes(
    truth: Sequence[Any], answered: Sequence[Any], labels: Sequence[str], metric: str
) -> ScoreSums:
    """Returns `accuracy`, `matthews`, `f1` of the second of two labels (GLUE), or
    `best_macro_f1`, the mean F1 of the labels that occur or are answered. An example
    has a label or, for the last metric, a sequence of labels."""
    import scipy.sparse

    score = {
        "accuracy": lambda right, true, _: right.sum(axis=-1) / true.sum(axis=-1),
        "matthews": _matthews,
        "f1": lambda *counts: _f1(*counts)[..., 1],
        "best_macro_f1": _macro_f1,
    }[metric]
    # Right, true and answered labels of each example, `3 * num_labels` columns.
    places = {label: place for place, label in enumerate(labels)}
    rows, columns = [], []
    for row, pair in enumerate(zip(truth, answered, strict=True)):
        true, given = ([of] if isinstance(of, str) else of for of in pair)
        for number, those in enumerate(({*true} & {*given}, true, given)):
            columns += [number * len(labels) + places[label] for label in those]
            rows += [row] * len(those)
    shape = (len(truth), 3 * len(labels))
    counts = scipy.sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
    return ScoreSums(rows=counts, score=lambda sums: score(*np.split(sums, 3, axis=-1)))


def _macro_f1(right: np.ndarray, true: np.ndarray, answered: np.ndarray) -> np.ndarray:
    num_labels = (true + answered > 0).sum(axis=-1)
    return _f1(right, true, answered).sum(axis=-1) / np.maximum(num_labels, 1)


def _matthews(right: np.ndarray, true: np.ndarray, answered: np.ndarray) -> np.ndarray:
    # For any number of classes (Gorodkin, 2004), as scikit-learn computes it.
    total = true.sum(axis=-1)
    between = right.sum(axis=-1) * total - (true * answered).sum(axis=-1)
    one, other = (total**2 - (n**2).sum(axis=-1) for n in (true, answered))
    spread = one * other
    return np.where(spread > 0, between / np.sqrt(np.maximum(spread, _TINY)), 0.0)


def correlation(
    truth: Sequence[float], answered: Sequence[float], *, by_rank: bool
) -> ScoreSums:
    """Returns Pearson's correlation, or with `by_rank` Spearman's."""
    x, y = np.asarray(truth, float), np.asarray(answered, float)
    if by_rank:
        import scipy.stats

        # The ranks are those among all examples, also in a resample: ranking each
        # resample again would cost a sort of each.
        x, y = scipy.stats.rankdata(x), scipy.stats.rankdata(y)
    # The means are subtracted, because their squares would leave no digits, and the
    # units make no product tiny.
    x, y = x - x.mean(), y - y.mean()
    x, y = x / (np.abs(x).max() or 1.0), y / (np.abs(y).max() or 1.0)
    products = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=-1)
    return ScoreSums(rows=products, score=_pearson)


def _pearson(sums: np.ndarray) -> np.ndarray:
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    spread = (n * xx - x * x) * (n * yy - y * y)
    return np.where(spread > _TINY, (n * xy - x * y) / np.sqrt(spread + _TINY), 0.0)
