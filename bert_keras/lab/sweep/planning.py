"""The runs of a sweep, planned without files and processes."""

import itertools
import json
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, loading, strict, sweeps
from bert_keras.lab.sweep import folds as sweep_folds

# Runs with different values would be scored on different questions.
_FIXED_KEYS = ("task", "columns", "regression", "multi_label", "embedding.metric")

MAX_NAME_LENGTH = 250
"""Longest name of a run: a file name that has room for `.log`."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """The common part of the `bert-keras finetune` commands of a sweep."""

    train: str
    dev: tuple[str, ...]
    init: str
    task: str | None = None
    from_scratch: bool = False
    recipe: str | None = None
    """File or name of a recipe, for `--config`."""
    overrides: tuple[str, ...] = ()
    """Values for `--set`."""
    strategy: str = "auto"
    folds: tuple[sweep_folds.Fold, ...] = ()
    """Their files are instead of `train` and `dev`; none: the files are those."""

    def arguments(
        self, overrides: Iterable[str], output_dir: str, fold: str | None = None
    ) -> list[str]:
        """The arguments of `bert-keras` for one run, with further overrides."""
        train, dev = self.train, self.dev
        if fold is not None:
            _, train, dev = next(f for f in self.folds if f.name == fold)
        options = {
            "--task": self.task,
            "--train": train,
            "--init": self.init,
            "--config": self.recipe,
            "--strategy": self.strategy,
            "--output_dir": output_dir,
        }
        arguments = ["finetune"]
        for option, value in options.items():
            arguments += [] if value is None else [option, value]
        arguments += ["--dev", *dev]
        arguments += ["--from_scratch"] if self.from_scratch else []
        for override in (*self.overrides, *overrides):
            arguments += ["--set", override]
        return arguments

    def settings(self, overrides: Iterable[str] = ()) -> finetuning.FinetuningConfig:
        """The configuration of such a run.

        Raises:
            InputError: a file, key or value that cannot be used.
        """
        task = [] if self.task is None else [f"task={self.task}"]
        return loading.load(
            finetuning.FinetuningConfig,
            self.recipe,
            [*task, *self.overrides, *overrides],
        )


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a sweep, made or to be made."""

    name: str
    """Name of its directory, such as `learning_rate=5e-05,seed=12345`."""
    overrides: tuple[str, ...]
    """Values for `finetune --set`."""
    settings: finetuning.FinetuningConfig
    fold: str | None = None
    """Name of the fold that it is scored on, where there are several."""


def plan_runs(settings: sweeps.SweepConfig, command: Command) -> list[Run]:
    """All runs of a sweep: the whole grid with the first seed, then with the next; with
    each seed, on the first fold, then on the next.

    Raises:
        InputError: a key or value that `FinetuningConfig` refuses, a repeated one, or a
            key whose values cannot be compared.
    """
    for key in settings.grid:
        _check_key(key)
    first_seed = command.settings().seed
    runs: dict[str, Run] = {}
    restarts = range(settings.num_restarts)
    names = [fold.name for fold in command.folds] or [None]
    points = itertools.product(*settings.grid.values())
    for restart, fold, values in itertools.product(restarts, names, points):
        point = dict(zip(settings.grid, values, strict=True))
        run = _plan_run(command, point, seed=first_seed + restart, fold=fold)
        if run.name in runs:
            raise InputError(f"`grid`: {run.name} is in it twice")
        runs[run.name] = run
    return list(runs.values())


def _check_key(key: str) -> None:
    if key == "seed":
        raise InputError(
            "`grid.seed`: a seed is nothing to choose by: set `num_restarts`, and the "
            "first seed with --set seed=N"
        )
    if {key, key.split(".")[0]}.intersection(_FIXED_KEYS):
        raise InputError(
            f"`grid.{key}`: its values would be scored on different questions: make a "
            "sweep for each"
        )


def _plan_run(
    command: Command, point: Mapping[str, Any], *, seed: int, fold: str | None
) -> Run:
    given = [f"{key}={json.dumps(value)}" for key, value in point.items()]
    settings = command.settings([*given, f"seed={seed}"])
    # As in the configuration, where 5e-5, text to YAML, is a number.
    pairs = {key: value_of(settings, key) for key in point} | {"seed": seed}
    in_name = pairs if fold is None else {"fold": fold, **pairs}
    name = ",".join(
        f"{key}={urllib.parse.quote(show(value), safe='+')}"
        for key, value in in_name.items()
    )
    if len(name) > MAX_NAME_LENGTH:
        raise InputError(
            f"`grid`: a run's directory would be called {name[:60]}..., {len(name)} "
            f"characters, at most {MAX_NAME_LENGTH} are possible: give what does not "
            "vary with --set"
        )
    return Run(
        name=name,
        overrides=tuple(f"{key}={json.dumps(value)}" for key, value in pairs.items()),
        settings=settings,
        fold=fold,
    )


def value_of(settings: strict.StrictModel, key: str) -> Any:
    """The value of a dotted key."""
    value: Any = settings
    for name in key.split("."):
        value = getattr(value, name)
    return value


def show(value: Any) -> str:
    """A grid's value for names and tables: `16`, `5e-05`, `true`."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text.removesuffix(".0") if isinstance(value, float) else text


def merge_plans(
    earlier: Sequence[Run], planned: Sequence[Run]
) -> tuple[list[Run], list[Run]]:
    """Reuses the runs of an earlier grid in the same directory.

    Returns:
        `planned`, with the earlier run wherever one has the same configuration; and the
        other earlier runs.
    """

    def identity(run: Run) -> tuple[str | None, str]:
        return run.fold, run.settings.model_dump_json()

    known = {identity(run): run for run in earlier}
    merged = [known.pop(identity(run), run) for run in planned]
    return merged, list(known.values())
