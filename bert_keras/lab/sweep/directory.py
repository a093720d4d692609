"""The directory of a sweep, and the facts in it about its runs.

`runs/NAME` are run directories of `finetune`, `logs/NAME.log` the output of their
processes, `plan.json` all runs ever planned in it.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bert_keras.checkpoints import run_directory
from bert_keras.core import files, manifest
from bert_keras.core.errors import InputError
from bert_keras.kinds import catalogue, registry, splits
from bert_keras.lab.sweep import planning, scores
from bert_keras.labelled import answers


def run_path(directory: Path, name: str) -> Path:
    return directory / "runs" / name


def claim(directory: Path, command: planning.Command) -> None:
    """Claims a directory for a new sweep or the same one.

    Grids, models and seeds may change; data and other settings may not, nor the
    checkpoint unless models are compared.
    """
    made_by = {"made_by": f"bert-keras {'compare' if command.models else 'sweep'}"}
    data: dict[str, Any] = {
        "train_sha256": [splits.file_hash(fold.train) for fold in command.folds],
        "dev_sha256": [splits.file_hashes(fold.dev) for fold in command.folds],
    }
    if command.has_folds:
        data["folds"] = [fold.name for fold in command.folds]
    else:
        data = {key: hashes for key, (hashes,) in data.items()}
    start = {"init": planning.absolute(command.init)}
    start = {} if command.models else start | {"from_scratch": command.from_scratch}
    settings = command.settings().model_dump(mode="json", exclude={"seed"})
    manifest.claim_output_directory(directory, made_by | data | start | settings)
    for name in ("runs", "logs"):
        files.make_directory(directory / name)


def read_outcomes(
    directory: Path, runs: Iterable[planning.Run], *, metric: str
) -> dict[str, scores.Outcome]:
    """Returns the outcomes of the finished ones of some runs, by name."""
    outcomes = {}
    for run in runs:
        path = run_path(directory, run.name)
        results, records = run_directory.read_results(path), None
        if results is None:
            continue
        path /= run_directory.ANSWERS_NAME
        if path.is_file():
            kind = registry.labelled(catalogue.task_kind(run.settings))
            loaded = answers.read_answers(path, kind.record)
            if answers.are_finite(loaded):
                records = [record.model_dump() for record in loaded]
        outcomes[run.name] = scores.judge(run, results, records, metric=metric)
    return outcomes


def check_same_inputs(directory: Path, outcomes: Iterable[scores.Outcome]) -> None:
    """Refuses to compare finished runs that started with different data or weights.

    The directory was claimed for the same paths; their contents may have changed since.
    """
    first: dict[tuple[str, str | None], tuple[str, Any]] = {}
    for run in (outcome.run for outcome in outcomes if outcome.evaluation):
        path = run_path(directory, run.name) / run_directory.INPUTS_NAME
        values = files.read_json(path)
        model = run.model and run.model.name
        for key, group in (
            ("dev_sha256", run.fold),
            ("init_sha256", model),
            ("train_sha256", run.fold),
        ):
            name, value = first.setdefault((key, group), (run.name, values.get(key)))
            if values.get(key) != value:
                raise InputError(
                    f"{directory}: `{key}` of {run.name} is not that of {name}: the "
                    "data or the checkpoint has changed since; choose another directory"
                )
