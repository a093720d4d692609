"""Exported encoders: vectors of texts or of their tokens."""

import typing
from collections.abc import Sequence

import tensorflow as tf

from bert_keras.core.settings import choices, tasks
from bert_keras.kinds import served
from bert_keras.model import embedder
from bert_keras.model.encoder import resolve_layers

KINDS: tuple[str, ...] = typing.get_args(choices.Embedding)
"""Vectors: the first token's; the same through the pooler, `tanh(W x + b)`; the mean
over all tokens, `[CLS]` and `[SEP]` but no padding, as in sentence-transformers; or one
for each token."""

_TEXT_NAME, _TOKENS_NAME = "embedding", "token_embeddings"


class Embeddings(served.DirectAnswers):
    """Vectors of texts or of their tokens.

    Strings: `text`. Ids: `served.INPUT_NAMES`.

    Numbers: `embedding`, `(batch_size, size)` float32, or, of kind `tokens`,
    `token_embeddings`, `(batch_size, sequence_length, size)` float32; the vectors of
    padding mean nothing. `size` is `hidden_size` for each layer, in order. Answers: the
    same; of kind `tokens` also `tokens`, `(batch_size, sequence_length)` strings, ""
    for padding.

    Args:
        layers: layers whose outputs are taken, see `encoder.resolve_layers`.
        long_texts: treatment of texts that are longer than an input; in windows, not of
            kind `tokens`, half of each is in the next. `None`: as in the training.
        normalize: whether vectors have length 1, not of kind `tokens` or in windows.
    """

    string_specs = (tf.TensorSpec([None], tf.string, "text"),)

    def __init__(
        self,
        trained: served.Trained,
        *,
        kind: str,
        layers: Sequence[int],
        long_texts: tasks.LongTexts | None = None,
        normalize: bool = False,
    ):
        self._kind, self._normalize = kind, normalize
        self._layers = resolve_layers(
            layers, trained.bert_config.num_hidden_layers, path=trained.path
        )
        super().__init__(trained)
        self.long_texts = long_texts or self.long_texts
        self._tokens = tf.constant(self.vocabulary.tokens)

    def encode(self, text):
        return self._pack(self._tokenizer(text))

    def compute(self, ids):
        encoded = self.network(ids, return_all_layers=True)
        if self._kind == "pooled":
            return {_TEXT_NAME: encoded["pooled_output"]}
        outputs = [encoded["encoder_outputs"][layer] for layer in self._layers]
        vectors = tf.concat(outputs, axis=-1)
        if self._kind == "tokens":
            return {_TOKENS_NAME: vectors}
        pooled = embedder.pool(
            vectors, ids["input_mask"], pooling=self._kind, normalize=self._normalize
        )
        return {_TEXT_NAME: pooled}

    def present(self, ids, numbers):
        if self._kind != "tokens":
            return dict(numbers)
        tokens = tf.gather(self._tokens, ids["input_ids"])
        return {**numbers, "tokens": tf.where(ids["input_mask"] > 0, tokens, "")}
