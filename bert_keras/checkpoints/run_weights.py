"""The end of a run: its weights are written, and `native` reads them."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import keras

from bert_keras.checkpoints import run_directory, training_state, weights
from bert_keras.checkpoints.containers import safetensors_files
from bert_keras.core.errors import InputError


def finish_run(
    run: run_directory.Run, network: keras.Model, results: Mapping[str, Any]
) -> None:
    arrays = weights.from_network(network)
    safetensors_files.write(
        run.directory / run_directory.WEIGHTS_NAME,
        safetensors_files.layouts_of(arrays),
        arrays.items(),
        has_hashes=True,
    )
    run_directory.write_results(run.directory, results)


def read_finished_run(
    directory: str | Path, *, kinds: Collection[str], verb: str
) -> run_directory.Run:
    run = run_directory.read_run(directory, kinds=kinds, verb=verb)
    if run_directory.read_results(directory) is None:
        # A checkpoint of a fine-tuning is read by its own command only.
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
