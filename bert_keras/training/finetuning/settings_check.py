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
    long_texts = f"`long_texts` {settings.long_texts}"
    own = "is for your own texts (--task text)"
    has_windows = tasks.reads_windows(settings.long_texts)
    # What one kind alone knows, then what a table knows, then the rest.
    learnt.check(settings, task, bert_config, dev)
    for key, use in _NEEDS:
        is_set = getattr(settings, key) != getattr(usual, key)
        if is_set and key not in learnt.accepts:
            raise InputError(
                f"`{key}` is for {use}, got a task of kind {task.kind}: leave it out"
            )
    if settings.positive_label is not None and task.positive_label is None:
        raise InputError(
            f"`positive_label` {own} with two labels, got the task {settings.task}, "
            f"{task.kind}: leave it out"
        )
    for key in ("multi_label", "regression"):
        if getattr(settings, key) and settings.task != "text":
            raise InputError(
                f"`{key}` {own}, got the task {settings.task}: leave it out"
            )
    if has_windows and "windows" not in learnt.accepts:
        raise InputError(
            f"{long_texts} is not for a task of kind {task.kind}: take cut or head_tail"
        )
    if has_windows and task.has_text_pair:
        raise InputError(
            f"{long_texts} is for single texts, got pairs: take cut or head_tail"
        )
