"""Bases of the networks of tasks: the encoder and a head. `keras.ops` only."""

from typing import Any

from keras import ops

from bert_keras.core.settings.architecture import BertConfig
from bert_keras.model import encoder, heads, layers, losses, operations

SAVED_ARGUMENTS = ("dropout_prob", "bilstm_units", "num_bilstm_layers", "seed")


class EncoderWithHead(encoder.BertNetwork):
    """The encoder and a head that scores each text, or each of its tokens.

    Each network's docstring adds its outputs and its labels.

    Args:
        num_labels: scores of each text or token.
        dropout_prob: fraction of the head's input that is dropped in training.
        bilstm_units, num_bilstm_layers, num_vectors, mixes_vectors: see
            `heads.ClassificationHead`.

    Call arguments:
        features: a dict with `input_ids`, `input_mask` and `segment_ids` as in
            `bert_keras.data.features`, and `dropout_seeds` as the encoder takes it;
            labels are ignored, and unknown keys refused.
        return_all_layers: add `encoder_outputs`, see `BertEncoder`.

    Returns:
        A dict of float32 logits.

    `loss_terms(features, outputs)` takes a batch with its labels, and its outputs. It
    returns pairs of float32 scalars, the sum and the weight of each quantity: `loss`
    (nats, or squared error for a number) and `accuracy`. A mean is a sum divided by its
    weight, each added up over all replicas first. `loss_weights(features)` returns the
    weight of `loss` alone, which is known before the batch is computed. Rows whose
    `features["example_weights"]` is 0 are in no sum and no weight.
    """

    loss_names = ("loss",)
    """Terms of `loss_terms` whose means add up to the loss."""

    saved_arguments = ("num_labels", *SAVED_ARGUMENTS)

    label_name = "label_ids"
    """A feature with a row for each example."""

    per_token = False
    """Whether each token is scored, not the text."""

    def __init__(
        self,
        config: BertConfig,
        num_labels: int,
        *,
        dropout_prob: float = 0.1,
        bilstm_units: int = 0,
        num_bilstm_layers: int = 1,
        num_vectors: int = 1,
        mixes_vectors: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, seed=seed, **kwargs)
        self.num_labels = num_labels
        self.dropout_prob = dropout_prob
        self.bilstm_units = bilstm_units
        self.num_bilstm_layers = num_bilstm_layers
        self.encoder = encoder.part_of(self)
        self.head = heads.ClassificationHead(
            config.hidden_size,
            num_labels,
            dropout_rate=dropout_prob,
            bilstm_units=bilstm_units,
            num_bilstm_layers=num_bilstm_layers,
            num_vectors=num_vectors,
            mixes_vectors=mixes_vectors,
            per_token=self.per_token,
            **layers.part_arguments(self, "head"),
        )

    def build(self, input_shape=None):
        super().build()
        if self.per_token or self.head.bilstms:
            # Unused, it has no gradient, but weight decay would shrink it.
            self.encoder.pooler.trainable = False

    def call(self, features, training=None, return_all_layers=False):
        logits, layer_outputs = self.scores(features, training, return_all_layers)
        return {"logits": logits, **layer_outputs}

    def scores(self, features, training, return_all_layers):
        """Returns logits and a dict to add to the outputs. The logits are `(batch_size,
        num_labels)`, per token `(batch_size, sequence_length, num_labels)`, float32."""
        features = encoder.complete(features)
        if "instance_ids" in features:
            raise ValueError("packed rows are for pre-training: got `instance_ids`")
        dropout_seeds = None
        if training:
            # The encoder and the head use the same seeds.
            dropout_seeds = self.encoder.dropout_seeds(features)
            features = {**features, "dropout_seeds": dropout_seeds}
        encoded = self.encoder(
            features, training=training, return_all_layers=return_all_layers
        )
        mask = features["input_mask"]
        if self.per_token or self.head.bilstms:
            vectors = encoded["sequence_output"]
        elif self.config.attention == "bidirectional":
            vectors = encoded["pooled_output"]
        else:
            # The first token has seen nothing of the text: the last token is pooled
            # instead, as in GPT.
            positions = ops.arange(ops.shape(mask)[1], dtype="int32")
            last = positions * ops.cast(mask, "int32")
            last = ops.max(last, axis=1, keepdims=True)
            vectors = operations.gather_positions(encoded["sequence_output"], last)
            vectors = ops.tanh(self.encoder.pooler(vectors))
        logits = self.head(vectors, dropout_seeds, mask, training=training)
        return logits, {k: v for k, v in encoded.items() if k == "encoder_outputs"}

    def loss_weights(self, features) -> dict[str, Any]:
        labels = features[self.label_name]
        return {"loss": ops.sum(example_weights(features, labels))}

    def soft_weights(self, features):
        """Returns the weight of each of a student's answers, `(num_answers,)`."""
        return example_weights(features, features["input_ids"])

    def soft_losses(self, features, outputs, temperature: float):
        """Returns the distance of each of a student's answers from its teacher's, the
        `teacher_logits`: `(num_answers,)` float32."""
        students = outputs["logits"]
        width = students.shape[-1] or ops.shape(students)[-1]
        teachers = ops.reshape(features["teacher_logits"], (-1, width))
        students = ops.reshape(students, (-1, width))
        return self.soft_distances(students, teachers, temperature)

    def soft_distances(self, students, teachers, temperature: float):
        """Compares logits `(num_answers, width)` of both."""
        return losses.soft_cross_entropy(students, teachers, temperature)


class PartsWithHead(EncoderWithHead):
    """The encoder and a head that gives each part of an example one score: from
    features `(batch_size, num_parts, sequence_length)` to `logits` `(batch_size,
    num_parts)`; without parts `(batch_size, 1)`. See `dropout.seeds_of_parts`."""

    saved_arguments = SAVED_ARGUMENTS

    def __init__(self, config: BertConfig, **kwargs: Any) -> None:
        super().__init__(config, 1, **kwargs)

    def call(self, features, training=None, return_all_layers=False):
        texts, parts = encoder.list_parts(self.encoder, features, training)
        logits, layer_outputs = self.scores(texts, training, return_all_layers)
        shape = (-1, *(parts or [1]))
        return {"logits": ops.reshape(logits, shape), **layer_outputs}


def example_weights(features, labels):
    """Returns each example's weight, `(batch_size,)` float32: 1, or 0 for a row that
    fills up a batch. `labels` are `(batch_size, ...)`."""
    if "example_weights" in features:
        return ops.cast(ops.reshape(features["example_weights"], (-1,)), "float32")
    while len(labels.shape) > 1:
        labels = labels[:, 0]
    return ops.ones_like(labels, "float32")


def scaled_weights(features, weights):
    """Multiplies the weights of examples by their `features.LOSS_SCALES`, if any."""
    if "loss_scales" in features:
        return weights * ops.reshape(features["loss_scales"], (-1,))
    return weights


def token_weights(features):
    """Returns 1 for a token that counts, else 0: float32, shaped as `label_ids`."""
    weights = ops.cast(features["label_ids"] >= 0, "float32")
    if "example_weights" in features:
        weights = weights * example_weights(features, None)[:, None]
    return weights


def choice_terms(logits, labels):
    """Returns cross entropy in nats, and hits: `(batch_size,)` each."""
    # `losses.cross_entropy` is for a number of classes that is known beforehand.
    labels = ops.reshape(ops.cast(labels, "int32"), (-1,))
    log_probs = ops.log_softmax(logits, axis=-1)
    loss = -losses.logit_of(log_probs, labels)[:, 0]
    return loss, losses.is_right(logits, labels)
