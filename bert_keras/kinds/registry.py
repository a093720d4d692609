"""All kinds of answers by name: the only list of them."""

from typing import TYPE_CHECKING, Any

from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, tasks
from bert_keras.kinds import choice, masked_words, ranking, span, tagging, text, vectors
from bert_keras.kinds.kind import Kind, Labelled

if TYPE_CHECKING:
    import keras

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        masked_words.MaskedWords(),
        vectors.Encoder(),
        text.Classification(),
        text.MultiLabel(),
        text.Regression(),
        tagging.Tagging(),
        span.Span(),
        choice.Choice(),
        vectors.Embedding(),
        ranking.Ranking(),
    )
}

KERAS_CLASSES = {
    f"{type(kind).__module__}.network": kind.keras_classes
    for kind in KINDS.values()
    if kind.keras_classes
}
"""Classes of kinds that a `.keras` file may hold, by module."""

LABELLED = {n: kind for n, kind in KINDS.items() if isinstance(kind, Labelled)}
"""Kinds that are learnt from labelled examples: runs of `finetune`."""


def find(name: tasks.TaskKind) -> Kind:
    return KINDS[name]


def labelled(name: tasks.TaskKind) -> Labelled:
    """Returns a kind that is learnt from labelled examples, or raises an
    `InputError`."""
    if name not in LABELLED:
        raise InputError(f"expected a model for a task, got a model for {name}")
    return LABELLED[name]


def numbered_task(kind: tasks.TaskKind, num_labels: int) -> tasks.Task:
    """Returns a task without names of classes; one class makes it a regression."""
    if kind == "classification" and num_labels == 1:
        kind = "regression"
    facts = KINDS[kind]
    return tasks.Task(
        kind=kind,
        labels=tuple(str(i) for i in range(num_labels)) if facts.has_labels else None,
        has_text_pair=facts.has_text_pair,
    )


def build_network(
    bert_config: architecture.BertConfig, task: tasks.Task, **options: Any
) -> "keras.Model":
    """Builds the network of a task; `options` are those of `Kind.build`."""
    return find(task.kind).build(bert_config, task, **options)
