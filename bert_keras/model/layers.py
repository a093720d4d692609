"""Layers of the encoder: embeddings, self-attention, feed-forward, transformer layer.

Attention Is All You Need, section 3, as BERT uses it: layer normalisation after each
residual sum, learned positions, GELU. `keras` and `keras.ops` only, so that the same
code runs on TensorFlow and on JAX.

With a `seed`, the weights of a layer and the salts of its dropouts are a function of
that seed and of the names of its parts, not of the order of creation.
"""

import functools
import math
import types
import typing
import zlib
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from bert_keras.core.settings.architecture import Attention
from bert_keras.model import dropout, fusion, operations, recomputation, weight_shapes

# In einsum: B batch, N head, Q query position, K key position, H size per head.


def derive_seed(seed: int | None, name: str) -> int | None:
    """Returns the seed of a part from its owner's; `None` (random) stays `None`."""
    return None if seed is None else zlib.crc32(f"{seed}/{name}".encode())


def initializer_of(owner: Any, name: str) -> keras.Initializer:
    """Returns the initialiser of a matrix of a `Part` or a `BertNetwork`."""
    return keras.initializers.TruncatedNormal(
        stddev=owner.initializer_range, seed=derive_seed(owner.seed, name)
    )


class Dense(keras.layers.Dense):
    """A linear map of the last axis, of a `Part` or a `BertNetwork`."""

    def __init__(self, owner: Any, num_inputs: int, units: int, name: str) -> None:
        super().__init__(
            units,
            kernel_initializer=initializer_of(owner, name),
            name=name,
            dtype=owner.dtype_policy,
        )
        self.num_inputs = num_inputs

    def build(self, input_shape=None):
        super().build((None, self.num_inputs))


class QueryKeyValue(Dense):
    """Queries, keys and values as one product, each with a low-rank change of its own.

    Keras's `enable_lora` would make one change for all three.
    """

    factors: Mapping[str, tuple] = types.MappingProxyType({})
    lora_scale = 1.0

    def enable_lora_of(
        self, part: str, rank: int, lora_alpha: float, a_initializer: keras.Initializer
    ) -> None:
        self._tracker.unlock()
        size, name = self.num_inputs, f"{part}_lora_kernel"
        a = self.add_weight((size, rank), a_initializer, "float32", name=f"{name}_a")
        b = self.add_weight((rank, size), "zeros", "float32", name=f"{name}_b")
        self.factors = {**self.factors, part: (a, b)}
        self._tracker.lock()
        self.lora_scale = lora_alpha / rank

    @property
    def kernel(self):
        if not self.factors:
            return super().kernel
        parts = ops.split(super().kernel, len(weight_shapes.APART), axis=1)
        for index, name in enumerate(weight_shapes.APART):
            if name in self.factors:
                parts[index] += self.lora_scale * ops.matmul(*self.factors[name])
        return ops.concatenate(parts, axis=1)


def build_parts(owner: keras.layers.Layer) -> None:
    """Creates the weights of a layer's own layers, which all know their sizes."""
    for layer in owner._flatten_layers(include_self=False, recursive=False):
        layer.build(None)


class Part(keras.layers.Layer):
    """Base of layers made of layers. Parts inherit the precision, the standard
    deviation of the initial weights, and seeds from `seed` (`None`: random)."""

    def __init__(
        self, *, initializer_range: float = 0.02, seed: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.initializer_range = initializer_range
        self.seed = seed

    def build(self, input_shape=None):
        build_parts(self)

    def make_dropout(self, rate: float, name: str) -> dropout.Dropout:
        options = {"seed": derive_seed(self.seed, name), "dtype": self.dtype_policy}
        return dropout.Dropout(rate, name=name, **options)

    def make_norm(self, size: int, name: str) -> "LayerNorm":
        return LayerNorm(size, name=name, dtype=self.dtype_policy)


def part_arguments(owner: Any, name: str) -> dict[str, Any]:
    """Returns the arguments of a `Part` that belongs to a `Part` or a `BertNetwork`."""
    return {
        "initializer_range": owner.initializer_range,
        "seed": derive_seed(owner.seed, name),
        "name": name,
        "dtype": owner.dtype_policy,
    }


@keras.saving.register_keras_serializable(package="bert_keras")
class LayerNorm(keras.layers.Layer):
    """Layer normalisation of the last axis, of length `size`, in float32 in every
    precision; the outputs have the shape and dtype of the inputs, `(..., size)`."""

    def __init__(self, size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size = size

    def build(self, input_shape=None):
        options = {"dtype": "float32", "autocast": False}
        self.gamma = self.add_weight((self.size,), "ones", name="gamma", **options)
        self.beta = self.add_weight((self.size,), "zeros", name="beta", **options)

    def call(self, inputs, training=None):
        return fusion.run(
            operations.normalize, inputs, *self.parameters(), training=training
        )

    def parameters(self) -> tuple:
        return ops.convert_to_tensor(self.gamma), ops.convert_to_tensor(self.beta)


@keras.saving.register_keras_serializable(package="bert_keras")
class Embeddings(Part):
    """Sum of word, position and segment embeddings, normalised, with dropout.

    Call arguments:
        input_ids: `(batch_size, sequence_length)` integers below `vocab_size`; a
            sequence longer than `max_position_embeddings` raises a `ValueError`.
        segment_ids: the same shape, integers below `type_vocab_size`.
        dropout_seeds: int32, required in training: see `bert_keras.model.dropout`.
        positions: the same shape as `input_ids`, each token's place in its instance;
            `None`: its place in the row.
        replaced_by: the outputs, computed elsewhere; `None`: they are computed here.

    Returns:
        `(batch_size, sequence_length, hidden_size)`.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        max_position_embeddings: int = 512,
        type_vocab_size: int = 2,
        dropout_rate: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.max_position_embeddings = max_position_embeddings
        self.type_vocab_size = type_vocab_size
        self.layer_norm = self.make_norm(hidden_size, "layer_norm")
        self.dropout = self.make_dropout(dropout_rate, "dropout")

    def build(self, input_shape=None):
        def add_table(name: str, num_rows: int) -> keras.Variable:
            # In mixed precision Keras would cast the whole table for a few rows.
            shape, initial = (num_rows, self.hidden_size), initializer_of(self, name)
            return self.add_weight(shape, initial, name=name, autocast=False)

        num_positions = self.max_position_embeddings
        self.word_embeddings = add_table("word_embeddings", self.vocab_size)
        self.position_embeddings = add_table("position_embeddings", num_positions)
        self.type_embeddings = add_table("type_embeddings", self.type_vocab_size)
        super().build()

    def call(
        self,
        input_ids,
        segment_ids,
        dropout_seeds=None,
        positions=None,
        replaced_by=None,
        training=None,
    ):
        if replaced_by is not None:
            return replaced_by
        length = ops.shape(input_ids)[1]
        if isinstance(length, int) and length > self.max_position_embeddings:
            raise ValueError(
                f"A sequence of {length} tokens is longer than "
                f"`max_position_embeddings`, which is {self.max_position_embeddings}: "
                "shorten the input"
            )
        words = operations.take_rows(self.word_embeddings, input_ids)
        if positions is not None:
            places = operations.take_rows(self.position_embeddings, positions)
        elif keras.backend.backend() == "tensorflow" or isinstance(length, int):
            places = self.position_embeddings[:length]
        else:
            # In a functional model on JAX, the unknown length is a symbol, and a slice
            # of Python would take the smaller of the symbol and the table's own length.
            first = ops.arange(length, dtype="int32")
            places = ops.take(self.position_embeddings, first, axis=0)
        # A product, because its gradient is dense: see `operations.take_rows`.
        segments = ops.matmul(
            ops.one_hot(segment_ids, self.type_vocab_size, dtype=words.dtype),
            self.type_embeddings,
        )
        states = self.layer_norm(words + places + segments, training=training)
        return self.dropout(states, dropout_seeds, training=training)


@keras.saving.register_keras_serializable(package="bert_keras")
class SelfAttention(Part):
    """Multi-head self-attention, up to and including the output projection.

    Args:
        num_attention_heads: a divisor of `hidden_size`.
        attention: the tokens that a token attends to, see `BertConfig`.
        dropout_rate: fraction of the attention probabilities that is dropped.

    Call arguments:
        hidden_states: `(batch_size, sequence_length, hidden_size)`.
        input_mask: `(batch_size, sequence_length)`, 1 for a token, 0 for padding, which
            no token attends to.
        dropout_seeds: int32, required in training: see `bert_keras.model.dropout`.
        return_attention: return the attention probabilities too.
        is_packed: `input_mask` has the number of each token's instance in place of 1; a
            token attends to tokens of its own instance.
        recompute: keep neither scores nor probabilities for the backward pass, which
            computes them again.
        output_positions: `(batch_size, num_positions)`, positions whose vectors are
            returned, in this order; `None`: all positions.

    Returns:
        `(batch_size, sequence_length, hidden_size)`, or `(batch_size, num_positions,
        hidden_size)`; on request a pair of this and the attention probabilities before
        dropout, `(batch_size, num_attention_heads, query, key)` float32.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        *,
        attention: str = "bidirectional",
        dropout_rate: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if attention not in (choices := typing.get_args(Attention)):
            raise ValueError(f"`attention` is one of {choices}, got {attention!r}")
        self.hidden_size = hidden_size
        self.num_attention_heads = num_attention_heads
        self.attention = attention
        self.size_per_head = hidden_size // num_attention_heads
        self._scale = 1.0 / math.sqrt(self.size_per_head)
        # One product with all three kernels is faster than three products.
        self.query_key_value = QueryKeyValue(
            self, hidden_size, 3 * hidden_size, "query_key_value"
        )
        self.dropout = self.make_dropout(dropout_rate, "dropout")
        self.output_dense = Dense(self, hidden_size, hidden_size, "output_dense")

    def call(
        self,
        hidden_states,
        input_mask,
        dropout_seeds=None,
        training=None,
        return_attention=False,
        is_packed=False,
        recompute=False,
        output_positions=None,
    ):
        length = ops.shape(hidden_states)[1]
        states = ops.reshape(hidden_states, (-1, self.hidden_size))
        query_key_value = self.query_key_value(states)
        bias = self._bias(input_mask, is_packed=is_packed)
        rate, *seeds = self.dropout.arguments(dropout_seeds, training=training)
        attend = functools.partial(
            self._attend, length=length, rate=rate, training=training
        )
        if training and recompute:
            attend = functools.partial(recomputation.recomputed, attend)
        context = attend(query_key_value, bias, *seeds)
        num_outputs = length
        if output_positions is not None:
            num_outputs = ops.shape(output_positions)[1]
            context = ops.reshape(context, (-1, length, self.hidden_size))
            context = operations.gather_positions(context, output_positions)
        output = self.output_dense(context)
        output = ops.reshape(output, (-1, num_outputs, self.hidden_size))
        if not return_attention:
            return output
        query, key, _ = self._split_heads(query_key_value, length)
        scores = ops.cast(ops.einsum("BNQH,BNKH->BNQK", query, key), "float32")
        return output, operations.attention_probabilities(
            scores, bias, scale=self._scale, rate=0.0
        )

    def _attend(self, query_key_value, bias, *seeds, length, rate, training):
        """Returns weighted values of all heads, `(batch_size * length, hidden_size)`,
        from `(batch_size * length, 3 * hidden_size)`."""
        query, key, value = self._split_heads(query_key_value, length)
        probabilities = fusion.run(
            operations.attention_probabilities,
            ops.einsum("BNQH,BNKH->BNQK", query, key),
            bias,
            *seeds,
            training=training,
            recompute=True,
            scale=self._scale,
            rate=rate,
        )
        context = ops.einsum("BNQK,BNKH->BNQH", probabilities, value)
        context = ops.transpose(context, (0, 2, 1, 3))
        return ops.reshape(context, (-1, self.hidden_size))

    def _bias(self, input_mask, *, is_packed):
        if is_packed and self.attention == "bidirectional":
            return ops.cast(input_mask, "int32")
        if is_packed:
            earlier = self._bias(ops.ones_like(input_mask), is_packed=False)
            return ops.minimum(earlier, operations.bias_between(input_mask))
        excluded = 1.0 - ops.cast(input_mask, "float32")
        # Not indexed with `None`, which LiteRT supports for fixed shapes only.
        excluded = ops.expand_dims(excluded, (1, 2))
        if self.attention == "left_to_right":
            positions = ops.arange(ops.shape(input_mask)[1])
            later = positions[None, :] > positions[:, None]
            # Twice, so that a token that may attend to none sees no later token either.
            excluded = excluded + 2.0 * ops.cast(later, "float32")
        return operations.EXCLUDED_BIAS * excluded

    def _split_heads(self, query_key_value, length):
        """Returns query, key and value: `(batch_size, heads, length, head_size)`."""
        shape = (-1, length, 3, self.num_attention_heads, self.size_per_head)
        heads = ops.reshape(query_key_value, shape)
        # One transposition of all three, then plain batched products: measured against
        # four other forms, none was faster on a CPU, forward and backward.
        return ops.unstack(ops.transpose(heads, (2, 0, 3, 1, 4)), 3)


@keras.saving.register_keras_serializable(package="bert_keras")
class FeedForward(Part):
    """Two linear maps with an activation between them, `hidden_act` of `operations`,
    for each position of `(batch_size, sequence_length, hidden_size)`."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        hidden_act: str = "gelu",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.hidden_act = hidden_act
        outer, inner = hidden_size, intermediate_size
        self.intermediate_dense = Dense(self, outer, inner, "intermediate_dense")
        self.output_dense = Dense(self, inner, outer, "output_dense")

    def call(self, hidden_states, training=None):
        length = ops.shape(hidden_states)[1]
        # One list of all tokens: TensorFlow then adds the bias within the product.
        tokens = ops.reshape(hidden_states, (-1, self.hidden_size))
        intermediate = self.intermediate_dense(tokens)
        name = self.hidden_act
        if fusion.is_within_product(name, intermediate, training=training):
            intermediate = operations.ACTIVATIONS[name](intermediate)
        else:
            intermediate = fusion.run(
                operations.activate, intermediate, training=training, activation=name
            )
        output = self.output_dense(intermediate)
        return ops.reshape(output, (-1, length, self.hidden_size))


@keras.saving.register_keras_serializable(package="bert_keras")
class TransformerLayer(Part):
    """Self-attention and feed-forward, each with dropout, residual sum and norm.

    `hidden_dropout_rate` is the fraction that is dropped before each residual sum; the
    other arguments are those of `SelfAttention` and `FeedForward`.

    Call arguments:
        all but `recompute`, and what is returned: as of `SelfAttention`.
    """

    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        intermediate_size: int,
        *,
        hidden_act: str = "gelu",
        attention: str = "bidirectional",
        hidden_dropout_rate: float = 0.1,
        attention_dropout_rate: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.self_attention = SelfAttention(
            hidden_size,
            num_attention_heads,
            attention=attention,
            dropout_rate=attention_dropout_rate,
            **part_arguments(self, "self_attention"),
        )
        self.feed_forward = FeedForward(
            hidden_size,
            intermediate_size,
            hidden_act=hidden_act,
            **part_arguments(self, "feed_forward"),
        )
        rate = hidden_dropout_rate
        self.attention_dropout = self.make_dropout(rate, "attention_dropout")
        self.output_dropout = self.make_dropout(rate, "output_dropout")
        self.attention_layer_norm = self.make_norm(hidden_size, "attention_layer_norm")
        self.output_layer_norm = self.make_norm(hidden_size, "output_layer_norm")

    def call(
        self,
        hidden_states,
        input_mask,
        dropout_seeds=None,
        training=None,
        return_attention=False,
        is_packed=False,
        recompute_attention=False,
        output_positions=None,
    ):
        attention = self.self_attention(
            hidden_states,
            input_mask,
            dropout_seeds,
            training=training,
            return_attention=return_attention,
            is_packed=is_packed,
            recompute=recompute_attention,
            output_positions=output_positions,
        )
        if return_attention:
            attention, probabilities = attention
        if output_positions is not None:
            chosen = operations.gather_positions(hidden_states, output_positions)
            shape = (-1, ops.shape(output_positions)[1], self.hidden_size)
            hidden_states = ops.reshape(chosen, shape)

        def add(residual, output, dropout, norm):
            # The sum with the part's output after dropout, normalised.
            rate, *seeds = dropout.arguments(dropout_seeds, training=training)
            tensors = (residual, output, *norm.parameters(), *seeds)
            return fusion.run(
                operations.add_and_normalize, *tensors, training=training, rate=rate
            )

        dropout, norm = self.attention_dropout, self.attention_layer_norm
        hidden_states = add(hidden_states, attention, dropout, norm)
        inner = self.feed_forward(hidden_states, training=training)
        output = add(hidden_states, inner, self.output_dropout, self.output_layer_norm)
        return (output, probabilities) if return_attention else output
