"""A teacher's answers to all inputs, which may be kept for other students."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.checkpoints.containers import npz_files
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.inference import forward
from bert_keras.labelled import dataset
from bert_keras.training.step import replicas


def answers(
    network: keras.Model,
    inputs: dataset.Inputs,
    *,
    path: str | Path | None,
    facts: Mapping[str, Any],
    ladder: tuple[int, ...],
    strategy: tf.distribute.Strategy,
    is_chief: bool,
) -> np.ndarray:
    """Logits of all inputs, `(inputs.num_answers, width)` float32.

    Args:
        network: of the teacher, built under `strategy`.
        inputs: that it answers.
        path: file that keeps them, read if it is there; `None`: none does.
        facts: all that the answers depend on: those of other facts are refused.
        ladder: see `forward.BatchPredictor`.
        strategy: to compute under.
        is_chief: whether this process, of several that train together, writes.

    Raises:
        InputError: the file is of another teacher or of other texts, or cannot be read
            or written; or an answer is not finite.
    """
    text = json.dumps(facts, sort_keys=True, default=str)
    key = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    found = _read(path, key)
    # Devices of all processes answer together.
    if replicas.differing(strategy, {"found": found is not None}):
        found = None
    if found is not None:
        return found
    if path is not None and is_chief:
        files.make_directory(files.path(path).parent)
    answer = forward.predictor_for(network, strategy=strategy, ladder=ladder)
    found = answer(inputs, title="the teacher answers")
    check_finite(found)
    if path is not None and is_chief:
        npz_files.write_arrays(path, [("key", key), ("logits", found)])
    return found


def _read(path: str | Path | None, key: np.ndarray) -> np.ndarray | None:
    if path is None or not files.path(path).exists():
        return None
    try:
        found = npz_files.read_arrays(path, ("key", "logits"))
    except npz_files.UnreadableArchive:
        raise InputError(
            f"{path}: no whole file of answers: delete it, or give --answers another "
            "name"
        ) from None
    if not np.array_equal(found["key"], key):
        raise InputError(
            f"{path}: answers of another teacher, to other texts or with other "
            "settings of inputs: give --answers another name"
        )
    return found["logits"]


def check_finite(logits: np.ndarray) -> None:
    """Raises an `InputError` if a number is not finite."""
    if not np.isfinite(logits).all():
        raise InputError(
            f"{np.count_nonzero(~np.isfinite(logits))} of {logits.size} numbers that "
            "the teacher answers are not finite: --set precision=float32, or take "
            "another teacher"
        )
