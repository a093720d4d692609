"""Scores of rankings: reciprocal rank and normalised discounted cumulative gain.

A candidate is right if its relevance is above 0. Equal scores are not in the model's
favour: a wrong candidate with the score of the first right one comes before it, and
nDCG is the mean over all orders of equal scores, as in scikit-learn. Scores that are
not numbers come last. A question without a right candidate has 0 and counts, as in
`ranx`; without equal scores all figures are those of `ranx`. No TensorFlow.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import sklearn
import sklearn.metrics

RANK = 10
"""Candidates that `mrr_at_10` and `ndcg_at_10` look at."""


def ranking(scores: npt.ArrayLike) -> np.ndarray:
    """Returns the numbers of the candidates, best first; equal ones in their order."""
    return np.argsort(-_without_nan(scores), kind="stable")


def first_right_rank(relevances: npt.ArrayLike, scores: npt.ArrayLike) -> int:
    """Returns the rank of the best right candidate, from 1; 0 if none is right."""
    numbers, is_right = _without_nan(scores), np.asarray(relevances) > 0
    if not is_right.any():
        return 0
    return 1 + int((numbers[~is_right] >= numbers[is_right].max()).sum())


def reciprocal_rank(
    relevances: npt.ArrayLike, scores: npt.ArrayLike, *, at: int | None = None
) -> float:
    """Returns 1 / rank of the best right candidate; 0 beyond rank `at`."""
    rank = first_right_rank(relevances, scores)
    return 1 / rank if 0 < rank <= (at or rank) else 0.0


def ndcg(relevances: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Returns nDCG of the first `RANK` candidates; the gain is the relevance itself."""
    relevances = np.asarray(relevances)
    if len(relevances) == 1:
        # scikit-learn takes two or more.
        return float(relevances[0] > 0)
    # It refuses infinite scores; only their order counts.
    _, places = np.unique(_without_nan(scores), return_inverse=True)
    with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
        return float(sklearn.metrics.ndcg_score([relevances], [places], k=RANK))


METRICS: Mapping[str, Callable[..., float]] = MappingProxyType(
    {
        "mrr": reciprocal_rank,
        f"mrr_at_{RANK}": functools.partial(reciprocal_rank, at=RANK),
        f"ndcg_at_{RANK}": ndcg,
    }
)
"""From relevances and scores of a question's candidates to its figure."""


def mean_scores(
    questions: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]],
) -> dict[str, float]:
    """Returns the mean of each of `METRICS` over relevances and scores of questions,
    and `mrr_by_chance`, the `mrr` of these candidates in random order."""
    rows = [
        [*(metric(*both) for metric in METRICS.values()), by_chance(both[0])]
        for both in questions
    ]
    names = (*METRICS, "mrr_by_chance")
    return dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))


def by_chance(relevances: npt.ArrayLike) -> float:
    """Returns the mean reciprocal rank over all orders of the candidates."""
    is_right = np.asarray(relevances) > 0
    total, num_right = len(is_right), int(is_right.sum())
    if not num_right:
        return 0.0
    ranks = np.arange(1, total - num_right + 2)
    # Share of right candidates among those that are left, if none came before.
    shares = num_right / (total - ranks + 1)
    none_before = np.append(1, np.cumprod(1 - shares)[:-1])
    return float((none_before * shares / ranks).sum())


def _without_nan(scores: npt.ArrayLike) -> np.ndarray:
    numbers = np.asarray(scores, float)
    return np.where(np.isnan(numbers), -np.inf, numbers)
