"""BertEmbedder: vectors of texts, and losses that make those of a pair alike."""

# B rows, A rows of all replicas, C second and third texts of a row, H vector size.

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from bert_keras.core.settings.architecture import BertConfig
from bert_keras.model import encoder, losses, networks

_LEAST_SQUARE = 1e-24
_NEVER = -1e9


def pool(vectors, input_mask, *, pooling: str, normalize: bool):
    """Pools token vectors, `(batch_size, sequence_length, hidden_size)`, to one vector
    for each text, `(batch_size, hidden_size)` float32, see `tasks.TextPooling`.
    `normalize` scales the vectors to length 1; the mask is 0 for padding."""
    vectors = ops.cast(vectors, "float32")
    if pooling == "cls":
        pooled = vectors[:, 0]
    else:
        # LiteRT has no slice that adds an axis.
        is_token = ops.expand_dims(ops.cast(input_mask, "float32"), -1)
        num_tokens = ops.maximum(ops.sum(is_token, axis=1), 1.0)
        pooled = ops.sum(vectors * is_token, axis=1) / num_tokens
    return unit_length(pooled) if normalize else pooled


def unit_length(vectors):
    """Scales `(..., size)` vectors to length 1; zeros stay zeros, with a gradient."""
    squares = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    return vectors * ops.rsqrt(ops.maximum(squares, _LEAST_SQUARE))


@keras.saving.register_keras_serializable(package="bert_keras")
class BertEmbedder(encoder.BertNetwork):
    """The encoder, and one vector for each text.

    Args:
        pooling: see `tasks.TextPooling`.
        normalize: whether vectors have length 1.
        scale: factor of the cosines in the loss.

    Call arguments:
        features: as `BertEncoder` takes them, of texts `(batch_size, sequence_length)`,
            or of several in a row, `(batch_size, num_texts, sequence_length)`;
            `dropout_seeds` are `(batch_size,)`, see `dropout.seeds_of_parts`.

    Returns:
        `embedding`, float32: `(batch_size, hidden_size)` or `(batch_size, num_texts,
        hidden_size)`.

    For `loss_terms`, a row has two or three texts: the second belongs to the first, the
    third does not, and equal `features["text_ids"]` mark equal texts. Without
    `label_ids`, the loss is the cross entropy of the second text among the second and
    third texts of all rows, by their cosines with the first times `scale`, as in
    sentence-transformers' `MultipleNegativesRankingLoss`. The candidates exclude a text
    that equals one of the pair, and the second text of another row with the same first
    text. With `label_ids`, `(batch_size,)` floats, the loss is the squared error of the
    cosine, `CosineSimilarityLoss`.
    """

    loss_names = ("loss",)
    saved_arguments = ("pooling", "normalize", "scale", "seed")

    def __init__(
        self,
        config: BertConfig,
        *,
        pooling: str = "mean",
        normalize: bool = True,
        scale: float = 20.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, seed=seed, **kwargs)
        self.pooling = pooling
        self.normalize = normalize
        self.scale = scale
        self.gather: Callable = lambda rows: (rows, 0)
        """Gathers the rows of all replicas, and counts those before this replica's."""
        self.encoder = encoder.part_of(self)

    def build(self, input_shape=None):
        super().build()
        # Unused, it has no gradient, but weight decay would shrink it.
        self.encoder.pooler.trainable = False

    def call(self, features, training=None):
        texts, parts = encoder.list_parts(self.encoder, features, training)
        encoded = self.encoder(texts, training=training)
        vectors = pool(
            encoded["sequence_output"],
            texts["input_mask"],
            pooling=self.pooling,
            normalize=self.normalize,
        )
        shape = (-1, *parts, self.config.hidden_size)
        return {"embedding": ops.reshape(vectors, shape)}

    def loss_weights(self, features) -> dict[str, Any]:
        weights = networks.example_weights(features, features["text_ids"])
        return {"loss": ops.sum(weights)}

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        vectors = unit_length(ops.cast(outputs["embedding"], "float32"))
        weights = networks.example_weights(features, features["text_ids"])
        if "label_ids" in features:
            labels = ops.cast(features["label_ids"], "float32")
            cosines = ops.sum(vectors[:, 0] * vectors[:, 1], axis=-1)
            errors = ops.square(cosines - labels)
            return losses.weighted_terms(weights, loss=errors)
        # Scores of all candidates, `(B, A, C)`; `is_own` marks each row's second text.
        text_ids = features["text_ids"]
        all_vectors, first = self.gather(vectors)
        all_ids, _ = self.gather(text_ids)
        all_weights, _ = self.gather(weights)
        cosines = ops.einsum("BH,ACH->BAC", vectors[:, 0], all_vectors[:, 1:])
        num_rows, num_all, num_candidates = ops.shape(cosines)
        is_second = ops.arange(num_candidates, dtype="int32") == 0
        own_rows = first + ops.arange(num_rows, dtype="int32")
        is_own = own_rows[:, None] == ops.arange(num_all, dtype="int32")
        is_own = is_own[:, :, None] & is_second
        # Candidates are neither the row's own texts, nor another second text of the
        # same first one, which is right too, nor texts of rows that fill up a batch.
        ids, own_ids = all_ids[None, :, 1:], text_ids[:, :, None, None]
        is_same = (ids == own_ids[:, 0]) | (ids == own_ids[:, 1])
        is_right = (all_ids[:, :1] == own_ids[:, 0]) & is_second
        lacks_weight = all_weights[:, None] == 0
        is_out = (is_same | is_right | lacks_weight) & ~is_own
        scores = ops.where(is_out, _NEVER, self.scale * cosines)
        own = ops.sum(ops.where(is_own, scores, 0.0), axis=(1, 2))
        found = ops.logsumexp(scores, axis=(1, 2)) - own
        best = ops.max(ops.where(is_own, _NEVER, scores), axis=(1, 2))
        is_hit = ops.cast(own > best, "float32")
        return losses.weighted_terms(weights, loss=found, accuracy=is_hit)
