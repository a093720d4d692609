"""Exported rankers: scores of passages for a question."""

import tensorflow as tf

from bert_keras.kinds import served


class Rankings(served.SeveralParts):
    """Scores of the passages of each question.

    Strings: `question` and `passages`, `(batch_size, num_passages)`. A score does not
    depend on other passages, so shorter lists may be filled up.

    Numbers: `logits`, `(batch_size, num_passages)` float32. Answers: `scores`, the same
    numbers, higher is better; and `ranking`, the same shape, int32: the numbers of the
    passages from 0, the best first. A calibrated run has besides `probability`,
    `(batch_size,)` float32, of the best among these passages, which must not be filled
    up then, and `is_sure`, the same shape, int32: 0 where none of them answers.
    """

    record_fields = {"scores": "scores"}
    string_specs = (
        tf.TensorSpec([None], tf.string, "question"),
        tf.TensorSpec([None, None], tf.string, "passages"),
    )

    def present(self, ids, numbers):
        scores = numbers["logits"]
        order = tf.argsort(scores, direction="DESCENDING", stable=True)
        outputs = {"scores": scores, "ranking": order}
        if self.decision.is_promise:
            best = tf.reduce_max(self.probabilities(scores), axis=-1)
            is_sure = tf.cast(self.decision.is_given(best), tf.int32)
            outputs |= {"probability": best, "is_sure": is_sure}
        return outputs
