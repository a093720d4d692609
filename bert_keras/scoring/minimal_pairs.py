"""Minimal pairs: does a model find the acceptable sentence of two more probable?

Such pairs differ in one thing: "The cats annoy Tim." and "The cats annoys Tim." (BLiMP;
Warstadt et al., 2020). A pair is right if the acceptable sentence has the larger
pseudo-log-likelihood. A tie counts one half: a model that finds all sentences equally
probable has 0.5, where to count ties as right would give it 1. No TensorFlow.
"""

import math
import operator
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_keras.core import files
from bert_keras.labelled import row_files
from bert_keras.scoring.sentences import SentenceScore

GOOD_COLUMNS = ("good", "sentence_good")
BAD_COLUMNS = ("bad", "sentence_bad")
GROUP_COLUMNS = ("group", "paradigm", "UID")
"""Names of columns: ours, and those of BLiMP's own files."""

_Z = 1.96
"""Quantile of the normal distribution, for intervals of 95 %."""


class MinimalPair(NamedTuple):
    good: str
    bad: str
    group: str
    """Empty: the file has no groups."""


class ScoredPair(NamedTuple):
    pair: MinimalPair
    good: SentenceScore
    bad: SentenceScore

    @property
    def right(self) -> float:
        """1 for a pair that is told right, 0.5 for a tie, else 0."""
        return _larger(self.good.total, self.bad.total)

    @property
    def right_by_length(self) -> float:
        """`right` of a model that finds all pieces equally probable."""
        return _larger(-len(self.good.pieces), -len(self.bad.pieces))

    def as_json(self) -> dict[str, object]:
        row = {"group": self.pair.group} if self.pair.group else {}
        return {
            **row,
            "right": self.right,
            "good": self.good.as_json(),
            "bad": self.bad.as_json(),
        }


def _larger(good: float, bad: float) -> float:
    """Returns 1 if the first number is larger, 0.5 if both are equal, else 0."""
    # What differs by the rounding of float32 alone is equal.
    if math.isclose(good, bad, rel_tol=1e-6):
        return 0.5
    return float(good > bad)


class Accuracy(NamedTuple):
    """The share of pairs that are right, of a group or of several groups together."""

    name: str
    num_pairs: int
    share: float
    low: float
    """Lower end of the 95 % interval of `share`, if the pairs were drawn at random."""
    high: float
    by_length: float
    """The share for a model that finds all pieces equally probable."""


def read_pairs(path: str | Path, *, group_by: str | None = None) -> list[MinimalPair]:
    """Reads pairs from the columns `good` and `bad`, and `group` if there is one.

    Args:
        path: .tsv, .csv or .jsonl; BLiMP's own files have the columns `sentence_good`,
            `sentence_bad` and `UID`.
        group_by: column of the groups; `None`: one of `GROUP_COLUMNS`, or no groups.
    """
    path, pairs = files.path(path), []
    for row in row_files.rows_of(path):
        names = [_column(row, GOOD_COLUMNS), _column(row, BAD_COLUMNS)]
        group = group_by or next((n for n in GROUP_COLUMNS if n in row.cells), None)
        if group is not None and group not in row.cells:
            raise row.error(f"no column {group!r} for groups: {', '.join(row.cells)}")
        # Some pairs of BLiMP's are the same sentence twice, which is a tie.
        good, bad = (row.string(name, key=name) for name in names)
        pairs.append(MinimalPair(good, bad, str(row.cells[group]) if group else ""))
    return row_files.at_least_one(path, pairs)


def _column(row: row_files.Row, names: Sequence[str]) -> str:
    matches = [name for name in names if name in row.cells]
    if not matches:
        expected = " or ".join(map(repr, names))
        raise row.error(f"no column {expected}: {', '.join(row.cells)}")
    if len(matches) > 1:
        listed = " and ".join(map(repr, matches))
        raise row.error(f"expected one of the columns {listed}, got both: remove one")
    return matches[0]


def sample(
    pairs: Sequence[MinimalPair], per_group: int, *, seed: int
) -> list[MinimalPair]:
    """Draws up to `per_group` pairs of each group; their order does not matter."""
    groups = defaultdict(list)
    for pair in pairs:
        groups[pair.group].append(pair)
    drawn = []
    for name in sorted(groups):
        choose = random.Random(f"{seed} {name}")
        group = sorted(groups[name])
        drawn += choose.sample(group, min(per_group, len(group)))
    return drawn


def score_pairs(
    score: Callable[..., Iterator[SentenceScore]],
    pairs: Sequence[MinimalPair],
    **options: Any,
) -> Iterator[ScoredPair]:
    """Yields the pairs with their scores by a `scorer.SentenceScorer`."""
    sentences = (s for pair in pairs for s in (pair.good, pair.bad))
    scores = score(sentences, place=lambda n: f"pair {(n + 1) // 2}", **options)
    for pair in pairs:
        yield ScoredPair(pair, next(scores), next(scores))


class Tally:
    """Counts right pairs by group, without keeping the pairs."""

    def __init__(self) -> None:
        # By group: numbers of pairs, of right ones, and of right ones by length.
        self._counts: dict[str, tuple[int, float, float]] = {}
        self.num_ties = 0

    def add(self, scored: ScoredPair) -> None:
        counts = self._counts.get(scored.pair.group, (0, 0.0, 0.0))
        more = 1, scored.right, scored.right_by_length
        self._counts[scored.pair.group] = tuple(map(operator.add, counts, more))
        self.num_ties += scored.right == 0.5

    def groups(self) -> list[Accuracy]:
        """Returns the accuracy of each group, by name, with Wilson's interval.

        The score interval (Wilson, 1927) lies within 0 and 1, and has a width where all
        pairs are right: 10 of 10 are 72.2 to 100 %.
        """
        groups = []
        for name in sorted(self._counts):
            number, right, by_length = self._counts[name]
            share, z2 = right / number, _Z**2 / number
            centre = (share + z2 / 2) / (1 + z2)
            half = math.sqrt(z2 * (share * (1 - share) + z2 / 4)) / (1 + z2)
            low, high = max(centre - half, 0.0), min(centre + half, 1.0)
            groups.append(Accuracy(name, number, share, low, high, by_length / number))
        return groups

    def mean(self) -> Accuracy:
        """Returns the mean of the groups' accuracies, as BLiMP's figure is.

        Its interval is computed from the distances of each group's share to the ends of
        its interval (MOVER; Zou and Donner, 2008), so it is not centred either.
        """
        groups = self.groups()
        number = len(groups)
        share = sum(group.share for group in groups) / number
        below = math.hypot(*(group.share - group.low for group in groups)) / number
        above = math.hypot(*(group.high - group.share for group in groups)) / number
        return Accuracy(
            f"mean of {number} groups" if number > 1 else "all pairs",
            sum(group.num_pairs for group in groups),
            share,
            share - below,
            share + above,
            sum(group.by_length for group in groups) / number,
        )
