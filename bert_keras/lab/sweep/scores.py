"""Outcomes of the runs of a sweep, from their directories, and the choice."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from bert_keras.checkpoints import run_directory
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.kinds import catalogue
from bert_keras.lab.sweep import planning
from bert_keras.labelled import answers as dev_answers


@dataclass(frozen=True, kw_only=True)
class Criterion:
    metric: str
    """Name of a metric in `eval` of results.json."""
    goal: Literal["max", "min"]
    choose: Literal["best", "mean"]
    """See `core.settings.sweeps.SweepConfig`."""

    def rank(self, outcome: "Outcome") -> tuple[bool, float]:
        """Returns a key that is greater for better runs; stuck runs come last."""
        return outcome.majority is None, self.key(cast(float, outcome.score))

    def key(self, score: float) -> float:
        return score if self.goal == "max" else -score


@dataclass(frozen=True, kw_only=True)
class Outcome:
    run: planning.Run
    score: float | None
    """Value of the criterion's metric; `None`: the run failed."""
    evaluation: Mapping[str, float]
    """All metrics on dev."""
    seconds: float | None = None
    num_train_examples: int | None = None
    failure: str | None = None
    majority: str | None = None
    """Sign that the run learnt nothing."""

    @property
    def state(self) -> Literal["finished", "majority", "failed"]:
        if self.failure is not None:
            return "failed"
        return "finished" if self.majority is None else "majority"


def run_path(directory: Path, name: str) -> Path:
    return directory / "runs" / name


def read_outcomes(
    directory: Path, runs: Iterable[planning.Run], *, metric: str
) -> dict[str, Outcome]:
    """Returns the outcomes of the finished ones of some runs, by name. A run has failed
    if its loss or score is not finite."""
    outcomes = {}
    for run in runs:
        path, kind = run_path(directory, run.name), catalogue.find(run.settings)
        results, records = run_directory.read_results(path), None
        if results is None:
            continue
        # 1. The answers, which tell whether anything was learnt.
        path /= run_directory.ANSWERS_NAME
        if path.is_file():
            loaded = dev_answers.read_answers(path, kind.record)
            if dev_answers.are_finite(loaded):
                records = [record.model_dump() for record in loaded]
        # 2. The score. In the file a number that is not finite is null. From 1e100 on
        # numbers count as infinite: no score is as large, and their sum is.
        evaluation = results.get("eval", {})
        if metric not in evaluation:
            raise InputError(
                f"`metric` is one of {', '.join(evaluation)}, got {metric!r}: give it "
                "with --sweep_set metric=NAME; no finished run is lost"
            )
        score, loss = evaluation[metric], evaluation.get("loss", 0.0)
        broken = [
            f"{name} is not finite"
            for name, value in (("loss on dev", loss), (metric, score))
            if value is None or not abs(value) < 1e100
        ]
        outcomes[run.name] = Outcome(
            run=run,
            score=None if broken else float(score),
            evaluation=evaluation,
            seconds=results.get("seconds"),
            num_train_examples=results.get("num_train_examples"),
            failure=", ".join(broken) or None,
            majority=None if broken else kind.sign(evaluation, records),
        )
    return outcomes


def check_same_inputs(directory: Path, outcomes: Iterable[Outcome]) -> None:
    """Refuses to compare finished runs that started with different data or weights.

    The directory was claimed for the same paths; their contents may have changed since.
    """
    first: dict[tuple[str, str | None], tuple[str, Any]] = {}
    for run in (outcome.run for outcome in outcomes if outcome.evaluation):
        path = run_path(directory, run.name) / run_directory.INPUTS_NAME
        values = files.read_json(path)
        groups = {"dev_sha256": run.fold, "init_sha256": run.model and run.model.name}
        groups["train_sha256"] = run.fold
        for key, group in groups.items():
            name, value = first.setdefault((key, group), (run.name, values.get(key)))
            if values.get(key) != value:
                raise InputError(
                    f"{directory}: `{key}` of {run.name} is not that of {name}: the "
                    "data or the checkpoint has changed since; choose another directory"
                )


@dataclass(frozen=True, kw_only=True)
class Point:
    values: tuple[Any, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def finished(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.score is not None]

    @property
    def scores(self) -> list[float]:
        return [o.score for o in self.outcomes if o.score is not None]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def deviation(self) -> float | None:
        """Returns the sample's deviation (n - 1); `None`: fewer than two runs."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def num_train_examples(self) -> float | None:
        """Returns the mean number of examples; `None`: no run has recorded it."""
        numbers = [o.num_train_examples for o in self.finished if o.num_train_examples]
        return statistics.fmean(numbers) if numbers else None

    @property
    def is_baseline(self) -> bool:
        model = self.outcomes[0].run.model
        return model is not None and model.is_baseline

    @property
    def num_failed(self) -> int:
        return len(self.outcomes) - len(self.finished)

    def best(self, criterion: Criterion) -> Outcome | None:
        """Returns the first best run; runs that learnt nothing come last."""
        return max(self.finished, key=criterion.rank, default=None)

    def merit(self, criterion: Criterion) -> tuple[Any, ...]:
        """Returns a key that is greater for points to be chosen first.

        `best`: the point of the best single run. `mean`: the point with the best mean
        among the points with the fewest failed runs, as a lucky run is no mean. A run
        at the majority class, which learnt nothing, is chosen only if all runs are.
        """
        if self.mean is None:
            return ()
        if criterion.choose == "best":
            return max(map(criterion.rank, self.finished))
        has_learnt = any(outcome.majority is None for outcome in self.finished)
        return has_learnt, -self.num_failed, criterion.key(self.mean)


def points_of(outcomes: Iterable[Outcome], keys: Sequence[str]) -> list[Point]:
    """Groups outcomes by grid point, in the order of the first run of each."""
    by_values: dict[tuple[Any, ...], list[Outcome]] = {}
    for outcome in outcomes:
        values = tuple(outcome.run.value(key) for key in keys)
        by_values.setdefault(values, []).append(outcome)
    return [Point(values=v, outcomes=tuple(group)) for v, group in by_values.items()]
