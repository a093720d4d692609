"""Calibration: is a model right as often as it is confident (Guo et al., 2017)?"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

NUM_BINS = 15
"""As in Guo et al."""


class Bin(NamedTuple):
    """Answers of about the same confidence."""

    low: float
    """Lower bound, excluded except for 0 in the first bin."""
    high: float
    """Upper bound, included."""
    num_answers: int
    num_right: int
    confidence: float
    """Mean confidence."""

    @property
    def accuracy(self) -> float:
        return self.num_right / self.num_answers


def reliability_bins(
    confidences: Sequence[float], is_right: Sequence[bool], *, num_bins: int = NUM_BINS
) -> list[Bin]:
    """Sorts answers into `num_bins` bins of equal width from 0 to 1, by the probability
    of each answer. Returns the bins that are not empty."""
    values, rights = np.asarray(confidences, float), np.asarray(is_right, bool)
    edges = np.linspace(0, 1, num_bins + 1)
    places = np.searchsorted(edges[1:-1], values, side="left")
    return [
        Bin(
            low=float(edges[place]),
            high=float(edges[place + 1]),
            num_answers=int(inside.sum()),
            num_right=int(rights[inside].sum()),
            confidence=float(values[inside].mean()),
        )
        for place in np.unique(places)
        for inside in [places == place]
    ]


def expected_calibration_error(bins: Sequence[Bin]) -> float:
    """Returns the mean of |accuracy - confidence|, bins weighted by their answers."""
    total = sum(b.num_answers for b in bins)
    return sum(b.num_answers * abs(b.accuracy - b.confidence) for b in bins) / total
