"""Model inputs with a teacher's answers, which a student learns. No TensorFlow."""

from dataclasses import dataclass

import numpy as np

from bert_keras.data import features
from bert_keras.labelled import dataset


@dataclass(frozen=True, kw_only=True)
class TaughtInputs:
    """Inputs of a task, each with the logits that a teacher gave it."""

    inputs: dataset.Inputs
    logits: np.ndarray
    """`(num_answers, width)` float32."""

    @property
    def lengths(self) -> np.ndarray:
        return self.inputs.lengths

    @property
    def num_answers(self) -> int:
        return self.inputs.num_answers

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Inputs with `TEACHER_LOGITS` and, of tokens, `TEACHER_MASK`."""
        batch, places = self.inputs.batch(rows), self.inputs.places(rows)
        given = self.logits[places.ids]
        if len(places.index) == 1:
            return batch | {features.TEACHER_LOGITS: given[:, None]}
        shape = batch["input_mask"].shape
        logits = np.zeros((*shape, self.logits.shape[-1]), np.float32)
        mask = np.zeros(shape, np.int32)
        logits[places.index], mask[places.index] = given, 1
        return batch | {
            features.TEACHER_LOGITS: logits,
            features.TEACHER_MASK: mask,
        }

    def places(self, rows: np.ndarray) -> dataset.Places:
        return self.inputs.places(rows)
