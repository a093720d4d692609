"""All tasks by name: their files, and how to read one. No TensorFlow.

A task is one of the forms of your own data, `FORMS`, or a data set in its official
folder: those of GLUE by the names in `glue.TASKS`, and `DATASETS`.
"""

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from bert_keras.core import files
from bert_keras.core.errors import InputError, check_choice
from bert_keras.core.settings import finetuning, tasks
from bert_keras.kinds import registry
from bert_keras.kinds.kind import Labelled
from bert_keras.kinds.text import glue
from bert_keras.labelled import dataset


class DatasetFiles(NamedTuple):
    """A data set outside GLUE, with paths relative to its folder."""

    form: str
    train: str
    dev: str


DATASETS: Mapping[str, DatasetFiles] = {
    "SQuAD1.1": DatasetFiles("span", "train-v1.1.json", "dev-v1.1.json"),
    "SQuAD2.0": DatasetFiles("span", "train-v2.0.json", "dev-v2.0.json"),
    "TriviaQA": DatasetFiles(
        "span", "qa/wikipedia-train.json", "qa/wikipedia-dev.json"
    ),
    "SWAG": DatasetFiles("choice", "train.csv", "val.csv"),
    "CoNLL-2003": DatasetFiles("tagging", "eng.train", "eng.testa"),
}

_OTHER_NAMES = {
    **{
        name: kind.form
        for kind in registry.LABELLED.values()
        for name in kind.other_names
    },
    "multi_label": "text --set multi_label=true",
    "regression": "text --set regression=true",
    "squad": "SQuAD1.1",
    "squad2": "SQuAD2.0",
    "squad_v2": "SQuAD2.0",
    "conll2003": "CoNLL-2003",
    "sst2": "SST-2",
    "stsb": "STS-B",
}
"""Names of tasks in other programs, and what to give for them."""

NAMES = (*tasks.FORMS, *glue.TASKS, *DATASETS)
"""Names of all tasks."""


def check_name(name: str) -> None:
    """Raises an `InputError` if `name` is not in `NAMES`."""
    by_lower_case = {known.lower(): known for known in NAMES}
    meant = _OTHER_NAMES.get(name.lower()) or by_lower_case.get(name.lower())
    if name not in NAMES and meant:
        raise InputError(f"no task {name!r}; give --task {meant}")
    check_choice("`task`", name, NAMES)


def task_kind(settings: finetuning.FinetuningConfig) -> tasks.TaskKind:
    name = settings.task
    check_name(name)
    if name in glue.TASKS:
        return "classification" if glue.TASKS[name].labels else "regression"
    form = name if name in tasks.FORMS else DATASETS[name].form
    if form == "text":
        if settings.has_several_labels:
            return "multi_label"
        return "regression" if settings.regression else "classification"
    return cast(tasks.TaskKind, form)


def find(settings: finetuning.FinetuningConfig) -> Labelled:
    """Returns the kind of answers of the task that the settings name."""
    return registry.labelled(task_kind(settings))


def check_settings(settings: finetuning.FinetuningConfig) -> None:
    """Refuses settings that mean something for other kinds of tasks alone."""
    learnt, usual = find(settings), finetuning.FinetuningConfig()
    for other in registry.LABELLED.values():
        for key in other.own_settings if other is not learnt else ():
            value_of = operator.attrgetter(key)
            if value_of(settings) != value_of(usual):
                use = _OTHER_NAMES.get(other.name, other.form)
                raise InputError(
                    f"`{key}` is for --task {use}, got the task {settings.task}: "
                    "leave it out"
                )


def training_files(name: str, directory: str | Path) -> tuple[Path, list[Path]]:
    """Returns the official files to train on and to evaluate on, the main one first.
    The `directory` of a GLUE task is the folder with a folder for each task."""
    check_name(name)
    if name in tasks.FORMS:
        raise InputError(
            f"`{name}` is a form of your own data: give its files with --train and "
            "--dev; --data is for a data set in its official folder"
        )
    if name in glue.TASKS:
        task = glue.TASKS[name]
        if task.train is None:
            raise InputError(
                f"{name} has no training data: fine-tune on {task.same_model_as}; "
                f"`predict --data` with that run answers {name} too"
            )
        paths = glue.find_files(directory, name)
        return paths[task.train], [paths[split] for split in task.dev]
    official = DATASETS[name]
    paths = [files.path(directory) / file for file in (official.train, official.dev)]
    missing = [file.name for file in paths if not file.is_file()]
    if missing:
        raise InputError(
            f"{directory}: no {', '.join(missing)}: expected the folder of {name}; "
            "files of other names go with --train and --dev"
        )
    return paths[0], paths[1:]


def find_training_files(
    name: str,
    *,
    train: str | Path | None = None,
    dev: Sequence[str | Path] | None = None,
    data: str | Path | None = None,
) -> tuple[str | Path, Sequence[str | Path]]:
    """Returns the files to train on and to evaluate on, given or those of `data`."""
    if data is not None and train is None and dev is None:
        return training_files(name, data)
    if data is not None or train is None or dev is None:
        raise InputError(
            "give the files with --train and --dev, or the folder of a data set with "
            "--data"
        )
    return train, dev


def read(
    path: str | Path, settings: finetuning.FinetuningConfig, **options: Any
) -> dataset.Dataset:
    """Reads a file of a task; `options` are those of `Labelled.read`."""
    return find(settings).read(files.path(path), settings, **options)
