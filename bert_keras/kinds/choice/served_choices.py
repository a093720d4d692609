"""Exported choosers: the best of several endings."""

import tensorflow as tf

from bert_keras.graphs import input_checks
from bert_keras.kinds import served


class Choices(served.SeveralParts):
    """The best of several endings.

    Strings: `sentence`, `beginning`, which follows the sentence and may be empty, and
    `endings`, `(batch_size, num_endings)`, which continue the beginning.

    Numbers: `logits`, `(batch_size, num_endings)` float32. Answers: `best`,
    `(batch_size,)` int32, the number of the most probable ending, from 0, and
    `probabilities`, `(batch_size, num_endings)` float32.
    """

    string_specs = (
        tf.TensorSpec([None], tf.string, "sentence"),
        tf.TensorSpec([None], tf.string, "beginning"),
        tf.TensorSpec([None, None], tf.string, "endings"),
    )

    def encode(self, sentence, beginning, endings):
        # A ranking of no passages has no scores, but no ending is the best of none.
        endings = input_checks.parts("endings", endings)
        beginnings = tf.repeat(beginning[:, tf.newaxis], tf.shape(endings)[1], axis=1)
        continuations = tf.strings.join([beginnings, endings], separator=" ")
        return super().encode(sentence, continuations)

    def present(self, ids, numbers):
        logits = numbers["logits"]
        return {
            "best": tf.argmax(logits, axis=-1, output_type=tf.int32),
            "probabilities": tf.nn.softmax(logits),
        }
