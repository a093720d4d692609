"""Which runs a sweep makes. No files, no processes."""

import itertools
import json
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_keras import config, config_files
from bert_keras.errors import InputError

# Their values would be scored on different questions.
_FIXED_KEYS = ("task", "columns", "regression")


@dataclass(frozen=True, kw_only=True)
class Command:
    """What the `bert-keras finetune` commands of a sweep have in common."""

    train: str
    dev: tuple[str, ...]
    init: str
    task: str | None = None
    from_scratch: bool = False
    recipe: str | None = None
    """A file or the name of a recipe, of `--config`."""
    overrides: tuple[str, ...] = ()
    """Of `--set`."""
    strategy: str = "auto"

    def arguments(self, overrides: Iterable[str], output_dir: str) -> list[str]:
        """The arguments of `bert-keras` for one run, with further overrides."""
        options = {
            "--task": self.task,
            "--train": self.train,
            "--init": self.init,
            "--config": self.recipe,
            "--strategy": self.strategy,
            "--output_dir": output_dir,
        }
        arguments = ["finetune"]
        for option, value in options.items():
            arguments += [] if value is None else [option, value]
        arguments += ["--dev", *self.dev]
        arguments += ["--from_scratch"] if self.from_scratch else []
        for override in (*self.overrides, *overrides):
            arguments += ["--set", override]
        return arguments

    def settings(self, overrides: Iterable[str] = ()) -> config.FinetuningConfig:
        """What such a run is configured with.

        Raises:
            InputError: a file, key or value that cannot be used.
        """
        task = [] if self.task is None else [f"task={self.task}"]
        return config_files.load(
            config.FinetuningConfig,
            self.recipe,
            [*task, *self.overrides, *overrides],
        )


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a sweep, made or to be made."""

    name: str
    """Of its directory, such as `learning_rate=5e-05,seed=12345`."""
    overrides: tuple[str, ...]
    """For `finetune --set`."""
    settings: config.FinetuningConfig


def plan_runs(settings: config.SweepConfig, command: Command) -> list[Run]:
    """All runs of a sweep: the whole grid with the first seed, then with the next.

    Raises:
        InputError: a key or value that `FinetuningConfig` does not take, one that is
            there twice, or a key whose values cannot be compared.
    """
    for key in settings.grid:
        _check_key(key)
    first_seed = command.settings().seed
    runs: dict[str, Run] = {}
    for restart in range(settings.num_restarts):
        for values in itertools.product(*settings.grid.values()):
            point = dict(zip(settings.grid, values, strict=True))
            run = _plan_run(command, point, seed=first_seed + restart)
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
    if key.split(".")[0] in _FIXED_KEYS:
        raise InputError(
            f"`grid.{key}`: its values would be scored on different questions: make a "
            "sweep for each"
        )


def _plan_run(command: Command, point: Mapping[str, Any], *, seed: int) -> Run:
    given = [f"{key}={json.dumps(value)}" for key, value in point.items()]
    settings = command.settings([*given, f"seed={seed}"])
    # As the configuration has them: 5e-5, which YAML takes for text, is a number there.
    pairs = {key: value_of(settings, key) for key in point} | {"seed": seed}
    return Run(
        name=",".join(
            f"{key}={urllib.parse.quote(show(value), safe='+')}"
            for key, value in pairs.items()
        ),
        overrides=tuple(f"{key}={json.dumps(value)}" for key, value in pairs.items()),
        settings=settings,
    )


def value_of(settings: config.StrictModel, key: str) -> Any:
    """The value of a dotted key."""
    value: Any = settings
    for name in key.split("."):
        value = getattr(value, name)
    return value


def show(value: Any) -> str:
    """A value of a grid in names and tables: `16`, `5e-05`, `true`."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text.removesuffix(".0") if isinstance(value, float) else text


def merge_plans(
    earlier: Sequence[Run], planned: Sequence[Run]
) -> tuple[list[Run], list[Run]]:
    """Takes up the runs that another grid left in the same directory.

    Args:
        earlier: of the directory.
        planned: of the new grid.

    Returns:
        `planned`, where what is configured as an earlier run is that run; and the
        earlier runs that are not in it.
    """
    known = {run.settings.model_dump_json(): run for run in earlier}
    merged = [known.pop(run.settings.model_dump_json(), run) for run in planned]
    return merged, list(known.values())
