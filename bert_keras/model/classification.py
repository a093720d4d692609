"""BertClassifier: the encoder with a head for one label per text."""

from typing import Any

from keras import ops

from bert_keras.model import encoder_with_head, losses


class BertClassifier(encoder_with_head.EncoderWithHead):
    """Chooses one of several classes for a text or a pair, or predicts a number.

    Args:
        config: sizes and shapes of the encoder.
        num_labels: number of classes; 1 for a number.
        dropout_prob: fraction of the head's input that is dropped in training.
        bilstm_units: see `heads.ClassificationHead`.
        seed: of weights and dropout; `None` for random ones.

    Call arguments:
        features: a dict with `input_ids`, `input_mask` and `segment_ids` as in
            `bert_keras.data.features`, and `dropout_seeds` as the encoder takes it;
            other keys are not looked at.

    Returns:
        A dict with `logits`, `(batch_size, num_labels)` float32.
    """

    def call(self, features, training=None):
        return {"logits": self.scores(features, training=training)}

    def loss_weights(self, features) -> dict[str, Any]:
        """The weight of the loss, see `loss_terms`: the number of examples."""
        return {"loss": ops.sum(ops.ones_like(features["label_ids"], "float32"))}

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        """Sum and weight of each quantity over this batch, to be divided later.

        Args:
            features: a dict with `label_ids`, `(batch_size,)` or `(batch_size, 1)`:
                the true class as an integer, or the true number as a float.
            outputs: what `call` returned for the same batch.

        Returns:
            From `loss` (nats or squared error per example) and, for classes,
            `accuracy` to a pair of float32 scalars, the sum and the weight.
        """
        logits = outputs["logits"]
        labels = ops.reshape(features["label_ids"], (-1,))
        weights = ops.ones_like(labels, "float32")
        if self.num_labels == 1:
            errors = logits[:, 0] - ops.cast(labels, "float32")
            return {"loss": (ops.sum(ops.square(errors)), ops.sum(weights))}
        return losses.classification_terms(logits, labels, weights)
