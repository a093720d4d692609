"""Checkpoints: everything that a training step depends on, in one file.

A checkpoint is a safetensors file with hashes: the model's weights and counters and the
optimizer's variables, each under an explicit name. Facts about the checkpoint are in
the metadata. Keras's own formats omit some counters and silently skip what does not
match, so a run resumed from them takes another course.

`scores.json` has the losses of evaluations, each of a checkpoint that was saved before.
"""

import dataclasses
import functools
import logging
import math
import re
from collections.abc import Callable, Collection, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pydantic

from bert_keras.checkpoints.containers import safetensors_files
from bert_keras.core import files, ownership
from bert_keras.core.errors import InputError

logger = logging.getLogger(__name__)

SCORES_NAME = "scores.json"

AssignableVariable = Any
"""A variable of an engine, such as Keras's: with `shape`, `dtype` and `assign`."""


def named_variables(model: Any, optimizer: Any) -> dict[str, Any]:
    """Names all variables of a training, in every process alike.

    A name is the variable's role and path, so it depends neither on the order in which
    layers are made nor on other objects of the process. The model, its layers, its seed
    generators and the optimizer must have explicit names, or a `ValueError` is raised.
    """
    # Keras numbers unnamed seed generators throughout the life of a process.
    counted = re.compile(r"(^|/)seed_generator(_\d+)?/")
    named = {}
    for prefix, variables in (
        ("non_trainable", model.non_trainable_variables),
        ("weights", model.trainable_variables),
        ("optimizer", optimizer.variables),
    ):
        for variable in variables:
            name = f"{prefix}/{variable.path}"
            if name in named or counted.search(variable.path):
                raise ValueError(
                    "a variable needs a path of its own that is the same in every "
                    f"process, got {variable.path!r}: name its layer or seed generator"
                )
            named[name] = variable
    return named


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    step: int
    """Number of steps made."""
    scores_since: int = 0
    """Step since which scores are comparable with this one."""
    is_interim: bool = False
    """Whether the checkpoint was saved because the run stopped, and not on schedule."""


_NAME = re.compile(r"step-(\d{10})\.safetensors")
_NAME_OF_STEP = "step-{:010}.safetensors"


def is_state(path: Path) -> bool:
    """Whether a path has the name of a checkpoint of a run, and is a file."""
    return _NAME.fullmatch(path.name) is not None and path.is_file()


def save_state(
    path: str | Path,
    variables: Mapping[str, AssignableVariable | np.ndarray],
    *,
    facts: Facts,
) -> None:
    # The score is computed after the file is written: see `SCORES_NAME`.
    metadata = {"step": facts.step, "score": math.nan} | vars(facts)
    safetensors_files.write(
        path,
        safetensors_files.layouts_of(variables),
        variables.items(),
        has_hashes=True,
        metadata={key: str(value) for key, value in metadata.items()},
    )


def copy_of(variables: Mapping[str, AssignableVariable]) -> dict[str, np.ndarray]:
    # An array may share memory with its variable.
    return {name: np.asarray(value).copy() for name, value in variables.items()}


def open_state(path: str | Path) -> tuple[safetensors_files.SafetensorsFile, Facts]:
    """Opens a checkpoint; its name must agree with the number of steps in it."""
    file = safetensors_files.SafetensorsFile(path, needs_hashes=True)
    try:
        facts = pydantic.TypeAdapter(Facts).validate_strings(file.metadata)
    except pydantic.ValidationError:
        raise safetensors_files.DamagedFile(
            f"{path}: expected the state of a training, found other tensors"
        ) from None
    match = _NAME.fullmatch(files.name_of(path))
    if match and int(match[1]) != facts.step:
        raise InputError(
            f"{path}: has the state after {facts.step} steps, not what its name says: "
            f"rename it to {_NAME_OF_STEP.format(facts.step)}, or restore the right "
            "file"
        )
    return file, facts


def restore_state(
    path: str | Path, variables: Mapping[str, AssignableVariable]
) -> Facts:
    """Sets the variables to a file's values and returns its facts. No variable changes
    before the whole file was read and verified."""
    file, facts = open_state(path)
    layouts, expected = file.layouts, safetensors_files.layouts_of(variables)
    names = sorted(dict(layouts.items() ^ expected.items()))
    described = []
    for name in names[:10]:
        there, here = layouts.get(name), expected.get(name)
        if there and here and there.shape == here.shape:
            there, here = there.dtype, here.dtype
        else:
            there, here = (side.shape if side else "nothing" for side in (there, here))
        described.append(f"{name}: {there} in the file, {here} here")
    if described:
        raise InputError(
            f"{path}: a checkpoint of another model, {len(names)} variables differ: "
            + "; ".join(described)
            + "; give the configuration that it was made with, or another directory"
        )
    arrays = {name: file.read(name) for name in variables}
    for name, variable in variables.items():
        variable.assign(arrays[name])
    return facts


@dataclasses.dataclass(eq=False)
class CheckpointDirectory:
    """The numbered checkpoints of a run; the newest and the best few are kept, the same
    ones in an interrupted and resumed run as in an uninterrupted one."""

    directory: dataclasses.InitVar[str | Path]
    _: dataclasses.KW_ONLY
    keep: int
    """Number of the newest to keep, at least 1. Interim ones do not count and do not
    stay, unless one is the newest of all."""
    keep_best: int = 0
    """Number of the lowest scores to keep as well."""
    always: Collection[int] = ()
    """Steps whose checkpoints are kept in any case."""
    is_chief: bool = True
    """Whether this is the one process that writes and deletes."""
    owner: ownership.Owner | None = None
    """Owner of the run directory, checked before each write or deletion."""
    writer: futures.Executor | None = None
    """With one thread, which writes while the caller goes on; `None`: the caller waits.
    Shutting the writer down waits for pending writes."""
    before_writing: Callable[[], None] = lambda: None
    """Called before a checkpoint or a score is written, to write what a resumed run
    could not make again."""
    step: int = dataclasses.field(default=0, init=False)
    """Steps of the state that was saved or restored last."""

    def __post_init__(self, directory: str | Path):
        self._directory = files.path(directory)
        self._unwritten: list[futures.Future] = []
        self._facts: dict[int, Facts] = {}
        self._unreadable: list[int] = []
        self._scores_since = 0
        if self.is_chief:
            self._directory.mkdir(parents=True, exist_ok=True)

    def paths(self) -> list[Path]:
        self.wait()
        return [self._path(step) for step in self._steps()]

    def best(self) -> Path | None:
        """Returns the checkpoint with the lowest score; `None`: none has a score."""
        self.wait()
        scores = self._comparable(self._facts_up_to(max(self._steps(), default=0)))
        return self._path(next(iter(scores))) if scores else None

    def scores(self) -> dict[int, float]:
        """Returns the scores of the checkpoints up to the one restored, by step."""
        return self._comparable(self._facts_up_to(self.step))

    def forget_scores(self) -> None:
        """Excludes the scores so far from later comparisons. Later checkpoints store
        the boundary, the last step saved or restored, so it survives this process."""
        self._scores_since = self.step

    def has_score(self, step: int) -> bool:
        """Whether the state after `step` steps, saved or restored, was evaluated."""
        return step in self._scores

    def record_score(self, step: int, score: float) -> None:
        """Notes the evaluation loss of the last saved state, if `step` is its step."""
        # A score serves to choose a checkpoint, and another step's state has none.
        if step != self.step:
            return

        def write_scores() -> None:
            steps = self._steps()
            scores = {str(k): v for k, v in self._scores.items() if k in steps}
            files.write_json(self._directory / SCORES_NAME, scores)
            self._delete_old(step)

        # Another dict, because the writer may be reading this one.
        self._scores = self._scores | {step: None if math.isnan(score) else score}
        if self.is_chief:
            self._write_soon(write_scores)

    def check(self) -> None:
        # `result` raises here, in the thread of the training, what the writer raised.
        while self._unwritten and self._unwritten[0].done():
            self._unwritten.pop(0).result()

    def wait(self) -> None:
        """Waits until all is written; raises the errors that `check` raises."""
        futures.wait(self._unwritten)
        self.check()

    def _write_soon(self, write: Callable[[], None]) -> None:
        def write_as_owner() -> None:
            if self.owner is not None:
                self.owner.check()
            self.before_writing()
            write()

        if self.writer is None:
            write_as_owner()
        else:
            self._unwritten.append(self.writer.submit(write_as_owner))

    def save(
        self,
        step: int,
        variables: Mapping[str, AssignableVariable],
        *,
        is_interim: bool = False,
    ) -> Path:
        """Writes the state after `step` steps, then deletes surplus checkpoints.
        Returns the path, also in a process that does not write. If `is_interim`, the
        run has to stop where none is due; the next checkpoint replaces this one."""
        # One copy of the state in memory is enough.
        self.wait()
        self.step = step
        if not self.is_chief:
            return self._path(step)
        facts = Facts(step=step, scores_since=self._scores_since, is_interim=is_interim)
        # The training changes its variables while the writer works.
        values = variables if self.writer is None else copy_of(variables)

        def write() -> None:
            # Left by killed writers: the only writer is here, and not writing.
            for partial in self._directory.glob(".step-*.tmp"):
                partial.unlink()
            # Before the write: the resumed run may write a checkpoint of the same name.
            # Later ones must not count as the newest the next time.
            while self._unreadable:
                self.set_aside(self._unreadable.pop())
            if later := [other for other in self._steps() if other > step]:
                raise InputError(
                    f"{self._path(later[-1])}: is newer than step {step}, and was not "
                    "there when this run began: another run wrote it, or the disk did "
                    "not show it; nothing was saved over it: run the same command "
                    "again to resume from it"
                )
            save_state(self._path(step), values, facts=facts)
            self._facts[step] = facts
            # The write took its time, in which another process may have taken over.
            if self.owner is not None:
                self.owner.check()
            self._delete_old(step)

        self._write_soon(write)
        return self._path(step)

    @functools.cached_property
    def _scores(self) -> dict[int, float | None]:
        """Scores by step; `None`: not a finite number."""
        path = self._directory / SCORES_NAME
        try:
            scores = pydantic.TypeAdapter(dict[int, float | None])
            return scores.validate_json(files.read_bytes(path))
        except FileNotFoundError:
            return {}
        except ValueError:
            logger.warning("%s: damaged; it counts as empty", path)
            return {}

    def restore_latest(self, variables: Mapping[str, AssignableVariable]) -> int:
        """Restores the newest undamaged checkpoint and returns its step; 0: no
        checkpoint. Raises `InputError` if all are damaged, that one belongs to another
        model, or the disk does not answer."""
        damaged: dict[int, str] = {}
        for step in reversed(self._steps()):
            try:
                facts = restore_state(self._path(step), variables)
            except safetensors_files.DamagedFile as error:
                logger.warning("%s; trying the checkpoint before it", error)
                damaged[step] = str(error)
                continue
            logger.info("resuming after step %d from %s", step, self._path(step))
            self.step, self._scores_since = step, facts.scores_since
            self._facts[step] = facts
            self._unreadable = [*damaged]
            # Later ones belong to checkpoints that are damaged.
            self._scores = {k: v for k, v in self._scores.items() if k <= step}
            if self.is_chief:
                # The writer may have been killed before deleting them.
                self._delete_old(step)
            return step
        if damaged:
            raise InputError(
                f"{self._directory}: none of its {len(damaged)} checkpoints can be "
                f"read: {[*damaged.values()][0]}; restore a copy, or delete them to "
                "start over"
            )
        return 0

    def restore(self, step: int, variables: Mapping[str, AssignableVariable]) -> bool:
        """Restores a checkpoint; returns whether it is whole, else nothing changes."""
        try:
            restore_state(self._path(step), variables)
        except safetensors_files.DamagedFile as error:
            logger.warning("%s", error)
            return False
        return True

    def _path(self, step: int) -> Path:
        return self._directory / _NAME_OF_STEP.format(step)

    def _steps(self) -> list[int]:
        # `Path.glob` finds nothing in a directory that it may not read: the run would
        # begin again.
        names = files.list_directory(self._directory)
        matches = (_NAME.fullmatch(name) for name in names)
        return sorted(int(match[1]) for match in matches if match)

    def _facts_up_to(self, last_step: int) -> dict[int, Facts]:
        """Returns facts about the undamaged checkpoints up to a step; reads each file
        once. The chief sets damaged ones aside."""
        facts_by_step = {}
        for step in [step for step in self._steps() if step <= last_step]:
            try:
                if step not in self._facts:
                    _, self._facts[step] = open_state(self._path(step))
            except safetensors_files.DamagedFile as error:
                logger.warning("%s", error)
                if self.is_chief:
                    self.set_aside(step)
                continue
            facts_by_step[step] = self._facts[step]
        return facts_by_step

    def _comparable(self, facts: Mapping[int, Facts]) -> dict[int, float]:
        """Returns scores by step, lowest first; of equal scores the earliest."""
        # The boundary only moves forward, so the greatest one is the latest.
        since = max((fact.scores_since for fact in facts.values()), default=0)
        # A snapshot: the writer may be here while the run notes another score.
        scored = [
            (score, step)
            for step, score in self._scores.items()
            # A run that was not interrupted has no interim ones.
            if score is not None
            and step in facts
            and facts[step].scores_since == since
            and not facts[step].is_interim
        ]
        return {step: score for score, step in sorted(scored)}

    def set_aside(self, step: int) -> None:
        """Renames a damaged checkpoint, so that people can look at it."""
        path = self._path(step)
        taken = files.list_directory(self._directory)
        names = (f"{path.name}.damaged{n}" for n in ("", *range(2, 1000)))
        name = next(name for name in names if name not in taken)
        path.rename(path.with_name(name))
        logger.warning("%s: damaged; renamed to %s", path, name)

    def _delete_old(self, step: int) -> None:
        facts = self._facts_up_to(step)
        due = sorted(step for step, fact in facts.items() if not fact.is_interim)
        best = [*self._comparable(facts)][: self.keep_best]
        stay = {max(facts), *due[-self.keep :], *best, *self.always}
        for old in facts.keys() - stay:
            self._path(old).unlink()
