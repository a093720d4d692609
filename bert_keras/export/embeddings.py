"""Exported encoders: vectors of texts or of their tokens."""

import typing
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from bert_keras import config
from bert_keras.checkpoints import weights
from bert_keras.export import answers
from bert_keras.model import networks
from bert_keras.model.encoder import resolve_layers

KINDS: tuple[str, ...] = typing.get_args(config.Embedding)
"""The first token's vector; the same through the pooler, `tanh(W x + b)`; the mean over
all tokens, `[CLS]` and `[SEP]` among them and padding not, as sentence-transformers has
it; or a vector for each token."""

_TEXT_NAME, _TOKENS_NAME = "embedding", "token_embeddings"


class Embeddings(tf.Module):
    """See `answers.Answers`.

    Strings: `text`. Ids: `answers.INPUT_NAMES`.

    Numbers: `embedding`, `(batch_size, size)` float32, or, of kind `tokens`,
    `token_embeddings`, `(batch_size, sequence_length, size)` float32, where the vectors
    of padding mean nothing. `size` is `hidden_size` for each layer, one layer after the
    other.
    Answers: the same; of kind `tokens` also `tokens`, `(batch_size, sequence_length)`
    strings, "" for padding.

    Args:
        checkpoint: of any kind; its heads are left out.
        path: where it is from.
        kind: one of `KINDS`.
        layers: whose outputs are taken, see `encoder.resolve_layers`.

    Raises:
        InputError: the encoder has no such layer, one is asked for twice, or it has no
            pooler though `kind` asks for it.
    """

    string_specs = (tf.TensorSpec([None], tf.string, "text"),)
    id_specs = answers.ID_SPECS
    labels = None

    def __init__(
        self,
        checkpoint: weights.Checkpoint,
        *,
        path: Path,
        kind: str,
        layers: Sequence[int],
    ):
        super().__init__(name="embeddings")
        self.vocabulary = checkpoint.vocabulary
        self.do_lower_case = checkpoint.do_lower_case
        self.max_seq_length = checkpoint.bert_config.max_position_embeddings
        self._kind = kind
        self._layers = resolve_layers(
            layers, checkpoint.bert_config.num_hidden_layers, path=path
        )
        task = config.Task(kind="encoder")
        encoder = networks.build(checkpoint.bert_config, task, seed=0)
        missing = weights.assign(encoder, checkpoint.arrays)
        if kind == "pooled":
            answers.check_has(
                missing, ("encoder/pooler/",), purpose="a pooled vector", path=path
            )
        self.network = answers.Network(encoder)
        self._variables = self.network.variables
        self._tokenizer = answers.graph_tokenizer_of(checkpoint)
        self._tokens = tf.constant(self.vocabulary.tokens)
        self._python_tokenizer = answers.tokenizer_of(checkpoint)

    def signatures(self):
        return answers.direct_signatures(self)

    def encode(self, text):
        return answers.pack(
            self._tokenizer(text),
            None,
            max_seq_length=self.max_seq_length,
            vocabulary=self.vocabulary,
        )

    def compute(self, ids):
        encoded = self.network(ids, return_all_layers=True)
        if self._kind == "pooled":
            return {_TEXT_NAME: encoded["pooled_output"]}
        outputs = [encoded["encoder_outputs"][layer] for layer in self._layers]
        vectors = tf.concat(outputs, axis=-1)
        if self._kind == "tokens":
            return {_TOKENS_NAME: vectors}
        if self._kind == "cls":
            return {_TEXT_NAME: vectors[:, 0]}
        is_token = tf.expand_dims(tf.cast(ids["input_mask"], tf.float32), -1)
        num_tokens = tf.maximum(tf.reduce_sum(is_token, axis=1), 1.0)
        return {_TEXT_NAME: tf.reduce_sum(vectors * is_token, axis=1) / num_tokens}

    def present(self, ids, numbers):
        if self._kind != "tokens":
            return dict(numbers)
        tokens = tf.gather(self._tokens, ids["input_ids"])
        return {**numbers, "tokens": tf.where(ids["input_mask"] > 0, tokens, "")}

    def id_probes(self):
        return answers.tokenize(
            answers.PROBES,
            [None] * len(answers.PROBES),
            self._python_tokenizer,
            max_seq_length=self.max_seq_length,
        )

    def probes(self):
        return answers.direct_probes(self, {"text": list(answers.PROBES)})
