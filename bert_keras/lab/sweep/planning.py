"""The runs of a sweep, planned without processes.

Each run of a grid learns from all folds but one, if there are folds. A comparison of
models is a sweep whose first axis is the model.
"""

import glob
import itertools
import json
import operator
import re
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pydantic

from bert_keras.core import files, manifest, provenance
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, loading, strict, sweeps
from bert_keras.kinds import catalogue, splits

MODEL_KEY = "model"
"""Key of the axis of models, beside the keys of `FinetuningConfig`."""

FRACTION_KEY = "train_fraction"
"""Setting whose values make a learning curve."""

PLACE = "{fold}"
"""The placeholder for the name of a fold in the names of files."""

MAX_NAME_LENGTH = 250
"""Longest name of a run: a file name that has room for `.log`."""

_FIXED_KEYS = ("task", "columns", "regression", "multi_label", "embedding.metric")
_FIXED_KEYS += ("calibration_fraction",)


class Fold(NamedTuple):
    """The files that runs are trained and scored on."""

    name: str | None
    """`None`: the data is not divided into folds."""
    train: str
    dev: tuple[str, ...]


class Model(strict.StrictModel):
    name: str
    init: str
    from_scratch: bool = False
    is_baseline: bool = False
    """Whether it is one of `baselines.NAMES`, which has no checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Command:
    folds: tuple[Fold, ...]
    """At least one; without folds the files alone."""
    init: str = ""
    task: str | None = None
    from_scratch: bool = False
    recipe: str | None = None
    overrides: tuple[str, ...] = ()
    strategy: str = "auto"
    models: tuple[Model, ...] = ()
    """The first axis of the grid, in place of `init` and `from_scratch`."""

    @property
    def has_folds(self) -> bool:
        return self.folds[0].name is not None

    def arguments(self, run: "Run", output_dir: Path) -> list[str]:
        """Returns the arguments of `bert-keras` that make a run."""
        _, train, dev = next(fold for fold in self.folds if fold.name == run.fold)
        start = run.model or self
        options = {
            "--task": self.task,
            "--train": train,
            "--init": start.init,
            "--config": self.recipe,
            "--strategy": self.strategy,
            "--output_dir": str(output_dir),
        }
        arguments = ["finetune"]
        for option, value in options.items():
            arguments += [] if value is None else [option, value]
        arguments += ["--dev", *dev]
        arguments += ["--from_scratch"] if start.from_scratch else []
        for override in (*self.overrides, *run.overrides):
            arguments += ["--set", override]
        return arguments

    def settings(self, overrides: Iterable[str] = ()) -> finetuning.FinetuningConfig:
        task = [] if self.task is None else [f"task={self.task}"]
        overrides = [*task, *self.overrides, *overrides]
        return loading.load(finetuning.FinetuningConfig, self.recipe, overrides)


def claim(directory: Path, command: Command) -> None:
    """Claims a directory for a new sweep or the same one.

    Grids, models and seeds may change; data and other settings may not, nor the
    checkpoint unless models are compared.
    """
    made_by = {"made_by": f"bert-keras {'compare' if command.models else 'sweep'}"}
    names = [fold.name for fold in command.folds]
    train = [splits.file_hash(fold.train) for fold in command.folds]
    dev = [splits.file_hashes(fold.dev) for fold in command.folds]
    data: dict[str, Any] = {"train_sha256": train, "dev_sha256": dev, "folds": names}
    if not command.has_folds:
        data = {"train_sha256": train[0], "dev_sha256": dev[0]}
    if not command.models:
        data["init"] = provenance.absolute(command.init)
        data["from_scratch"] = command.from_scratch
    settings = command.settings().model_dump(mode="json", exclude={"seed"})
    manifest.claim_output_directory(directory, made_by | data | settings)
    for name in ("runs", "logs"):
        files.make_directory(directory / name)


class Run(strict.StrictModel):
    # The pattern keeps a name from leading out of the sweep's directory.
    name: Annotated[
        str,
        pydantic.Field(max_length=MAX_NAME_LENGTH, pattern=r"^[\w.]+=[\w.,=%+~-]+$"),
    ]
    """Name of its directory, such as `learning_rate=5e-05,seed=12345`."""
    overrides: tuple[str, ...]
    settings: finetuning.FinetuningConfig
    fold: str | None = None
    model: Model | None = None
    """`None`: all runs start from the sweep's `--init`."""

    def value(self, key: str) -> Any:
        if key == MODEL_KEY:
            return self.model and self.model.name
        return operator.attrgetter(key)(self.settings)


class Plan(strict.StrictModel):
    """`plan.json`: all grids and runs so far; none for a new directory."""

    keys: tuple[str, ...] = ()
    runs: tuple[Run, ...] = ()


def plan_runs(settings: sweeps.SweepConfig, command: Command) -> list[Run]:
    """Returns all runs, by seed, then by fold, then by grid point, then by model."""
    for key in settings.grid:
        if key == "seed":
            raise InputError(
                "`grid.seed`: a seed is nothing to choose by: set `num_restarts`, and "
                "the first seed with --set seed=N"
            )
        # Runs with different values would be scored on different questions.
        if {key, key.split(".")[0]}.intersection(_FIXED_KEYS):
            raise InputError(
                f"`grid.{key}`: its values would be scored on different questions: "
                "make a sweep for each"
            )
    first_seed = command.settings().seed
    seeds = range(first_seed, first_seed + settings.num_restarts)
    grid = itertools.product(*settings.grid.values())
    points = [dict(zip(settings.grid, values, strict=True)) for values in grid]
    models = command.models or [None]
    runs: dict[str, Run] = {}
    axes = (seeds, command.folds, points, models)
    for seed, (fold, _, _), point, model in itertools.product(*axes):
        assigned = point | {"seed": seed}
        tuning = command.settings(_overrides(assigned))
        # As in the configuration, where 5e-5, text to YAML, is a number.
        values = {key: operator.attrgetter(key)(tuning) for key in assigned}
        start = {"fold": fold, MODEL_KEY: model and model.name}
        name = run_name({k: v for k, v in start.items() if v is not None} | values)
        if len(name) > MAX_NAME_LENGTH:
            raise InputError(
                f"`grid`: a run's directory would be called {name[:60]}..., "
                f"{len(name)} characters, at most {MAX_NAME_LENGTH} are possible: give "
                "what does not vary with --set"
            )
        if name in runs:
            raise InputError(f"`grid`: {name} is in it twice")
        runs[name] = Run(
            name=name,
            overrides=_overrides(values),
            settings=tuning,
            fold=fold,
            model=model,
        )
    return list(runs.values())


def _overrides(values: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{key}={json.dumps(value)}" for key, value in values.items())


def run_name(values: Mapping[str, Any]) -> str:
    quoted = {k: urllib.parse.quote(show(v), safe="+") for k, v in values.items()}
    return ",".join(f"{key}={value}" for key, value in quoted.items())


def show(value: Any) -> str:
    """Returns a grid's value for names and tables: `16`, `5e-05`, `true`."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text.removesuffix(".0") if isinstance(value, float) else text


def varied_names(points: Sequence[Sequence[Any]]) -> list[str]:
    """Returns names for grid points, from the values that vary."""
    columns = [
        map(show, column) for column in zip(*points, strict=True) if len({*column}) > 1
    ]
    rows = zip(*columns, strict=True) if columns else [("all runs",)] * len(points)
    return [" · ".join(row) for row in rows]


def merge_plans(
    earlier: Sequence[Run], planned: Sequence[Run]
) -> tuple[list[Run], list[Run]]:
    """Returns `planned` with matching earlier runs in their places, and the other ones.

    An earlier run matches by fold, model and configuration.
    """

    def identity(run: Run) -> tuple[Any, ...]:
        start = run.model and (run.model.init, run.model.from_scratch)
        return run.fold, start, run.settings.model_dump_json()

    known = {identity(run): run for run in earlier}
    merged = []
    for run in planned:
        same = known.pop(identity(run), None)
        # Its directory keeps its name; among other models, the model's name may differ.
        merged.append(same.model_copy(update={"model": run.model}) if same else run)
    others = list(known.values())
    for name in {run.name for run in others} & {run.name for run in merged}:
        raise InputError(
            f"{name} is a run of another model in this directory: choose another one"
        )
    return merged, others


def find_folds(
    task: str, *, num_folds: int | None, **files_of_task: Any
) -> tuple[Fold, ...]:
    """Returns the requested folds, or one without a name: a training and dev file.

    `train`, `dev` and `data` name a file for each fold if they contain `PLACE`. Else
    the training file has `num_folds` parts, by a hash of what its examples are about
    (see `kinds.splits`), each held out in turn.
    """
    train, dev, data = (files_of_task[name] for name in ("train", "dev", "data"))
    if any(PLACE in path for path in (train, data, *(dev or ())) if path):
        if num_folds is not None:
            raise InputError(
                f"`folds` divides one training file, {PLACE} in the names of files "
                "stands for files of folds: give one of them"
            )
        return _find_files_of_folds(task, **files_of_task)
    if num_folds is None:
        return (find_fold(None, task, **files_of_task),)
    if dev:
        raise InputError(
            f"`folds` holds each of {num_folds} parts of the training file out in turn:"
            " leave --dev out"
        )
    if train is None and data is not None:
        train = str(catalogue.find_training_files(task, data=data)[0])
    if train is None:
        raise InputError("`folds` divides a training file: give it with --train")
    numbers = range(1, num_folds + 1)
    return tuple(Fold(f"{n}", train, (f"{n}/{num_folds}",)) for n in numbers)


def find_fold(name: str | None, task: str, **files_of_task: Any) -> Fold:
    """Returns the files given as `train` and `dev`, or those of the folder `data`."""
    train, dev = catalogue.find_training_files(task, **files_of_task)
    return Fold(name, str(train), tuple(map(str, dev)))


def _find_files_of_folds(
    task: str, train: str | None, dev: Sequence[str] | None, data: str | None
) -> tuple[Fold, ...]:
    pattern = data or train or ""
    if pattern.count(PLACE) != 1:
        raise InputError(
            f"--{'data' if data else 'train'}: expected {PLACE} once, as in --dev, got "
            f"{pattern or 'nothing'}"
        )
    if dev and PLACE not in dev[0] and splits.parse_split(dev) is None:
        # One fold's dev examples would be among the training examples of the others.
        raise InputError(
            f"--dev: expected {PLACE} in the first name, as in --train, got {dev[0]}"
        )
    before, after = pattern.split(PLACE)
    paths = glob.glob(f"{glob.escape(before)}*{glob.escape(after)}")
    names = [path[len(before) : len(path) - len(after)] for path in paths]
    if len(names) < 2:
        raise InputError(
            f"{pattern}: expected such files for two folds or more, found {len(names)}"
        )
    # Numbers in names count by their size: 2 comes before 10.
    order = re.compile(r"(\d+)|(\D+)")
    names.sort(key=lambda name: [(int(d or 0), t) for d, t in order.findall(name)])
    return tuple(
        find_fold(
            *(name, task),
            train=train and train.replace(PLACE, name),
            dev=dev and [path.replace(PLACE, name) for path in dev],
            data=data and data.replace(PLACE, name),
        )
        for name in names
    )


def plan_comparison(
    tuning: finetuning.FinetuningConfig, *, fractions: Sequence[float], num_seeds: int
) -> sweeps.SweepConfig:
    """Returns the sweep that compares models on shares of the labels."""
    for fraction in fractions:
        if not 0 < fraction <= 1:
            raise InputError(
                f"--fractions: expected shares above 0, at most 1, got {fraction:g}"
            )
    if num_seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {num_seeds}")
    if tuning.train_fraction != 1:
        raise InputError("`train_fraction` is what --fractions says: leave it out")
    grid = {FRACTION_KEY: tuple(sorted({*map(float, fractions)}))}
    return sweeps.SweepConfig(grid=grid, num_restarts=num_seeds, choose="mean")


def name_models(models: Sequence[str], *, from_scratch: bool) -> tuple[Model, ...]:
    """Names models by as many of the last parts of their paths as tell them apart;
    `from_scratch` adds the first one with random weights."""
    if not models:
        raise InputError("--models: expected one model or more, got none")
    paths = provenance.absolute(models)
    if len({*paths}) < len(paths):
        raise InputError("--models: the same model is given twice: give each once")
    ends = (["/".join(Path(p).parts[-n:]) for p in paths] for n in itertools.count(1))
    names = next(names for names in ends if len({*names}) == len(paths))
    pairs = zip(names, paths, strict=True)
    named = [Model(name=name, init=path) for name, path in pairs]
    if from_scratch:
        scratch = f"{names[0]}, random"
        if scratch in names:
            raise InputError(
                f"--from_scratch: {scratch!r} is also a model's name: rename its file"
            )
        named += [Model(name=scratch, init=paths[0], from_scratch=True)]
    return tuple(named)
