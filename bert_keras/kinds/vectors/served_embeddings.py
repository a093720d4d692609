"""Exported encoders: vectors of texts or of their tokens."""

from collections.abc import Sequence

import tensorflow as tf

from bert_keras.kinds import served
from bert_keras.model import embedder
from bert_keras.model.encoder import resolve_layers


class TextVectors(served.DirectAnswers):
    """Vectors of texts from a model that was tuned for them.

    Strings: `text`. Ids: `served.INPUT_NAMES`. Numbers and answers: `embedding`,
    `(batch_size, hidden_size)` float32, pooled and scaled as in the training.
    """

    outputs = ("embedding",)
    record_fields = {"embedding": "prediction"}


class Embeddings(TextVectors):
    """Vectors of texts or of their tokens from an encoder.

    Strings: `text`. Ids: `served.INPUT_NAMES`.

    Numbers: `embedding`, `(batch_size, size)` float32, or, of kind `tokens`,
    `token_embeddings`, `(batch_size, sequence_length, size)` float32; the vectors of
    padding mean nothing. `size` is `hidden_size` for each layer, in order. Answers: the
    same; of kind `tokens` also `tokens`, `(batch_size, sequence_length)` strings, ""
    for padding.

    Args:
        kind: one of `choices.Embedding`.
        layers: layers whose outputs are taken, see `encoder.resolve_layers`.
    """

    def __init__(self, trained: served.Trained, *, kind: str, layers: Sequence[int]):
        super().__init__(trained)
        self.kind = kind
        num_layers = trained.bert_config.num_hidden_layers
        self._layers = resolve_layers(layers, num_layers, path=trained.path)
        if kind == "tokens":
            self.outputs = ("token_embeddings",)
        self._tokens = tf.constant(self.vocabulary.tokens)

    def compute(self, ids):
        encoded = self.network(ids, return_all_layers=True)
        if self.kind == "pooled":
            return {"embedding": encoded["pooled_output"]}
        outputs = [encoded["encoder_outputs"][layer] for layer in self._layers]
        vectors = tf.concat(outputs, axis=-1)
        if self.kind == "tokens":
            return {"token_embeddings": vectors}
        pooled = embedder.pool(
            vectors, ids["input_mask"], pooling=self.kind, normalize=False
        )
        return {"embedding": pooled}

    def present(self, ids, numbers):
        if self.kind != "tokens":
            return super().present(ids, numbers)
        tokens = tf.gather(self._tokens, ids["input_ids"])
        return {**numbers, "tokens": tf.where(ids["input_mask"] > 0, tokens, "")}

    def expected_outputs(self, answers):
        """Yields the vectors of each text; `answers` have them in place of logits."""
        for vectors in answers.logits:
            yield {self.outputs[0]: vectors}
