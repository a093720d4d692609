"""Guesses the `[MASK]` in a sentence: the quickest look at what a model has learnt."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from bert_keras import features, pretraining
from bert_keras.checkpoints import run_directory
from bert_keras.errors import InputError


class Guess(NamedTuple):
    """One token for a mask."""

    token: str
    probability: float


def load_pretrainer(
    directory: str | Path,
) -> tuple[run_directory.Run, pretraining.BertPretrainer]:
    """Loads a finished pre-training run with its weights."""
    run = run_directory.read_run(directory, kinds=("pretraining",), verb="pretrain")
    network = pretraining.BertPretrainer(run.bert_config)
    network.build()
    run_directory.load_weights(run, network)
    return run, network


class FillMask:
    """A pre-trained model that fills in `[MASK]`.

    Args:
        model_dir: run directory of a finished pre-training.
    """

    def __init__(self, model_dir: str | Path):
        self._run, self._network = load_pretrainer(model_dir)
        self._tokenizer = self._run.tokenizer

    def __call__(self, text: str, *, top_k: int = 5) -> list[list[Guess]]:
        """Guesses every `[MASK]` of a text.

        Returns:
            For each mask, in order, its `top_k` likeliest tokens, likeliest first.

        Raises:
            InputError: the text has no `[MASK]` or too many tokens for the model.
        """
        input_ids = self._encode(text)
        positions = np.flatnonzero(input_ids == self._run.vocabulary.mask_id)
        logits = self._network(
            {
                "input_ids": input_ids[None],
                "input_mask": np.ones_like(input_ids)[None],
                "segment_ids": np.zeros_like(input_ids)[None],
                "masked_lm_positions": positions[None].astype("int32"),
            }
        )["masked_lm_logits"]
        probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(logits))[0]
        return [self._best(row, top_k) for row in probabilities]

    def _encode(self, text: str) -> np.ndarray:
        vocabulary = self._run.vocabulary
        # The tokenizer takes "[MASK]" apart like any text, so it is put in between.
        first, *others = text.split(features.MASK_TOKEN)
        if not others:
            raise InputError(f"expected a text with {features.MASK_TOKEN}: {text!r}")
        ids = [vocabulary.cls_id, *self._tokenizer.encode(first)]
        for part in others:
            ids += [vocabulary.mask_id, *self._tokenizer.encode(part)]
        ids.append(vocabulary.sep_id)
        limit = self._run.bert_config.max_position_embeddings
        if len(ids) > limit:
            raise InputError(f"a text of {len(ids)} tokens, the model takes {limit}")
        return np.array(ids, "int32")

    def _best(self, probabilities: np.ndarray, top_k: int) -> list[Guess]:
        best = np.argsort(-probabilities, kind="stable")[:top_k]
        tokens = self._run.vocabulary.tokens
        return [Guess(tokens[index], float(probabilities[index])) for index in best]


def describe(text: str, masks: Sequence[Sequence[Guess]]) -> Iterator[str]:
    """Lines for people: the text, then each mask's guesses with probabilities."""
    yield text
    for guesses in masks:
        shown = "  ".join(f"{token} {p:.1%}" for token, p in guesses)
        yield f"  {features.MASK_TOKEN}: {shown}"
