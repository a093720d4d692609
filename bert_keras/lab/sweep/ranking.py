"""Models and baselines that learnt the same share of the labels, and what the figures
allow to say about them.

Differences of scores on the same examples have intervals, by a paired bootstrap. The
scores are functions of sums over examples, see `score_sums`: scikit-learn would take 1
to 16 s for 2,000 resamples of one run, and a page has 45 runs.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.stats

from bert_keras.checkpoints import run_directory
from bert_keras.core.errors import InputError
from bert_keras.kinds.kind import Labelled
from bert_keras.lab.sweep import scores
from bert_keras.labelled import answers, score_sums
from bert_keras.pages import markdown

NUM_RESAMPLES = 2000
CONFIDENCE = 0.95

MIN_EXAMPLES = 20
"""Resamples of fewer examples are too much alike; of one example they are equal."""

_SEED = 12345


class Interval(NamedTuple):
    """A difference of mean scores."""

    difference: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Ranking:
    num_labels: int
    """Number of labelled examples that each run learnt from."""
    num_dev: int
    first: scores.Point
    """The model or baseline with the highest mean."""
    others: tuple[tuple[scores.Point, Interval | None], ...]
    """The other ones with a score, the highest mean first, and by how much the first
    one is better; `None`: fewer than two seeds in common, or than `MIN_EXAMPLES` dev
    examples."""

    @property
    def points(self) -> list[scores.Point]:
        return [self.first, *(point for point, _ in self.others)]

    @property
    def best(self) -> list[str]:
        """Returns the names of the points with the highest mean, several if tied."""
        means = [(statistics.fmean(p.scores), p.values[0]) for p in self.points]
        return [n for mean, n in means if math.isclose(mean, means[0][0], rel_tol=1e-9)]

    @property
    def model_beats_baselines(self) -> bool:
        """Whether a model is best, and significantly better than all baselines."""
        of_baselines = [i for point, i in self.others if point.is_baseline]
        is_better = bool(of_baselines) and all(i and i.low > 0 for i in of_baselines)
        return is_better and not self.first.is_baseline


def rank(
    points: Sequence[scores.Point],
    *,
    sweep_dir: Path,
    kind: Labelled,
    metric: str,
    labels: Sequence[str],
) -> Ranking:
    """Ranks points with scores, which learnt the same share of the labels.

    Raises an `InputError` if their runs did not answer the same examples.
    """
    points = sorted(points, key=lambda p: statistics.fmean(p.scores), reverse=True)
    finished = [outcome for point in points for outcome in point.finished]
    # 1. The answers of all runs, as sums over the same examples.
    sums, lines, first_path = {}, [], None
    for name in (outcome.run.name for outcome in finished):
        path = scores.run_path(sweep_dir, name) / run_directory.ANSWERS_NAME
        rows = [r.model_dump() for r in answers.read_answers(path, kind.record)]
        if first_path is None:
            first_path, lines = path, [row["line"] for row in rows]
        elif lines != [row["line"] for row in rows]:
            raise InputError(f"{path}: not about the same examples as {first_path}")
        sums[name] = kind.score(rows, metric, labels=labels)
    resampled = score_sums.resample(sums, num_resamples=NUM_RESAMPLES, seed=_SEED)

    # 2. Differences of the first point from each other one. The intervals hold together
    # for all pairs, since the best of several models was also lucky.
    first, *others = points
    ours, *theirs = (
        {
            run.settings.seed: (score, resampled[run.name])
            for run, score in ((o.run, o.score) for o in point.finished)
            if score is not None
        }
        for point in points
    )
    sizes = {"num_examples": len(lines), "num_comparisons": math.comb(len(points), 2)}
    intervals = [difference(ours, other, **sizes) for other in theirs]
    num_labels = statistics.fmean(o.num_train_examples or 0 for o in finished)
    return Ranking(
        num_labels=round(num_labels),
        num_dev=len(lines),
        first=first,
        others=tuple(zip(others, intervals, strict=True)),
    )


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
    two seeds in common, which say nothing about the chance of training, or there are
    fewer than `MIN_EXAMPLES`.
    """
    common = sorted(first.keys() & second.keys())
    if len(common) < 2 or num_examples < MIN_EXAMPLES:
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


def conclusions(rankings: Sequence[Ranking], metric: str) -> list[str]:
    """Returns sentences on whether a model is worth it, and which one; none without
    `rankings`, which are by number of labels, ascending."""
    if not rankings:
        return []
    points = list(itertools.chain(*(ranking.points for ranking in rankings)))
    names = dict.fromkeys(point.values[0] for point in points if point.is_baseline)
    baselines = _join(list(names))
    worth = [ranking.model_beats_baselines for ranking in rankings]
    # The smallest number of labels from which on a model stays worth it.
    start = next((n for n in range(len(worth)) if all(worth[n:])), len(worth))
    if start < len(worth):
        count = f"{rankings[start].num_labels:,} labelled examples"
        is_last = start == len(worth) - 1
        first = (
            f"{f'With {count}' if is_last else f'From {count} on'}, a model is worth "
            f"it: significantly better than {baselines}."
        )
    elif any(worth):
        first = (
            f"A model is significantly better than {baselines} with some numbers of "
            "labels, but not with the largest."
        )
    elif all(len(point.scores) < 2 for point in points):
        first = (
            "One seed does not show how far scores vary from training to training, so "
            "no difference is called significant: give more with --seeds."
        )
    else:
        first = (
            f"No model here is significantly better than {baselines}, with any number "
            "of labels."
        )
    return [first, *(_compare(ranking, metric) for ranking in reversed(rankings))]


def _compare(ranking: Ranking, metric: str) -> str:
    """Compares the best models or baselines at a number of labels with the others."""
    best = ranking.best
    how = "are tied for the highest" if len(best) > 1 else "has the highest"
    spread = markdown.spread(ranking.first.scores, digits=3)
    text = (
        f"With {ranking.num_labels:,} labelled examples {_join(best)} {how} {metric}, "
        f"{spread}"
    )
    it = best[0] if len(best) > 1 else "it"
    for is_significant, how in ((True, "is"), (False, "is not")):
        others = [
            f"{other.values[0]} (by {i.difference:.3f}, {i.low:.3f} to {i.high:.3f})"
            for other, i in ranking.others
            if i and (i.low > 0) == is_significant and other.values[0] not in best
        ]
        if others:
            text += f"; {it} {how} significantly better than {_join(others)}"
    return text + "."


def _join(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
