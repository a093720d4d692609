"""The directory of a sweep, and the facts in it about its runs.

`runs/NAME` are run directories of `finetune`, `logs/NAME.log` the output of their
processes, `plan.json` all runs ever planned in it.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic

from bert_keras.checkpoints import run_directory
from bert_keras.core import files, manifest
from bert_keras.core.errors import InputError, check_choice
from bert_keras.core.settings import fields, finetuning, strict
from bert_keras.kinds import catalogue, held_out_parts, registry
from bert_keras.lab.sweep import planning, scores
from bert_keras.labelled import answers

_PLAN_NAME = "plan.json"


def run_path(directory: Path, name: str) -> Path:
    """The directory of a run."""
    return directory / "runs" / name


def log_path(directory: Path, name: str) -> Path:
    """The output of a run's process."""
    return directory / "logs" / f"{name}.log"


def claim(directory: Path, command: planning.Command) -> None:
    """Makes a directory that of a sweep, or resumes the same sweep in it.

    All runs share the data, the checkpoint and the settings outside of the grid; grids
    and seeds may change.

    Raises:
        InputError: it holds something else, or another sweep; or a file of the data
            cannot be read.
    """
    init = command.init
    settings = {
        "made_by": "bert-keras sweep",
        **_digests(command),
        "init": init if files.is_remote(init) else os.path.abspath(init),
        "from_scratch": command.from_scratch,
        **command.settings().model_dump(mode="json", exclude={"seed"}),
    }
    manifest.claim_output_directory(directory, settings)
    for name in ("runs", "logs"):
        files.make_directory(directory / name)


def _digests(command: planning.Command) -> dict[str, Any]:
    """SHA-256 of the data; of each fold, if there are several."""
    if not command.folds:
        return {
            "train_sha256": held_out_parts.digest(command.train),
            "dev_sha256": held_out_parts.digests(command.dev),
        }
    return {
        "train_sha256": [held_out_parts.digest(fold.train) for fold in command.folds],
        "dev_sha256": [held_out_parts.digests(fold.dev) for fold in command.folds],
        "folds": [fold.name for fold in command.folds],
    }


class _PlannedRun(strict.StrictModel):
    # It leads out of no directory.
    name: Annotated[
        str,
        pydantic.Field(
            max_length=planning.MAX_NAME_LENGTH, pattern=r"^[\w.]+=[\w.,=%+~-]+$"
        ),
    ]
    overrides: tuple[str, ...]
    settings: finetuning.FinetuningConfig
    fold: str | None = None


class _Plan(strict.StrictModel):
    """Content of the plan's file."""

    keys: tuple[str, ...]
    runs: tuple[_PlannedRun, ...]


def read_plan(directory: Path) -> tuple[list[str], list[planning.Run]]:
    """Keys of all grids so far, and their runs; both empty for a new directory."""
    path = directory / _PLAN_NAME
    if not path.is_file():
        return [], []
    plan = strict.build_config(_Plan, files.read_json(path), origin=path)
    known = [key for key, _ in fields.walk(finetuning.FinetuningConfig)]
    for key in plan.keys:
        check_choice(f"{path}: a key", key, known)
    runs = [
        planning.Run(
            name=run.name,
            overrides=run.overrides,
            settings=run.settings,
            fold=run.fold,
        )
        for run in plan.runs
    ]
    return list(plan.keys), runs


def write_plan(
    directory: Path, keys: Sequence[str], runs: Sequence[planning.Run]
) -> None:
    """Writes the plan for `read_plan`."""
    described = [
        {
            "name": run.name,
            "overrides": run.overrides,
            "settings": run.settings.model_dump(mode="json"),
            "fold": run.fold,
        }
        for run in runs
    ]
    plan = {"keys": list(keys), "runs": described}
    files.write_json(directory / _PLAN_NAME, plan, indent=1)


def has_begun(directory: Path, name: str) -> bool:
    """Whether a run ever started: its data and checkpoint were accepted."""
    return (run_path(directory, name) / run_directory.TASK_NAME).is_file()


def read_outcome(
    directory: Path, run: planning.Run, *, metric: str
) -> scores.Outcome | None:
    """The outcome of a run; `None`: it is not finished.

    Raises:
        InputError: it has no such metric, or a damaged file.
    """
    path = run_path(directory, run.name)
    results = run_directory.read_results(path)
    if results is None:
        return None
    answered = None
    if (path / run_directory.ANSWERS_NAME).is_file():
        records = answers.read_answers(
            path / run_directory.ANSWERS_NAME,
            registry.labelled(catalogue.task_kind(run.settings)).record,
        )
        if answers.are_finite(records):
            answered = [record.model_dump() for record in records]
    return scores.judge(run, results, answered, metric=metric)


def check_same_inputs(directory: Path, runs: Iterable[planning.Run]) -> None:
    """Refuses to compare runs that did not start with the same data and weights.

    The directory was claimed for the same paths; their contents may have changed since.

    Args:
        directory: of the sweep.
        runs: that are finished; those of one fold have the same data.

    Raises:
        InputError: the first two that differ, and the difference.
    """
    first: dict[tuple[str, str | None], tuple[str, Any]] = {}
    for run in runs:
        path = run_path(directory, run.name) / run_directory.INPUTS_NAME
        values = files.read_json(path)
        for key in _SAME_INPUTS:
            fold = None if key == "init_sha256" else run.fold
            name, value = first.setdefault((key, fold), (run.name, values.get(key)))
            if values.get(key) != value:
                raise InputError(
                    f"{directory}: `{key}` of {run.name} is not that of {name}: the "
                    "data or the checkpoint has changed since; choose another directory"
                )


_SAME_INPUTS = ("dev_sha256", "init_sha256", "train_sha256")
