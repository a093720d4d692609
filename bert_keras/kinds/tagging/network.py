"""The network that gives each token a class; Keras alone."""

from typing import Any

import keras
from keras import ops

from bert_keras.core.settings import architecture, tasks
from bert_keras.model import encoder, losses, operations
from bert_keras.model.networks import EncoderWithHead, example_weights, token_weights


@keras.saving.register_keras_serializable(package="bert_keras")
class BertTagger(EncoderWithHead):
    """Chooses one of several classes for each token, such as the name it is part of.

    Section 5.3 of the paper, fine-tuned. The encoder's pooler is unused and keeps its
    initial weights. `logits` are `(batch_size, sequence_length, num_labels)`. For
    `loss_terms`, `label_ids` are `(batch_size, sequence_length)` integers: the true
    class of each token, below 0 for a token that does not count (a special token,
    padding, a word's pieces after the first). The weight of the loss is the number of
    tokens that count.

    With `feature_layers` the network follows the second half of that section: the
    encoder is frozen and drops nothing, and the head reads the outputs of some layers,
    at the first pieces of words alone. The features then hold `word_positions`,
    `(batch_size, num_words)` integers: the place of each word's first piece, padded
    with 0. `logits` and `label_ids` have an entry for each word in place of each token.
    With `word_vectors`, from the method of this name, the encoder does not run. If
    `feature_layers` is `None`, the encoder is trained.
    """

    per_token = True
    saved_arguments = (*EncoderWithHead.saved_arguments, "feature_layers")

    def __init__(
        self,
        config: architecture.BertConfig,
        num_labels: int,
        *,
        feature_layers: tasks.FeatureLayers | None = None,
        **kwargs: Any,
    ) -> None:
        numbers, mixes = (), False
        if feature_layers is not None:
            num_layers = config.num_hidden_layers
            numbers = tasks.feature_layer_numbers(feature_layers, num_layers)
            mixes = feature_layers.startswith("weighted_sum")
        super().__init__(
            config,
            num_labels,
            num_vectors=len(numbers) or 1,
            mixes_vectors=mixes,
            **kwargs,
        )
        self.feature_layers = feature_layers
        self.layer_numbers = numbers

    def build(self, input_shape=None):
        super().build(input_shape)
        if self.feature_layers is not None:
            self.encoder.trainable = False

    def scores(self, features, training, return_all_layers):
        if self.feature_layers is None:
            return super().scores(features, training, return_all_layers)
        if "word_positions" not in features:
            raise ValueError(
                "a tagger with `feature_layers` needs `word_positions`, the place of "
                "each word's first piece"
            )
        features = encoder.complete(features)
        positions = features["word_positions"]
        padded_length, outputs = ops.shape(positions)[1], ()
        if "word_vectors" in features and not return_all_layers:
            vectors = features["word_vectors"]
        else:
            vectors, outputs = self._vectors(features)
        positions = positions[:, : ops.shape(vectors)[1]]
        logits = self.head(
            vectors,
            self.encoder.dropout_seeds(features) if training else None,
            ops.cast(positions > 0, "int32"),
            training=training,
        )
        # 0 at padding, however much there is. LiteRT has no slice with a new axis.
        logits = ops.where(ops.expand_dims(positions, -1) > 0, logits, 0.0)
        missing = padded_length - ops.shape(positions)[1]
        logits = ops.pad(logits, [[0, 0], [0, missing], [0, 0]])
        return logits, {"encoder_outputs": outputs} if return_all_layers else {}

    def word_vectors(self, features):
        """Returns the input of the head from `feature_layers`, without gradients:
        `(batch_size, num_words, num_layers, hidden_size)`."""
        return self._vectors(encoder.complete(features))[0]

    def _vectors(self, features):
        encoded = self.encoder(features, training=False, return_all_layers=True)
        outputs, positions = encoded["encoder_outputs"], features["word_positions"]
        if positions.shape[1] is None:
            # Where shapes are free, the BiLSTM's loop ends with the longest sentence.
            num_words = ops.sum(ops.cast(positions > 0, "int32"), axis=1)
            positions = positions[:, : ops.maximum(ops.max(num_words), 1)]
        numbers = self.layer_numbers
        chosen = [operations.gather_positions(outputs[n], positions) for n in numbers]
        shape = (-1, ops.shape(positions)[1], len(numbers), self.config.hidden_size)
        vectors = ops.reshape(ops.stack(chosen, axis=1), shape)
        return ops.stop_gradient(vectors), outputs

    def loss_weights(self, features) -> dict[str, Any]:
        return {"loss": ops.sum(token_weights(features))}

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        # A label below 0 is no index; the weight of its token is 0.
        label_ids = ops.maximum(features["label_ids"], 0)
        return losses.classification_terms(
            outputs["logits"], label_ids, token_weights(features)
        )

    def soft_weights(self, features):
        mask = ops.cast(features["teacher_mask"], "float32")
        rows = example_weights(features, mask)
        return ops.reshape(mask * rows[:, None], (-1,))
