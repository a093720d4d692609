"""Initial weights of a training, from a checkpoint of any format."""

import collections
import functools
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from bert_keras.checkpoints import weights
from bert_keras.checkpoints.formats import companions
from bert_keras.core.errors import InputError
from bert_keras.core.settings import architecture, tasks
from bert_keras.data import tokenization, vocabulary_extension

logger = logging.getLogger(__name__)

ARCHITECTURE = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "max_position_embeddings",
    "type_vocab_size",
)
"""Keys of a model's configuration that its weights determine; `attention` is none."""

_OUTPUT_BIAS = "masked_lm_head/output_bias"


class Init(NamedTuple):
    """A checkpoint of any format to begin with, not read yet."""

    path: str | Path
    read: Callable[[str | Path], weights.Checkpoint]
    """`conversion.read`: only commands know all formats."""

    def open_with_tokenizer(self) -> weights.Checkpoint:
        checkpoint = self.read(self.path)
        _check_has_vocabulary(checkpoint, self.path)
        companions.check_casing_is_known(checkpoint, path=self.path)
        return checkpoint


def _check_has_vocabulary(checkpoint: weights.Checkpoint, path: str | Path) -> None:
    if checkpoint.vocabulary is None:
        raise InputError(
            f"{path}: has no vocabulary: put the vocab.txt that the model was trained "
            "with next to it"
        )


def encoder_arrays(checkpoint: weights.Checkpoint) -> Mapping[str, np.ndarray]:
    """Returns the weights of the encoder, including the pooler's if present."""
    return weights.part(checkpoint.arrays, lambda name: name.startswith("encoder/"))


def tuning_arrays(
    checkpoint: weights.Checkpoint, task: tasks.Task, *, transfers_head: bool
) -> Mapping[str, np.ndarray]:
    """Returns the encoder's weights and, if `transfers_head`, the head's. A
    classifier's head is never transferred: equal label names in two data sets do not
    mean equal classes."""
    keys = ("kind", "bilstm_units", "num_bilstm_layers")
    is_alike = all(getattr(checkpoint.task, k) == getattr(task, k) for k in keys)
    if is_alike and transfers_head:
        return checkpoint.arrays
    return encoder_arrays(checkpoint)


def digest(
    checkpoint: weights.Checkpoint, arrays: Mapping[str, np.ndarray], **more: Any
) -> str:
    """Hashes everything in a checkpoint that affects a training, in hex digits, and
    `more`, values of JSON. The digest covers content, not files, so it is equal for
    every format of a model."""
    vocabulary = checkpoint.vocabulary
    facts = {
        "bert_config": checkpoint.bert_config.model_dump(),
        "vocab_sha256": None if vocabulary is None else vocabulary.sha256,
        "do_lower_case": checkpoint.do_lower_case,
        **more,
    }
    summary = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    # Formats list weights in different orders, and machines order bytes differently.
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name], "<f4")
        summary.update(f"{name} {array.shape}\n".encode())
        summary.update(array.reshape(-1).view(np.uint8))
    return summary.hexdigest()


def assign(
    network: keras.Model, arrays: Mapping[str, np.ndarray], *, path: str | Path
) -> None:
    """Assigns weights to a built network, and logs which stay as initialized."""
    missing = weights.assign(network, arrays)
    # A new head is what a fine-tuning wants. A pooler that nothing needs is frozen.
    needs_pooler = getattr(network, "encoder", network).pooler.trainable
    untold = ("head/",) if needs_pooler else ("head/", "encoder/pooler/")
    layers = dict.fromkeys(
        name if name == _OUTPUT_BIAS else name.rpartition("/")[0]
        for name in missing
        if not name.startswith(untold) and "/lora_kernel_" not in name
    )
    if layers:
        names = ", ".join(layers)
        logger.warning("%s: has no %s; initialized from the seed", path, names)


def model_config(
    model: architecture.ModelConfig, checkpoint: weights.Checkpoint, *, path: str | Path
) -> architecture.ModelConfig:
    """Configures a model with the architecture of a checkpoint, which supplies the keys
    of `ARCHITECTURE` that `model` leaves out."""
    sizes = {name: getattr(checkpoint.bert_config, name) for name in ARCHITECTURE}
    contradictions = [
        f"`model.{name}` is {getattr(model, name)!r}, of the checkpoint {value!r}"
        for name, value in sizes.items()
        if name in model.model_fields_set and getattr(model, name) != value
    ]
    if contradictions:
        raise InputError(
            f"{path}: a model of another architecture than configured: "
            + "; ".join(contradictions)
            + "; leave these keys out, or begin with another checkpoint"
        )
    return architecture.ModelConfig(**(model.model_dump() | sizes))


class Start(NamedTuple):
    """Initial weights of a pre-training, with a row for each of its tokens."""

    path: str | Path
    arrays: Mapping[str, np.ndarray]
    vocab_size: int
    """Rows of the embedding; the checkpoint may have more than there are tokens."""
    sha256: str
    """See `digest`."""


def pretraining_start(
    checkpoint: weights.Checkpoint,
    vocabulary: tokenization.Vocabulary,
    *,
    do_lower_case: bool,
    path: str | Path,
) -> Start:
    """Fits the weights of a checkpoint to the vocabulary of examples, which is the
    checkpoint's or extends it (see `vocabulary_extension`)."""
    _check_has_vocabulary(checkpoint, path)
    if checkpoint.do_lower_case not in (None, do_lower_case):
        casing = {True: "lower-cased", False: "cased"}
        raise InputError(
            f"{path}: trained on {casing[not do_lower_case]} text, but the examples "
            f"are of {casing[do_lower_case]} text: make them "
            f"{'with' if do_lower_case else 'without'} --cased"
        )
    arrays = weights.part(checkpoint.arrays, lambda name: not name.startswith("head/"))
    means = vocabulary_extension.sources(
        checkpoint.vocabulary, vocabulary, do_lower_case=do_lower_case, path=path
    )
    num_rows = max(checkpoint.bert_config.vocab_size, len(vocabulary))
    extend = functools.partial(vocabulary_extension.extend_rows, num_rows=num_rows)
    extended = {
        name: extend(arrays[name], means)
        for name in ("encoder/embeddings/word_embeddings", _OUTPUT_BIAS)
        if means and name in arrays
    }
    if means:
        logger.info("%s: %d new entries of the vocabulary", path, len(means))
    return Start(
        path=path,
        arrays=collections.ChainMap(extended, arrays),
        vocab_size=num_rows,
        # Of the weights before they are extended: a run compares its vocabulary, too.
        sha256=digest(checkpoint, arrays),
    )
