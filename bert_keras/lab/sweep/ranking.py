"""Models and baselines that learnt the same share of the labels, best first."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_keras.checkpoints import run_directory
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.kinds import registry
from bert_keras.lab.sweep import bootstrap, directory, scores
from bert_keras.labelled import answers

_SEED = 12345


@dataclass(frozen=True, kw_only=True)
class Candidate:
    name: str
    is_baseline: bool
    points: Mapping[float, scores.Point]
    """By share of the labels, ascending; the runs of each by seed."""

    @property
    def num_failed(self) -> int:
        return sum(point.num_failed for point in self.points.values())

    @property
    def num_majority(self) -> int:
        """Counts runs that learnt nothing; a baseline may have one answer for all."""
        num_runs = sum(point.num_majority for point in self.points.values())
        return 0 if self.is_baseline else num_runs


@dataclass(frozen=True, kw_only=True)
class Ranking:
    fraction: float
    num_examples: int
    best: Candidate
    others: tuple[tuple[Candidate, bootstrap.Interval | None], ...]
    """The rest, best first, and how much better the best is; `None`: fewer than two
    seeds in common, or than `bootstrap.MIN_EXAMPLES` dev examples."""

    @property
    def model_is_worth_it(self) -> bool:
        """Whether a model is best, and clearly better than all baselines."""
        baselines = [interval for other, interval in self.others if other.is_baseline]
        is_better = bool(baselines) and all(i and i.low > 0 for i in baselines)
        return is_better and not self.best.is_baseline


def rank(
    candidates: Sequence[Candidate],
    fraction: float,
    *,
    sweep_dir: Path,
    kind: tasks.TaskKind,
    metric: str,
    labels: Sequence[str],
) -> Ranking | None:
    """Ranks the candidates that learnt a share of the labels; `None`: none did."""
    present = [c for c in candidates if c.points[fraction].finished]
    if not present:
        return None
    runs = {c.name: c.points[fraction].finished for c in present}
    first, *rest = sorted(
        present, key=lambda c: -statistics.fmean(c.points[fraction].scores)
    )
    seen: tuple[Path, list[int]] | None = None
    known = {}
    answered = registry.labelled(kind)
    for outcome in itertools.chain(*runs.values()):
        path = directory.run_path(sweep_dir, outcome.run.name)
        path /= run_directory.ANSWERS_NAME
        records = answers.read_answers(path, answered.record)
        rows = [record.model_dump() for record in records]
        lines = [row["line"] for row in rows]
        seen = seen or (path, lines)
        if lines != seen[1]:
            raise InputError(f"{path}: not about the same examples as {seen[0]}")
        known[outcome.run.name] = answered.score(rows, metric, labels=labels)
    num_examples = len(seen[1]) if seen else 0
    resampled = bootstrap.resample(known, seed=_SEED)

    def by_seed(candidate: Candidate) -> dict:
        return {
            outcome.run.settings.seed: (outcome.score, resampled[outcome.run.name])
            for outcome in runs[candidate.name]
        }

    intervals = [
        bootstrap.difference(
            *(by_seed(first), by_seed(other)),
            num_examples=num_examples,
            num_comparisons=len(present) * len(rest) // 2,
        )
        if num_examples >= bootstrap.MIN_EXAMPLES
        else None
        for other in rest
    ]
    sizes = [o.num_train_examples or 0 for o in itertools.chain(*runs.values())]
    return Ranking(
        fraction=fraction,
        num_examples=round(statistics.fmean(sizes)),
        best=first,
        others=tuple(zip(rest, intervals, strict=True)),
    )
