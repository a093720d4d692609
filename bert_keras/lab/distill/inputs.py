"""Model inputs with the logits of a teacher. No TensorFlow."""

from dataclasses import dataclass

import numpy as np

from bert_keras.data import features
from bert_keras.labelled import dataset


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
        return batch | {
            features.TEACHER_LOGITS: padded,
            features.TEACHER_MASK: mask,
        }
