"""A comparison from start to page: a sweep for each model, floors, differences."""

import dataclasses
import functools
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_keras.checkpoints import run_directory
from bert_keras.core import files, manifest, ownership, progress
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning, sweeps
from bert_keras.kinds import catalogue, held_out_parts, registry
from bert_keras.lab.compare import costs, floors, page, results
from bert_keras.lab.sweep import directory as sweep_directory
from bert_keras.lab.sweep import learning_curve, planning, running, summary
from bert_keras.labelled import dataset

logger = logging.getLogger(__name__)

_MODELS, _FLOORS, _COSTS_NAME = "models", "floors", "costs.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """The models to compare, and how."""

    command: planning.Command
    """The common part of all runs; its `init` is not used."""
    models: Sequence[str]
    """Checkpoints of any format."""
    from_scratch: bool = False
    """Whether to train the first one from random weights, too."""
    fractions: Sequence[float] = (0.01, 0.1, 1.0)
    """Shares of the training file."""
    num_seeds: int = 3


def run_comparison(
    wanted: Comparison,
    *,
    output_dir: str | Path,
    num_jobs: int = 1,
    runner: Sequence[str] = running.RUNNER,
    open_run: Callable[[Path], costs.Answerer] = costs.open_run,
) -> list[str]:
    """Tunes all models on each share of the labels, and writes one page about them.

    Called again with the same directory, it makes only what is missing; models, shares
    and seeds may be added.

    Args:
        wanted: what to compare.
        output_dir: directory to create or to resume: `report.md`, `scores.png`,
            `comparison.json`; a sweep for each model in `models`; floors in `floors`.
        num_jobs: tunings at the same time.
        runner: their program.
        open_run: makes a finished run ready to answer, to be measured.

    Returns:
        What the figures allow to say, as lines.

    Raises:
        InputError: the settings, data, a model or the directory cannot be used, or no
            run of a model has a score.
        Stopped: SIGTERM or SIGHUP came.
    """
    files.check_is_local(output_dir, "a comparison")
    entries = _entries(wanted)
    base = wanted.command.settings()
    fractions, kind = _checked_fractions(wanted), _checked_kind(base)
    directory = Path(output_dir)
    with ownership.owned(directory):
        _claim(directory, wanted.command)
        read = held_out_parts.read(wanted.command.train, wanted.command.dev, base)
        protocol = _Protocol(
            read=read,
            fractions=fractions,
            seeds=[base.seed + number for number in range(wanted.num_seeds)],
            metric=_checked_metric(base, read.task),
            num_jobs=num_jobs,
            runner=runner,
        )
        contenders = [
            _floor(name, directory / _FLOORS / _slug(name), protocol)
            for name in floors.names(kind)
        ]
        logger.info("floors on %d examples are done", len(read.data[0]))
        places = [directory / _MODELS / _slug(name) for name, _ in entries]
        # One short run of each first: a model that cannot be used is told at once.
        for (_, command), place in zip(entries, places, strict=True):
            _try(command, place, protocol)
        for number, ((name, command), place) in enumerate(
            zip(entries, places, strict=True), start=1
        ):
            logger.info("model %d of %d: %s", number, len(entries), name)
            state = protocol.tune(command, place, fractions, wanted.num_seeds)
            contenders.append(_contender(name, state, protocol))
        contenders = _with_costs(contenders, directory, protocol, open_run)
        rankings = [
            results.rank(
                *(contenders, fraction),
                kind=kind,
                metric=protocol.metric,
                labels=read.task.labels or (),
            )
            for fraction in fractions
        ]
        report = page.Report(
            task=base.task,
            metric=protocol.metric,
            num_dev=len(read.data[1]),
            contenders=tuple(contenders),
            rankings=tuple(ranking for ranking in rankings if ranking is not None),
            num_seeds=wanted.num_seeds,
            num_jobs=num_jobs,
            settings=_changed(base),
        )
        page.write(report, directory)
        logger.info("report in %s", directory / page.PAGE_NAME)
    return page.sentences(report)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Protocol:
    """The settings and data that all contenders share."""

    read: held_out_parts.Files
    fractions: Sequence[float]
    seeds: Sequence[int]
    metric: str
    num_jobs: int
    runner: Sequence[str]

    def tune(
        self,
        command: planning.Command,
        place: Path,
        fractions: Sequence[float],
        num_seeds: int,
    ) -> summary.State:
        """A sweep over shares and seeds; finished runs in its directory stay."""
        return running.run_sweep(
            sweeps.SweepConfig(
                grid={learning_curve.KEY: tuple(fractions)},
                num_restarts=num_seeds,
                choose="mean",
                metric=self.metric,
            ),
            command,
            output_dir=place,
            num_jobs=self.num_jobs,
            runner=self.runner,
        )


def _try(command: planning.Command, place: Path, protocol: _Protocol) -> None:
    """Makes the shortest run of a model.

    Raises:
        InputError: the run was refused.
    """
    try:
        protocol.tune(command, place, protocol.fractions[:1], 1)
    except InputError:
        # One that began and failed is one of many.
        _, planned = sweep_directory.read_plan(place)
        if not any(sweep_directory.has_begun(place, run.name) for run in planned):
            raise


def _entries(wanted: Comparison) -> list[tuple[str, planning.Command]]:
    """Name and command of each model."""
    if not wanted.models:
        raise InputError("--models: expected one model or more, got none")
    names = _short_names(wanted.models)
    found = [
        (name, dataclasses.replace(wanted.command, init=model))
        for name, model in zip(names, wanted.models, strict=True)
    ]
    if wanted.from_scratch:
        name, command = found[0]
        scratch = dataclasses.replace(command, from_scratch=True)
        of_scratch = f"{name}, random"
        for other in names:
            if _slug(other) == _slug(of_scratch):
                raise InputError(
                    f"--from_scratch: {of_scratch!r} and the model {other!r} would "
                    "have one directory: rename that of the model"
                )
        found.append((of_scratch, scratch))
    return found


def _short_names(models: Sequence[str]) -> list[str]:
    """Last parts of the paths, as many as tell them apart."""
    parts = [Path(os.path.abspath(model)).parts for model in models]
    if len({*parts}) < len(parts):
        raise InputError("--models: a model is there twice: give each once")
    longest = max(map(len, parts))
    for count in range(1, longest + 1):
        names = ["/".join(those[-count:]) for those in parts]
        slugs = {_slug(name) for name in names}
        if len(slugs) == len(names):
            return names
    raise InputError("--models: expected paths that differ in letters or digits")


def _slug(name: str) -> str:
    """A name as that of a directory."""
    return re.sub(r"[^\w.-]+", "_", name)


def _checked_fractions(wanted: Comparison) -> list[float]:
    for fraction in wanted.fractions:
        if not 0 < fraction <= 1:
            raise InputError(
                f"--fractions: expected shares above 0, at most 1, got {fraction:g}"
            )
    if wanted.num_seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {wanted.num_seeds}")
    return sorted({float(fraction) for fraction in wanted.fractions})


def _checked_kind(base: finetuning.FinetuningConfig) -> config.TaskKind:
    kind = catalogue.task_kind(base)
    if kind not in floors.KINDS:
        raise InputError(
            f"`compare` is for texts and tagged words, got a task of kind {kind}: "
            "`sweep` takes any"
        )
    if base.train_fraction != 1:
        raise InputError("`train_fraction` is what --fractions says: leave it out")
    return kind


def _checked_metric(base: finetuning.FinetuningConfig, task: config.Task) -> str:
    metric = catalogue.main_metric(base, task.labels)
    if metric not in registry.labelled(task.kind).resampled:
        raise InputError(f"`compare` has no paired bootstrap of {metric!r}")
    return metric


def _claim(directory: Path, command: planning.Command) -> None:
    manifest.claim_output_directory(
        directory,
        {
            "made_by": "bert-keras compare",
            "train_sha256": held_out_parts.digest(command.train),
            "dev_sha256": held_out_parts.digests(command.dev),
            **command.settings().model_dump(mode="json"),
        },
    )
    for name in (_MODELS, _FLOORS):
        files.make_directory(directory / name)


def _changed(base: finetuning.FinetuningConfig) -> Mapping[str, Any]:
    """Settings that differ from the defaults, by dotted key."""
    values, defaults = (
        run_directory.flat(settings.model_dump(mode="json"))
        for settings in (base, finetuning.FinetuningConfig())
    )
    return {k: v for k, v in values.items() if defaults[k] != v and k != "task"}


def _contender(
    name: str,
    state: summary.State,
    protocol: _Protocol,
) -> results.Contender:
    runs: dict[float, dict[int, results.Run]] = {}
    num_failed = num_majority = 0
    for outcome in state.outcomes:
        fraction, seed = outcome.run.settings.train_fraction, outcome.run.settings.seed
        if fraction not in protocol.fractions or seed not in protocol.seeds:
            continue
        if outcome.score is None:
            num_failed += 1
            continue
        num_majority += outcome.majority is not None
        runs.setdefault(fraction, {})[seed] = results.Run(
            directory=sweep_directory.run_path(state.directory, outcome.run.name),
            score=outcome.score,
            seconds=outcome.seconds or 0.0,
            num_examples=outcome.num_train_examples or 0,
        )
    if not runs:
        raise InputError(
            f"{state.directory}: no run has a score; the same command tries again"
        )
    return results.Contender(
        name=name,
        is_floor=False,
        runs=runs,
        num_failed=num_failed,
        num_majority=num_majority,
    )


def _floor(name: str, directory: Path, protocol: _Protocol) -> results.Contender:
    """A floor on all shares of the labels; those that are there are read."""
    fractions, seeds, read = protocol.fractions, protocol.seeds, protocol.read
    train, dev = read.data[:2]

    def learn(fraction: float, seed: int) -> floors.Floor:
        chosen = held_out_parts.fraction(train, fraction, seed=seed)
        return floors.learn(name, chosen, read.task)

    runs: dict[float, dict[int, results.Run]] = {}
    bar = progress.Progress(
        name,
        total=len(fractions) * len(seeds),
        unit="runs",
        read=lambda: sum(map(len, runs.values())),
        only_if_long=True,
    )
    with bar:
        for fraction in fractions:
            for seed in seeds:
                shown = f"{learning_curve.KEY}={planning.show(fraction)},seed={seed}"
                place = directory / shown
                found = run_directory.read_results(place) or {}
                if protocol.metric not in found.get("eval", {}):
                    found = _write_floor(place, learn(fraction, seed), dev, read.task)
                    found["num_train_examples"] = len(
                        held_out_parts.fraction(train, fraction, seed=seed)
                    )
                    run_directory.write_results(place, found)
                runs.setdefault(fraction, {})[seed] = results.Run(
                    directory=place,
                    score=found["eval"][protocol.metric],
                    seconds=found["seconds"],
                    num_examples=found["num_train_examples"],
                )
    return results.Contender(name=name, is_floor=True, runs=runs)


def _with_costs(
    contenders: Sequence[results.Contender],
    directory: Path,
    protocol: _Protocol,
    open_run: Callable[[Path], costs.Answerer],
) -> list[results.Contender]:
    """The contenders with size and speed, those of the largest share of the labels."""
    train, dev = protocol.read.data[:2]

    def make_ready(contender: results.Contender) -> costs.Answerer:
        largest = max(contender.runs)
        seed, run = next(iter(contender.runs[largest].items()))
        if not contender.is_floor:
            return open_run(run.directory)
        chosen = held_out_parts.fraction(train, largest, seed=seed)
        return costs.of_floor(floors.learn(contender.name, chosen, protocol.read.task))

    # A constant has none.
    makers = {
        contender.name: functools.partial(make_ready, contender)
        for contender in contenders
        if contender.name != floors.COMMONEST
    }
    found = costs.read_or_measure(directory / _COSTS_NAME, makers, dev)
    return [
        dataclasses.replace(contender, cost=found.get(contender.name))
        for contender in contenders
    ]


def _write_floor(
    place: Path, floor: floors.Floor, dev: dataset.Dataset, task: config.Task
) -> dict[str, Any]:
    """Writes a floor's answers; gives what its `results.json` has."""
    files.make_directory(place)
    given = floors.score(dev, floor.answer(dev), task)
    threshold = given.best_threshold()
    lines = (
        files.to_json(record.model_dump()) + "\n"
        for record in given.records(threshold=threshold)
    )
    path = place / run_directory.ANSWERS_NAME
    files.write_atomically(path, "".join(lines).encode())
    return {"seconds": round(floor.seconds, 3), "eval": given.scores()}
