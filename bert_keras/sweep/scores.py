"""What became of the runs of a sweep, and which is chosen. No files, no processes."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bert_keras import config
from bert_keras.errors import InputError
from bert_keras.sweep import majority, planning
from bert_keras.tasks import catalogue, glue


@dataclass(frozen=True, kw_only=True)
class Ruler:
    """What runs are measured and chosen by."""

    metric: str
    """Of `eval` in results.json."""
    goal: Literal["max", "min"]
    choose: Literal["best", "mean"]
    """See `config.SweepConfig`."""

    def key(self, score: float) -> float:
        """Greater for better scores."""
        return score if self.goal == "max" else -score


def make_ruler(settings: config.SweepConfig, base: config.FinetuningConfig) -> Ruler:
    """The metric, goal and choice of a sweep; what is not given follows the task."""
    metric = settings.metric or default_metric(base)
    goal = settings.goal or ("min" if metric.endswith("loss") else "max")
    return Ruler(metric=metric, goal=goal, choose=settings.choose)


def task_kind(settings: config.FinetuningConfig) -> config.TaskKind:
    """What is learnt in a task.

    Raises:
        InputError: there is no such task.
    """
    name = settings.task
    catalogue.check_name(name)
    if name in glue.TASKS:
        return "classification" if glue.TASKS[name].labels else "regression"
    form = name if name in catalogue.FORMS else catalogue.DATASETS[name].form
    if form == "text":
        return "regression" if settings.regression else "classification"
    return form


def default_metric(settings: config.FinetuningConfig) -> str:
    """What a task is usually measured by: of the paper's tasks as in the paper."""
    if settings.task in glue.TASKS:
        return glue.TASKS[settings.task].main_metric
    if settings.task == "SQuAD2.0":
        # With the threshold that is best on dev (section 4.3).
        return "best_f1"
    by_kind = {"regression": "pearson", "tagging": "f1", "span": "f1"}
    return by_kind.get(task_kind(settings), "accuracy")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run that has ended."""

    run: planning.Run
    score: float | None
    """The metric that is chosen by; `None` of a failed run."""
    evaluation: Mapping[str, float]
    """All metrics on dev."""
    seconds: float | None = None
    """Of training."""
    failure: str | None = None
    """Why there is no score."""
    majority: str | None = None
    """By what one sees that it answers as if it had learnt nothing."""

    @property
    def state(self) -> Literal["finished", "majority", "failed"]:
        if self.failure is not None:
            return "failed"
        return "finished" if self.majority is None else "majority"


def judge(
    run: planning.Run,
    results: Mapping[str, Any],
    answers: Sequence[Mapping[str, Any]] | None,
    *,
    metric: str,
) -> Outcome:
    """What a finished run came to; it has failed if a loss or its score is not finite.

    Args:
        run: that has ended.
        results: of its results.json.
        answers: of its dev_answers.jsonl; `None`: there are none to look at.
        metric: to choose by.

    Raises:
        InputError: there is no such metric.
    """
    evaluation = results["eval"]
    if metric not in evaluation:
        raise InputError(
            f"`metric` is one of {', '.join(evaluation)}, got {metric!r}: give it with "
            "--sweep_set metric=NAME; no finished run is lost"
        )
    watched = {
        "loss in training": results["train"].get("loss", 0.0),
        "loss on dev": evaluation.get("loss", 0.0),
        metric: evaluation[metric],
    }
    broken = [f"{name} is {v}" for name, v in watched.items() if not math.isfinite(v)]
    sign = None
    if not broken:
        sign = majority.find_sign(task_kind(run.settings), evaluation, answers)
    return Outcome(
        run=run,
        score=None if broken else float(evaluation[metric]),
        evaluation=evaluation,
        seconds=results["seconds"],
        failure=", ".join(broken) or None,
        majority=sign,
    )


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of the grid, with what its runs came to."""

    values: tuple[Any, ...]
    """Of the keys of the sweep."""
    outcomes: tuple[Outcome, ...]

    @property
    def finished(self) -> list[Outcome]:
        """Those that have a score."""
        return [outcome for outcome in self.outcomes if outcome.score is not None]

    @property
    def scores(self) -> list[float]:
        return [outcome.score for outcome in self.finished]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.scores) if self.scores else None

    @property
    def deviation(self) -> float | None:
        """Of the sample, so with n - 1; `None` of fewer than two runs."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def num_failed(self) -> int:
        return len(self.outcomes) - len(self.finished)

    @property
    def num_majority(self) -> int:
        return sum(outcome.majority is not None for outcome in self.outcomes)

    def best(self, ruler: Ruler) -> Outcome | None:
        """The first of the runs with the best score."""
        return max(self.finished, key=lambda o: ruler.key(o.score), default=None)


def points_of(outcomes: Iterable[Outcome], keys: Sequence[str]) -> list[Point]:
    """The runs by grid point, in the order in which points come up."""
    by_values: dict[tuple[Any, ...], list[Outcome]] = {}
    for outcome in outcomes:
        values = tuple(planning.value_of(outcome.run.settings, key) for key in keys)
        by_values.setdefault(values, []).append(outcome)
    return [
        Point(values=values, outcomes=tuple(those))
        for values, those in by_values.items()
    ]


def choose(points: Sequence[Point], ruler: Ruler) -> tuple[Point, Outcome] | None:
    """The chosen point and its best run; `None` if no run has a score.

    By `best` the point of the best single run. By `mean` the one with the best mean
    among those with the fewest failed runs: a lucky run is no mean. The first one of
    equals.
    """
    scored = [point for point in points if point.scores]
    if not scored:
        return None
    if ruler.choose == "best":
        point = max(scored, key=lambda p: ruler.key(p.best(ruler).score))
    else:
        point = max(scored, key=lambda p: (-p.num_failed, ruler.key(p.mean)))
    return point, point.best(ruler)
