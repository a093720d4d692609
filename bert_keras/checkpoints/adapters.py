"""Merges the low-rank changes of an adapter into the weights of its base."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bert_keras.checkpoints import starting_point, weights
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.kinds import registry


def merge(
    changes: weights.Checkpoint,
    base: weights.Checkpoint,
    *,
    path: str | Path,
    base_path: str | Path,
) -> weights.Checkpoint:
    """Returns the whole model of an adapter and its base, whose arrays are summed when
    they are read. The head is the base's if the adapter has none. Another base than the
    training's is an `InputError`, which names the paths of both."""
    adapter, own, task = changes.adapter, changes.arrays, changes.task
    kind = registry.find(task.kind)
    begun = starting_point.tuning_arrays(base, task, transfers_head=kind.transfers_head)
    if adapter.base_sha256 not in (None, starting_point.digest(base, begun)):
        raise InputError(
            f"{path}: was trained on another base than {base_path}: weights, sizes or "
            "vocabulary differ; give the base of the training"
        )
    parts = kind.parts
    if any(name.startswith("head/") for name in own):
        parts = tuple(part for part in parts if part != "head/")
    theirs = weights.part(base.arrays, lambda name: name.startswith(parts))
    # A copy of the base may have taken its place.
    adapter = adapter.model_copy(update={"base": str(base_path)})
    return dataclasses.replace(
        changes,
        arrays=with_changes(theirs, own, adapter),
        adapter=None,
        changes=dataclasses.replace(changes, adapter=adapter),
    )


def with_changes(
    base: Mapping[str, np.ndarray],
    own: Mapping[str, np.ndarray],
    adapter: tasks.Adapter,
) -> weights.Arrays:
    """Returns the arrays of a base and an adapter's own, summed as they are read."""

    def read(name: str) -> np.ndarray:
        first, second = (name.replace("/kernel", f"/lora_kernel_{x}") for x in "ab")
        if first == name or first not in own:
            return own[name] if name in own else base[name]
        change = np.ascontiguousarray(own[first]) @ np.ascontiguousarray(own[second])
        return base[name] + np.float32(adapter.alpha / adapter.rank) * change

    names = (name for name in (*base, *own) if "/lora_kernel_" not in name)
    return weights.Arrays(read, {name: name for name in names})
