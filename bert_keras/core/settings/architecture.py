"""Size, shape and number formats of the encoder; unknown keys are refused."""

from collections.abc import Iterator
from typing import Annotated, Literal

import pydantic

from bert_keras.core.errors import InputError
from bert_keras.core.settings.strict import StrictModel

Attention = Literal["bidirectional", "left_to_right"]


class BertConfig(StrictModel):
    """Size and shape of the encoder, with the keys of Google's `bert_config.json`. The
    defaults are those of BERT-BASE, uncased."""

    vocab_size: int = pydantic.Field(default=30522, gt=0)
    """Entries of the vocabulary, special tokens included."""
    hidden_size: int = pydantic.Field(default=768, gt=0)
    """Numbers in the vector of a token; a multiple of `num_attention_heads`."""
    # Tables of a name for each layer are made of what a file claims here.
    num_hidden_layers: int = pydantic.Field(default=12, gt=0, le=1000)
    """Transformer layers."""
    num_attention_heads: int = pydantic.Field(default=12, gt=0)
    """Attention heads in each layer."""
    intermediate_size: int = pydantic.Field(default=3072, gt=0)
    """Units of the feed-forward part of each layer; 4 x `hidden_size` in the paper."""
    hidden_act: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    """Activation of the feed-forward part. `gelu` is exact (erf); `gelu_tanh` is the
    approximation that Google's checkpoints were trained with."""
    hidden_dropout_prob: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Fraction of numbers that dropout zeroes in embeddings and layer outputs."""
    attention_probs_dropout_prob: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Fraction of attention probabilities that dropout zeroes."""
    max_position_embeddings: int = pydantic.Field(default=512, gt=0)
    """Longest input, in tokens."""
    type_vocab_size: int = pydantic.Field(default=2, gt=0)
    """Kinds of segments: two texts of a pair."""
    initializer_range: float = pydantic.Field(default=0.02, gt=0)
    """Standard deviation of initial weights, normal and cut at twice that."""
    attention: Attention = "bidirectional"
    """Tokens that a token sees: all of them, or with `left_to_right` itself and those
    before it (paper, 5.1). Not a key of Google's."""

    def _problems(self) -> Iterator[str]:
        if self.hidden_size % self.num_attention_heads:
            yield (
                "`hidden_size` must be a multiple of `num_attention_heads`, got "
                f"{self.hidden_size} and {self.num_attention_heads}"
            )


class ModelConfig(BertConfig):
    """`BertConfig` for a recipe: the vocabulary's size comes from the data."""

    vocab_size: int | None = pydantic.Field(default=None, gt=0)
    """Entries of the embedding table; null: as many as the vocabulary has."""

    def with_vocab_size(self, num_tokens: int) -> BertConfig:
        """The full configuration for a vocabulary of `num_tokens` entries."""
        if self.vocab_size is not None and self.vocab_size < num_tokens:
            raise InputError(
                f"`model.vocab_size` is {self.vocab_size}, but the vocabulary has "
                f"{num_tokens} entries: leave it out, or make it at least that large"
            )
        values = self.model_dump()
        values["vocab_size"] = self.vocab_size or num_tokens
        return BertConfig(**values)


RECOMPUTED = (
    "What the backward pass computes again, so that it need not be kept in memory: "
    "nothing, each layer's attention, or each layer. The loss is the same, bit for bit."
)
Recompute = Annotated[
    Literal["none", "attention", "layers"], pydantic.Field(description=RECOMPUTED)
]
Precision = Annotated[
    Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"],
    pydantic.Field(
        description="Number format of the computation; weights and optimizer state are "
        "always float32. `auto`: `mixed_bfloat16` where the hardware multiplies in "
        "bfloat16, else `float32`."
    ),
]
