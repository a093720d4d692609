"""Calibration, beside sums written out."""

import numpy as np
import pytest

from bert_keras.pages import calibration


@pytest.mark.parametrize(
    ("confidences", "is_right", "error"),
    [
        # The two of the last bin count together.
        (
            [0.05, 0.5, 0.55, 0.9, 0.95, 1.0],
            [False, True, False, True, True, False],
            (0.05 + 0.5 + 0.55 + 0.1 + 2 * (0.975 - 0.5)) / 6,
        ),
        # The ends belong to the outer bins; rounding may pass them.
        ([0.0, 1.0000001], [False, True], 0),
        # Always sure, half the time right.
        ([1.0] * 4, [True, False] * 2, 0.5),
    ],
)
def test_the_error_is_the_weighted_mean_distance(confidences, is_right, error):
    found = calibration.reliability(confidences, is_right)
    assert found.error == pytest.approx(error, abs=1e-6)


def test_bins_have_their_answers():
    found = calibration.reliability([0.61, 0.62, 0.63, 0.99], [True, True, False, True])
    np.testing.assert_allclose(found.accuracies, [2 / 3, 1])
    np.testing.assert_allclose(found.confidences, [0.62, 0.99])
