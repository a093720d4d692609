"""Networks that give a text a class, several, or a number; Keras alone."""

from typing import Any

import keras
from keras import ops

from bert_keras.model import losses
from bert_keras.model.networks import EncoderWithHead, example_weights, scaled_weights


@keras.saving.register_keras_serializable(package="bert_keras")
class BertClassifier(EncoderWithHead):
    """Chooses one of several classes for a text or a pair, or predicts a number.

    `num_labels` is the number of classes; 1 for a number. `logits` are `(batch_size,
    num_labels)`. For `loss_terms`, `label_ids` are `(batch_size,)` or `(batch_size,
    1)`: the true class as an integer, or the true number as a float. A number has no
    `accuracy`. With `label_targets`, `(batch_size, 1,
    num_labels)` floats, the loss is the sum of each class's cross entropy times its
    target. `accuracy` counts alike all examples with a weight above 0, also where
    classes have weights of their own.
    """

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        logits = ops.reshape(outputs["logits"], (-1, self.num_labels))
        labels = ops.reshape(features["label_ids"], (-1,))
        weights = example_weights(features, labels)
        scaled = scaled_weights(features, weights)
        if self.num_labels == 1:
            errors = logits[:, 0] - ops.cast(labels, "float32")
            return {"loss": (ops.sum(ops.square(errors) * scaled), ops.sum(weights))}
        if "label_targets" in features:
            targets = ops.reshape(features["label_targets"], (-1, self.num_labels))
            found = -ops.sum(targets * ops.log_softmax(logits), axis=-1)
        else:
            found = losses.cross_entropy(logits, labels)
        counts = ops.cast(weights > 0, "float32")
        is_right = losses.is_right(logits, labels)
        return {
            "loss": (ops.sum(found * scaled), ops.sum(weights)),
            "accuracy": (ops.sum(is_right * counts), ops.sum(counts)),
        }

    def soft_distances(self, students, teachers, temperature):
        if self.num_labels == 1:
            return ops.mean(ops.square(students - teachers), axis=-1)
        return super().soft_distances(students, teachers, temperature)


@keras.saving.register_keras_serializable(package="bert_keras")
class BertMultiLabelClassifier(EncoderWithHead):
    """Predicts whether each of several labels holds for a text or a pair.

    `logits` are `(batch_size, num_labels)`; the sigmoid of each is the probability of
    its label. For `loss_terms`, `label_targets` are `(batch_size, 1, num_labels)`
    floats, 1 where a label holds, and `label_weights`, if any, the same shape, `1 +
    (weight - 1) * target`. `loss` is the mean over labels, as torch's
    `BCEWithLogitsLoss` with `pos_weight`; `accuracy` counts the texts of which all
    labels are right.
    """

    label_name = "label_targets"

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        shape = (-1, self.num_labels)
        logits = ops.reshape(outputs["logits"], shape)
        targets = ops.reshape(features["label_targets"], shape)
        weights = example_weights(features, targets)
        # -w t log(sigmoid(x)) - (1 - t) log(sigmoid(-x)) = (1 - t) x + (1 + (w - 1) t)
        # softplus(-x), where x is the logit, t the target and w the weight.
        found = ops.softplus(-logits)
        if "label_weights" in features:
            found = found * ops.reshape(features["label_weights"], shape)
        found = ops.mean((1.0 - targets) * logits + found, axis=-1)
        is_right = ops.equal(logits > 0, targets > 0.5)
        is_right = ops.cast(ops.all(is_right, axis=-1), "float32")
        weight = ops.sum(weights)
        return {
            "loss": (ops.sum(found * scaled_weights(features, weights)), weight),
            "accuracy": (ops.sum(is_right * weights), weight),
        }

    def soft_distances(self, students, teachers, temperature):
        """Returns the mean over labels: each and its absence are two classes."""
        # The softmax of (x, 0) is the sigmoid of x and what is left of 1.
        students, teachers = (
            ops.stack([logits, ops.zeros_like(logits)], axis=-1)
            for logits in (students, teachers)
        )
        divergences = losses.soft_cross_entropy(students, teachers, temperature)
        return ops.mean(divergences, axis=-1)
