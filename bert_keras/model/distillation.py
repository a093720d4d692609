"""Distillation: a student network, and losses that make it like its teacher.

Soft labels as in Hinton et al. (2015, "Distilling the Knowledge in a Neural Network"),
outputs of layers as in TinyBERT (Jiao et al., 2020), relations of queries, keys and
values as in MiniLMv2 (Wang et al., 2021). `keras` and `keras.ops` only.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from bert_keras.core.settings.finetuning import DistillationConfig
from bert_keras.core.settings.tasks import TaskKind
from bert_keras.model import encoder, layers, networks, operations


class Teacher:
    """A built network that is neither trained nor saved."""

    def __init__(self, network: keras.Model):
        self.encoder = _encoder(network)
        self._network = network

    def __call__(self, features) -> tuple:
        """Returns outputs of the embeddings and of each layer, without dropout."""
        inputs = {name: features[name] for name in _INPUTS}
        outputs = self._network(inputs, training=False, return_all_layers=True)
        return tuple(map(ops.stop_gradient, outputs["encoder_outputs"]))


_INPUTS = ("input_ids", "input_mask", "segment_ids")


class Distillation(encoder.BertNetwork):
    """Trains a student, the network of a task or an encoder, with the losses that have
    a weight; the others are not computed.

    Batches have `teacher_logits` (see `data.features`) if there is a `soft_weight`, and
    the labels of the student's task if there is a `hard_weight`. `loss_terms` are the
    losses that have a weight, as means without the weight: `soft_loss`, `hard_loss`
    with the other terms of the student's task, `hidden_loss`, `relation_loss`. The last
    two need a teacher; a teacher of `None` means that both have no weight.
    """

    def __init__(
        self,
        student: encoder.BertNetwork,
        *,
        kind: TaskKind,
        losses: DistillationConfig,
        teacher: Teacher | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(student.config, **kwargs)
        self.student = student
        self._kind, self._learnt, self._teacher = kind, losses, teacher
        self._projections: list[keras.layers.Dense] = []
        self._own_weights = {
            f"{name}_loss": weight
            for name in ("soft", "hard", "hidden", "relation")
            if (weight := getattr(losses, f"{name}_weight"))
        }
        self.loss_names = tuple(self._own_weights)
        if losses.hidden_weight and teacher is not None:
            size = teacher.encoder.config.hidden_size
            if size != student.config.hidden_size:
                self._projections = [
                    layers.dense(self, size, f"projection_{number}", use_bias=False)
                    for number in range(len(losses.hidden_layers) + 1)
                ]
        self._freeze_unread()

    def _freeze_unread(self) -> None:
        """Freezes weights that no loss reads: weight decay would shrink them."""
        if "soft_loss" in self.loss_names or "hard_loss" in self.loss_names:
            return
        unread = [self.encoder.pooler]
        if self.student is not self.encoder:
            unread.append(self.student.head)
        if "hidden_loss" not in self.loss_names:
            last = self.encoder.transformer_layers[-1]
            unread += [
                last.self_attention.output_dense,
                last.attention_layer_norm,
                last.feed_forward,
                last.output_layer_norm,
            ]
        for layer in unread:
            layer.trainable = False

    @property
    def encoder(self) -> encoder.BertEncoder:
        return _encoder(self.student)

    def build(self, input_shape=None):
        for projection in self._projections:
            projection.build((None, self.config.hidden_size))

    def call(self, features, training=None):
        compares_layers = self._teacher is not None
        return self.student(
            features, training=training, return_all_layers=compares_layers
        )

    def loss_weights(self, features) -> dict[str, Any]:
        """Returns the weights of the sums, divided by the weights of the losses. The
        training divides by the result, so that the losses add up with their weights;
        the log shows means without these weights."""
        counts = {}
        for name, weight in self._own_weights.items():
            if name == "hard_loss":
                count = self.student.loss_weights(features)["loss"]
            elif name == "soft_loss":
                count = ops.sum(self._answer_weights(features))
            else:
                count = ops.sum(_token_weights(features))
            counts[name] = count / weight
        return counts

    def _answer_weights(self, features):
        weights = networks.example_weights(features, features["input_ids"][..., 0])
        if self._kind != "tagging":
            return ops.reshape(weights, (ops.shape(features["input_ids"])[0], -1))[:, 0]
        mask = ops.cast(features["teacher_mask"], "float32")
        return ops.reshape(mask * weights[:, None], (-1,))

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        terms = {}
        if "soft_loss" in self._own_weights:
            weights = self._answer_weights(features)
            soft = self._soft_losses(features, outputs)
            scaled = networks.scaled_weights(features, weights)
            terms["soft_loss"] = ops.sum(soft * scaled), ops.sum(weights)
        if "hard_loss" in self._own_weights:
            own = self.student.loss_terms(features, outputs)
            terms |= {"hard_loss": own.pop("loss"), **own}
        if self._teacher is not None:
            terms |= self._layer_terms(features, outputs["encoder_outputs"])
        return terms

    def _soft_losses(self, features, outputs):
        teachers = features["teacher_logits"]
        temperature = self._learnt.temperature
        if self._kind == "span":
            students = ops.stack(
                [outputs["start_logits"], outputs["end_logits"]], axis=-1
            )
            mask = ops.cast(features["teacher_mask"], "bool")
            # Probabilities over the tokens, of starts and of ends.
            students, teachers = (
                ops.transpose(ops.where(mask[..., None], logits, -1e9), (0, 2, 1))
                for logits in (students, teachers)
            )
            of_both = soft_losses(students, teachers, temperature=temperature)
            return ops.mean(of_both, axis=-1)
        students = outputs["logits"]
        width = students.shape[-1] or ops.shape(students)[-1]
        return soft_losses(
            ops.reshape(students, (-1, width)),
            ops.reshape(teachers, (-1, width)),
            temperature=temperature,
            kind=self._kind,
        )

    def _layer_terms(self, features, students) -> dict[str, tuple[Any, Any]]:
        teachers = self._teacher(features)
        weights = _token_weights(features)
        weight, terms = ops.sum(weights), {}
        if self._learnt.hidden_weight:
            hidden = self._hidden_losses(students, teachers)
            terms["hidden_loss"] = ops.sum(hidden * weights), weight
        if self._learnt.relation_weight:
            length = ops.shape(features["input_mask"])[-1]
            mask = ops.reshape(features["input_mask"], (-1, length))
            last, layer = self.config.num_hidden_layers, self._learnt.relation_layer
            theirs = _query_key_value(self._teacher.encoder, teachers, layer)
            relations = relation_losses(
                _query_key_value(self.encoder, students, last),
                ops.stop_gradient(theirs),
                mask,
                num_heads=self._learnt.relation_heads,
            )
            terms["relation_loss"] = ops.sum(relations * weights), weight
        return terms

    def _hidden_losses(self, students, teachers):
        """Returns the mean squared differences of each token, summed over all layers:
        `(batch_size, length)` float32. In TinyBERT's equations 8 and 9 a matrix
        multiplies the student's vectors first."""
        targets = [teachers[number] for number in (0, *self._learnt.hidden_layers)]
        if self._projections:
            pairs = zip(self._projections, students, strict=True)
            students = [projection(states) for projection, states in pairs]
        total = 0.0
        for ours, theirs in zip(students, targets, strict=True):
            difference = ops.cast(ours, "float32") - ops.cast(theirs, "float32")
            total = total + ops.mean(ops.square(difference), axis=-1)
        return total


def _encoder(network) -> encoder.BertEncoder:
    return getattr(network, "encoder", network)


def _token_weights(features):
    """Returns 1 for a token, 0 for padding, in rows that count: `(rows, length)`."""
    mask = ops.cast(features["input_mask"], "float32")
    if "example_weights" in features:
        shape = (-1, *[1] * (len(mask.shape) - 1))
        mask = mask * ops.reshape(features["example_weights"], shape)
    return ops.reshape(mask, (-1, ops.shape(mask)[-1]))


def soft_losses(
    students, teachers, *, temperature: float, kind: TaskKind = "classification"
):
    """Returns the distance of the student's answers from its teacher's.

    From `(..., width)` float32 logits of both, `(...)` float32: the Kullback-Leibler
    divergence of the student's probabilities from the teacher's, both of logits divided
    by the temperature, times its square, so that gradients are as large at every
    temperature (Hinton et al., 2015, section 2). Its gradient is the gradient of the
    cross entropy; equal answers have a divergence of 0. For several labels the result
    is their mean; for numbers it is the squared difference.
    """
    if kind == "regression":
        return ops.mean(ops.square(students - teachers), axis=-1)
    students, teachers = students / temperature, teachers / temperature
    if kind == "multi_label":
        divergences = sum(
            ops.sigmoid(sign * teachers)
            * (ops.softplus(-sign * students) - ops.softplus(-sign * teachers))
            for sign in (1.0, -1.0)
        )
        return temperature**2 * ops.mean(divergences, axis=-1)
    return temperature**2 * _divergence(
        ops.log_softmax(students, axis=-1), ops.log_softmax(teachers, axis=-1)
    )


def _divergence(students, teachers):
    return ops.sum(ops.exp(teachers) * (teachers - students), axis=-1)


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
    students, teachers = (
        _relations(vectors, bias, num_heads) for vectors in (students, teachers)
    )
    return ops.mean(_divergence(students, teachers), axis=(1, 2))


def _relations(vectors, bias, num_heads: int):
    """Returns log probabilities, `(batch_size, 3, num_heads, length, length)`."""
    length, size = ops.shape(vectors)[1], vectors.shape[-1] // (3 * num_heads)
    heads = ops.reshape(vectors, (-1, length, 3, num_heads, size))
    heads = ops.transpose(heads, (0, 2, 3, 1, 4))
    products = ops.matmul(heads, ops.transpose(heads, (0, 1, 2, 4, 3)))
    scores = ops.cast(products, "float32") / math.sqrt(size) + bias
    return ops.log_softmax(scores, axis=-1)


def _query_key_value(network: encoder.BertEncoder, states: Sequence, layer: int):
    """Returns a layer's (from 1) query, key, value: `(batch, length, 3 * size)`."""
    inputs = states[layer - 1]
    length, size = ops.shape(inputs)[1], network.config.hidden_size
    attention = network.transformer_layers[layer - 1].self_attention
    vectors = attention.query_key_value(ops.reshape(inputs, (-1, size)))
    return ops.reshape(vectors, (-1, length, 3 * size))
