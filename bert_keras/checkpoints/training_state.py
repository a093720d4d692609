"""Everything that a training step depends on, in one file with explicit names.

A state file is an `.npz` archive: the model's weights, the counters that dropout draws
from, the optimizer's variables and the step. Keras's own formats leave the
counters out, so a run resumed from them goes another way.
"""

import io
import logging
import zipfile
from pathlib import Path

import keras
import numpy as np

from bert_keras import files
from bert_keras.errors import InputError

logger = logging.getLogger(__name__)


def named_variables(
    model: keras.Model, optimizer: keras.optimizers.Optimizer
) -> dict[str, keras.Variable]:
    """All variables of a training, by a name that is the same in every process."""
    named = {}
    # Keras numbers seed generators by how many were made before in the process, so
    # what is not a weight is named by its place.
    for index, variable in enumerate(model.non_trainable_variables):
        named[f"non_trainable/{index}"] = variable
    for variable in model.trainable_variables:
        named[f"weights/{variable.path}"] = variable
    for variable in optimizer.variables:
        named[f"optimizer/{variable.path}"] = variable
    expected = len(model.variables) + len(optimizer.variables)
    if len(named) != expected:
        raise ValueError(
            f"two variables share a path: {expected} variables, {len(named)} names"
        )
    return named


def save_state(path: str | Path, variables: dict[str, keras.Variable]) -> None:
    """Writes the variables' values; the file appears whole or not at all."""
    arrays = {
        name: keras.ops.convert_to_numpy(variable)
        for name, variable in variables.items()
    }
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    files.write_atomically(path, buffer.getvalue())


def restore_state(path: str | Path, variables: dict[str, keras.Variable]) -> None:
    """Sets the variables to a file's values.

    Raises:
        InputError: the file cannot be read, or holds other names or shapes than the
            variables; then nothing is changed.
    """
    try:
        # Opened here, because numpy leaves a file open that it cannot read.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: cannot be read as a checkpoint: {error}") from None
    problems = [
        f"{name}: {_shape(arrays, name)} in the file, {_shape(variables, name)} here"
        for name in sorted(arrays.keys() | variables.keys())
        if _shape(arrays, name) != _shape(variables, name)
    ]
    if problems:
        raise InputError(
            f"{path}: a checkpoint of another model, {len(problems)} variables differ: "
            + "; ".join(problems[:10])
        )
    for name, variable in variables.items():
        variable.assign(arrays[name])


def _shape(named: dict, name: str) -> str:
    return str(tuple(named[name].shape)) if name in named else "nothing"


class CheckpointDirectory:
    """Numbered state files of a run, the newest few kept.

    Args:
        directory: of the state files; made if it is not there.
        keep: how many of the newest to keep.
    """

    def __init__(self, directory: str | Path, *, keep: int):
        self._directory = Path(directory)
        self._keep = keep
        self._directory.mkdir(parents=True, exist_ok=True)

    def paths(self) -> list[Path]:
        """The state files, oldest first."""
        return sorted(self._directory.glob("step-*.npz"))

    def save(self, step: int, variables: dict[str, keras.Variable]) -> Path:
        """Writes the state after `step` updates and drops the oldest files."""
        path = self._directory / f"step-{step:010}.npz"
        save_state(path, variables)
        for old in self.paths()[: -self._keep]:
            old.unlink()
        return path

    def restore_latest(self, variables: dict[str, keras.Variable]) -> int:
        """Restores the newest state and returns its step; 0 if there is none."""
        paths = self.paths()
        if not paths:
            return 0
        restore_state(paths[-1], variables)
        step = int(paths[-1].stem.removeprefix("step-"))
        logger.info("resuming after step %d from %s", step, paths[-1])
        return step
