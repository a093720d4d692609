"""Checkpoints with the rows of some pieces of the vocabulary only."""

import collections
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_keras.checkpoints import weights
from bert_keras.checkpoints.formats import companions
from bert_keras.core.errors import InputError
from bert_keras.data import vocabulary_pruning

_BY_PIECE = ("encoder/embeddings/word_embeddings", "masked_lm_head/output_bias")
"""Our names of all weights with a row for each piece."""


def prune(
    checkpoint: weights.Checkpoint, texts: Iterable[str], *, path: str | Path
) -> tuple[weights.Checkpoint, np.ndarray]:
    """Leaves out the pieces that texts do not need. Returns the smaller checkpoint, and
    the old ids `(num_kept,)` of its pieces."""
    if checkpoint.vocabulary is None:
        raise InputError(
            f"{path}: has no vocabulary, so nothing says which rows the texts need: "
            "put its vocab.txt next to it"
        )
    companions.check_casing_is_known(checkpoint, path=path)
    kept = np.array(
        vocabulary_pruning.kept_ids(
            checkpoint.vocabulary, texts, do_lower_case=bool(checkpoint.do_lower_case)
        ),
        np.int64,
    )
    if not len(kept):
        raise InputError("--keep_tokens: the files hold no words: nothing to keep")
    tokens = checkpoint.vocabulary.tokens
    arrays, size = checkpoint.arrays, {"vocab_size": len(kept)}
    smaller = {name: arrays[name][kept] for name in _BY_PIECE if name in arrays}
    pruned = dataclasses.replace(
        checkpoint,
        bert_config=checkpoint.bert_config.model_copy(update=size),
        vocabulary=type(checkpoint.vocabulary)(tuple(tokens[i] for i in kept)),
        arrays=collections.ChainMap(smaller, arrays),
    )
    return pruned, kept


class Sizes(NamedTuple):
    """Sizes of a vocabulary and of the weights in float32, after and before pruning."""

    num_kept: int
    num_pieces: int
    num_bytes: int
    num_bytes_before: int


def sizes(source: weights.Checkpoint, pruned: weights.Checkpoint) -> Sizes:
    num_bytes, num_bytes_before = (
        sum(array.nbytes for array in checkpoint.arrays.values())
        for checkpoint in (pruned, source)
    )
    num_kept, num_pieces = len(pruned.vocabulary or ()), len(source.vocabulary or ())
    return Sizes(num_kept, num_pieces, num_bytes, num_bytes_before)
