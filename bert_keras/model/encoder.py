"""BertEncoder: token ids in, one vector per token and one per sequence out."""

import difflib
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
from keras import ops

from bert_keras.core.errors import InputError
from bert_keras.core.settings.architecture import BertConfig, Recompute
from bert_keras.model import dropout, layers, packed_rows, recomputation


class BertNetwork(keras.Model):
    """Base of all networks: made from a `BertConfig`, and saved with it by Keras.

    `network.save("name.keras")` and `keras.saving.load_model` work for each network,
    alone or as a part of another model. A `seed` decides weights and dropout; with
    `None` they are random.
    """

    saved_arguments = ("seed",)
    """Arguments of the class besides `config`, which are attributes of the network."""

    def __init__(
        self, config: BertConfig, *, seed: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.seed = seed

    def build(self, input_shape=None):
        layers.build_parts(self)

    @property
    def initializer_range(self) -> float:
        return self.config.initializer_range

    def get_config(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.saved_arguments}
        return {**super().get_config(), "config": self.config.model_dump(), **own}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "BertNetwork":
        return cls(**{**config, "config": BertConfig(**config["config"])})

    def get_build_config(self) -> dict[str, Any] | None:
        """Returns the names of frozen layers and weights, which Keras would forget."""
        if not self.built:
            return None
        return {"frozen": [n for n, part in self._parts() if not part.trainable]}

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Creates the weights, and freezes the layers and weights that were frozen."""
        self.build()
        frozen = set(config["frozen"])
        for name, part in self._parts():
            part.trainable = name not in frozen

    def _parts(self) -> list[tuple[str, Any]]:
        """Returns built layers, outer ones first, then weights; each with its name."""
        parts = [*self._flatten_layers(), *self.weights]
        return [(p.path.removeprefix(self.path), p) for p in parts if p.path]


@keras.saving.register_keras_serializable(package="bert_keras")
class BertEncoder(BertNetwork):
    """Embeddings, a stack of transformer layers, and the pooler (the paper's Figure 1).

    The first call creates the weights, or `encoder.build()`.

    Call arguments:
        features: a dict of integers, each `(batch_size, sequence_length)`; other keys
            of a batch, such as labels, are ignored, and unknown keys are refused.
            `input_ids`: token ids below `config.vocab_size`.
            `input_mask` (or `attention_mask`): 1 for a token, 0 for padding; default 1.
            `segment_ids` (or `token_type_ids`): 0 for the first text, 1 for the second;
                default 0.
            `dropout_seeds`: `(batch_size,)`, used in training, random by default: see
                `bert_keras.model.dropout`.
            `instance_ids`: in place of `input_mask` for packed rows: 1 for the tokens
                of the first instance, 2 for the second, and so on; 0 for padding. Each
                instance is computed as in a row of its own, with its own
                `dropout_seeds`, `(batch_size, slots)`: see
                `bert_keras.model.packed_rows`.
            `embedding_output`: `(batch_size, sequence_length, hidden_size)` floats, in
            place of what the embeddings compute from the ids.
        return_all_layers: add `encoder_outputs`.
        return_attention: add `attention_probs`.
        output_positions: `(batch_size, num_positions)`: return the vectors of these
            positions alone, and no `pooled_output`. The last layer then computes keys
            and values of all positions, and the rest of its work for these. `None`: all
            positions. Not for training with dropout, which is drawn by position.

    Returns:
        A dict.
        `sequence_output`: `(batch_size, sequence_length, hidden_size)`, or
            `(batch_size, num_positions, hidden_size)`.
        `pooled_output`: `(batch_size, hidden_size)`, from the first token; for packed
            rows `(batch_size, slots, hidden_size)`, from each instance's first token.
        `encoder_outputs`: on request, a tuple of the embeddings' output and of each
            layer's, first to last, each with the shape of `sequence_output`.
        `attention_probs`: on request, a tuple of each layer's attention probabilities
            before dropout, `(batch_size, num_attention_heads, query, key)` float32.

    Raises:
        ValueError: a sequence exceeds `config.max_position_embeddings`.
    """

    recompute: Recompute = "none"
    """Parts that the backward pass of training computes again to save memory: the
    attention of each layer, or each layer as a whole. The outputs are the same, bit for
    bit. Set it before the first training step."""

    def __init__(
        self, config: BertConfig, *, seed: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(config, seed=seed, **kwargs)
        self.embeddings = layers.Embeddings(
            config.vocab_size,
            config.hidden_size,
            max_position_embeddings=config.max_position_embeddings,
            type_vocab_size=config.type_vocab_size,
            dropout_rate=config.hidden_dropout_prob,
            **layers.part_arguments(self, "embeddings"),
        )
        self.dropout_seed_generator = keras.random.SeedGenerator(
            layers.derive_seed(seed, "dropout_seeds"), name="dropout_seeds"
        )
        self.transformer_layers = [
            layers.TransformerLayer(
                config.hidden_size,
                config.num_attention_heads,
                config.intermediate_size,
                hidden_act=config.hidden_act,
                attention=config.attention,
                hidden_dropout_rate=config.hidden_dropout_prob,
                attention_dropout_rate=config.attention_probs_dropout_prob,
                **layers.part_arguments(self, f"layer_{index}"),
            )
            for index in range(config.num_hidden_layers)
        ]
        size = config.hidden_size
        self.pooler = layers.Dense(self, size, size, "pooler")

    @property
    def word_embeddings(self) -> keras.Variable:
        """Table of the word embeddings, `(vocab_size, hidden_size)`."""
        return self.embeddings.word_embeddings

    def dropout_seeds(self, features):
        """Returns the batch's seeds or random ones, `(batch_size[, slots])` int32."""
        if "dropout_seeds" in features:
            return features["dropout_seeds"]
        shape = ops.shape(features["input_ids"])[:1]
        if "instance_ids" in features:
            shape = (*shape, packed_rows.num_slots(features))
        return keras.random.randint(
            shape, minval=0, maxval=2**31 - 1, seed=self.dropout_seed_generator
        )

    def call(
        self,
        features,
        training=None,
        return_all_layers=False,
        return_attention=False,
        output_positions=None,
    ):
        features = complete(features)
        dropout_seeds = self.dropout_seeds(features) if training else None
        mask, positions = features["input_mask"], None
        is_packed = "instance_ids" in features
        if is_packed:
            mask = features["instance_ids"]
            positions = packed_rows.positions(mask)
            if training:
                dropout_seeds = packed_rows.token_seeds(dropout_seeds, mask, positions)
        hidden_states = self.embeddings(
            features["input_ids"],
            features["segment_ids"],
            dropout_seeds,
            positions=positions,
            replaced_by=features.get("embedding_output"),
            training=training,
        )
        encoder_outputs, attention_probs = [hidden_states], []
        last_layer = self.transformer_layers[-1]
        for layer in self.transformer_layers:
            call = layer
            if training and self.recompute == "layers" and not return_attention:
                call = functools.partial(recomputation.layer, layer)
            hidden_states = call(
                hidden_states,
                mask,
                dropout_seeds,
                training=training,
                return_attention=return_attention,
                is_packed=is_packed,
                recompute_attention=self.recompute == "attention",
                output_positions=output_positions if layer is last_layer else None,
            )
            if return_attention:
                hidden_states, probabilities = hidden_states
                attention_probs.append(probabilities)
            encoder_outputs.append(hidden_states)
        outputs = {"sequence_output": hidden_states}
        if output_positions is None:
            first = hidden_states[:, 0]
            if is_packed:
                num_slots = packed_rows.num_slots(features)
                first = packed_rows.first_states(hidden_states, mask, num_slots)
            outputs["pooled_output"] = ops.tanh(self.pooler(first))
        if return_all_layers:
            outputs["encoder_outputs"] = tuple(encoder_outputs)
        if return_attention:
            outputs["attention_probs"] = tuple(attention_probs)
        return outputs


def part_of(network: BertNetwork) -> BertEncoder:
    """Returns the encoder of another network."""
    arguments = layers.part_arguments(network, "encoder")
    del arguments["initializer_range"]  # the configuration has it
    return BertEncoder(network.config, **arguments)


_INPUTS = ("input_ids", "input_mask", "segment_ids", "dropout_seeds", "instance_ids")
_HUGGING_FACE = {"attention_mask": "input_mask", "token_type_ids": "segment_ids"}
_MEANT = {
    **dict.fromkeys(("token_ids", "input_word_ids"), "input_ids"),
    **dict.fromkeys(("padding_mask", "mask"), "input_mask"),
    **dict.fromkeys(("input_type_ids", "type_ids"), "segment_ids"),
    **dict.fromkeys(("position_ids", "inputs_embeds", "head_mask")),
}
"""Inputs in other libraries, and ours; `None`: none of ours is like it."""


def complete(features: dict[str, Any]) -> dict[str, Any]:
    """Returns features under our names, with a default `input_mask` (1) and
    `segment_ids` (0); Hugging Face's names of the two are taken, too.

    Labels and what else a kind of task needs pass through. Raises `ValueError` for a
    name that stands for an input elsewhere or resembles one, since it would be ignored,
    and for a repeated one.
    """
    for theirs, ours in _HUGGING_FACE.items():
        if theirs in features:
            if ours in features:
                raise ValueError(f"got both {theirs!r} and {ours!r}: give one of them")
            features = {ours if k == theirs else k: v for k, v in features.items()}
    for name in features:
        # No label is as much like an input: the nearest, `text_ids`, has 0.63.
        alike = difflib.get_close_matches(name, _INPUTS, n=1, cutoff=0.7)
        if name not in _INPUTS and (alike or name in _MEANT):
            meant = _MEANT[name] if name in _MEANT else alike[0]
            hint = f"; did you mean {meant!r}?" if meant else ""
            raise ValueError(f"no feature {name!r}{hint} (there: {', '.join(_INPUTS)})")
    if "input_ids" not in features:
        raise ValueError(f"expected 'input_ids', got {', '.join(features)}")
    for name, make in (("input_mask", ops.ones_like), ("segment_ids", ops.zeros_like)):
        if name not in features:
            features = {**features, name: make(features["input_ids"], dtype="int32")}
    return features


def list_parts(
    network: BertEncoder, features: dict[str, Any], training: bool | None
) -> tuple[dict[str, Any], list]:
    """Lists texts of `(batch_size[, num_parts], length)` features, each with its own
    dropout in training. Returns features of the list, and `[num_parts]` or `[]`."""
    features = complete(features)
    *rows, length = ops.shape(features["input_ids"])
    texts = {name: ops.reshape(features[name], (-1, length)) for name in _INPUTS[:3]}
    if training:
        seeds = network.dropout_seeds(features)
        if len(rows) > 1:
            seeds = dropout.seeds_of_parts(seeds, rows[1])
        texts["dropout_seeds"] = seeds
    return texts, rows[1:]


def resolve_layers(
    layers: Sequence[int], num_hidden_layers: int, *, path: str | Path
) -> tuple[int, ...]:
    """Counts layers from 0: the embeddings' output is 0, the first layer's 1. In
    `layers`, -1 is the last layer's output and -2 the one before."""
    for layer in layers:
        if not -num_hidden_layers - 1 <= layer <= num_hidden_layers:
            raise InputError(
                f"{path}: there is no layer {layer}: 0 are the embeddings, 1 to "
                f"{num_hidden_layers} the layers, -1 the last one of them"
            )
    resolved = tuple(layer % (num_hidden_layers + 1) for layer in layers)
    for layer in resolved:
        if resolved.count(layer) > 1:
            raise InputError(f"layer {layer} is asked for twice: name it once")
    return resolved
