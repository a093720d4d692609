"""Weights of a run directory, written when the run is finished."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import keras

from bert_keras.checkpoints import run_directory, training_state, weights
from bert_keras.core import files
from bert_keras.core.errors import InputError, one_line


def finish_run(
    run: run_directory.Run, network: keras.Model, results: Mapping[str, Any]
) -> None:
    path = run.directory / run_directory.WEIGHTS_NAME
    with files.written_whole(path) as temporary:
        network.save_weights(temporary)
    run_directory.write_results(run.directory, results)


def read_finished_run(
    directory: str | Path, *, kinds: Collection[str], verb: str
) -> run_directory.Run:
    run = run_directory.read_run(directory, kinds=kinds, verb=verb)
    if run_directory.read_results(directory) is None:
        # Those of a fine-tuning are read by its own command only.
        is_readable = run.task.kind == "pretraining"
        best = checkpoints_of(run).best() if is_readable else None
        raise InputError(
            f"{directory}: the run is not finished; run its command again to resume it"
            + (f", or take its best checkpoint, {best}" if best else "")
        )
    return run


def checkpoints_of(run: run_directory.Run) -> training_state.CheckpointDirectory:
    return training_state.CheckpointDirectory(
        run.directory / run_directory.CHECKPOINTS_NAME, keep=1, is_chief=False
    )


def load_weights(run: run_directory.Run, network: keras.Model) -> None:
    path = run.directory / run_directory.WEIGHTS_NAME
    try:
        with files.local_copy(path) as copy:
            network.load_weights(copy)
    except (OSError, ValueError, KeyError) as error:
        reason = one_line(error)
        raise InputError(f"{path}: not the weights of this model: {reason}") from None
    weights.check_finite(
        ((w.path, keras.ops.convert_to_numpy(w)) for w in network.weights), path=path
    )
