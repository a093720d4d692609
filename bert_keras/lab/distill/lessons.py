"""Lessons of a distillation: its settings made whole, and the texts that are learnt."""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_keras.checkpoints import native, run_directory, weights
from bert_keras.core import errors, files, manifest
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning
from bert_keras.kinds import catalogue, held_out_parts, registry
from bert_keras.kinds.kind import Labelled
from bert_keras.kinds.text import text, text_forms
from bert_keras.labelled import data_report, dataset, text_windows
from bert_keras.training.finetuning import run as tuning
from bert_keras.training.finetuning import settings_check

_AS_THE_TEACHER = (
    "task",
    "columns",
    "regression",
    "multi_label",
    "positive_label",
    "max_seq_length",
    "long_texts",
    "window_stride",
    "document_context",
    "span",
)
"""Settings that make inputs of a task: those that are not given are the teacher's."""

_OF_TASKS = (
    *(name for name in _AS_THE_TEACHER if name not in ("columns", "max_seq_length")),
    "class_weights",
    "embedding",
    "label_smoothing",
    "bilstm_units",
    "dropout_prob",
    "keep",
    "early_stopping",
)
"""Settings that mean nothing for plain texts."""


class Lesson(NamedTuple):
    """The validated inputs of a student's training."""

    task: config.Task
    inputs: dataset.Inputs
    """To train on, with labels if they are learnt from."""
    num_train_examples: int
    dev: Sequence[tuning.Examples]
    recorded: dict[str, Any]
    data_report: data_report.DataReport | None
    facts: dict[str, Any]
    """Everything but the teacher that its answers to `inputs` depend on."""


def is_tuned(teacher: weights.Checkpoint) -> bool:
    """Whether a teacher answers a task; vectors of texts are no answers."""
    kind = registry.find(teacher.task.kind)
    return isinstance(kind, Labelled) and "teacher" in kind.accepts


def complete(
    settings: finetuning.FinetuningConfig,
    teacher: weights.Checkpoint,
    path: str | Path,
    *,
    has_labels: bool,
) -> finetuning.FinetuningConfig:
    """The settings with what the teacher decides.

    Args:
        settings: as given.
        teacher: that is learnt from.
        path: of the teacher.
        has_labels: whether labels are learnt from, too.

    Raises:
        InputError: a setting does nothing, or nothing is learnt.
    """
    if is_tuned(teacher):
        settings = _with_inputs_of(settings, teacher, path)
    else:
        _check_for_plain_texts(settings, path, has_labels=has_labels)
    if settings.pack_examples:
        raise InputError("`pack_examples` is not for `distill`: leave it out")
    for key in ("class_weights", "label_smoothing"):
        if getattr(settings, key) and not has_labels:
            raise InputError(f"`{key}` is for labels: give --labels too")
    given = settings.distillation
    defaults = {
        "soft_weight": float(is_tuned(teacher)),
        "hard_weight": float(has_labels),
        "relation_weight": float(not is_tuned(teacher)),
    }
    changes = {k: v for k, v in defaults.items() if getattr(given, k) is None}
    made = given.model_copy(update=changes)
    _check_losses(made, teacher.task, has_labels=has_labels)
    return settings.model_copy(update={"distillation": made})


def _input_settings(settings: finetuning.FinetuningConfig) -> dict[str, Any]:
    """Settings that decide what the teacher reads, and in which precision."""
    names = (*_AS_THE_TEACHER, "precision", "lengths", "train_fraction")
    # Which share it is depends on the seed.
    names += () if settings.train_fraction == 1 else ("seed",)
    values = settings.model_dump(mode="json")
    return {name: values[name] for name in names}


def _with_inputs_of(
    settings: finetuning.FinetuningConfig,
    teacher: weights.Checkpoint,
    path: str | Path,
) -> finetuning.FinetuningConfig:
    theirs = None
    if native.recognizes(files.path(path)):
        theirs = run_directory.read_settings(path, finetuning.FinetuningConfig)
    theirs = theirs or native.tuning_settings(teacher)
    given = settings.model_dump(exclude_unset=True)
    inherited = theirs.model_dump(include={*_AS_THE_TEACHER})
    for name in ("columns", "span"):
        given[name] = inherited[name] | given.get(name, {})
    settings = finetuning.FinetuningConfig(**{**inherited, **given})
    if (kind := catalogue.task_kind(settings)) != teacher.task.kind:
        raise InputError(
            f"{path}: the teacher is for {teacher.task.kind}, but the task "
            f"{settings.task} is {kind}: take a teacher that was tuned on it"
        )
    return settings


def _check_for_plain_texts(
    settings: finetuning.FinetuningConfig, path: str | Path, *, has_labels: bool
) -> None:
    defaults = finetuning.FinetuningConfig()
    found = [k for k in _OF_TASKS if getattr(settings, k) != getattr(defaults, k)]
    weights_of_answers = ("soft_weight", "hard_weight")
    found += [
        f"distillation.{k}"
        for k in weights_of_answers
        if getattr(settings.distillation, k)
    ]
    if has_labels or found:
        raise InputError(
            f"{path}: the teacher is not tuned, so its student learns from plain "
            "texts: " + (f"leave `{found[0]}` out" if found else "leave --labels out")
        )


def _check_losses(
    settings: finetuning.DistillationConfig,
    task: config.Task,
    *,
    has_labels: bool,
) -> None:
    """Raises an `InputError` if a setting does nothing, or all weights are 0."""
    if settings.hard_weight and not has_labels:
        raise InputError(
            "`distillation.hard_weight` is for labels of the training file: give "
            "--labels too"
        )
    if has_labels and not settings.hard_weight:
        raise InputError(
            "--labels with `distillation.hard_weight` 0: leave one of them out"
        )
    needs = {
        "hidden_layers": "hidden_weight",
        "relation_heads": "relation_weight",
        "relation_layer": "relation_weight",
    }
    for key, weight in needs.items():
        if getattr(settings, key) is not None and not getattr(settings, weight):
            raise InputError(
                f"`distillation.{key}` does nothing without `distillation.{weight}`: "
                "give that too, or leave it out"
            )
    if settings.temperature != 1 and (
        not settings.soft_weight or task.kind == "regression"
    ):
        raise InputError(
            "`distillation.temperature` is for probabilities that a tuned teacher "
            "gives: leave it out"
        )
    if not any(
        getattr(settings, f"{name}_weight") for name in ("soft", "hidden", "relation")
    ):
        raise InputError(
            "nothing is learnt from the teacher: `soft_weight`, `hidden_weight` and "
            "`relation_weight` of `distillation` are 0"
        )


def find_files(
    settings: finetuning.FinetuningConfig,
    teacher: weights.Checkpoint,
    *,
    train: str | Path | None,
    dev: Sequence[str | Path] | None,
    data: str | Path | None,
) -> tuple[str | Path, Sequence[str | Path]]:
    """The files to train on and to evaluate on, of plain texts none of the latter.

    Args:
        settings: from `complete`.
        teacher: that is learnt from.
        train: as for `catalogue.find_training_files`.
        dev: likewise.
        data: likewise.
    """
    if is_tuned(teacher):
        return catalogue.find_training_files(
            settings.task, train=train, dev=dev, data=data
        )
    if train is None or dev is not None or data is not None:
        raise InputError(
            "the teacher is not tuned, so its student learns from plain texts: give "
            "them with --train, and neither --dev nor --data"
        )
    return train, ()


def read(
    settings: finetuning.FinetuningConfig,
    teacher: weights.Checkpoint,
    path: str | Path,
    train: str | Path,
    dev: Sequence[str | Path],
    *,
    has_labels: bool,
) -> Lesson:
    """Reads what a student is taught with.

    Args:
        settings: from `complete`.
        teacher: that is learnt from.
        path: of the teacher, for errors.
        train: to train on.
        dev: to evaluate on.
        has_labels: whether labels of `train` are learnt from.

    Raises:
        InputError: a file cannot be read, or is of another task than the teacher's.
    """
    is_plain = not is_tuned(teacher)
    recorded = {
        "train_sha256": held_out_parts.digest(_listing(train) if is_plain else train),
        "dev_sha256": held_out_parts.digests(dev),
        "has_labels": has_labels,
    }
    if is_plain:
        inputs = _plain_inputs(train, teacher, settings)
        task = config.Task(kind="encoder")
        num_texts = len(inputs.windows.counts)
        return Lesson(task, inputs, num_texts, (), recorded, None, {})
    names, data = _read_files(settings, teacher, path, train, dev, has_labels)
    task = teacher.task.model_copy(
        update={
            "bilstm_units": settings.bilstm_units,
            "name": teacher.task.name or _name_of(settings),
            "has_text_pair": _have_pairs(data[0], teacher.task),
        }
    )
    settings_check.check(settings, task, teacher.bert_config)
    examples = [
        tuning.Examples(name, d, d.encode(task, teacher.tokenizer, settings))
        for name, d in zip(names, data, strict=True)
    ]
    return Lesson(
        task=task,
        inputs=examples[0].inputs,
        num_train_examples=len(data[0]),
        dev=examples[1:],
        recorded=recorded,
        data_report=tuning.describe_data(settings, task, examples),
        facts={
            "train_sha256": recorded["train_sha256"],
            "held_out": held_out_parts.part_of(dev),
            **_input_settings(settings),
            # Questions whose answers have no place have no labels: they are left out.
            **({"has_labels": True} if has_labels and task.kind == "span" else {}),
        },
    )


def _name_of(settings: finetuning.FinetuningConfig) -> str | None:
    return None if settings.task in catalogue.FORMS else settings.task


def _have_pairs(data: dataset.Dataset, task: config.Task) -> bool:
    if isinstance(data, text_forms.TextDataset):
        return data.rows[0].text_pair is not None
    return task.has_text_pair


def _read_files(
    settings: finetuning.FinetuningConfig,
    teacher: weights.Checkpoint,
    path: str | Path,
    train: str | Path,
    dev: Sequence[str | Path],
    has_labels: bool,
) -> tuple[Sequence[str], Sequence[dataset.Dataset]]:
    """Names and examples of the training file, then of those to evaluate on."""
    theirs = teacher.task
    if has_labels:
        described, names, data = held_out_parts.read(train, dev, settings)
        unknown = [x for x in described.labels or () if x not in (theirs.labels or ())]
        if theirs.labels is not None and unknown:
            raise InputError(
                f"{train}: {len(unknown)} labels that the teacher {path} does not "
                f"have: {', '.join(unknown[:3])} (it has "
                f"{', '.join(theirs.labels[:5])}): take a teacher tuned on these labels"
            )
        _check_pairs(data[0], theirs, path)
    else:
        if held_out_parts.part_of(dev):
            raise InputError(
                f"--dev {dev[0]} is a part of a labelled training file: give --labels, "
                "or a file of its own"
            )
        taught = catalogue.read(train, settings, has_labels=False)
        share = settings.train_fraction
        has_pairs = _check_pairs(taught, theirs, path)
        data = [
            held_out_parts.fraction(taught, share, seed=settings.seed),
            *(catalogue.read(p, settings, has_text_pair=has_pairs) for p in dev),
        ]
        names = [files.path(name).name for name in (train, *dev)]
    return names, data


def _check_pairs(data: dataset.Dataset, theirs: config.Task, path: str | Path) -> bool:
    """Whether texts to train on are pairs, as those of the teacher must be."""
    has_pairs = _have_pairs(data, theirs)
    if native.recognizes(files.path(path)) and has_pairs != theirs.has_text_pair:
        kinds = ("single texts", "pairs of texts")
        raise InputError(
            f"{data.path}: {kinds[has_pairs]}, but the teacher {path} was tuned on "
            f"{kinds[theirs.has_text_pair]}"
        )
    return has_pairs


def _plain_inputs(
    path: str | Path,
    teacher: weights.Checkpoint,
    settings: finetuning.FinetuningConfig,
) -> text_windows.WindowedInputs:
    """Returns the tokens of plain texts; the texts themselves are not held in memory.

    Raises:
        InputError: see `plain_texts`; or there is no text.
    """
    texts = plain_texts(path, settings)
    if settings.train_fraction != 1:
        keys = (f"{text}\0" for text in plain_texts(path, settings))
        rows = held_out_parts.chosen_rows(
            keys, settings.train_fraction, seed=settings.seed
        )
        numbers = set(rows.tolist())
        texts = (text for number, text in enumerate(texts) if number in numbers)
    windows = text_windows.cut(
        texts,
        teacher.tokenizer,
        max_seq_length=settings.max_seq_length,
        # End to end: every token of a text is read once.
        stride=settings.max_seq_length,
    )
    if not len(windows.counts):
        raise InputError(f"{path}: expected a text a line, found none")
    return text_windows.WindowedInputs(windows=windows, labels={})


def plain_texts(
    path: str | Path, settings: finetuning.FinetuningConfig
) -> Iterator[str]:
    """Reads plain texts one by one.

    They are the lines of a `.txt` file, a column of a table (which is read whole), or
    the paragraphs of a directory that `bert-keras corpus` made.

    Raises:
        InputError: they cannot be read.
    """
    if _is_corpus(path):
        yield from _paragraphs(path)
    elif files.path(path).suffix.lower() in (".tsv", ".csv", ".jsonl"):
        for row in text.read_texts(
            path, settings.columns, has_text_pair=False, has_label=False
        ):
            yield row.text
    else:
        for line in files.read_lines(path):
            if line.strip():
                yield line.removesuffix("\n").removesuffix("\r")


def _is_corpus(path: str | Path) -> bool:
    if not files.is_remote(path):
        return files.path(path).is_dir()
    return files.exists(_manifest_path(path))


def _manifest_path(directory: str | Path) -> str:
    return files.join(directory, manifest.MANIFEST_NAME)


def _listing(path: str | Path) -> str | Path:
    """Returns the file whose hash stands for plain texts: it may list the others'."""
    return _manifest_path(path) if _is_corpus(path) else path


def _paragraphs(directory: str | Path) -> Iterator[str]:
    corpus = manifest.read_manifest(
        directory, kind="documents", verb="bert-keras corpus"
    )
    manifest.verify_shards(directory, corpus, hashes=False)
    for shard in corpus.shards:
        path = files.join(directory, shard.name)
        try:
            with files.open_to_read(path) as file, gzip.open(file) as lines:
                for line in lines:
                    for sentences in json.loads(line)["paragraphs"]:
                        yield " ".join(sentences)
        except (EOFError, zlib.error, ValueError, gzip.BadGzipFile) as error:
            raise InputError(
                f"{path}: damaged: {errors.one_line(error)}; make the corpus again"
            ) from None
