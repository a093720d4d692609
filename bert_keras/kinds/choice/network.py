"""The network that chooses one of several endings; Keras alone."""

from typing import Any

import keras

from bert_keras.model import losses
from bert_keras.model.networks import PartsWithHead, choice_terms, example_weights


@keras.saving.register_keras_serializable(package="bert_keras")
class BertChooser(PartsWithHead):
    """Chooses one of several endings of a text, each read as a pair with the text.

    Section 4.4 of the paper: one vector scores the pooled output of every ending, and
    the softmax is over the endings of an example, its parts. For `loss_terms`,
    `label_ids` are `(batch_size,)` or `(batch_size, 1)`: the number of the right
    ending.
    """

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        loss, right = choice_terms(outputs["logits"], features["label_ids"])
        weights = example_weights(features, features["label_ids"])
        return losses.weighted_terms(weights, loss=loss, accuracy=right)
