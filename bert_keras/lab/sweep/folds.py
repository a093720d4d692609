"""Folds of a sweep: each run of a point learns from all folds but one."""

import glob
import re
from collections.abc import Sequence
from typing import NamedTuple

from bert_keras.core.errors import InputError
from bert_keras.kinds import catalogue, splits

PLACE = "{fold}"
"""The placeholder for the name of a fold in the names of files."""


class Fold(NamedTuple):
    """The files that the runs of a fold are trained and scored on."""

    name: str
    train: str
    dev: tuple[str, ...]


def find_folds(
    task: str,
    *,
    train: str | None,
    dev: Sequence[str] | None,
    data: str | None,
    num_folds: int | None,
) -> tuple[Fold, ...]:
    """Returns the requested folds; none for a single training and dev file.

    `train`, `dev` and `data` name a file for each fold if they contain `PLACE`. Else
    the training file has `num_folds` parts, by a hash of what its examples are about
    (see `kinds.splits`), each held out in turn.
    """
    if any(PLACE in path for path in (train, data, *(dev or ())) if path):
        if num_folds is not None:
            raise InputError(
                f"`folds` divides one training file, {PLACE} in the names of files "
                "stands for files of folds: give one of them"
            )
        return _find_files_of_folds(task, train, dev, data)
    if num_folds is None:
        return ()
    if dev:
        raise InputError(
            f"`folds` holds each of {num_folds} parts of the training file out in turn:"
            " leave --dev out"
        )
    if train is None and data is not None:
        train = str(catalogue.find_training_files(task, data=data)[0])
    if train is None:
        raise InputError("`folds` divides a training file: give it with --train")
    numbers = range(1, num_folds + 1)
    return tuple(Fold(f"{n}", train, (f"{n}/{num_folds}",)) for n in numbers)


def _find_files_of_folds(
    task: str, train: str | None, dev: Sequence[str] | None, data: str | None
) -> tuple[Fold, ...]:
    pattern = data or train or ""
    if pattern.count(PLACE) != 1:
        raise InputError(
            f"--{'data' if data else 'train'}: expected {PLACE} once, as in --dev, got "
            f"{pattern or 'nothing'}"
        )
    if dev and PLACE not in dev[0] and splits.parse_split(dev) is None:
        # One fold's dev examples would be among the training examples of the others.
        raise InputError(
            f"--dev: expected {PLACE} in the first name, as in --train, got {dev[0]}"
        )
    before, after = pattern.split(PLACE)
    paths = glob.glob(f"{glob.escape(before)}*{glob.escape(after)}")
    names = [path[len(before) : len(path) - len(after)] for path in paths]
    if len(names) < 2:
        raise InputError(
            f"{pattern}: expected such files for two folds or more, found {len(names)}"
        )
    folds = []
    # Numbers in names count by their size: 2 comes before 10.
    order = re.compile(r"(\d+)|(\D+)")
    names.sort(key=lambda name: [(int(d or 0), t) for d, t in order.findall(name)])
    for name in names:
        train_path, dev_paths = catalogue.find_training_files(
            task,
            train=train and train.replace(PLACE, name),
            dev=dev and [path.replace(PLACE, name) for path in dev],
            data=data and data.replace(PLACE, name),
        )
        folds.append(Fold(name, str(train_path), tuple(map(str, dev_paths))))
    return tuple(folds)
