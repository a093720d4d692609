"""Guesses for each `[MASK]` in a sentence: the quickest test of a model."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from bert_keras.checkpoints import conversion, weights
from bert_keras.core.errors import InputError
from bert_keras.data import features
from bert_keras.model import pretrainer, weight_shapes


class Guess(NamedTuple):
    token: str
    probability: float


def load_pretrainer(
    path: str | Path,
) -> tuple[weights.Checkpoint, pretrainer.BertPretrainer]:
    """Loads a masked LM in float32; missing weights for next sentences are random."""
    checkpoint = conversion.read_with_tokenizer(path)
    shapes = weight_shapes.all_shapes(checkpoint.bert_config)
    head = {name for name in shapes if name.startswith("masked_lm_head/")}
    if not checkpoint.arrays.keys() >= head:
        raise InputError(
            f"{path}: has no head for masked words (it is a model for "
            f"{checkpoint.task.kind}): give a model as its pre-training left it, or "
            f"train such a head with `pretrain --init {path}`"
        )
    network = pretrainer.BertPretrainer(
        checkpoint.bert_config, dtype="float32", next_sentence=False
    )
    network.build()
    weights.assign(network, checkpoint.arrays)
    return checkpoint, network


class FillMask:
    def __init__(self, model_dir: str | Path):
        checkpoint, self._network = load_pretrainer(model_dir)
        self._vocabulary = checkpoint.vocabulary
        self._tokenizer = checkpoint.tokenizer
        self._longest = checkpoint.bert_config.max_position_embeddings

    def __call__(self, text: str, *, top_k: int = 5) -> list[list[Guess]]:
        """Returns the `top_k` most probable tokens of each `[MASK]`, best first."""
        if features.MASK_TOKEN not in text:
            raise InputError(f"expected a text with {features.MASK_TOKEN}: {text!r}")
        vocabulary = self._vocabulary
        # Every literal `[MASK]` is put in between the parts: the tokenizer takes it
        # apart like any text.
        first, *others = text.split(features.MASK_TOKEN)
        pieces = self._tokenizer.encode(first)
        for part in others:
            pieces += [vocabulary.mask_id, *self._tokenizer.encode(part)]
        input_ids = np.array([vocabulary.cls_id, *pieces, vocabulary.sep_id], "int32")
        if len(input_ids) > self._longest:
            raise InputError(
                f"a text of {len(input_ids)} tokens, the model takes {self._longest}"
            )
        positions = np.flatnonzero(input_ids == vocabulary.mask_id).astype("int32")
        inputs = {"input_ids": input_ids[None], "masked_lm_positions": positions[None]}
        logits = self._network(inputs)["masked_lm_logits"]
        probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(logits))[0]
        # An embedding may have more rows than the vocabulary has entries.
        tokens = vocabulary.tokens
        probabilities = probabilities[:, : len(tokens)]
        best = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
        return [
            [Guess(tokens[index], float(row[index])) for index in indices]
            for row, indices in zip(probabilities, best, strict=True)
        ]


def describe(text: str, masks: Sequence[Sequence[Guess]]) -> Iterator[str]:
    yield text
    for guesses in masks:
        best = "  ".join(f"{token} {p:.1%}" for token, p in guesses)
        yield f"  {features.MASK_TOKEN}: {best}"
