"""A run directory: everything needed to use a model or to repeat its training.

`config.yaml` (training again with it repeats the run), `bert_config.json` in Google's
keys, `vocab.txt`, `tokenizer_config.json`, `task.json` (what the heads answer),
`checkpoints/`, `logs/`, and, written last, `model.weights.h5` and `results.json`.
"""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from bert_keras import config, files, manifest
from bert_keras.checkpoints import training_state
from bert_keras.data import tokenization
from bert_keras.errors import InputError

WEIGHTS_NAME = "model.weights.h5"
RESULTS_NAME = "results.json"
CHECKPOINTS_NAME = "checkpoints"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run directory that was read, without its weights."""

    directory: Path
    task: config.Task
    bert_config: config.BertConfig
    vocabulary: tokenization.Vocabulary
    do_lower_case: bool

    @property
    def tokenizer(self) -> tokenization.Tokenizer:
        """A tokenizer as the run's data had it."""
        return tokenization.Tokenizer(self.vocabulary, do_lower_case=self.do_lower_case)


def create_run(
    directory: str | Path,
    settings: config.StrictModel,
    *,
    task: config.Task,
    bert_config: config.BertConfig,
    vocabulary: tokenization.Vocabulary,
    do_lower_case: bool,
    inputs: Mapping[str, Any],
    changeable: Collection[str] = (),
    is_chief: bool = True,
) -> Run:
    """Makes a run directory, or takes up an unfinished one of the same run.

    Args:
        directory: to make.
        settings: the run's configuration.
        task: what the heads answer.
        bert_config: of the encoder.
        vocabulary: of the encoder.
        do_lower_case: how text was tokenized.
        inputs: what else decides the outcome (hashes of data, weights to start from).
        changeable: keys of `settings` that do not decide it, and so may be others when
            the run is taken up.
        is_chief: whether this process is the one that writes.

    Raises:
        InputError: the directory holds something else, or another run.
    """
    run = Run(
        directory=Path(directory),
        task=task,
        bert_config=bert_config,
        vocabulary=vocabulary,
        do_lower_case=do_lower_case,
    )
    if is_chief:
        decisive = settings.model_dump(mode="json", exclude=set(changeable))
        manifest.claim_output_directory(directory, {**inputs, **_flat(decisive)})
        describe_run(run, settings)
    return run


def describe_run(run: Run, settings: config.StrictModel | None) -> None:
    """Writes all but weights and results; `settings`, if there are any."""
    if settings is not None:
        config.save_config(settings, run.directory / "config.yaml")
    tokenizer_config = {"do_lower_case": run.do_lower_case}
    _write_json(run.directory / "bert_config.json", run.bert_config.model_dump())
    _write_json(run.directory / "tokenizer_config.json", tokenizer_config)
    _write_json(run.directory / "task.json", run.task.model_dump(mode="json"))
    run.vocabulary.save(run.directory / "vocab.txt")


def finish_run(run: Run, network: keras.Model, results: Mapping[str, Any]) -> None:
    """Writes the weights and, last of all, the results."""
    temporary = run.directory / f".partial.{WEIGHTS_NAME}"
    network.save_weights(temporary)
    os.replace(temporary, run.directory / WEIGHTS_NAME)
    _write_json(run.directory / RESULTS_NAME, dict(results))


def read_results(directory: str | Path) -> dict[str, Any] | None:
    """The results of a finished run, `None` of an unfinished one."""
    path = Path(directory) / RESULTS_NAME
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def read_run(
    directory: str | Path,
    *,
    kinds: Collection[str],
    verb: str,
    must_be_finished: bool = True,
) -> Run:
    """Reads a run directory.

    Args:
        directory: made by `verb`.
        kinds: the kinds of task that the reader can use.
        verb: the command to name in errors.
        must_be_finished: whether to refuse one without results, and so without
            weights.

    Raises:
        InputError: no run directory, unfinished, damaged, or of another kind.
    """
    directory = Path(directory)
    if not (directory / "task.json").is_file():
        raise InputError(
            f"{directory}: expected a run directory made by `bert-keras {verb}`, found "
            + ("no task.json in it" if directory.is_dir() else "no such directory")
        )
    task = config.build_config(config.Task, _read_json(directory / "task.json"))
    if task.kind not in kinds:
        raise InputError(
            f"{directory}: a {task.kind} run, expected one made by `bert-keras {verb}`"
        )
    if must_be_finished and read_results(directory) is None:
        best = training_state.CheckpointDirectory(
            directory / CHECKPOINTS_NAME, keep=1, is_chief=False
        ).best()
        raise InputError(
            f"{directory}: the run is not finished; give its command again to resume it"
            + (f", or take its best checkpoint, {best}" if best else "")
        )
    return Run(
        directory=directory,
        task=task,
        bert_config=config.read_bert_config(directory / "bert_config.json"),
        vocabulary=tokenization.Vocabulary.load(directory / "vocab.txt"),
        do_lower_case=_read_json(directory / "tokenizer_config.json")["do_lower_case"],
    )


def load_weights(run: Run, network: keras.Model) -> None:
    """Gives a built network the run's weights.

    Raises:
        InputError: the file is damaged or belongs to another architecture.
    """
    path = run.directory / WEIGHTS_NAME
    try:
        network.load_weights(path)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{path}: not the weights of this model: {reason}") from None


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: expected JSON: {error}") from None


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    files.write_atomically(path, text.encode())
