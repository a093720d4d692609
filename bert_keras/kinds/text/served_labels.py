"""Exported classifiers: a label, several or a number for a text or a pair of texts."""

import math

import tensorflow as tf

from bert_keras.kinds import served
from bert_keras.kinds.text import text_forms


class Labels(served.DirectAnswers):
    """Classes or numbers of texts.

    Strings: `text`, and `text_pair` if the model was trained on pairs; an empty
    `text_pair` is no second text. Ids: `served.INPUT_NAMES`.

    Numbers: `logits`, `(batch_size, num_labels)` float32, one column for a number.
    Answers: for classes `probabilities`, `(batch_size, num_labels)` float32, and
    `label`, `(batch_size,)` strings, the most probable one, or empty below the
    threshold of a calibrated run, which may be another for each label; for numbers
    `score`, `(batch_size,)` float32, and of a calibrated run `low` and `high`, the ends
    of its interval.
    """

    def __init__(self, trained: served.Trained):
        super().__init__(trained)
        names = ("text", "text_pair")[: 1 + trained.task.has_text_pair]
        self.string_specs = tuple(tf.TensorSpec([None], tf.string, n) for n in names)
        self.labels = trained.task.labels

    @property
    def record_fields(self):
        fields = {"score": "prediction"}
        return fields if self.labels is None else super().record_fields

    def present(self, ids, numbers):
        logits = numbers["logits"]
        if self.labels is None:
            score, width = logits[:, 0], self.decision.half_width
            if width is None:
                return {"score": score}
            return {"score": score, "low": score - width, "high": score + width}
        probabilities = self.probabilities(logits)
        best = tf.argmax(logits, axis=-1)
        label = tf.gather(tf.constant(self.labels), best)
        least = tf.constant(self.decision.thresholds_of(self.labels), tf.float32)
        is_given = self.decision.is_given(
            tf.reduce_max(probabilities, axis=-1), tf.gather(least, best)
        )
        return {"probabilities": probabilities, "label": tf.where(is_given, label, "")}


class SeveralLabels(Labels):
    """Labels of texts, of which each may have any number.

    Strings, ids and numbers are those of `Labels`. Answers: `probabilities`,
    `(batch_size, num_labels)` float32, each of its label by itself; `holds`, the same
    shape, 1 where a probability reaches the threshold of its label, else 0 (int32); and
    `labels`, the same shape, strings: the labels that hold, the most probable first,
    then empty strings. A run without thresholds has `text_forms.THRESHOLD`. A
    calibrated run has calibrated probabilities, and the thresholds of its promise.
    """

    def __init__(self, trained: served.Trained):
        super().__init__(trained)
        self._thresholds = text_forms.threshold_row(trained.decision, self.labels)

    @property
    def decisions(self):
        pairs = zip(self.labels, self._thresholds.tolist(), strict=True)
        limits = {label: limit for label, limit in pairs if limit < math.inf}
        return {**super().decisions, "thresholds": limits}

    def present(self, ids, numbers):
        probabilities = tf.sigmoid(numbers["logits"] / self.decision.temperature)
        holds = probabilities >= self._thresholds
        order = tf.argsort(probabilities, direction="DESCENDING", stable=True)
        in_order = tf.gather(holds, order, batch_dims=1)
        # Those that hold first, each group in the order of probabilities.
        first = tf.argsort(tf.cast(~in_order, tf.int32), stable=True)
        names = tf.where(in_order, tf.gather(tf.constant(self.labels), order), "")
        return {
            "probabilities": probabilities,
            "holds": tf.cast(holds, tf.int32),
            "labels": tf.gather(names, first, batch_dims=1),
        }
