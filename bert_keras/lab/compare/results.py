"""Scores of a comparison by model, share of the labels and seed; their ranking."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_keras.checkpoints import run_directory
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config
from bert_keras.kinds import registry
from bert_keras.lab.compare import costs, paired
from bert_keras.labelled import answers

_SEED = 12345


@dataclass(frozen=True, kw_only=True)
class Run:
    """A model or floor that learnt a share of the labels with a seed."""

    directory: Path
    """With `dev_answers.jsonl`."""
    score: float
    seconds: float
    num_examples: int


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A model or a floor."""

    name: str
    is_floor: bool
    runs: Mapping[float, Mapping[int, Run]]
    """By share of the labels and seed."""
    cost: costs.Costs | None = None
    num_failed: int = 0
    num_majority: int = 0
    """Runs that learnt nothing: they end at the majority class."""

    def scores(self, fraction: float) -> list[float]:
        return [run.score for run in self.runs.get(fraction, {}).values()]

    def mean(self, fraction: float) -> float:
        return statistics.fmean(self.scores(fraction))


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Models and floors that learnt the same share of the labels, best first."""

    fraction: float
    num_examples: int
    best: Contender
    """The one with the best mean, a floor or a model."""
    others: tuple[tuple[Contender, paired.Interval | None], ...]
    """The rest, best first, and how much better the best is; `None`: fewer than
    two seeds in common, or `paired.MIN_EXAMPLES` dev examples."""

    @property
    def model_is_worth_it(self) -> bool:
        """Whether a model is best, and clearly better than all floors."""
        floors = [interval for other, interval in self.others if other.is_floor]
        is_better = bool(floors) and all(i and i.low > 0 for i in floors)
        return is_better and not self.best.is_floor


def rank(
    contenders: Sequence[Contender],
    fraction: float,
    *,
    kind: config.TaskKind,
    metric: str,
    labels: Sequence[str],
) -> Ranking | None:
    """Ranks the contenders that learnt a share of the labels; `None`: none did.

    Raises:
        InputError: a file of answers is damaged or is of other examples.
    """
    present = [c for c in contenders if c.scores(fraction)]
    if not present:
        return None
    first, *rest = sorted(present, key=lambda c: -c.mean(fraction))
    seen: tuple[Path, list[int]] | None = None
    known = {}
    answered = registry.labelled(kind)
    for contender in present:
        for seed, run in contender.runs[fraction].items():
            path = run.directory / run_directory.ANSWERS_NAME
            records = [
                r.model_dump() for r in answers.read_answers(path, answered.record)
            ]
            lines = [record["line"] for record in records]
            seen = seen or (path, lines)
            if lines != seen[1]:
                raise InputError(f"{path}: not about the same examples as {seen[0]}")
            known[contender.name, seed] = answered.score(records, metric, labels=labels)
    resampled = paired.resample(known, seed=_SEED)

    def by_seed(contender: Contender) -> dict:
        return {
            seed: (run.score, resampled[contender.name, seed])
            for seed, run in contender.runs[fraction].items()
        }

    intervals = [
        paired.difference(
            *(by_seed(first), by_seed(other)),
            num_examples=len(seen[1]),
            num_comparisons=len(present) * len(rest) // 2,
        )
        if seen and len(seen[1]) >= paired.MIN_EXAMPLES
        else None
        for other in rest
    ]
    sizes = [run.num_examples for c in present for run in c.runs[fraction].values()]
    return Ranking(
        fraction=fraction,
        num_examples=round(statistics.fmean(sizes)),
        best=first,
        others=tuple(zip(rest, intervals, strict=True)),
    )
