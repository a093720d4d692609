"""Calibration, beside scikit-learn's curve and sums written out."""

import numpy as np
import pytest
import sklearn.calibration

from bert_keras.pages import calibration


def test_the_bins_are_those_of_scikit_learn():
    rng = np.random.default_rng(1)
    confidences = rng.random(500)
    is_right = rng.random(500) < confidences**2
    bins = calibration.reliability_bins(confidences, is_right, num_bins=12)
    accuracies, means = sklearn.calibration.calibration_curve(
        is_right, confidences, n_bins=12
    )
    np.testing.assert_allclose([b.accuracy for b in bins], accuracies)
    np.testing.assert_allclose([b.confidence for b in bins], means)
    assert sum(b.num_answers for b in bins) == 500


def test_the_error_is_the_weighted_mean_distance():
    confidences = [0.05, 0.5, 0.55, 0.9, 0.95, 1.0]
    is_right = [False, True, False, True, True, False]
    bins = calibration.reliability_bins(confidences, is_right, num_bins=10)
    assert [(b.low, b.num_answers, b.num_right) for b in bins] == [
        (0.0, 1, 0),
        (0.4, 1, 1),
        (0.5, 1, 0),
        (0.8, 1, 1),
        (0.9, 2, 1),
    ]
    expected = (0.05 + 0.5 + 0.55 + 0.1 + 2 * (0.975 - 0.5)) / 6
    error = calibration.expected_calibration_error(bins)
    assert error == pytest.approx(expected)


def test_the_ends_belong_to_the_outer_bins():
    first, last = calibration.reliability_bins([0.0, 1.0], [False, True])
    assert (first.low, first.high) == (0, pytest.approx(1 / 15))
    assert (last.low, last.high) == (pytest.approx(14 / 15), 1)
    assert calibration.expected_calibration_error([first, last]) == 0
    # Always sure, half the time right.
    (only,) = calibration.reliability_bins([1.0] * 4, [True, False] * 2)
    assert calibration.expected_calibration_error([only]) == 0.5
