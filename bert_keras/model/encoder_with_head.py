"""EncoderWithHead: what the networks of all fine-tuned tasks have in common."""

from typing import Any

import keras
from keras import ops

from bert_keras.config import BertConfig
from bert_keras.model import encoder, heads, layers


class EncoderWithHead(keras.Model):
    """The encoder and a head that scores each text, or each of its tokens.

    A task's network derives from it and adds what it does with the scores: `call`,
    `loss_weights` and `loss_terms`.

    Args:
        config: sizes and shapes of the encoder.
        num_labels: scores of each text or token.
        dropout_prob: fraction of the head's input that is dropped in training.
        bilstm_units: see `heads.ClassificationHead`.
        seed: of weights and dropout; `None` for random ones.
    """

    loss_names = ("loss",)
    """The terms of `loss_terms` whose means add up to the loss."""

    per_token = False
    """Whether each token is scored, not the text."""

    def __init__(
        self,
        config: BertConfig,
        num_labels: int,
        *,
        dropout_prob: float,
        bilstm_units: int = 0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_labels = num_labels
        self.encoder = encoder.BertEncoder(
            config,
            seed=layers.derive_seed(seed, "encoder"),
            name="encoder",
            dtype=self.dtype_policy,
        )
        self.head = heads.ClassificationHead(
            config.hidden_size,
            num_labels,
            dropout_rate=dropout_prob,
            bilstm_units=bilstm_units,
            per_token=self.per_token,
            initializer_range=config.initializer_range,
            seed=layers.derive_seed(seed, "head"),
            name="head",
            dtype=self.dtype_policy,
        )

    def build(self, input_shape=None):
        self.encoder.build()
        self.head.build()
        if self.per_token or self.head.bilstm is not None:
            # It has no gradient then, and weight decay would shrink it.
            self.encoder.pooler.trainable = False

    def scores(self, features, *, training):
        """What the head makes of texts.

        Args:
            features: as `BertEncoder` takes it.
            training: whether to drop something.

        Returns:
            `(batch_size, num_labels)` or, of each token, `(batch_size,
            sequence_length, num_labels)`, float32.
        """
        dropout_seeds = None
        if training:
            # The same for the encoder and the head.
            dropout_seeds = self.encoder.dropout_seeds(features)
            features = {**features, "dropout_seeds": dropout_seeds}
        encoded = self.encoder(features, training=training)
        mask = features["input_mask"]
        vectors = self._head_input(encoded, mask)
        return self.head(vectors, dropout_seeds, mask, training=training)

    def _head_input(self, encoded, input_mask):
        """The vectors of all tokens for a head that wants them, or the pooled one.

        Where tokens attend to the left only, the first one has seen nothing of the
        text, so the last one is pooled in its place, as in GPT.
        """
        if self.per_token or self.head.bilstm is not None:
            return encoded["sequence_output"]
        if self.encoder.config.attention == "bidirectional":
            return encoded["pooled_output"]
        positions = ops.arange(ops.shape(input_mask)[1], dtype="int32")
        last = ops.max(positions * ops.cast(input_mask, "int32"), axis=1, keepdims=True)
        vectors = heads.gather_positions(encoded["sequence_output"], last)
        return ops.tanh(self.encoder.pooler(vectors))
