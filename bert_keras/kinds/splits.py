"""Parts of a training file: one held out for evaluation, `--dev 10%`, one to learn.

The subject of an example alone decides its part. So parts are the same on every machine
and in any order, and duplicates are in one part. No TensorFlow.
"""

import hashlib
import logging
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.kinds.kind import Labelled
from bert_keras.labelled import dataset

logger = logging.getLogger(__name__)

_Dataset = TypeVar("_Dataset", bound=dataset.Dataset)


class Part(NamedTuple):
    """Examples of a training file whose `number_of` their keys are in an interval."""

    name: str
    """As it was given: `10%`, or `2/5` for the second of five folds."""
    begin: float
    """From 0, included."""
    end: float
    """To 1, not included."""
    option: str = "--dev"

    def holds(self, key: str) -> bool:
        """Returns whether examples with `key` belong to the part. The parts of one
        option may be parted again by another one."""
        salt = "" if self.option == "--dev" else f"{self.option} "
        number = number_of(f"{salt}{key}")
        return self.begin * 2.0**64 <= number < self.end * 2.0**64


def parse_split(dev: Sequence[str | Path]) -> Part | None:
    """Returns the part of the training file that `dev[0]` names; `None`: it is a file.

    A part is a share in percent, such as `10%`, or a fold: `1/5` to `5/5` are five
    parts that have each example once. No part is empty or the whole file.
    """
    for path in dev[1:]:
        if _is_part(path):
            raise InputError(
                f"--dev: a share of the training file comes first, got {path} after "
                f"{dev[0]}"
            )
    if dev and _NUMBER.fullmatch(str(dev[0])) and not Path(dev[0]).is_file():
        share = float(str(dev[0]))
        percent = f"{100 * share if share < 1 else share:g}%"
        raise InputError(
            f"--dev {dev[0]}: no such file; {percent} of the training file is held "
            f"out by --dev {percent}"
        )
    if not dev or not _is_part(dev[0]):
        return None
    name = str(dev[0])
    if fold := _FOLD.fullmatch(name):
        number, num_folds = map(int, fold.groups())
        if not 1 <= number <= num_folds or num_folds < 2:
            raise InputError(
                f"--dev: expected a fold of two or more, such as 1/5 to 5/5, got {name}"
            )
        return Part(name, (number - 1) / num_folds, number / num_folds)
    return Part(name, 0.0, parse_share(name, "--dev"))


def parse_share(text: str, option: str) -> float:
    """Returns the share that a percentage such as `10%` names, between 0 and 1."""
    is_percent = text.endswith("%") and _NUMBER.fullmatch(text[:-1])
    share = float(text[:-1]) / 100 if is_percent else 0.0
    if not 0 < share < 1:
        raise InputError(
            f"{option}: expected a share above 0% and below 100%, such as 10%, got "
            f"{text}"
        )
    return share


def _is_part(path: str | Path) -> bool:
    if not isinstance(path, str) or Path(path).is_file():
        return False
    return path.endswith("%") or _FOLD.fullmatch(path) is not None


_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?")
_FOLD = re.compile(r"([0-9]+)/([0-9]+)")


def file_hashes(dev: Sequence[str | Path]) -> list[str]:
    """Returns the hash of each development file, and the name of a part."""
    parse_split(dev)
    return [str(path) if _is_part(path) else file_hash(path) for path in dev]


def display_names(train: str | Path, dev: Sequence[str | Path]) -> list[str | Path]:
    """Returns names for people: a part of another file is named after that file."""
    return [f"{train}, {path} held out" if _is_part(path) else path for path in dev]


def file_hash(path: str | Path) -> str:
    """Returns the SHA-256 of a data file, or raises an `InputError`."""
    try:
        return files.sha256(files.path(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def number_of(key: str) -> int:
    """Returns a number below 2^64; all are equally likely."""
    # Surrogates that stand for broken bytes are no valid UTF-8.
    digest = hashlib.sha256(key.encode("utf-8", errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big")


class Files(NamedTuple):
    task: tasks.Task
    """The task that the whole training file describes, held-out examples included."""
    names: tuple[str, ...]
    """Display names: the training file first, then the evaluation files."""
    data: tuple[dataset.Dataset, ...]
    """The examples of each file. The training file has the share `train_fraction` of
    the examples that are not held out."""


def read(
    kind: Labelled,
    train: str | Path,
    dev: Sequence[str | Path],
    settings: finetuning.FinetuningConfig,
) -> Files:
    whole = kind.read(files.path(train), settings)
    # Before any is left out: its labels are known then.
    task = whole.for_training().describe()
    # Before any is held out, so that these examples are in no part of --dev.
    if part := calibration_part(settings):
        total, (whole, apart) = len(whole), split(whole, part)
        said = "%s: %d of %d examples set aside to calibrate"
        logger.info(said, train, len(apart), total)
    data = [whole.for_training()]
    names = [files.path(path).name for path in (train, *dev)]
    if part := parse_split(dev):
        trained, evaluated = split(whole, part)
        data = [trained.for_training(), evaluated]
        names[1] = f"{names[0]}, {dev[0]} held out"
        logger.info(
            "%s: %d of %d examples held out, by a hash of what they are about",
            *(train, len(evaluated), len(whole)),
        )
    data[0] = fraction(data[0], settings.train_fraction, seed=settings.seed)
    data += [
        kind.read(files.path(path), settings, has_text_pair=task.has_text_pair)
        # A part of the training file, the first of `dev`, is in `data` already.
        for path in dev[len(data) - 1 :]
    ]
    return Files(task, tuple(names), tuple(data))


def fraction(data: _Dataset, share: float, *, seed: int) -> _Dataset:
    """Returns a share of the examples, rounded up, in their order.

    With the same seed a smaller share is part of a larger one. Labels are as frequent
    as chance has it: a balanced share would be better data than one has. `share` is
    above 0 and at most 1.
    """
    if share == 1:
        return data
    return data.subset(chosen_rows(data.keys(), share, seed=seed).tolist())


def chosen_rows(keys: Iterable[str], share: float, *, seed: int) -> np.ndarray:
    """Returns the numbers of the examples of `fraction`, ascending."""
    numbers = np.fromiter((number_of(f"{seed}\0{key}") for key in keys), np.uint64)
    # 0.07 * 100 is a little above 7; one example is there however small the share.
    count = max(1, math.ceil(round(share * len(numbers), 6)))
    return np.sort(np.argsort(numbers, kind="stable")[:count])


def calibration_part(settings: finetuning.FinetuningConfig) -> Part | None:
    """Returns the part that `--calibrate` sets aside; `None`: no part."""
    share = settings.calibration_fraction
    return Part(f"{100 * share:g}%", 0.0, share, "--calibrate") if share else None


def split(data: _Dataset, part: Part) -> tuple[_Dataset, _Dataset]:
    """Returns the examples to train on, and the held-out ones."""
    keys = data.keys()
    rows: tuple[list[int], list[int]] = [], []
    for row, key in enumerate(keys):
        rows[part.holds(key)].append(row)
    if not all(rows):
        raise InputError(
            f"{data.path}: of {len(keys)} examples, which are about {len(set(keys))} "
            f"different things, {part.option} {part.name} holds {len(rows[1])} "
            "out: give another part, or a file"
        )
    return data.subset(rows[0]), data.subset(rows[1])
