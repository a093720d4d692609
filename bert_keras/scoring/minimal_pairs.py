"""Minimal pairs: whether a model finds the acceptable sentence of two more probable.

Such pairs differ in one thing: "The cats annoy Tim." and "The cats annoys Tim." (BLiMP;
Warstadt et al., 2020). A pair is right if the acceptable sentence has the larger
pseudo-log-likelihood. A tie counts one half: a model that finds all sentences equally
probable has 0.5, and would have 1 if ties counted as right.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_keras.core import files
from bert_keras.labelled import reading
from bert_keras.scoring.scorer import SentenceScore

GOOD_COLUMNS = ("good", "sentence_good")
BAD_COLUMNS = ("bad", "sentence_bad")
GROUP_COLUMNS = ("group", "paradigm", "UID")
"""Names of columns: ours, and those of BLiMP's own files."""


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
        """1 if the good sentence is found more probable, 0.5 for a tie, else 0."""
        return _larger(self.good.total, self.bad.total)


def _larger(good: float, bad: float) -> float:
    # Numbers that differ by the rounding of float32 alone are equal.
    return 0.5 if math.isclose(good, bad, rel_tol=1e-6) else float(good > bad)


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
        path: .tsv, .csv, .jsonl or .parquet; BLiMP's own files have the columns
            `sentence_good`, `sentence_bad` and `UID`.
        group_by: column of the groups; `None`: one of `GROUP_COLUMNS`, or no groups.
    """
    path, pairs = files.path(path), []
    for row in reading.read_rows(path):
        names = [_column(row, GOOD_COLUMNS), _column(row, BAD_COLUMNS)]
        group = group_by or next((n for n in GROUP_COLUMNS if n in row.cells), None)
        if group is not None and group not in row.cells:
            raise row.error(f"no column {group!r} for groups: {', '.join(row.cells)}")
        # Some pairs of BLiMP's are the same sentence twice, which is a tie.
        good, bad = (row.string(name, key=name) for name in names)
        pairs.append(MinimalPair(good, bad, str(row.cells[group]) if group else ""))
    return reading.at_least_one(path, pairs)


def _column(row: reading.Row, names: Sequence[str]) -> str:
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
    for pair in sorted(pairs):
        groups[pair.group].append(pair)
    drawn = []
    for name, group in sorted(groups.items()):
        # A stream of its own, which draws for other groups do not move.
        choose = random.Random(f"{seed} {name}")
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
        self._counts: dict[str, list[float]] = {}
        self.num_ties = 0

    def add(self, scored: ScoredPair) -> None:
        counts = self._counts.setdefault(scored.pair.group, [0, 0.0, 0.0])
        counts[0] += 1
        counts[1] += scored.right
        # `right` of a model that finds all pieces equally probable.
        counts[2] += _larger(-len(scored.good.pieces), -len(scored.bad.pieces))
        self.num_ties += scored.right == 0.5

    def groups(self) -> list[Accuracy]:
        """Returns the accuracy of each group, by name."""
        return [
            Accuracy(name, int(n), *_wilson(right / n, n), by_length / n)
            for name, (n, right, by_length) in sorted(self._counts.items())
        ]

    def mean(self) -> Accuracy:
        """Returns the mean of the groups' accuracies, as BLiMP's figure is."""
        counts = self._counts.values()
        share = sum(right / number for number, right, _ in counts) / len(counts)
        # Wilson's interval for as many independent pairs as would have the variance of
        # this mean (the effective sample size; Franco et al., 2019). Two more right and
        # two more wrong pairs keep the variance of a group above 0.
        smooth = [((right + 2) / (number + 4), number) for number, right, _ in counts]
        centre = sum(p for p, _ in smooth) / len(smooth)
        variance = sum(p * (1 - p) / n for p, n in smooth) / len(smooth) ** 2
        return Accuracy(
            f"mean of {len(counts)} groups" if len(counts) > 1 else "all pairs",
            sum(int(number) for number, _, _ in counts),
            *_wilson(share, centre * (1 - centre) / variance),
            sum(by_length / number for number, _, by_length in counts) / len(counts),
        )


def _wilson(share: float, number: float) -> tuple[float, float, float]:
    """Returns a share and the ends of its 95 % score interval (Wilson, 1927).

    Unlike an interval around the share it lies within 0 and 1, and has a width where
    all pairs are right: 10 of 10 are 72.2 to 100 %.
    """
    z2 = 1.96**2 / number
    centre = (share + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / 4)) / (1 + z2)
    return share, max(centre - half, 0.0), min(centre + half, 1.0)
