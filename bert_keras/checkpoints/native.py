"""This project's own run directories, as one format among the others."""

import re
from pathlib import Path

import numpy as np

from bert_keras import config, networks
from bert_keras.checkpoints import archive, run_directory, weights
from bert_keras.errors import InputError

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "relu": "relu"}

SEED = 12345
"""Of weights that a checkpoint has not and its task needs."""

_LONGEST_INPUT = 512
_VERBS = "pretrain` or `bert-keras finetune"


def recognizes(path: Path) -> bool:
    """Whether this is a run directory, finished or not, or a checkpoint in one."""
    # KerasHub's presets of tasks have a task.json too.
    names = ("task.json", "bert_config.json")
    return all((path / name).is_file() for name in names) or _is_state(path)


def _is_state(path: Path) -> bool:
    return path.suffix == ".npz" and path.is_file()


def read(path: Path) -> weights.Checkpoint:
    """Reads a finished run, or one `checkpoints/step-....npz` of a pre-training.

    Raises:
        InputError: unfinished or damaged.
    """
    if _is_state(path):
        run = run_directory.read_run(
            path.absolute().parents[1],
            kinds=("pretraining",),
            verb="pretrain",
            must_be_finished=False,
        )
        arrays = _read_state(path)
    else:
        run = run_directory.read_run(path, kinds=config.TASK_KINDS, verb=_VERBS)
        network = networks.build(run.bert_config, run.task)
        run_directory.load_weights(run, network)
        # What a conversion made up was never trained.
        arrays = weights.from_network(network)
        untrained = made_new(path)
        arrays = {k: v for k, v in arrays.items() if k not in untrained}
    if not _next_sentence_was_trained(run):
        untrained = ("encoder/pooler/", "next_sentence_head/")
        arrays = {k: v for k, v in arrays.items() if not k.startswith(untrained)}
    return weights.Checkpoint(
        bert_config=run.bert_config,
        task=run.task,
        arrays=arrays,
        vocabulary=run.vocabulary,
        do_lower_case=run.do_lower_case,
    )


def _read_state(path: Path) -> dict[str, np.ndarray]:
    """The model's weights of a checkpoint, without the optimizer's state."""
    name_in_file = re.compile(r"(?:non_)?(?:trainable|weights)/bert_pretrainer/(.+)")
    names = {
        name: match[1]
        for name in archive.read_headers(path)
        if (match := name_in_file.fullmatch(name))
    }
    values = archive.read_arrays(path, names)
    return weights.with_parts_apart((names[name], values[name]) for name in values)


def made_new(path: Path) -> tuple[str, ...]:
    """The weights of a run that its conversion had to make, by our names."""
    return tuple((run_directory.read_results(path) or {}).get("made_new", ()))


def _next_sentence_was_trained(run: run_directory.Run) -> bool:
    path = run.directory / "config.yaml"
    if run.task.kind != "pretraining" or not path.is_file():
        return True
    return config.load_config(config.PretrainingConfig, path).next_sentence


def write(checkpoint: weights.Checkpoint, directory: Path) -> dict[str, str]:
    """Writes a finished run that `finetune`, `fill-mask`, `predict`, ... take.

    Weights that the task needs and the checkpoint has not are made new. There is no
    `config.yaml` to repeat a training with, but for classes and numbers, whose
    maximal length is taken from the positions of the encoder.

    Raises:
        InputError: there is no vocabulary, or its casing is not known.
    """
    if checkpoint.vocabulary is None:
        raise InputError("a run needs a vocabulary: put its vocab.txt beside the input")
    if checkpoint.do_lower_case is None:
        raise InputError(
            "the checkpoint does not say whether text is lower-cased: put a "
            'tokenizer_config.json with {"do_lower_case": true} or false beside it'
        )
    network = networks.build(checkpoint.bert_config, checkpoint.task, seed=SEED)
    missing = weights.assign(network, checkpoint.arrays)
    run = run_directory.Run(
        directory=directory,
        task=checkpoint.task,
        bert_config=checkpoint.bert_config,
        vocabulary=checkpoint.vocabulary,
        do_lower_case=checkpoint.do_lower_case,
    )
    longest = min(_LONGEST_INPUT, checkpoint.bert_config.max_position_embeddings)
    run_directory.describe_run(
        run,
        config.FinetuningConfig(
            regression=checkpoint.task.kind == "regression", max_seq_length=longest
        )
        if checkpoint.task.kind in ("classification", "regression")
        else None,
    )
    run_directory.finish_run(run, network, {"converted": True, "made_new": missing})
    names = weights.names_of(network)
    return {
        name: f"a {checkpoint.task.kind} run has no such weight"
        for name in checkpoint.arrays
        if name not in names
    }
