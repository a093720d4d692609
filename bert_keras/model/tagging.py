"""BertTagger: the encoder with a head for one label per token."""

from typing import Any

from keras import ops

from bert_keras.model import encoder_with_head, losses


class BertTagger(encoder_with_head.EncoderWithHead):
    """Chooses one of several classes for each token, such as the name it is part of.

    Section 5.3 of the paper, fine-tuned. The encoder's pooler is not used: it keeps
    its first weights.

    Args:
        config: sizes and shapes of the encoder.
        num_labels: number of classes.
        dropout_prob: fraction of the head's input that is dropped in training.
        bilstm_units: see `heads.ClassificationHead`.
        seed: of weights and dropout; `None` for random ones.

    Call arguments:
        features: a dict with `input_ids`, `input_mask` and `segment_ids` as in
            `bert_keras.data.features`, and `dropout_seeds` as the encoder takes it;
            other keys are not looked at.

    Returns:
        A dict with `logits`, `(batch_size, sequence_length, num_labels)` float32.
    """

    per_token = True

    def call(self, features, training=None):
        return {"logits": self.scores(features, training=training)}

    def loss_weights(self, features) -> dict[str, Any]:
        """The weight of the loss, see `loss_terms`: the number of tokens that count."""
        return {"loss": ops.sum(token_weights(features))}

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        """Sum and weight of each quantity over this batch, to be divided later.

        Args:
            features: a dict with `label_ids`, `(batch_size, sequence_length)`
                integers: the true class of each token, below 0 for a token that does
                not count (a special token, padding, a word's pieces after the first).
            outputs: what `call` returned for the same batch.

        Returns:
            From `loss` (nats per token) and `accuracy` to a pair of float32 scalars,
            the sum and the weight.
        """
        label_ids = ops.maximum(features["label_ids"], 0)
        return losses.classification_terms(
            outputs["logits"], label_ids, token_weights(features)
        )


def token_weights(features):
    """1 for a token that counts, else 0: float32, the shape of `label_ids`."""
    return ops.cast(features["label_ids"] >= 0, "float32")
