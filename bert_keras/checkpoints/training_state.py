"""Checkpoints: everything that a training step depends on, in one file.

A checkpoint is an `.npz` archive: the model's weights and counters and the optimizer's
variables, each under an explicit name, and under `checkpoint/...` what is to be known
of the file itself. Keras's own formats leave some counters out and skip in silence what
does not match, so a run resumed from them goes another way.
"""

import dataclasses
import itertools
import logging
import math
import re
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np

from bert_keras.checkpoints import npz_files
from bert_keras.errors import InputError

logger = logging.getLogger(__name__)

# Keras counts seed generators up over the life of a process unless they have a name.
_COUNTED_NAME = re.compile(r"(^|/)seed_generator(_\d+)?/")


def named_variables(
    model: keras.Model, optimizer: keras.optimizers.Optimizer
) -> dict[str, keras.Variable]:
    """All variables of a training, by a name that is the same in every process.

    A name is what the variable is for and its path, so neither the order in which
    layers are made nor what else the process has made changes it. The model, its
    layers, its seed generators and the optimizer must have names of their own.

    Raises:
        ValueError: a seed generator without a name, or two variables of one path.
    """
    named = {}
    for prefix, variables in (
        ("non_trainable", model.non_trainable_variables),
        ("weights", model.trainable_variables),
        ("optimizer", optimizer.variables),
    ):
        for variable in variables:
            name = f"{prefix}/{variable.path}"
            if name in named or _COUNTED_NAME.search(variable.path):
                raise ValueError(
                    "a variable needs a path of its own that is the same in every "
                    f"process, got {variable.path!r}: name its layer or seed generator"
                )
            named[name] = variable
    return named


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What a checkpoint says of itself, besides the variables."""

    score: float = math.nan
    """Evaluation loss; NaN: not evaluated."""
    scores_since: int = 0
    """Step after which scores can be compared with this one."""
    is_interim: bool = False
    """Whether it was made because the run had to stop, not because one was due."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The facts as they stand in the file."""
        return {
            "checkpoint/score": np.array(self.score, np.float64),
            "checkpoint/scores_since": np.array(self.scores_since, np.int64),
            "checkpoint/is_interim": np.array(self.is_interim, np.bool_),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Facts":
        """The inverse of `arrays`; other names are not looked at."""
        return cls(
            score=float(arrays["checkpoint/score"]),
            scores_since=int(arrays["checkpoint/scores_since"]),
            is_interim=bool(arrays["checkpoint/is_interim"]),
        )


_NO_FACTS = Facts()


def save_state(
    path: str | Path,
    variables: Mapping[str, keras.Variable],
    *,
    facts: Facts = _NO_FACTS,
) -> None:
    """Writes the variables' values; the file appears whole or not at all.

    Raises:
        InputError: the disk is full or does not let us write.
    """
    values = (
        (name, keras.ops.convert_to_numpy(variable))
        for name, variable in variables.items()
    )
    npz_files.write_arrays(path, itertools.chain(facts.arrays().items(), values))


def restore_state(path: str | Path, variables: Mapping[str, keras.Variable]) -> Facts:
    """Sets the variables to a file's values and returns its facts.

    Nothing is changed before the whole file was read and found right.

    Raises:
        archive.UnreadableArchive: it is not a whole archive.
        InputError: it holds other names, shapes or types than the variables.
    """
    expected = {
        name: npz_files.ArrayHeader(
            shape=tuple(value.shape), dtype=np.dtype(value.dtype)
        )
        for name, value in (_NO_FACTS.arrays() | dict(variables)).items()
    }
    headers, arrays = npz_files.read_arrays_like(path, expected)
    if arrays is None:
        raise InputError(f"{path}: {_differences(headers, expected)}")
    for name, variable in variables.items():
        variable.assign(arrays[name])
    return Facts.from_arrays(arrays)


def _differences(
    found: Mapping[str, npz_files.ArrayHeader],
    expected: Mapping[str, npz_files.ArrayHeader],
) -> str:
    names = [
        name
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
    ]
    described = []
    for name in names[:10]:
        there, here = found.get(name), expected.get(name)
        if there and here and there.shape == here.shape:
            there, here = there.dtype, here.dtype
        else:
            there, here = (side.shape if side else "nothing" for side in (there, here))
        described.append(f"{name}: {there} in the file, {here} here")
    return (
        f"a checkpoint of another model, {len(names)} variables differ: "
        + "; ".join(described)
        + "; give the configuration that it was made with, or another directory"
    )


def steps_to_keep(facts: Mapping[int, Facts], *, keep: int, keep_best: int) -> set[int]:
    """Which of a run's checkpoints stay.

    Those of a run that was broken off and taken up again are in the end those of one
    that was not.

    Args:
        facts: of each checkpoint, by step.
        keep: how many of the newest stay, at least 1. Interim ones do not count and
            do not stay, unless one is the newest of all.
        keep_best: how many of the lowest scores stay besides.
    """
    due = sorted(step for step, fact in facts.items() if not fact.is_interim)
    return {max(facts), *due[-keep:], *_best_first(facts)[:keep_best]}


def _best_first(facts: Mapping[int, Facts]) -> list[int]:
    """Steps with a score, lowest score first, and of equal scores the earliest."""
    since = max((fact.scores_since for fact in facts.values()), default=0)
    scored = [
        (fact.score, step)
        for step, fact in facts.items()
        if fact.scores_since == since and not math.isnan(fact.score)
    ]
    return [step for _, step in sorted(scored)]


class CheckpointDirectory:
    """The numbered checkpoints of a run, the newest and the best few kept.

    Args:
        directory: of the checkpoints; the chief makes it if it is not there.
        keep: how many of the newest to keep, at least 1.
        keep_best: how many of the lowest scores to keep besides.
        is_chief: whether this process writes and deletes; there is one that does.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        keep: int,
        keep_best: int = 0,
        is_chief: bool = True,
    ):
        self._directory = Path(directory)
        self._keep = keep
        self._keep_best = keep_best
        self._is_chief = is_chief
        self._facts: dict[int, Facts] = {}
        self._step = 0
        self._scores_since = 0
        if is_chief:
            self._directory.mkdir(parents=True, exist_ok=True)

    def paths(self) -> list[Path]:
        """The checkpoints, oldest first."""
        return [self._path(step) for step in self._steps()]

    def latest_step(self) -> int:
        """The newest checkpoint's step, from its name alone; 0 if there is none."""
        return max(self._steps(), default=0)

    def latest_name(self) -> str:
        """The newest checkpoint's path, for messages; `"none"` if there is none."""
        return str(max(self.paths(), default="none"))

    def best(self) -> Path | None:
        """The checkpoint of the lowest score; `None` if none has one."""
        steps = _best_first(self._facts_up_to(self.latest_step()))
        return self._path(steps[0]) if steps else None

    def forget_scores(self) -> None:
        """Scores from here on are not compared with those before.

        Here is the step that was saved or restored last; it is written into the
        checkpoints that follow, and so outlasts this process.
        """
        self._scores_since = self._step

    def save(
        self,
        step: int,
        variables: Mapping[str, keras.Variable],
        *,
        score: float | None = None,
        is_interim: bool = False,
    ) -> Path:
        """Writes the state after `step` steps, then drops what need not stay.

        Args:
            step: of the state.
            variables: see `named_variables`.
            score: evaluation loss; `None`: not evaluated.
            is_interim: the run has to stop at a step where no checkpoint is due; this
                one goes when the next one is there.

        Returns:
            Its path, also if this process does not write.

        Raises:
            InputError: the disk is full or does not let us write.
        """
        path = self._path(step)
        self._step = step
        if not self._is_chief:
            return path
        self._delete_partial_files()
        facts = Facts(
            score=math.nan if score is None else score,
            scores_since=self._scores_since,
            is_interim=is_interim,
        )
        save_state(path, variables, facts=facts)
        self._facts[step] = facts
        self._delete_old(step)
        for later in self._steps():
            # It could not be read when the run was taken up, and must not be taken for
            # its newest the next time.
            if later > step:
                self._path(later).unlink()
        return path

    def restore_latest(self, variables: Mapping[str, keras.Variable]) -> int:
        """Restores the newest checkpoint and returns its step; 0 if there is none.

        One that cannot be read is passed over, with a warning, for the one before.

        Raises:
            InputError: none of them can be read, or the newest that can belongs to
                another model.
        """
        reasons = []
        for step in reversed(self._steps()):
            try:
                facts = restore_state(self._path(step), variables)
            except npz_files.UnreadableArchive as error:
                logger.warning("%s; trying the checkpoint before it", error)
                reasons.append(str(error))
                continue
            logger.info("resuming after step %d from %s", step, self._path(step))
            self._step, self._scores_since = step, facts.scores_since
            if self._is_chief:
                # The writer may have been killed before it did.
                self._delete_old(step)
            return step
        if reasons:
            raise InputError(
                f"{self._directory}: none of its {len(reasons)} checkpoints can be "
                f"read: {reasons[0]}; bring back a copy, or delete them to begin anew"
            )
        return 0

    def _path(self, step: int) -> Path:
        return self._directory / f"step-{step:010}.npz"

    def _steps(self) -> list[int]:
        names = (path.name for path in self._directory.glob("step-*.npz"))
        matches = (re.fullmatch(r"step-(\d{10})\.npz", name) for name in names)
        return sorted(int(match[1]) for match in matches if match)

    def _facts_up_to(self, last_step: int) -> dict[int, Facts]:
        """Of the checkpoints up to a step; each file is read once."""
        steps = [step for step in self._steps() if step <= last_step]
        for step in steps:
            if step not in self._facts:
                self._facts[step] = _read_facts(self._path(step))
        return {step: self._facts[step] for step in steps}

    def _delete_old(self, step: int) -> None:
        facts = self._facts_up_to(step)
        kept = steps_to_keep(facts, keep=self._keep, keep_best=self._keep_best)
        for old in facts.keys() - kept:
            self._path(old).unlink()

    def _delete_partial_files(self) -> None:
        """Those of killed writers: there is only one writer, and it is not writing."""
        for partial in self._directory.glob(".step-*.tmp"):
            partial.unlink()


def _read_facts(path: Path) -> Facts:
    try:
        return Facts.from_arrays(npz_files.read_arrays(path, _NO_FACTS.arrays()))
    except npz_files.UnreadableArchive:
        # Nothing is known of it, so it stays as long as others without a score.
        return _NO_FACTS
