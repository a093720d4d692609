"""Refuses settings of a fine-tuning that mean nothing for its task."""

from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, finetuning, tasks
from bert_keras.kinds import kind
from bert_keras.labelled import dataset

_NEEDS: tuple[tuple[kind.Option, str], ...] = (
    ("class_weights", "texts with labels"),
    ("label_smoothing", "texts with labels"),
    ("long_texts", "texts"),
)
"""Settings that only some kinds of tasks accept, and their use."""


def check(
    learnt: kind.Labelled,
    settings: finetuning.FinetuningConfig,
    task: tasks.Task,
    bert_config: architecture.BertConfig,
    *,
    dev: dataset.Dataset,
) -> None:
    usual = finetuning.FinetuningConfig()
    learnt.check(settings, task, bert_config, dev)
    for key, use in _NEEDS:
        is_set = getattr(settings, key) != getattr(usual, key)
        if is_set and key not in learnt.accepts:
            raise InputError(
                f"`{key}` is for {use}, got a task of kind {task.kind}: leave it out"
            )
    _check_texts(settings, task)
    _check_windows(settings, task, learnt)


def _check_texts(settings: finetuning.FinetuningConfig, task: tasks.Task) -> None:
    if settings.positive_label is not None and task.positive_label is None:
        raise InputError(
            "`positive_label` is for your own texts (--task text) with two labels, got "
            f"the task {settings.task}, {task.kind}: leave it out"
        )
    for key in ("multi_label", "regression"):
        if getattr(settings, key) and settings.task != "text":
            raise InputError(
                f"`{key}` is for your own texts (--task text), got the task "
                f"{settings.task}: leave it out"
            )


def _check_windows(
    settings: finetuning.FinetuningConfig, task: tasks.Task, learnt: kind.Labelled
) -> None:
    if not tasks.reads_windows(settings.long_texts):
        return
    given = f"`long_texts` {settings.long_texts}"
    if "windows" not in learnt.accepts:
        raise InputError(
            f"{given} is not for a task of kind {task.kind}: take cut or head_tail"
        )
    if task.has_text_pair:
        raise InputError(
            f"{given} is for single texts, got pairs: take cut or head_tail"
        )
