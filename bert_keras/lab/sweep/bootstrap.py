"""Paired bootstrap: differences of scores on the same examples, with intervals.

Scores are functions of sums over examples, see `score_sums`: scikit-learn would take 1
to 16 s for 2,000 resamples of one run, and a page has 45 runs.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from bert_keras.labelled import score_sums

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95

MIN_EXAMPLES = 20
"""Resamples of fewer examples are too much alike; of one example they are equal."""

_CHUNK = 100


class Interval(NamedTuple):
    """A difference of mean scores."""

    difference: float
    low: float
    high: float


def resample(
    runs: Mapping[Any, score_sums.ScoreSums],
    *,
    seed: int,
    num_resamples: int = NUM_RESAMPLES,
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


def difference(
    first: Mapping[int, tuple[float, np.ndarray]],
    second: Mapping[int, tuple[float, np.ndarray]],
    *,
    num_examples: int,
    num_comparisons: int = 1,
) -> Interval | None:
    """Returns the mean score of one model less that of another, with its interval.

    The half width is `sqrt((t_S * S / sqrt(n))^2 + (t_E * E)^2)`. `S` is the deviation
    of the `n` differences of the seeds, which both models share (with a seed goes the
    choice of the labelled examples), and `t_S` Student's with `n - 1` degrees: three
    seeds tell little about how far training varies. `E` is the standard error that the
    resampled examples give for the mean, and `t_E` has `num_examples - 1` degrees. The
    chance of examples is in `S`, too, so the interval is rather too wide.

    `first` and `second` have each seed's score, and its scores in the resamples. With
    `num_comparisons` each interval is so much wider that all hold at once (Bonferroni),
    also that of a model picked because it is best. `None`: the models have fewer than
    two seeds in common, which say nothing about the chance of training.
    """
    common = sorted(first.keys() & second.keys())
    if len(common) < 2:
        return None
    by_seed = np.array([first[s][0] - second[s][0] for s in common])
    resampled = np.mean([first[s][1] - second[s][1] for s in common], axis=0)
    tail = (1 - CONFIDENCE) / 2 / num_comparisons
    of_seeds, of_examples = (
        scipy.stats.t.ppf(1 - tail, degrees)
        for degrees in (len(common) - 1, num_examples - 1)
    )
    half = np.hypot(
        of_seeds * by_seed.std(ddof=1) / np.sqrt(len(common)),
        of_examples * resampled.std(),
    )
    mean = by_seed.mean()
    return Interval(float(mean), float(mean - half), float(mean + half))
