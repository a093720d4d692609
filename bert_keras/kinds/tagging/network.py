"""The network that gives each token a class; Keras alone."""

from typing import Any

import keras
from keras import ops

from bert_keras.model import losses
from bert_keras.model.networks import (
    EncoderWithHead,
    token_weights,
)


@keras.saving.register_keras_serializable(package="bert_keras")
class BertTagger(EncoderWithHead):
    """Chooses one of several classes for each token, such as the name it is part of.

    Section 5.3 of the paper, fine-tuned. The encoder's pooler is unused and keeps its
    initial weights. `logits` have the shape `(batch_size, sequence_length,
    num_labels)`. For `loss_terms`, `label_ids` are `(batch_size, sequence_length)`
    integers: the true class of each token, below 0 for a token that does not count (a
    special token, padding, a word's pieces after the first). The weight of the loss is
    the number of tokens that count.
    """

    per_token = True

    def loss_weights(self, features) -> dict[str, Any]:
        return {"loss": ops.sum(token_weights(features))}

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        label_ids = ops.maximum(features["label_ids"], 0)
        return losses.classification_terms(
            outputs["logits"], label_ids, token_weights(features)
        )
