"""Calibration: is a model right as often as it is confident (Guo et al., 2017)?"""

# scikit-learn has no types of its own.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import sklearn.calibration

NUM_BINS = 15
"""Bins of equal width from 0 to 1, as in Guo et al."""


class Reliability(NamedTuple):
    """Answers in bins by their probability, without empty bins."""

    accuracies: np.ndarray
    """`(num_bins,)` float64: share of the answers that are right."""
    confidences: np.ndarray
    """`(num_bins,)` float64: mean probability."""
    error: float
    """Expected calibration error: the mean of |accuracy - confidence|, bins weighted by
    their answers."""


def reliability(confidences: Sequence[float], is_right: Sequence[bool]) -> Reliability:
    # Softmax may round a sure answer to a little more than 1.
    values = np.clip(confidences, 0, 1)
    accuracies, means = sklearn.calibration.calibration_curve(
        np.asarray(is_right), values, n_bins=NUM_BINS, pos_label=True
    )
    # A bin includes its upper bound.
    inner_edges = np.linspace(0, 1, NUM_BINS + 1)[1:-1]
    counts = np.bincount(np.searchsorted(inner_edges, values))
    weights = counts[counts > 0]
    error = np.average(np.abs(accuracies - means), weights=weights)
    return Reliability(accuracies, means, float(error))
