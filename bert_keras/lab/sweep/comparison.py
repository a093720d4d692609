"""A comparison of models: one sweep over them, baselines, and paired differences."""

import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_keras.checkpoints import run_directory
from bert_keras.core import files, ownership, progress
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, sweeps
from bert_keras.kinds import catalogue, registry, splits
from bert_keras.lab.sweep import (
    baselines,
    comparison_page,
    drawings,
    planning,
    processes,
    ranking,
    running,
    scores,
    summary,
)
from bert_keras.lab.sweep import directory as sweep_directory

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    command: planning.Command
    models: Sequence[str]
    from_scratch: bool = False
    """Whether to train the first model from random weights, too."""
    fractions: Sequence[float] = (0.01, 0.1, 1.0)
    num_seeds: int = 3


def run_comparison(
    comparison: Comparison,
    *,
    output_dir: str | Path,
    num_jobs: int = 1,
    runner: Sequence[str] = running.RUNNER,
) -> list[str]:
    """Fine-tunes all models on each share of the labels, and writes one page.

    A second call with the same directory makes only what is missing; models, shares and
    seeds may be added. Returns the sentences that the figures support. The directory is
    that of a sweep, with `comparison.json`, and the baselines among `runs`.
    """
    # 1. Refuse what cannot be compared, before anything is written.
    files.check_is_local(output_dir, "a comparison")
    running.check_num_jobs(num_jobs)
    base = comparison.command.settings()
    grid = _make_grid(comparison, base)
    command = dataclasses.replace(comparison.command, models=_name_models(comparison))
    directory = Path(output_dir)
    # 2. One owner of the directory, which keeps to the same data and settings.
    with ownership.owned(directory) as owner:
        sweep_directory.claim(directory, command)
        data = catalogue.read_parts(command.train, command.dev, base)
        metric = catalogue.main_metric(base, data.task.labels)
        if metric not in registry.labelled(data.task.kind).resampled:
            raise InputError(f"`compare` has no paired bootstrap of {metric!r}")
        # 3. Learn the baselines, in this process.
        baseline_outcomes = _learn_baselines(grid, command, directory, data, metric)
        logger.info("baselines on %d examples are done", len(data.data[0]))
        # 4. Fine-tune the models: the shortest run of each comes first, so that a model
        # that cannot be used is told at once.
        planned = planning.plan_runs(grid, command)
        criterion = scores.Criterion(metric=metric, goal="max", choose="mean")
        sweep = running.Sweep(directory=directory, task=base.task, criterion=criterion)
        planned = sweep.resume([planning.MODEL_KEY, *grid.grid], planned)
        lock = owner.descriptor
        with processes.Processes(runner, num_slots=num_jobs, lock=lock) as jobs:
            sweep.make_runs(command, jobs)
        # 5. Group the runs by model, of the shares and seeds of this command.
        outcomes = [sweep.ended[run.name] for run in planned]
        candidates = [
            *_group(baseline_outcomes, is_baseline=True),
            *_group(outcomes, is_baseline=False),
        ]
        # 6. Rank them at each share, with paired differences.
        rankings = [
            ranking.rank(
                *(candidates, fraction),
                sweep_dir=directory,
                kind=data.task.kind,
                metric=metric,
                labels=data.task.labels or (),
            )
            for fraction in grid.grid[drawings.FRACTION_KEY]
        ]
        # 7. Write the page, and link the best run.
        report = comparison_page.Report(
            task=base.task,
            metric=metric,
            num_dev=len(data.data[1]),
            candidates=tuple(candidates),
            rankings=tuple(r for r in rankings if r is not None),
            num_seeds=comparison.num_seeds,
            num_jobs=num_jobs,
            settings=_changed_settings(base),
        )
        summary.write_best(sweep)
        comparison_page.write(report, directory)
        logger.info("report in %s", directory / summary.PAGE_NAME)
    return comparison_page.sentences(report)


def _make_grid(
    comparison: Comparison, base: finetuning.FinetuningConfig
) -> sweeps.SweepConfig:
    """Returns the shares and the number of seeds; refuses what cannot be compared."""
    for fraction in comparison.fractions:
        if not 0 < fraction <= 1:
            raise InputError(
                f"--fractions: expected shares above 0, at most 1, got {fraction:g}"
            )
    if comparison.num_seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {comparison.num_seeds}")
    kind = catalogue.task_kind(base)
    if kind not in baselines.NAMES:
        raise InputError(
            f"`compare` is for texts and tagged words, got a task of kind {kind}: "
            "`sweep` takes any"
        )
    if base.train_fraction != 1:
        raise InputError("`train_fraction` is what --fractions says: leave it out")
    fractions = tuple(sorted({float(fraction) for fraction in comparison.fractions}))
    return sweeps.SweepConfig(
        grid={drawings.FRACTION_KEY: fractions}, num_restarts=comparison.num_seeds
    )


def _name_models(comparison: Comparison) -> tuple[planning.Model, ...]:
    """Names the models by the last parts of their paths, as many as tell them apart."""
    if not comparison.models:
        raise InputError("--models: expected one model or more, got none")
    paths = [sweep_directory.absolute(model) for model in comparison.models]
    if len({*paths}) < len(paths):
        raise InputError("--models: a model is there twice: give each once")
    parts = [Path(path).parts for path in paths]
    names = next(
        names
        for count in range(1, max(map(len, parts)) + 1)
        if len({*(names := ["/".join(path[-count:]) for path in parts])}) == len(paths)
    )
    models = [
        planning.Model(name=name, init=path)
        for name, path in zip(names, paths, strict=True)
    ]
    if comparison.from_scratch:
        scratch = f"{names[0]}, random"
        if scratch in names:
            raise InputError(
                f"--from_scratch: {scratch!r} is also a model's name: rename its file"
            )
        models += [planning.Model(name=scratch, init=paths[0], from_scratch=True)]
    return tuple(models)


def _changed_settings(base: finetuning.FinetuningConfig) -> Mapping[str, Any]:
    values, defaults = (
        run_directory.flat(settings.model_dump(mode="json"))
        for settings in (base, finetuning.FinetuningConfig())
    )
    return {k: v for k, v in values.items() if defaults[k] != v and k != "task"}


def _learn_baselines(
    grid: sweeps.SweepConfig,
    command: planning.Command,
    directory: Path,
    data: splits.Files,
    metric: str,
) -> list[scores.Outcome]:
    """Learns the baselines from all shares with all seeds; finished ones are read."""
    names = baselines.NAMES[data.task.kind]
    models = tuple(planning.Model(name=name, init="") for name in names)
    runs = planning.plan_runs(grid, dataclasses.replace(command, models=models))
    outcomes: list[scores.Outcome] = []
    bar = progress.Progress(
        "baselines",
        total=len(runs),
        unit="runs",
        read=lambda: len(outcomes),
        only_if_long=True,
    )
    with bar:
        for run in runs:
            name = run.name.replace(planning.MODEL_KEY, "baseline", 1)
            run = run.model_copy(update={"name": name})
            path = sweep_directory.run_path(directory, name)
            results = run_directory.read_results(path) or {}
            if metric not in results.get("eval", {}):
                _learn_baseline(run, path, data)
            outcome = sweep_directory.read_outcome(directory, run, metric=metric)
            outcomes += [outcome] if outcome else []
    return outcomes


def _learn_baseline(run: planning.Run, path: Path, data: splits.Files) -> None:
    """Writes the answers and results of a baseline, as a run of `finetune` has them."""
    train, dev = data.data[:2]
    share = splits.fraction(train, run.settings.train_fraction, seed=run.settings.seed)
    start = time.perf_counter()
    predict = baselines.learn(str(run.value(planning.MODEL_KEY)), share, data.task)
    seconds = time.perf_counter() - start
    answers = baselines.answer(dev, predict(dev), data.task)
    records = answers.records(threshold=answers.best_threshold())
    lines = [files.to_json(record.model_dump()) + "\n" for record in records]
    files.make_directory(path)
    files.write_atomically(path / run_directory.ANSWERS_NAME, "".join(lines).encode())
    results = {
        "seconds": round(seconds, 3),
        "eval": answers.scores(),
        "num_train_examples": len(share),
    }
    run_directory.write_results(path, results)


def _group(
    outcomes: Sequence[scores.Outcome], *, is_baseline: bool
) -> list[ranking.Candidate]:
    """Groups outcomes by model and share; each model needs a run with a score."""

    def order(outcome: scores.Outcome) -> tuple[float, int]:
        return outcome.run.settings.train_fraction, outcome.run.settings.seed

    keys = (planning.MODEL_KEY, drawings.FRACTION_KEY)
    candidates: dict[str, dict[float, scores.Point]] = {}
    for point in scores.points_of(sorted(outcomes, key=order), keys):
        name, fraction = point.values
        candidates.setdefault(name, {})[fraction] = point
    for name, points in candidates.items():
        if not any(point.scores for point in points.values()):
            raise InputError(
                f"{name}: no run has a score; the same command tries again"
            )
    return [
        ranking.Candidate(name=name, is_baseline=is_baseline, points=points)
        for name, points in candidates.items()
    ]
