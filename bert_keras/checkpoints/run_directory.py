"""Files of a run directory: everything needed to use a model or to repeat its training.

`config.yaml` (training with it repeats the run), `bert_config.json` with Google's keys,
`vocab.txt`, `tokenizer_config.json`, `task.json` (kind and labels of the task),
`checkpoints/`, `logs/`, and, written last, `model.safetensors`, `environment.json` and
`results.json`; later perhaps `calibration.json`. Only this module knows these names; it
loads no Keras.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic

from bert_keras.core import files, manifest
from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, loading, strict, tasks
from bert_keras.data import tokenization

CONFIG_NAME = "config.yaml"
INPUTS_NAME = manifest.INPUTS_NAME
TASK_NAME = "task.json"
ADAPTER_NAME = "adapter.json"
BERT_CONFIG_NAME = "bert_config.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
VOCABULARY_NAME = "vocab.txt"
CHECKPOINTS_NAME = "checkpoints"
LOGS_NAME = "logs"
"""Event files for TensorBoard, in the directories `train`, `eval` and `panels`."""
WEIGHTS_NAME = "model.safetensors"
RESULTS_NAME = "results.json"
ENVIRONMENT_NAME = "environment.json"
"""What differs between equal runs: seconds, versions, machine, command."""
CALIBRATION_NAME = "calibration.json"
THRESHOLDS = "thresholds"
ANSWERS_NAME = "dev_answers.jsonl"
"""Last evaluation of a fine-tuned run, example by example, for its report."""
TEXT_SAMPLE_NAME = "text_sample.json"
DATA_REPORT_NAME = "data_report.json"
"""Labels, lengths and repeats of a fine-tuning's files, see `tasks.data_report`."""
REPORT_NAME = "report"

VERBS = "pretrain`, `bert-keras finetune` or `bert-keras distill"
"""Commands that make run directories, for messages."""


@dataclass(frozen=True, kw_only=True)
class Run:
    directory: Path
    task: tasks.Task
    bert_config: architecture.BertConfig
    vocabulary: tokenization.Vocabulary
    do_lower_case: bool
    adapter: tasks.Adapter | None = None
    """`None`: the run has all weights of its model."""

    @property
    def tokenizer(self) -> tokenization.Tokenizer:
        return tokenization.Tokenizer(self.vocabulary, do_lower_case=self.do_lower_case)


class _Casing(strict.StrictModel):
    """The part of `tokenizer_config.json` that a run needs; others add keys."""

    model_config = pydantic.ConfigDict(extra="ignore")

    do_lower_case: pydantic.StrictBool


class _Results(strict.StrictModel):
    """The part of `results.json` that is read again; each kind of run adds its own."""

    model_config = pydantic.ConfigDict(extra="ignore")

    steps: int = 0
    seconds: float = 0.0
    num_parameters: int = 0
    skipped_steps: int = 0
    eval: dict[str, float | None] = {}
    eval_baseline: dict[str, float | str | None] | None = None
    environment: dict[str, str | list[str] | None] = {}


def create_run(
    run: Run,
    settings: strict.StrictModel,
    *,
    inputs: Mapping[str, Any],
    changeable: Collection[str] = (),
    in_words: Callable[[str], str | None] = lambda key: None,
) -> None:
    """Creates the directory of a run, or resumes an unfinished one of the same run.

    `inputs` are all else that affects the result: hashes of data and of initial
    weights. `changeable` keys of `settings` do not affect the result and may differ
    when the run is resumed; `phases.*.KEY` means a key of each item of a list. For
    `in_words` see `manifest.claim_output_directory`.
    """

    def decisive(values: Any, prefix: str = "") -> Any:
        if isinstance(values, list):
            return [decisive(item, f"{prefix}*.") for item in values]
        if not isinstance(values, Mapping):
            return values
        names = [key for key in values if prefix + key not in changeable]
        return {key: decisive(values[key], f"{prefix}{key}.") for key in names}

    manifest.claim_output_directory(
        run.directory,
        {**inputs, **flat(settings.model_dump(mode="json"))},
        compared=decisive,
        in_words=in_words,
    )
    describe_run(run, settings)


def describe_run(run: Run, settings: strict.StrictModel | None) -> None:
    """Writes all files but weights and results; `None`: no settings are written."""
    directory = run.directory
    if settings is not None:
        loading.save(settings, directory / CONFIG_NAME)
    _write_json(directory / BERT_CONFIG_NAME, run.bert_config.model_dump())
    casing = {"do_lower_case": run.do_lower_case}
    _write_json(directory / TOKENIZER_CONFIG_NAME, casing)
    run.vocabulary.save(directory / VOCABULARY_NAME)
    if run.adapter is not None:
        _write_json(directory / ADAPTER_NAME, run.adapter.model_dump(mode="json"))
    # Last: its presence means that the description is complete.
    _write_json(directory / TASK_NAME, run.task.model_dump(mode="json"))


def write_results(directory: Path, results: Mapping[str, Any]) -> None:
    """Writes the last file of a run: its presence means that the run is finished.

    Results of equal runs are equal: their seconds and environment are in a file beside.
    """
    names = {"seconds", "environment"} & results.keys()
    environment = {name: results[name] for name in sorted(names)}
    _write_json(directory / ENVIRONMENT_NAME, environment)
    results = {name: part for name, part in results.items() if name not in names}
    _write_json(directory / RESULTS_NAME, results)


def read_results(directory: str | Path) -> dict[str, Any] | None:
    """Reads the results of a finished run and its environment; `None`: unfinished."""
    path = files.path(directory) / RESULTS_NAME
    if not path.is_file():
        return None
    results = files.read_json(path)
    if (environment := path.with_name(ENVIRONMENT_NAME)).is_file():
        results |= files.read_json(environment)
    strict.build_config(_Results, results, origin=path)
    return results


def write_answers(directory: Path, records: Iterable[pydantic.BaseModel]) -> None:
    """Writes the answers to the main dev file, a line each, for the report."""
    lines = (files.to_json(record.model_dump()) + "\n" for record in records)
    files.write_atomically(directory / ANSWERS_NAME, "".join(lines).encode())


def decision_of(results: Mapping[str, Any]) -> tasks.Decision:
    """Returns the thresholds of a finished run, chosen on the main dev file."""
    by_label = results.get(THRESHOLDS, {}).items()
    return tasks.Decision(
        # Null: of a run that diverged.
        label_thresholds={label: v for label, v in by_label if v is not None},
        no_answer_odds=results.get("eval", {}).get("best_f1_thresh") or 0.0,
    )


def weights_digest(directory: Path) -> str:
    """Hashes the header of a run's weights, which has the hash of each of them."""
    with files.open_to_read(directory / WEIGHTS_NAME) as file:
        num_bytes = int.from_bytes(file.read(8), "little")
        return hashlib.sha256(file.read(num_bytes)).hexdigest()


def write_calibration(directory: Path, calibration: tasks.Calibration) -> None:
    """Writes the promise of a finished run, for the weights that the run has now."""
    digest = {"model_sha256": weights_digest(directory)}
    values = calibration.model_copy(update=digest).model_dump(mode="json")
    files.write_json(directory / CALIBRATION_NAME, values)


def read_calibration(directory: str | Path) -> tasks.Calibration | None:
    """Reads the promise of a finished run; `None`: the run has none. Raises an
    `InputError` if it was made for other weights."""
    path = files.path(directory) / CALIBRATION_NAME
    calibration = loading.read_json(tasks.Calibration, path)
    if calibration and calibration.model_sha256 != weights_digest(path.parent):
        raise InputError(
            f"{path}: was made for other weights than those beside it, which were "
            "tuned again since: run `bert-keras calibrate` again, or delete the file"
        )
    return calibration


def read_run(directory: str | Path, **expected: Any) -> Run:
    """Reads the description of a run that is as `expected`, see `read_task`."""
    directory = files.path(directory)
    task = read_task(directory, **expected)
    path = directory / TOKENIZER_CONFIG_NAME
    casing = strict.build_config(_Casing, files.read_json(path), origin=path)
    return Run(
        directory=directory,
        task=task,
        bert_config=loading.read_bert_config(directory / BERT_CONFIG_NAME),
        vocabulary=tokenization.Vocabulary.load(directory / VOCABULARY_NAME),
        do_lower_case=casing.do_lower_case,
        adapter=loading.read_json(tasks.Adapter, directory / ADAPTER_NAME),
    )


def read_task(
    directory: str | Path, *, kinds: Collection[str] = (), verb: str = VERBS
) -> tasks.Task:
    """Reads the task of a run that `verb` makes, one of `kinds`; none: of any."""
    path = files.path(directory) / TASK_NAME
    if not path.is_file():
        raise InputError(
            f"{directory}: expected a run directory made by `bert-keras {verb}`, found "
            + (f"no {TASK_NAME} in it" if path.parent.is_dir() else "no such directory")
        )
    task = strict.build_config(tasks.Task, files.read_json(path), origin=path)
    if kinds and task.kind not in kinds:
        raise InputError(
            f"{directory}: expected a run made by `bert-keras {verb}`, found one for "
            f"{task.kind}"
        )
    return task


def read_settings(
    directory: str | Path, settings_type: type[strict.Config]
) -> strict.Config | None:
    """Reads the settings of a run; `None`: a converted run may have no settings."""
    path = files.path(directory) / CONFIG_NAME
    return loading.load(settings_type, path) if path.is_file() else None


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested values by dotted key, as `--set` names them."""
    flat_values: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat_values |= flat(value, f"{prefix}{key}.")
        else:
            flat_values[prefix + key] = value
    return flat_values


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    files.write_json(path, values, ensure_ascii=False)
