"""A comparison of models is a sweep whose first axis is the model."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from bert_keras.core.errors import InputError
from bert_keras.core.settings import sweeps
from bert_keras.kinds import catalogue
from bert_keras.lab.sweep import baselines, drawings, planning
from bert_keras.lab.sweep import directory as sweep_directory


def plan(
    command: planning.Command,
    models: Sequence[str],
    *,
    from_scratch: bool = False,
    fractions: Sequence[float] = (0.01, 0.1, 1.0),
    num_seeds: int = 3,
) -> tuple[sweeps.SweepConfig, planning.Command]:
    """Returns the sweep that compares models on shares of the labels, for `run_sweep`.

    Args:
        from_scratch: whether to train the first model from random weights, too.
        fractions: shares of the training file, above 0 and at most 1.
    """
    for fraction in fractions:
        if not 0 < fraction <= 1:
            raise InputError(
                f"--fractions: expected shares above 0, at most 1, got {fraction:g}"
            )
    if num_seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {num_seeds}")
    base = command.settings()
    kind = catalogue.task_kind(base)
    if kind not in baselines.NAMES:
        raise InputError(
            f"`compare` is for texts and tagged words, got a task of kind {kind}: "
            "`sweep` takes any"
        )
    if base.train_fraction != 1:
        raise InputError("`train_fraction` is what --fractions says: leave it out")
    values = tuple(sorted({float(fraction) for fraction in fractions}))
    settings = sweeps.SweepConfig(
        grid={drawings.FRACTION_KEY: values}, num_restarts=num_seeds, choose="mean"
    )
    named = name_models(models, from_scratch=from_scratch)
    return settings, dataclasses.replace(command, models=named)


def name_models(
    models: Sequence[str], *, from_scratch: bool
) -> tuple[planning.Model, ...]:
    """Names models by as many of the last parts of their paths as tell them apart."""
    if not models:
        raise InputError("--models: expected one model or more, got none")
    paths = [sweep_directory.absolute(model) for model in models]
    if len({*paths}) < len(paths):
        raise InputError("--models: the same model is given twice: give each once")
    parts = [Path(path).parts for path in paths]
    names = next(
        names
        for count in range(1, max(map(len, parts)) + 1)
        if len({*(names := ["/".join(path[-count:]) for path in parts])}) == len(paths)
    )
    named = [
        planning.Model(name=name, init=path)
        for name, path in zip(names, paths, strict=True)
    ]
    if from_scratch:
        scratch = f"{names[0]}, random"
        if scratch in names:
            raise InputError(
                f"--from_scratch: {scratch!r} is also a model's name: rename its file"
            )
        named += [planning.Model(name=scratch, init=paths[0], from_scratch=True)]
    return tuple(named)
