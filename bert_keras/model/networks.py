"""Networks of the tasks: the encoder and a head; `build` makes the right one.

`keras` and `keras.ops` only.
"""

from typing import Any

import keras
from keras import ops

from bert_keras.core.settings.config import BertConfig, Task
from bert_keras.model import (
    dropout,
    embedder,
    encoder,
    heads,
    layers,
    losses,
    operations,
    packed_rows,
    pretrainer,
)

_SAVED_ARGUMENTS = ("dropout_prob", "bilstm_units", "seed")


class EncoderWithHead(encoder.BertNetwork):
    """The encoder and a head that scores each text, or each of its tokens.

    Base of the networks of all fine-tuned tasks. They share the arguments and the calls
    below; each network's docstring adds its outputs and its labels.

    Args:
        config: sizes and shapes of the encoder.
        num_labels: scores of each text or token.
        dropout_prob: fraction of the head's input that is dropped in training.
        bilstm_units: see `heads.ClassificationHead`.
        seed: of weights and dropout; `None` for random ones.

    Call arguments:
        features: a dict with `input_ids`, `input_mask` and `segment_ids` as in
            `bert_keras.data.features`, and `dropout_seeds` as the encoder takes it;
            labels are ignored, and unknown keys refused. `BertClassifier` and
            `BertTagger`, where they have no BiLSTM and attend to both sides, take
            packed rows too.
        return_all_layers: add `encoder_outputs`, see `BertEncoder`.

    Returns:
        A dict of float32 logits.

    `loss_terms(features, outputs)` takes a batch with its labels, and its outputs. It
    returns a dict of pairs of float32 scalars, the sum and the weight of each quantity:
    `loss` (nats, or squared error for a number) and `accuracy`. A mean is a sum divided
    by its weight, each added up over all replicas first. `loss_weights(features)`
    returns the weight of `loss` alone, which is known before the batch is computed.
    Rows whose `features["example_weights"]` is 0 are in no sum and no weight.
    """

    loss_names = ("loss",)
    """Terms of `loss_terms` whose means add up to the loss."""

    saved_arguments = ("num_labels", *_SAVED_ARGUMENTS)

    per_token = False
    """Score each token, not the text."""

    def __init__(
        self,
        config: BertConfig,
        num_labels: int,
        *,
        dropout_prob: float = 0.1,
        bilstm_units: int = 0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, seed=seed, **kwargs)
        self.num_labels = num_labels
        self.dropout_prob = dropout_prob
        self.bilstm_units = bilstm_units
        self.encoder = encoder.BertEncoder(
            config,
            seed=layers.derive_seed(seed, "encoder"),
            name="encoder",
            dtype=self.dtype_policy,
        )
        self.head = heads.ClassificationHead(
            config.hidden_size,
            num_labels,
            dropout_rate=dropout_prob,
            bilstm_units=bilstm_units,
            per_token=self.per_token,
            **layers.part_arguments(self, "head"),
        )

    def build(self, input_shape=None):
        self.encoder.build()
        self.head.build()
        if self.per_token or self.head.bilstm is not None:
            # Unused, it has no gradient, but weight decay would shrink it.
            self.encoder.pooler.trainable = False

    def call(self, features, training=None, return_all_layers=False):
        logits, layer_outputs = self.scores(features, training, return_all_layers)
        return {"logits": logits, **layer_outputs}

    def scores(self, features, training, return_all_layers):
        """Logits of the head, and on request outputs of the encoder's layers.

        Args:
            features: as `BertEncoder` takes it.
            training: whether to apply dropout.
            return_all_layers: see the class.

        Returns:
            `(batch_size, num_labels)` or, of each token, `(batch_size,
            sequence_length, num_labels)`, float32; of the instances of packed rows
            `(batch_size, slots, num_labels)`. And a dict to add to the outputs.
        """
        features = encoder.complete(features)
        dropout_seeds = None
        if training:
            # The encoder and the head use the same seeds.
            dropout_seeds = self.encoder.dropout_seeds(features)
            features = {**features, "dropout_seeds": dropout_seeds}
        encoded = self.encoder(
            features, training=training, return_all_layers=return_all_layers
        )
        logits = self._head_scores(encoded, features, dropout_seeds, training)
        return logits, {k: v for k, v in encoded.items() if k == "encoder_outputs"}

    def _head_scores(self, encoded, features, dropout_seeds, training):
        mask = features["input_mask"]
        vectors = self._head_input(encoded, mask)
        if "instance_ids" not in features:
            return self.head(vectors, dropout_seeds, mask, training=training)
        if self.per_token:
            if training:
                ids = features["instance_ids"]
                places = packed_rows.positions(ids)
                dropout_seeds = packed_rows.token_seeds(dropout_seeds, ids, places)
            return self.head(vectors, dropout_seeds, training=training)
        # Instances in a list, as if each had a row of its own.
        if training:
            dropout_seeds = ops.reshape(dropout_seeds, (-1,))
        listed = ops.reshape(vectors, (-1, vectors.shape[-1]))
        logits = self.head(listed, dropout_seeds, training=training)
        return ops.reshape(logits, (-1, ops.shape(vectors)[1], self.num_labels))

    def _head_input(self, encoded, input_mask):
        """Vectors of all tokens, or the pooled one, as the head needs it.

        Where tokens attend to the left only, the first one has seen nothing of the
        text: the last one is pooled instead, as in GPT.
        """
        if self.per_token or self.head.bilstm is not None:
            return encoded["sequence_output"]
        if self.config.attention == "bidirectional":
            return encoded["pooled_output"]
        positions = ops.arange(ops.shape(input_mask)[1], dtype="int32")
        last = ops.max(positions * ops.cast(input_mask, "int32"), axis=1, keepdims=True)
        vectors = operations.gather_positions(encoded["sequence_output"], last)
        return ops.tanh(self.encoder.pooler(vectors))

    def loss_weights(self, features) -> dict[str, Any]:
        """Weight of the loss: the number of examples."""
        return {"loss": ops.sum(example_weights(features, features["label_ids"]))}


def example_weights(features, labels):
    """Weight of each example: 1, and 0 for a row that fills up a batch.

    Args:
        features: a batch, see `bert_keras.data.features.EXAMPLE_WEIGHTS`.
        labels: `(batch_size,)` or `(batch_size, 1)`.

    Returns:
        `(batch_size,)` float32; of packed rows all slots in a list.
    """
    if "example_weights" in features:
        return ops.cast(ops.reshape(features["example_weights"], (-1,)), "float32")
    return ops.ones_like(ops.reshape(labels, (-1,)), "float32")


def scaled_weights(features, weights):
    """Weights in the sum of a loss: those of the examples, times their scales if any.

    Args:
        features: a batch, see `bert_keras.data.features.LOSS_SCALES`.
        weights: from `example_weights`.
    """
    if "loss_scales" in features:
        return weights * ops.reshape(features["loss_scales"], (-1,))
    return weights


@keras.saving.register_keras_serializable(package="bert_keras")
class BertClassifier(EncoderWithHead):
    """Chooses one of several classes for a text or a pair, or predicts a number.

    `num_labels` is the number of classes; 1 for a number. `logits` have the shape
    `(batch_size, num_labels)`. For `loss_terms`, `label_ids` are `(batch_size,)` or
    `(batch_size, 1)`: the true class as an integer, or the true number as a float. A
    number has no `accuracy`. Packed rows have a label and a weight for each slot,
    `(batch_size, slots)`; the weight of an empty one is 0. With `label_targets`,
    `(batch_size, 1, num_labels)` floats, the loss is the sum of each class's cross
    entropy times its target. `accuracy` counts alike all examples with a weight above
    0, also where classes have weights of their own.
    """

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        logits = ops.reshape(outputs["logits"], (-1, self.num_labels))
        # An empty slot has -1, which is no class.
        labels = ops.reshape(features["label_ids"], (-1,))
        if "instance_ids" in features and self.num_labels > 1:
            labels = ops.maximum(labels, 0)
        weights = example_weights(features, labels)
        scaled = scaled_weights(features, weights)
        if self.num_labels == 1:
            errors = logits[:, 0] - ops.cast(labels, "float32")
            return {"loss": (ops.sum(ops.square(errors) * scaled), ops.sum(weights))}
        if "label_targets" in features:
            targets = ops.reshape(features["label_targets"], (-1, self.num_labels))
            found = -ops.sum(targets * ops.log_softmax(logits), axis=-1)
        else:
            found = losses.cross_entropy(logits, labels)
        counts = ops.cast(weights > 0, "float32")
        is_right = losses.is_right(logits, labels)
        return {
            "loss": (ops.sum(found * scaled), ops.sum(weights)),
            "accuracy": (ops.sum(is_right * counts), ops.sum(counts)),
        }


@keras.saving.register_keras_serializable(package="bert_keras")
class BertMultiLabelClassifier(EncoderWithHead):
    """Says of each of several labels whether it holds for a text or a pair.

    `logits` have the shape `(batch_size, num_labels)`; the sigmoid of each is the
    probability of its label. For `loss_terms`, `label_targets` are `(batch_size, 1,
    num_labels)` floats, 1 where a label holds, and `label_weights`, if any, the same
    shape, `1 + (weight - 1) * target`. `loss` is the mean over labels, as torch's
    `BCEWithLogitsLoss` with `pos_weight`; `accuracy` counts the texts of which all
    labels are right. Packed rows have targets for each slot.
    """

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        shape = (-1, self.num_labels)
        logits = ops.reshape(outputs["logits"], shape)
        targets = ops.reshape(features["label_targets"], shape)
        weights = example_weights(features, targets[:, 0])
        found = ops.softplus(-logits)
        if "label_weights" in features:
            found = found * ops.reshape(features["label_weights"], shape)
        found = ops.mean((1.0 - targets) * logits + found, axis=-1)
        is_right = ops.equal(logits > 0, targets > 0.5)
        is_right = ops.cast(ops.all(is_right, axis=-1), "float32")
        weight = ops.sum(weights)
        return {
            "loss": (ops.sum(found * scaled_weights(features, weights)), weight),
            "accuracy": (ops.sum(is_right * weights), weight),
        }

    def loss_weights(self, features) -> dict[str, Any]:
        labels = features["label_targets"][..., 0]
        return {"loss": ops.sum(example_weights(features, labels))}


@keras.saving.register_keras_serializable(package="bert_keras")
class BertTagger(EncoderWithHead):
    """Chooses one of several classes for each token, such as the name it is part of.

    Section 5.3 of the paper, fine-tuned. The encoder's pooler is unused and keeps its
    initial weights. `logits` have the shape `(batch_size, sequence_length,
    num_labels)`. For `loss_terms`, `label_ids` are `(batch_size, sequence_length)`
    integers: the true class of each token, below 0 for a token that does not count (a
    special token, padding, a word's pieces after the first). The weight of the loss is
    the number of tokens that count.
    """

    per_token = True

    def loss_weights(self, features) -> dict[str, Any]:
        return {"loss": ops.sum(token_weights(features))}

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        label_ids = ops.maximum(features["label_ids"], 0)
        return losses.classification_terms(
            outputs["logits"], label_ids, token_weights(features)
        )


def token_weights(features):
    """1 for a token that counts, else 0: float32, the shape of `label_ids`."""
    weights = ops.cast(features["label_ids"] >= 0, "float32")
    # Of packed rows, an empty slot has no token.
    if "example_weights" in features and "instance_ids" not in features:
        weights = weights * example_weights(features, None)[:, None]
    return weights


@keras.saving.register_keras_serializable(package="bert_keras")
class BertSpanPredictor(EncoderWithHead):
    """Scores each token as the first and as the last of the answer to a question.

    Section 4.2 of the paper: the head's two columns are its vectors S and E. As in
    run_squad.py, padding has scores like any token: a search for the best span has to
    stay among the tokens of the text. The encoder's pooler is unused and keeps its
    initial weights. The original drops nothing before the head, hence `dropout_prob=0`.

    The outputs are `start_logits` and `end_logits`, each `(batch_size,
    sequence_length)`. For `loss_terms`, `start_positions` and `end_positions` are
    `(batch_size,)` or `(batch_size, 1)` integers below `sequence_length`: the first and
    the last token of the answer, 0 twice for no answer. Tokens from
    `features["batch_lengths"]` on are not chosen among. `loss` is the mean of start's
    and end's; `start_accuracy` and `end_accuracy` take the place of `accuracy`.
    """

    saved_arguments = _SAVED_ARGUMENTS

    per_token = True

    def __init__(
        self, config: BertConfig, *, dropout_prob: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(config, 2, dropout_prob=dropout_prob, **kwargs)

    def call(self, features, training=None, return_all_layers=False):
        logits, layer_outputs = self.scores(features, training, return_all_layers)
        start, end = logits[..., 0], logits[..., 1]
        return {"start_logits": start, "end_logits": end, **layer_outputs}

    def loss_weights(self, features) -> dict[str, Any]:
        return {"loss": ops.sum(example_weights(features, features["start_positions"]))}

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        (start_loss, start_right), (end_loss, end_right) = (
            _choice_terms(
                _within_batch(outputs[f"{name}_logits"], features),
                features[f"{name}_positions"],
            )
            for name in ("start", "end")
        )
        weights = example_weights(features, features["start_positions"])
        weight = ops.sum(weights)
        return {
            "loss": (ops.sum((start_loss + end_loss) * weights) / 2, weight),
            "start_accuracy": (ops.sum(start_right * weights), weight),
            "end_accuracy": (ops.sum(end_right * weights), weight),
        }


def _within_batch(logits, features):
    """Logits of tokens, without those that pad a batch to a fixed length."""
    if "batch_lengths" not in features:
        return logits
    positions = ops.arange(ops.shape(logits)[1], dtype="int32")
    is_within = positions < ops.cast(features["batch_lengths"], "int32")[:, None]
    # Far below any score, and its exponential is 0.
    return ops.where(is_within, logits, -1e9)


@keras.saving.register_keras_serializable(package="bert_keras")
class BertChooser(EncoderWithHead):
    """Chooses one of several endings of a text, each read as a pair with the text.

    Section 4.4 of the paper: one vector scores the pooled output of every ending, and
    the softmax is over the endings of an example. The features of the encoder have the
    shape `(batch_size, num_endings, sequence_length)`; `dropout_seeds` are
    `(batch_size,)`, see `dropout.seeds_of_parts`. `logits` have the shape `(batch_size,
    num_endings)`. For `loss_terms`, `label_ids` are `(batch_size,)` or `(batch_size,
    1)` integers below `num_endings`: the right one.
    """

    saved_arguments = _SAVED_ARGUMENTS

    def __init__(
        self, config: BertConfig, *, dropout_prob: float = 0.1, **kwargs: Any
    ) -> None:
        super().__init__(config, 1, dropout_prob=dropout_prob, **kwargs)

    def call(self, features, training=None, return_all_layers=False):
        features = encoder.complete(features)
        _, num_endings, length = ops.shape(features["input_ids"])
        endings = {
            name: ops.reshape(features[name], (-1, length))
            for name in ("input_ids", "input_mask", "segment_ids")
        }
        if training:
            endings["dropout_seeds"] = dropout.seeds_of_parts(
                self.encoder.dropout_seeds(features), num_endings
            )
        logits, layer_outputs = self.scores(endings, training, return_all_layers)
        return {"logits": ops.reshape(logits, (-1, num_endings)), **layer_outputs}

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        loss, right = _choice_terms(outputs["logits"], features["label_ids"])
        weights = example_weights(features, features["label_ids"])
        return {
            "loss": (ops.sum(loss * weights), ops.sum(weights)),
            "accuracy": (ops.sum(right * weights), ops.sum(weights)),
        }


def _choice_terms(logits, labels):
    """Cross entropy in nats, and whether the label is right: `(batch_size,)` each."""
    # `losses.cross_entropy` is for a number of classes that is known beforehand.
    labels = ops.reshape(ops.cast(labels, "int32"), (-1,))
    log_probs = ops.log_softmax(logits, axis=-1)
    loss = -losses.logit_of(log_probs, labels)[:, 0]
    return loss, losses.is_right(logits, labels)


def build(
    bert_config: BertConfig,
    task: Task,
    *,
    dropout_prob: float = 0.0,
    scale: float = 20.0,
    seed: int | None = None,
    dtype: str = "float32",
) -> keras.Model:
    """Makes the network of a task, with new weights.

    Args:
        bert_config: sizes and shapes of the encoder.
        task: what it answers.
        dropout_prob: fraction of the head's input that is dropped in training, if the
            task has a head with dropout.
        scale: of cosines in the loss of `embedding`.
        seed: of weights and dropout; `None` for random ones.
        dtype: a Keras dtype policy, such as `mixed_bfloat16`.
    """
    # Part of the variables' names, which Keras would number otherwise.
    shared = {"seed": seed, "dtype": dtype, "name": f"bert_{task.kind}"}
    head = {"dropout_prob": dropout_prob, "bilstm_units": task.bilstm_units, **shared}
    match task.kind:
        case "pretraining":
            network = pretrainer.BertPretrainer(bert_config, **shared)
        case "encoder":
            network = encoder.BertEncoder(bert_config, **shared)
        case "classification" | "regression":
            network = BertClassifier(bert_config, task.num_labels, **head)
        case "multi_label":
            network = BertMultiLabelClassifier(bert_config, task.num_labels, **head)
        case "tagging":
            network = BertTagger(bert_config, task.num_labels, **head)
        case "span":
            network = BertSpanPredictor(bert_config, **head)
        case "choice":
            network = BertChooser(bert_config, **head)
        case "embedding":
            network = embedder.BertEmbedder(
                bert_config,
                pooling=task.pooling,
                normalize=task.normalize,
                scale=scale,
                **shared,
            )
    network.build()
    return network
