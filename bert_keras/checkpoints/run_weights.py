"""Weights of a run directory, written when the run is finished."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from bert_keras.checkpoints import run_directory, training_state, weights
from bert_keras.checkpoints.containers import safetensors_files
from bert_keras.core.errors import InputError
from bert_keras.model import weight_shapes


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


def open_weights(
    run: run_directory.Run, *, parts: tuple[str, ...], without: tuple[str, ...] = ()
) -> Mapping[str, np.ndarray]:
    """Opens the weights of a finished run, of which all `parts` must be there, but for
    those whose names begin with one of `without`."""
    path = run.directory / run_directory.WEIGHTS_NAME
    source = safetensors_files.SafetensorsFile(path)
    layer = r"encoder/layer_(\d+)/"
    weights.check_num_layers(source.shapes, layer, run.bert_config, path)
    rows = [
        weights.Row(name, name, shape, shape)
        for name, shape in weight_shapes.all_shapes(run.bert_config, run.task).items()
        if name.startswith(parts)
    ]
    if missing := [row.ours for row in rows if row.ours not in source.shapes]:
        raise InputError(
            f"{path}: not the weights of this model: no {', '.join(missing[:3])}"
        )
    rows = [row for row in rows if not row.ours.startswith(without)]
    return weights.open_arrays(
        source, rows, path=f"{path}: not the weights of this model"
    )


def load_weights(
    run: run_directory.Run, network: keras.Model, *, parts: tuple[str, ...]
) -> None:
    """Assigns the weights of a finished run; `parts` are those of its kind."""
    weights.assign(network, open_weights(run, parts=parts))
    path = run.directory / run_directory.WEIGHTS_NAME
    weights.check_finite(
        ((w.path, keras.ops.convert_to_numpy(w)) for w in network.weights), path=path
    )
