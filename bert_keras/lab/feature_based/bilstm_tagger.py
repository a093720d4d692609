"""LayerProbe: a tagger of words whose encoder stays as it is."""

from typing import Any

import keras
from keras import ops

from bert_keras.model import bilstm, heads, layers, losses, networks

# In einsum: B batch, T word, L layer, H size of a vector.


class LayerProbe(keras.Model):
    """BiLSTMs and a classifier over the vectors that layers of an encoder have made.

    Section 5.3 of the paper, the feature-based approach: the vectors are inputs, so
    nothing of the encoder is trained. There is no CRF.

    Args:
        num_layers: of the encoder, whose vectors each word has.
        hidden_size: size of a vector.
        num_labels: number of classes.
        is_weighted: whether a word's vectors are summed with weights that are learnt,
            and not put side by side.
        num_bilstm_layers: BiLSTMs, one on the other.
        bilstm_units: cells in each direction of each.
        dropout_prob: fraction of each BiLSTM's output that is dropped in training.
        seed: of weights and dropout; `None` for random ones.

    Call arguments:
        features: a dict with `vectors`, `(batch_size, num_words, num_layers,
            hidden_size)` float; `input_mask`, `(batch_size, num_words)`, 1 for a word,
            0 for padding; and in training `dropout_seeds`, `(batch_size,)` int32, see
            `bert_keras.model.dropout`. Other keys are ignored.

    Returns:
        A dict with `logits`, `(batch_size, num_words, num_labels)` float32.
    """

    loss_names = ("loss",)
    """The terms of `loss_terms` whose means add up to the loss."""

    def __init__(
        self,
        num_layers: int,
        hidden_size: int,
        num_labels: int,
        *,
        is_weighted: bool,
        num_bilstm_layers: int = 2,
        bilstm_units: int = 768,
        dropout_prob: float = 0.1,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_labels = num_labels
        self.mix = None
        word_size = num_layers * hidden_size
        if is_weighted:
            self.mix = LayerMix(num_layers, name="mix", dtype=self.dtype_policy)
            word_size = hidden_size
        self.word_size = word_size
        self.bilstms = [
            bilstm.BiLSTM(
                2 * bilstm_units if index else word_size,
                bilstm_units,
                seed=layers.derive_seed(seed, f"bilstm_{index}"),
                name=f"bilstm_{index}",
                dtype=self.dtype_policy,
            )
            for index in range(num_bilstm_layers)
        ]
        # The head drops what it reads by itself.
        self.dropouts = [
            layers.dropout_layer(
                dropout_prob,
                seed=seed,
                name=f"dropout_{index}",
                dtype=self.dtype_policy,
            )
            for index in range(num_bilstm_layers - 1)
        ]
        self.head = heads.ClassificationHead(
            2 * bilstm_units,
            num_labels,
            dropout_rate=dropout_prob,
            seed=layers.derive_seed(seed, "head"),
            name="head",
            dtype=self.dtype_policy,
        )

    def build(self, input_shape=None):
        for layer in (self.mix, *self.bilstms, self.head):
            if layer is not None:
                layer.build()

    def call(self, features, training=None):
        vectors, mask = features["vectors"], features["input_mask"]
        dropout_seeds = features["dropout_seeds"] if training else None
        if self.mix is not None:
            vectors = self.mix(vectors)
        states = ops.reshape(vectors, (-1, ops.shape(mask)[1], self.word_size))
        for index, layer in enumerate(self.bilstms):
            if index:
                dropout = self.dropouts[index - 1]
                states = dropout(states, dropout_seeds, training=training)
            states = layer(states, mask)
        return {"logits": self.head(states, dropout_seeds, training=training)}

    def loss_weights(self, features) -> dict[str, Any]:
        """The weight of the loss, see `loss_terms`: the number of words."""
        return {"loss": ops.sum(networks.token_weights(features))}

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        """Sum and weight of each quantity over this batch, to be divided later.

        Args:
            features: a dict with `label_ids`, `(batch_size, num_words)` integers: the
                true class of each word, below 0 for padding.
            outputs: what `call` returned for the same batch.

        Returns:
            From `loss` (nats per word) and `accuracy` to a pair of float32 scalars, the
            sum and the weight.
        """
        label_ids = ops.maximum(features["label_ids"], 0)
        return losses.classification_terms(
            outputs["logits"], label_ids, networks.token_weights(features)
        )


class LayerMix(keras.layers.Layer):
    """A weighted sum of several layers' vectors: `scale * sum(softmax(scores) * x)`.

    With the softmax and the scale of Peters et al. (2018), "Deep contextualized word
    representations", section 3.2; the paper does not say how it weighs. At first all
    layers weigh the same.

    Args:
        num_layers: how many.

    Call arguments:
        vectors: `(batch_size, num_words, num_layers, hidden_size)`.

    Returns:
        `(batch_size, num_words, hidden_size)`.
    """

    def __init__(self, num_layers: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_layers = num_layers

    def build(self, input_shape=None):
        self.scores = self.add_weight(
            name="scores", shape=(self.num_layers,), initializer="zeros"
        )
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

    @property
    def layer_weights(self):
        """`(num_layers,)`, which add up to 1."""
        return ops.softmax(self.scores)

    def call(self, vectors):
        return self.scale * ops.einsum("BTLH,L->BTH", vectors, self.layer_weights)
