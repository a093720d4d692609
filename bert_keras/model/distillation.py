"""Distillation: a student network, and losses that make it like its teacher.

Soft labels as in Hinton et al. (2015, "Distilling the Knowledge in a Neural Network"),
relations of queries, keys and values as in MiniLMv2 (Wang et al., 2021). `keras` and
`keras.ops` only.
"""

import math
from typing import Any

import keras
from keras import ops

from bert_keras.core.settings.finetuning import DistillationConfig
from bert_keras.model import encoder, losses, networks, operations

_INPUTS = ("input_ids", "input_mask", "segment_ids")


class Distillation(encoder.BertNetwork):
    """Trains a student, the network of a task or an encoder, with the losses that have
    a weight; the others are not computed.

    Batches have `teacher_logits` (see `data.features`) if there is a `soft_weight`, and
    the labels of the student's task if there is a `hard_weight`. `loss_terms` are the
    losses that have a weight, as means without the weight: `soft_loss`, `hard_loss`
    with the other terms of the student's task, and `relation_loss`, which needs a
    teacher. The teacher is a built network, which is neither trained nor saved.
    """

    def __init__(
        self,
        student: encoder.BertNetwork,
        *,
        weights: DistillationConfig,
        teacher: keras.Model | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(student.config, **kwargs)
        self.student = student
        self._settings = weights
        # Keras would train and save a network that is an attribute.
        self._find_teacher = lambda: teacher
        self._own_weights = {
            f"{name}_loss": weight
            for name in ("soft", "hard", "relation")
            if (weight := getattr(weights, f"{name}_weight"))
        }
        self.loss_names = tuple(self._own_weights)
        if self.loss_names == ("relation_loss",):
            # Weight decay would shrink the weights that no loss reads: all that follow
            # the queries, keys and values of the last layer.
            last = self.encoder.transformer_layers[-1]
            unread = [
                self.encoder.pooler,
                last.self_attention.output_dense,
                last.attention_layer_norm,
                last.feed_forward,
                last.output_layer_norm,
            ]
            if self.student is not self.encoder:
                unread.append(self.student.head)
            for layer in unread:
                layer.trainable = False

    @property
    def encoder(self) -> encoder.BertEncoder:
        return _encoder(self.student)

    def build(self, input_shape=None):
        """Does nothing: the student is built."""

    def call(self, features, training=None):
        return self.student(
            features,
            training=training,
            return_all_layers="relation_loss" in self._own_weights,
        )

    def loss_weights(self, features) -> dict[str, Any]:
        """Returns the weights of the sums, divided by the weights of the losses. The
        training divides by the result, so that the losses add up with their weights;
        the log shows means without these weights."""
        count_of = {
            "soft_loss": lambda: ops.sum(self.student.soft_weights(features)),
            "hard_loss": lambda: self.student.loss_weights(features)["loss"],
            "relation_loss": lambda: ops.sum(_token_weights(features)),
        }
        weights = self._own_weights.items()
        return {name: count_of[name]() / weight for name, weight in weights}

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        terms = {}
        if "soft_loss" in self._own_weights:
            weights = self.student.soft_weights(features)
            temperature = self._settings.temperature
            soft = self.student.soft_losses(features, outputs, temperature)
            soft = soft * networks.scaled_weights(features, weights)
            terms["soft_loss"] = ops.sum(soft), ops.sum(weights)
        if "hard_loss" in self._own_weights:
            own = self.student.loss_terms(features, outputs)
            terms |= {"hard_loss": own.pop("loss"), **own}
        if "relation_loss" in self._own_weights:
            teacher, mask = self._find_teacher(), features["input_mask"]
            inputs = {name: features[name] for name in _INPUTS}
            theirs = teacher(inputs, training=False, return_all_layers=True)
            relations = relation_losses(
                _query_key_value(self.encoder, outputs),
                ops.stop_gradient(_query_key_value(_encoder(teacher), theirs)),
                ops.reshape(mask, (-1, ops.shape(mask)[-1])),
                num_heads=self._settings.relation_heads,
            )
            weights = _token_weights(features)
            terms |= losses.weighted_terms(weights, relation_loss=relations)
        return terms


def _encoder(network) -> encoder.BertEncoder:
    return getattr(network, "encoder", network)


def _token_weights(features):
    """Returns 1 for a token, 0 for padding, in rows that count: `(rows, length)`."""
    mask = ops.cast(features["input_mask"], "float32")
    if "example_weights" in features:
        shape = (-1, *[1] * (len(mask.shape) - 1))
        mask = mask * ops.reshape(features["example_weights"], shape)
    return ops.reshape(mask, (-1, ops.shape(mask)[-1]))


def relation_losses(students, teachers, input_mask, *, num_heads: int):
    """Returns the distance between relations of tokens, `(batch_size, length)` float32.

    MiniLMv2, section 3.1: the queries of all heads are put end to end and cut into
    relation heads; their scaled dot products with one another become probabilities over
    the tokens of the row. Keys and values are treated alike. The result is the mean,
    over the three and over relation heads, of the Kullback-Leibler divergence from the
    teacher's.

    Args:
        students: `(batch_size, length, 3 * hidden_size)`: query, key, value. The
            teacher's may have another hidden size; `num_heads` divides both.
        input_mask: `(batch_size, length)`, 1 for a token, 0 for padding.
    """
    excluded = 1.0 - ops.cast(input_mask, "float32")
    bias = operations.EXCLUDED_BIAS * excluded[:, None, None, None, :]
    length = ops.shape(students)[1]
    relations = []
    for vectors in (students, teachers):
        # Log probabilities, `(batch_size, 3, num_heads, length, length)`.
        size = vectors.shape[-1] // (3 * num_heads)
        heads = ops.reshape(vectors, (-1, length, 3, num_heads, size))
        heads = ops.transpose(heads, (0, 2, 3, 1, 4))
        products = ops.matmul(heads, ops.transpose(heads, (0, 1, 2, 4, 3)))
        scores = ops.cast(products, "float32") / math.sqrt(size) + bias
        relations.append(ops.log_softmax(scores, axis=-1))
    return ops.mean(losses.divergence(*relations), axis=(1, 2))


def _query_key_value(network: encoder.BertEncoder, outputs: dict[str, Any]):
    """Returns the last layer's query, key, value: `(batch, length, 3 * size)`."""
    inputs = outputs["encoder_outputs"][-2]
    length, size = ops.shape(inputs)[1], network.config.hidden_size
    attention = network.transformer_layers[-1].self_attention
    vectors = attention.query_key_value(ops.reshape(inputs, (-1, size)))
    return ops.reshape(vectors, (-1, length, 3 * size))
