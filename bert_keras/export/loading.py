"""Trained models as the graphs of their answers need them."""

import operator
from pathlib import Path

from bert_keras.checkpoints import native, weights
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.kinds import registry, served


def load(
    checkpoint: weights.Checkpoint,
    *,
    path: Path,
    embedding: str | None = None,
    long_texts: tasks.LongTexts = "cut",
) -> served.Trained:
    """Builds the network of a checkpoint, with everything else that its graph needs.

    Args:
        embedding: a vector to export, see `served_embeddings.KINDS`; `None`: the
            model's own answers.
        long_texts: how to shorten texts for such a vector.
    """
    task, kind = checkpoint.task, registry.find(checkpoint.task.kind)
    network_task, purpose, is_needed = task, f"a model for {kind.name}", kind.needs
    if embedding is not None:
        network_task, purpose = tasks.Task(kind="encoder"), "a pooled vector"
        needed = "encoder/pooler/" if embedding == "pooled" else ()
        is_needed = operator.methodcaller("startswith", needed)
        # Python reads texts for vectors as those of a number.
        task = tasks.Task(kind="regression")
        settings = finetuning.FinetuningConfig(
            max_seq_length=checkpoint.bert_config.max_position_embeddings,
            long_texts=long_texts,
        )
    else:
        # As the run made its inputs; another format says less about them.
        settings = native.tuning_settings(checkpoint)
    network = registry.build_network(
        checkpoint.bert_config, network_task, seed=0, dtype=checkpoint.dtype
    )
    if missing := [*filter(is_needed, weights.assign(network, checkpoint.arrays))]:
        raise InputError(
            f"{path}: {purpose} needs {', '.join(missing)}, which the model does "
            "not have or was not trained with"
        )
    return served.Trained(
        task=task,
        bert_config=checkpoint.bert_config,
        tokenizer=checkpoint.tokenizer,
        dtype=checkpoint.dtype,
        network=served.Network(network),
        settings=settings,
        threshold=checkpoint.threshold,
        path=path,
    )
