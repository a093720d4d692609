"""Trained models as the graphs of their answers need them."""

from pathlib import Path

from bert_keras.checkpoints import native, run_directory, weights
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning
from bert_keras.kinds import registry, served
from bert_keras.kinds.kind import Labelled


def load(
    checkpoint: weights.Checkpoint, *, path: Path, embedding: str | None = None
) -> served.Trained:
    """Builds the network of a checkpoint, with everything else that its graph needs.

    A run's `config.yaml` in `path` has the lengths of inputs, `results.json` its
    threshold. `embedding` is a vector to export, see `served_embeddings.KINDS`; `None`:
    the model's own answers.
    """
    kind = registry.find(checkpoint.task.kind)
    network_task = kind.served_network(checkpoint.task)
    purpose = kind.purpose or kind.name
    if embedding is not None:
        network_task, purpose = config.Task(kind="encoder"), "a pooled vector"
    network = registry.build_network(
        checkpoint.bert_config,
        network_task,
        seed=0,
        dtype=checkpoint.dtype,
    )
    missing = [
        name
        for name in weights.assign(network, checkpoint.arrays)
        if (
            kind.needs(name)
            if embedding is None
            else embedding == "pooled" and name.startswith("encoder/pooler/")
        )
    ]
    if missing:
        raise InputError(
            f"{path}: {purpose} needs {', '.join(missing)}, which the model does "
            "not have or was not trained with"
        )
    return served.Trained(
        task=checkpoint.task,
        bert_config=checkpoint.bert_config,
        tokenizer=checkpoint.tokenizer,
        dtype=checkpoint.dtype,
        network=served.Network(network),
        settings=None if embedding else input_settings(checkpoint, path),
        threshold=run_directory.threshold_of(run_directory.read_results(path) or {}),
        path=path,
    )


def input_settings(
    checkpoint: weights.Checkpoint, path: Path
) -> finetuning.FinetuningConfig | None:
    """Returns how a model makes its inputs, by its run or else by its format; `None`:
    the model was not tuned on a task."""
    if not isinstance(registry.find(checkpoint.task.kind), Labelled):
        return None
    settings = run_directory.read_settings(path, finetuning.FinetuningConfig)
    return settings or native.tuning_settings(checkpoint)
