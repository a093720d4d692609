"""BertEncoder: token ids in, one vector per token and one per sequence out."""

from typing import Any

import keras

from bert_keras import layers
from bert_keras.config import BertConfig


@keras.saving.register_keras_serializable(package="bert_keras")
class BertEncoder(keras.Model):
    """Embeddings, a stack of transformer layers, and the pooler.

    Figure 1 of the paper. The weights come into being with the first call, or without
    data by `encoder.build()`.

    Args:
        config: sizes and shapes.
        seed: of weights and dropout; `None` for random ones.

    Call arguments:
        features: a dict of integers, each `(batch_size, sequence_length)`; other keys
            are not looked at.
            `input_ids`: token ids below `config.vocab_size`.
            `input_mask`: 1 for a token, 0 for padding.
            `segment_ids`: 0 for the first text, 1 for the second.
        return_all_layers: whether to add `encoder_outputs`.

    Returns:
        A dict.
        `sequence_output`: `(batch_size, sequence_length, hidden_size)`.
        `pooled_output`: `(batch_size, hidden_size)`, from the first token.
        `encoder_outputs`: on request, a tuple with the output of each layer, first to
            last, each of the shape of `sequence_output`.

    Raises:
        ValueError: a sequence longer than `config.max_position_embeddings`.
    """

    def __init__(
        self, config: BertConfig, *, seed: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.seed = seed
        self.embeddings = layers.Embeddings(
            config.vocab_size,
            config.hidden_size,
            max_position_embeddings=config.max_position_embeddings,
            type_vocab_size=config.type_vocab_size,
            dropout_rate=config.hidden_dropout_prob,
            initializer_range=config.initializer_range,
            seed=layers.derive_seed(seed, "embeddings"),
            name="embeddings",
            dtype=self.dtype_policy,
        )
        self.transformer_layers = [
            self._transformer_layer(f"layer_{index}")
            for index in range(config.num_hidden_layers)
        ]
        self.pooler = layers.dense(
            config.hidden_size,
            initializer_range=config.initializer_range,
            seed=seed,
            name="pooler",
            dtype=self.dtype_policy,
        )

    def _transformer_layer(self, name: str) -> layers.TransformerLayer:
        config = self.config
        return layers.TransformerLayer(
            config.hidden_size,
            config.num_attention_heads,
            config.intermediate_size,
            hidden_act=config.hidden_act,
            hidden_dropout_rate=config.hidden_dropout_prob,
            attention_dropout_rate=config.attention_probs_dropout_prob,
            initializer_range=config.initializer_range,
            seed=layers.derive_seed(self.seed, name),
            name=name,
            dtype=self.dtype_policy,
        )

    @property
    def word_embeddings(self) -> keras.Variable:
        """The table of word embeddings, `(vocab_size, hidden_size)`."""
        return self.embeddings.word_embeddings

    def build(self, input_shape=None):
        self.embeddings.build()
        for layer in self.transformer_layers:
            layer.build()
        self.pooler.build((None, self.config.hidden_size))

    def call(self, features, training=None, return_all_layers=False):
        hidden_states = self.embeddings(
            features["input_ids"], features["segment_ids"], training=training
        )
        encoder_outputs = []
        for layer in self.transformer_layers:
            hidden_states = layer(
                hidden_states, features["input_mask"], training=training
            )
            encoder_outputs.append(hidden_states)
        outputs = {
            "sequence_output": hidden_states,
            "pooled_output": keras.ops.tanh(self.pooler(hidden_states[:, 0])),
        }
        if return_all_layers:
            outputs["encoder_outputs"] = tuple(encoder_outputs)
        return outputs

    def get_config(self) -> dict[str, Any]:
        own = {"config": self.config.model_dump(), "seed": self.seed}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "BertEncoder":
        return cls(**{**config, "config": BertConfig(**config["config"])})
