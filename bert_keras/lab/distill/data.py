"""The data of a distillation: its settings, completed, and its texts."""

import operator
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_keras.checkpoints import native, starting_point, weights
from bert_keras.core import files, manifest
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.data import corpora
from bert_keras.kinds import catalogue, registry, splits
from bert_keras.kinds.kind import Labelled
from bert_keras.kinds.text import text, text_forms
from bert_keras.labelled import data_report, dataset, tokenized
from bert_keras.training import finetune
from bert_keras.training.finetuning import job as tuning

INHERITED_SETTINGS = ("task", "columns", "regression", "multi_label", "positive_label")
INHERITED_SETTINGS += ("span", "max_seq_length", "long_texts", "window_stride")
INHERITED_SETTINGS += ("document_context",)
"""Settings of a task's inputs that are the teacher's unless they are set."""

_TASK_SETTINGS = ("task", "regression", "multi_label", "positive_label", "long_texts")
_TASK_SETTINGS += ("window_stride", "document_context", "span", "class_weights")
_TASK_SETTINGS += ("embedding", "label_smoothing", "bilstm_units", "dropout_prob")
_TASK_SETTINGS += ("keep", "early_stopping")
_TASK_SETTINGS += ("distillation.soft_weight", "distillation.hard_weight")
"""Settings without a meaning for plain texts."""


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
    """Returns the settings, with the teacher's values where they are not set.

    Raises an `InputError` for settings that mean nothing for this teacher.
    """
    # 1. The inputs are those that the teacher was tuned with, or plain texts.
    has_answers = is_tuned(teacher)
    if teacher.task.feature_layers:
        raise InputError(f"{path}: reads `feature_layers`: take a teacher without them")
    unread = [f"`{key}`" for key in _TASK_SETTINGS if _is_set(settings, key)]
    unread += ["--labels"] if has_labels else []
    if unread and not has_answers:
        raise InputError(
            f"{path}: the teacher is not tuned, so its student learns from plain "
            f"texts: leave {unread[0]} out"
        )
    if has_answers:
        theirs = native.tuning_settings(teacher)
        inherited = theirs.model_dump(include={*INHERITED_SETTINGS})
        requested = settings.model_dump(exclude_unset=True)
        nested = {k: inherited[k] | requested.get(k, {}) for k in ("columns", "span")}
        settings = finetuning.FinetuningConfig(**(inherited | requested | nested))
        if (kind := catalogue.task_kind(settings)) != teacher.task.kind:
            raise InputError(
                f"{path}: the teacher is for {teacher.task.kind}, but the task "
                f"{settings.task} is {kind}: take a teacher that was tuned on it"
            )
    # 2. The student learns answers, and labels if there are any; without answers it
    # learns relations.
    requested = settings.distillation
    defaults = {
        "soft_weight": float(has_answers),
        "hard_weight": float(has_labels),
        "relation_weight": float(not has_answers),
    }
    missing = {k: v for k, v in defaults.items() if getattr(requested, k) is None}
    losses = requested.model_copy(update=missing)
    settings = settings.model_copy(update={"distillation": losses})
    # 3. What is set must be read by a loss, and something must be learnt.
    has_probabilities = losses.soft_weight and teacher.task.kind != "regression"
    for key, is_read, why in (
        ("feature_layers", False, "is not for `distill`: leave it out"),
        ("lora_rank", False, "is not for `distill`: leave it out"),
        ("class_weights", has_labels, "is for labels: give --labels too"),
        ("label_smoothing", has_labels, "is for labels: give --labels too"),
        (
            *("distillation.hard_weight", has_labels),
            "is for labels of the training file: give --labels too",
        ),
        (
            *("distillation.relation_heads", losses.relation_weight),
            "does nothing without `distillation.relation_weight`: give that too, or "
            "leave it out",
        ),
        (
            *("distillation.temperature", has_probabilities),
            "is for probabilities that a tuned teacher gives: leave it out",
        ),
    ):
        if _is_set(settings, key) and not is_read:
            raise InputError(f"`{key}` {why}")
    if has_labels and not losses.hard_weight:
        raise InputError("--labels with `distillation.hard_weight` 0: leave one out")
    if not (losses.soft_weight or losses.relation_weight):
        raise InputError(
            "nothing is learnt from the teacher: `soft_weight` and `relation_weight` "
            "of `distillation` are 0"
        )
    return settings


def _is_set(settings: finetuning.FinetuningConfig, key: str) -> bool:
    value_of = operator.attrgetter(key)
    value, default = value_of(settings), value_of(finetuning.FinetuningConfig())
    return bool(value) and value != default


def read_data(
    settings: finetuning.FinetuningConfig,
    teacher: weights.Checkpoint,
    student: weights.Checkpoint,
    path: str | Path,
    train: str | Path,
    dev: Sequence[str | Path],
) -> tuple[tuning.Inputs, dataset.Inputs, dict[str, Any]]:
    """Reads the data that a student learns from and is evaluated on.

    Returns the run's inputs, those of `train`, with labels if the student learns from
    them, and all facts that the teacher's logits depend on.
    """
    # 1. Facts that a resumed run must find unchanged.
    has_labels = bool(settings.distillation.hard_weight)
    is_plain = not is_tuned(teacher)
    if (part := splits.calibration_part(settings)) and (is_plain or not has_labels):
        raise InputError(
            f"--calibrate {part.name} is a part of a labelled training file: give "
            "--labels, or leave it out"
        )
    is_corpus = is_plain and corpora.is_corpus(train)
    listing = files.join(train, manifest.MANIFEST_NAME) if is_corpus else train
    recorded = {
        "train_sha256": splits.file_hash(listing),
        "dev_sha256": splits.file_hashes(dev),
        "has_labels": has_labels,
        "teacher_sha256": starting_point.digest(teacher, teacher.arrays),
        "student_sha256": starting_point.digest(student, student.arrays),
    }
    # 2. Plain texts, or the examples of the teacher's task.
    if is_plain:
        task, dev_examples, report = tasks.Task(kind="encoder"), [], None
        inputs = plain_inputs(train, teacher, settings)
        num_train_examples = len(inputs.counts)
    else:
        task, examples = _examples(settings, teacher, path, train, dev)
        trained, *dev_examples = examples
        inputs, num_train_examples = trained.inputs, len(trained.data)
        report = data_report.describe(examples, settings, kind=task.kind)
    run = tuning.Inputs(
        bert_config=student.bert_config,
        vocabulary=teacher.vocabulary,
        do_lower_case=teacher.do_lower_case,
        kind=registry.find(task.kind),
        task=task,
        metric=catalogue.find(settings).main_metric(settings, task.labels),
        num_train_examples=num_train_examples,
        dev=dev_examples,
        recorded=recorded,
        data_report=report,
    )
    # 3. Facts that the teacher's logits depend on: data, weights, precision, and the
    # settings of inputs; the seed decides which share of the examples is read.
    names = {*INHERITED_SETTINGS, "precision", "lengths", "train_fraction"}
    names |= {"calibration_fraction"}
    names |= set() if settings.train_fraction == 1 else {"seed"}
    facts = {
        "train_sha256": recorded["train_sha256"],
        "teacher_sha256": recorded["teacher_sha256"],
        "held_out": splits.parse_split(dev),
        **settings.model_dump(mode="json", include=names),
    }
    # Questions whose answers have no place have no labels, so they are left out.
    if has_labels and task.kind == "span":
        facts["has_labels"] = True
    return run, inputs, facts


def _examples(
    settings: finetuning.FinetuningConfig,
    teacher: weights.Checkpoint,
    path: str | Path,
    train: str | Path,
    dev: Sequence[str | Path],
) -> tuple[tasks.Task, list[tuning.Examples]]:
    """Returns the student's task, and the examples to train on and to evaluate on."""
    theirs, kind = teacher.task, registry.labelled(teacher.task.kind)
    if settings.distillation.hard_weight:
        described, names, data = splits.read(kind, train, dev, settings)
        unknown = [x for x in described.labels or () if x not in (theirs.labels or ())]
        if theirs.labels is not None and unknown:
            raise InputError(
                f"{train}: {len(unknown)} labels that the teacher {path} does not "
                f"have: {', '.join(unknown[:3])} (it has "
                f"{', '.join(theirs.labels[:5])}): take a teacher tuned on these labels"
            )
        has_pairs = _check_pairs(data[0], theirs, path)
    elif splits.parse_split(dev):
        raise InputError(
            f"--dev {dev[0]} is a part of a labelled training file: give --labels, or "
            "a file of its own"
        )
    else:
        texts = catalogue.read(train, settings, has_labels=False)
        has_pairs = _check_pairs(texts, theirs, path)
        data = [
            splits.fraction(texts, settings.train_fraction, seed=settings.seed),
            *(catalogue.read(p, settings, has_text_pair=has_pairs) for p in dev),
        ]
        names = [files.path(name).name for name in (train, *dev)]
    is_form = settings.task in tasks.FORMS
    task = theirs.model_copy(
        update={
            "bilstm_units": settings.bilstm_units,
            "name": theirs.name or (None if is_form else settings.task),
            "has_text_pair": has_pairs,
        }
    )
    catalogue.check_settings(settings)
    finetune.check_settings(kind, settings, task, teacher.bert_config, dev=data[1])
    return task, [
        tuning.Examples(name, d, d.encode(task, teacher.tokenizer, settings))
        for name, d in zip(names, data, strict=True)
    ]


def _check_pairs(data: dataset.Dataset, theirs: tasks.Task, path: str | Path) -> bool:
    """Whether texts to train on are pairs, as the teacher's must be."""
    has_pairs = theirs.has_text_pair
    if isinstance(data, text_forms.TextDataset):
        has_pairs = data.rows[0].text_pair is not None
    if native.recognizes(files.path(path)) and has_pairs != theirs.has_text_pair:
        kinds = ("single texts", "pairs of texts")
        raise InputError(
            f"{data.path}: {kinds[has_pairs]}, but the teacher {path} was tuned on "
            f"{kinds[theirs.has_text_pair]}"
        )
    return has_pairs


def plain_inputs(
    path: str | Path, teacher: weights.Checkpoint, settings: finetuning.FinetuningConfig
) -> tokenized.WindowedInputs:
    """Returns the tokens of plain texts, which are not held in memory themselves."""
    texts = plain_texts(path, settings)
    if settings.train_fraction != 1:
        keys = (f"{text}\0" for text in plain_texts(path, settings))
        rows = splits.chosen_rows(keys, settings.train_fraction, seed=settings.seed)
        numbers = set(rows.tolist())
        texts = (text for number, text in enumerate(texts) if number in numbers)
    windows = tokenized.cut(
        texts,
        teacher.tokenizer,
        max_seq_length=settings.max_seq_length,
        # End to end: every token of a text is read once.
        stride=settings.max_seq_length,
    )
    if not len(windows.counts):
        raise InputError(f"{path}: expected a text a line, found none")
    return windows


def plain_texts(
    path: str | Path, settings: finetuning.FinetuningConfig
) -> Iterator[str]:
    """Yields plain texts: lines, paragraphs, or a column of a table (read whole)."""
    if corpora.is_corpus(path):
        corpus = manifest.read_manifest(path, kind="documents")
        manifest.verify_shards(path, corpus, hashes=False)
        for shard in corpus.shards:
            for document in corpora.read_shard(files.join(path, shard.name)):
                yield from map(" ".join, document["paragraphs"])
    elif files.path(path).suffix.lower() in (".tsv", ".csv", ".jsonl", ".parquet"):
        for row in text.read_texts(
            path, settings.columns, has_text_pair=False, has_label=False
        ):
            yield row.text
    else:
        for line in files.read_lines(path):
            if line.strip():
                yield line.removesuffix("\n").removesuffix("\r")
