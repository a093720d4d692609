"""The logits of a teacher for all inputs, their file, and batches with them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.checkpoints.containers import safetensors_files
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.data import features
from bert_keras.inference import forward
from bert_keras.labelled import dataset
from bert_keras.training.step import replicas


@dataclass(frozen=True, kw_only=True)
class InputsWithTeacherLogits(dataset.ExtendedInputs):
    """Inputs of a task, each with the logits that a teacher gave it."""

    logits: np.ndarray
    """`(num_answers, width)` float32."""

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Returns inputs with `TEACHER_LOGITS` and, for tokens, `TEACHER_MASK`."""
        batch, places = self.inputs.batch(rows), self.inputs.places(rows)
        logits = self.logits[places.ids]
        if len(places.index) == 1:
            return batch | {features.TEACHER_LOGITS: logits[:, None]}
        shape = batch["input_mask"].shape
        padded = np.zeros((*shape, logits.shape[-1]), np.float32)
        mask = np.zeros(shape, np.int32)
        padded[places.index], mask[places.index] = logits, 1
        return batch | {features.TEACHER_LOGITS: padded, features.TEACHER_MASK: mask}


def compute(
    network: keras.Model,
    inputs: dataset.Inputs,
    *,
    path: str | Path | None,
    facts: Mapping[str, Any],
    ladder: tuple[int, ...],
    strategy: tf.distribute.Strategy,
    is_chief: bool,
) -> np.ndarray:
    """Returns the logits of all inputs, `(inputs.num_answers, width)` float32.

    The file `path` keeps them (`None`: no file). It is read if it exists, and refused
    if its `facts`, everything that the logits depend on, differ.
    """
    text = json.dumps(facts, sort_keys=True, default=str)
    key, logits = hashlib.sha256(text.encode()).hexdigest(), None
    if path is not None and files.path(path).exists():
        try:
            file = safetensors_files.SafetensorsFile(path, needs_hashes=True)
            logits = file.read("logits")
        except (safetensors_files.DamagedFile, KeyError):
            raise InputError(
                f"{path}: no whole file of answers: delete it, or give --answers "
                "another name"
            ) from None
        if file.metadata.get("key") != key:
            raise InputError(
                f"{path}: answers of another teacher, to other texts or with other "
                "settings of inputs: give --answers another name"
            )
    # The devices of all processes compute together, or none does.
    is_everywhere = not replicas.differing(strategy, {"found": logits is not None})
    if logits is not None and is_everywhere:
        return logits
    if path is not None and is_chief:
        files.make_directory(files.path(path).parent)
    predict = forward.predictor_for(network, strategy=strategy, ladder=ladder)
    logits = predict(inputs, title="the teacher answers")
    check_finite(logits)
    if path is not None and is_chief:
        layouts = {"logits": safetensors_files.Layout(logits.dtype, logits.shape)}
        options = {"has_hashes": True, "metadata": {"key": key}}
        safetensors_files.write(path, layouts, [("logits", logits)], **options)
    return logits


def check_finite(logits: np.ndarray) -> None:
    if not np.isfinite(logits).all():
        raise InputError(
            f"{np.count_nonzero(~np.isfinite(logits))} of {logits.size} numbers that "
            "the teacher answers are not finite: --set precision=float32, or take "
            "another teacher"
        )
