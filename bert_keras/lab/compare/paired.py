"""Differences of scores on the same examples, with the chance of both in them.

A score is a function of sums over examples (of right, true and given answers, or of
products), so a resample of the examples is a product of counts with them.
No TensorFlow.
"""

# scipy's sparse arrays have no types of their own.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import scipy.stats

from bert_keras.core.settings import config
from bert_keras.kinds.tagging import ner

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95

MIN_EXAMPLES = 20
"""Resamples of fewer are too much alike: those of one are all the same."""

_CHUNK = 100
_TINY = 1e-12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statistics:
    """Numbers of each example, and the score that their sums have."""

    rows: Any
    """`(num_examples, num_sums)`, NumPy's or SciPy's."""
    score: Callable[[np.ndarray], np.ndarray]
    """From sums `(..., num_sums)` to scores `(...)`."""


class Interval(NamedTuple):
    """A difference of mean scores."""

    difference: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Whether 0 is outside."""
        return self.low > 0 or self.high < 0


def can_resample(kind: config.TaskKind, metric: str) -> bool:
    """Whether `statistics` knows a task's metric."""
    return metric in _METRICS.get(kind, ())


_METRICS: Mapping[str, tuple[str, ...]] = {
    "classification": ("accuracy", "f1", "matthews"),
    "choice": ("accuracy",),
    "multi_label": ("best_macro_f1",),
    "regression": ("pearson", "spearman"),
    "tagging": ("f1", "accuracy"),
}


def statistics(
    answers: Sequence[Mapping[str, Any]],
    *,
    kind: config.TaskKind,
    metric: str,
    labels: Sequence[Any],
) -> Statistics:
    """The statistics of a run's answers.

    Args:
        answers: records of `dev_answers.jsonl`.
        kind: of the task.
        metric: that `can_resample`.
        labels: of the task; of `choice` the numbers of the endings.
    """
    truth = [a["label"] if "label" in a else a["labels"] for a in answers]
    given = [a["prediction"] for a in answers]
    if kind == "multi_label":
        return Statistics(rows=_label_counts(truth, given, labels), score=_macro_f1)
    if kind == "regression":
        return Statistics(
            rows=_products(truth, given, by_rank=metric == "spearman"), score=_pearson
        )
    if kind == "tagging":
        if metric == "accuracy":
            return Statistics(rows=_word_counts(truth, given), score=_ratio)
        return Statistics(rows=_entity_counts(truth, given), score=_f1)
    return Statistics(
        rows=_label_counts([[t] for t in truth], [[g] for g in given], labels),
        score=lambda sums: _of_classes(sums, metric),
    )


def _of_classes(sums: np.ndarray, metric: str) -> np.ndarray:
    """From right, true and given answers by class, `(..., 3 * num_labels)`.

    F1 is that of the second of two labels, as in GLUE.
    """
    right, true, given = np.split(sums, 3, axis=-1)
    total = true.sum(axis=-1)
    if metric == "accuracy":
        return right.sum(axis=-1) / total
    if metric == "matthews":
        between = right.sum(axis=-1) * total - (true * given).sum(axis=-1)
        spread = (total**2 - (true**2).sum(axis=-1)) * (
            total**2 - (given**2).sum(axis=-1)
        )
        return np.where(spread > 0, between / np.sqrt(np.maximum(spread, _TINY)), 0.0)
    return _f1(np.stack([right, true, given], axis=-1)[..., 1, :])


def _label_counts(
    truth: Sequence[Sequence[str]],
    given: Sequence[Sequence[str]],
    labels: Sequence[str],
) -> Any:
    """Right, true and given labels of each example, in `3 * num_labels` columns."""
    places = {label: place for place, label in enumerate(labels)}
    rows, columns = [], []
    for row, (true, found) in enumerate(zip(truth, given, strict=True)):
        for number, those in enumerate(({*true} & {*found}, true, found)):
            columns += [number * len(labels) + places[label] for label in those]
            rows += [row] * len(those)
    shape = (len(truth), 3 * len(labels))
    return scipy.sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)


def _macro_f1(sums: np.ndarray) -> np.ndarray:
    """Mean over the labels that occur or are given."""
    right, true, given = np.split(sums, 3, axis=-1)
    each = 2 * right / np.maximum(true + given, _TINY)
    occurs = (true + given > 0).sum(axis=-1)
    return each.sum(axis=-1) / np.maximum(occurs, 1)


def _products(truth: Sequence[float], given: Sequence[float], *, by_rank: bool) -> Any:
    x, y = np.asarray(truth, float), np.asarray(given, float)
    if by_rank:
        # Ranks among all examples, also in a resample: ranking each again would cost
        # a sort of each.
        x, y = scipy.stats.rankdata(x), scipy.stats.rankdata(y)
    # Without the means, whose squares would leave no digits, and in units that make no
    # product tiny.
    x, y = x - x.mean(), y - y.mean()
    x, y = x / (np.abs(x).max() or 1.0), y / (np.abs(y).max() or 1.0)
    return np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=-1)


def _pearson(sums: np.ndarray) -> np.ndarray:
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    spread = (n * xx - x * x) * (n * yy - y * y)
    return np.where(spread > _TINY, (n * xy - x * y) / np.sqrt(spread + _TINY), 0.0)


def _word_counts(truth: Sequence[Sequence[str]], given: Sequence[Sequence[str]]) -> Any:
    return np.array(
        [
            (sum(map(str.__eq__, t, g)), len(t))
            for t, g in zip(truth, given, strict=True)
        ],
        float,
    )


def _ratio(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / np.maximum(sums[..., 1], _TINY)


def _entity_counts(
    truth: Sequence[Sequence[str]], given: Sequence[Sequence[str]]
) -> Any:
    """Right, true and given entities of each sentence."""
    rows = []
    for true, found in zip(truth, given, strict=True):
        those, answered = {*ner.entities(true)}, {*ner.entities(found)}
        rows.append((len(those & answered), len(those), len(answered)))
    return np.array(rows, float)


def _f1(sums: np.ndarray) -> np.ndarray:
    right, true, given = np.moveaxis(sums, -1, 0)
    return 2 * right / np.maximum(true + given, _TINY)


def resample(
    runs: Mapping[Any, Statistics],
    *,
    seed: int,
    num_resamples: int = NUM_RESAMPLES,
) -> dict[Any, np.ndarray]:
    """Scores of all runs in the same resamples of the examples.

    Args:
        runs: on the same examples in the same order.
        seed: of the resamples.
        num_resamples: examples are drawn as often, with replacement.

    Returns:
        By run `(num_resamples,)` scores.
    """
    (num_examples,) = {run.rows.shape[0] for run in runs.values()}
    found: dict[Any, list[np.ndarray]] = {key: [] for key in runs}
    for counts in _counts(num_examples, seed, num_resamples):
        for key, run in runs.items():
            sums = np.asarray((run.rows.T @ counts.T).T)
            found[key].append(run.score(sums))
    return {key: np.concatenate(parts) for key, parts in found.items()}


def _counts(num_examples: int, seed: int, num_resamples: int) -> Iterator[np.ndarray]:
    """How often each example is in each resample, some resamples at a time."""
    generator = np.random.default_rng(seed)
    for begin in range(0, num_resamples, _CHUNK):
        size = min(_CHUNK, num_resamples - begin)
        drawn = generator.integers(num_examples, size=(size, num_examples))
        drawn += np.arange(size)[:, None] * num_examples
        counts = np.bincount(drawn.ravel(), minlength=size * num_examples)
        yield counts.reshape(size, num_examples).astype(float)


def difference(
    first: Mapping[int, tuple[float, np.ndarray]],
    second: Mapping[int, tuple[float, np.ndarray]],
    *,
    num_examples: int,
    num_comparisons: int = 1,
) -> Interval | None:
    """Mean score of one model less that of another, with its interval.

    The half width is `sqrt((t_S * S / sqrt(n))^2 + (t_E * E)^2)`. `S` is the deviation
    of the `n` differences of the seeds, which both models share (with a seed goes the
    choice of the labelled examples), and `t_S` Student's with `n - 1` degrees: three
    seeds tell little about how far training varies. `E` is the standard error that the
    resampled examples give for the mean, and `t_E` has `num_examples - 1` degrees. The
    chance of examples is in `S`, too, so the interval is rather too wide.

    Args:
        first: by seed the score, and those in resamples.
        second: the same of the other.
        num_examples: of the dev file.
        num_comparisons: pairs of models that a page may call different. The interval of
            each is so much wider that all hold at once (Bonferroni), also those of a
            model that was picked because it is best.

    Returns:
        `None`: they have fewer than two seeds in common, which say nothing about the
        chance of training.
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
