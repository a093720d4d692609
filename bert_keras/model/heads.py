"""Heads of the encoder: masked words, next sentence, classes of texts and tokens."""

from typing import Any

import keras
from keras import ops

from bert_keras.model import bilstm, layers, operations


@keras.saving.register_keras_serializable(package="bert_keras")
class MaskedLanguageModelHead(layers.Part):
    """Scores every token of the vocabulary for the masked positions.

    Only the masked positions go through it: they are a seventh of the sequence, and the
    product with the vocabulary is the model's largest.

    Call arguments:
        sequence_output: `(batch_size, sequence_length, hidden_size)`.
        masked_lm_positions: `(batch_size, max_predictions_per_seq)` integers; `None`:
            all positions.
        word_embeddings: `(vocab_size, hidden_size)`, the encoder's table, which is this
            head's last matrix too.

    Returns:
        Logits, `(batch_size, max_predictions_per_seq, vocab_size)` float32.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        hidden_act: str = "gelu",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.hidden_act = hidden_act
        self.transform = layers.Dense(self, hidden_size, hidden_size, "transform")
        self.layer_norm = self.make_norm(hidden_size, "layer_norm")

    def build(self, input_shape=None):
        super().build()
        # Added to float32 logits.
        self.output_bias = self.add_weight(
            (self.vocab_size,), "zeros", name="output_bias", autocast=False
        )

    def call(self, sequence_output, masked_lm_positions, word_embeddings):
        if masked_lm_positions is None:
            num_predictions = ops.shape(sequence_output)[1]
            masked = ops.reshape(sequence_output, (-1, self.hidden_size))
        else:
            num_predictions = ops.shape(masked_lm_positions)[1]
            masked = operations.gather_positions(sequence_output, masked_lm_positions)
        masked = operations.activate(self.transform(masked), activation=self.hidden_act)
        masked = self.layer_norm(masked)
        # The product has the precision of the layer; the bias is float32 in any.
        logits = ops.matmul(masked, ops.transpose(word_embeddings))
        logits = ops.cast(logits, "float32") + self.output_bias
        return ops.reshape(logits, (-1, num_predictions, self.vocab_size))


@keras.saving.register_keras_serializable(package="bert_keras")
class NextSentenceHead(layers.Part):
    """Scores whether the second text follows the first or is random: from
    `(batch_size, hidden_size)` to logits, `(batch_size, 2)` float32."""

    def __init__(self, hidden_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.classifier = layers.Dense(self, hidden_size, 2, "classifier")

    def call(self, pooled_output):
        return ops.cast(self.classifier(pooled_output), "float32")


@keras.saving.register_keras_serializable(package="bert_keras")
class ClassificationHead(layers.Part):
    """Scores the classes of a text or of each of its tokens, or predicts one number.

    Args:
        num_labels: number of classes; 1 for a number.
        dropout_rate: fraction of the classifier's input that is dropped in training.
        bilstm_units: units in each direction of a BiLSTM below the classifier, as in
            the ablation of the paper's Table 5; 0: no BiLSTM.
        num_bilstm_layers: BiLSTMs, one on the other; two in the paper's Table 7.
            Dropout follows each.
        num_vectors: vectors of each token. Several are put side by side, or summed.
        mixes_vectors: sum a token's vectors with learnt weights, see `LayerMix`.
        per_token: with a BiLSTM: score each token, not the text.

    Call arguments:
        encoded: `(batch_size, hidden_size)`, a vector for each text, or `(batch_size,
            sequence_length, hidden_size)`, one for each token, always with a BiLSTM.
            With several vectors or a sum `(batch_size, sequence_length, num_vectors,
            hidden_size)`.
        dropout_seeds: `(batch_size,)` int32, required in training.
        input_mask: `(batch_size, sequence_length)`, 1 for a token, 0 for padding;
            required with a BiLSTM.

    Returns:
        Logits, float32: `(batch_size, num_labels)` for texts or `(batch_size,
        sequence_length, num_labels)` for tokens.
    """

    def __init__(
        self,
        hidden_size: int,
        num_labels: int,
        *,
        dropout_rate: float = 0.1,
        bilstm_units: int = 0,
        num_bilstm_layers: int = 1,
        num_vectors: int = 1,
        mixes_vectors: bool = False,
        per_token: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_labels = num_labels
        self.mix = None
        if mixes_vectors:
            self.mix = LayerMix(num_vectors, name="mix", dtype=self.dtype_policy)
        self.read_size = hidden_size * (1 if mixes_vectors else num_vectors)
        self.classified_size = 2 * bilstm_units or self.read_size
        num_bilstms = num_bilstm_layers if bilstm_units else 0
        self.bilstms = [
            bilstm.BiLSTM(
                self.classified_size if index else self.read_size,
                bilstm_units,
                return_sequences=per_token or index < num_bilstms - 1,
                seed=layers.derive_seed(self.seed, name),
                name=name,
                dtype=self.dtype_policy,
            )
            for index in range(num_bilstms)
            for name in [f"bilstm_{index}" if index else "bilstm"]
        ]
        names = [*(f"dropout_{index}" for index in range(num_bilstms - 1)), "dropout"]
        self.dropouts = [self.make_dropout(dropout_rate, name) for name in names]
        self.classifier = layers.Dense(
            self, self.classified_size, num_labels, "classifier"
        )

    def call(self, encoded, dropout_seeds=None, input_mask=None, training=None):
        if self.mix is not None:
            encoded = self.mix(encoded)
        if len(encoded.shape) == 4:
            shape = (-1, *ops.shape(encoded)[1:2], self.read_size)
            encoded = ops.reshape(encoded, shape)
        if self.bilstms:
            encoded = self.bilstms[0](encoded, input_mask)
        *between, last = self.dropouts
        for dropout, layer in zip(between, self.bilstms[1:], strict=True):
            encoded = dropout(encoded, dropout_seeds, training=training)
            encoded = layer(encoded, input_mask)
        encoded = last(encoded, dropout_seeds, training=training)
        # One list of all tokens: see `layers.FeedForward`.
        logits = self.classifier(ops.reshape(encoded, (-1, self.classified_size)))
        shape = (-1, *ops.shape(encoded)[1:-1], self.num_labels)
        return ops.reshape(ops.cast(logits, "float32"), shape)


@keras.saving.register_keras_serializable(package="bert_keras")
class LayerMix(keras.layers.Layer):
    """A weighted sum of several layers' vectors: `scale * sum(softmax(scores) * x)`.

    The softmax and the scale are those of Peters et al. (2018), "Deep contextualized
    word representations", section 3.2; the BERT paper does not describe its weights. At
    first all layers weigh the same.

    Call arguments:
        vectors: `(batch_size, num_words, num_layers, hidden_size)`; the sum has the
            shape `(batch_size, num_words, hidden_size)`.
    """

    def __init__(self, num_layers: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_layers = num_layers

    def build(self, input_shape=None):
        self.scores = self.add_weight((self.num_layers,), "zeros", name="scores")
        self.scale = self.add_weight((), "ones", name="scale")

    def call(self, vectors):
        # B batch, T word, L layer, H size of a vector.
        mixed = ops.einsum("BTLH,L->BTH", vectors, ops.softmax(self.scores))
        return self.scale * mixed
