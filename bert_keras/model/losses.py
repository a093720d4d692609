"""Cross entropy and accuracy over a large vocabulary, in few passes over the logits.

`keras` and `keras.ops` only. Logits are `(n, num_classes)` float32, labels `(n,)`
integers below `num_classes`.
"""

from typing import Any

from keras import ops

from bert_keras.model import fusion


@ops.custom_gradient
def cross_entropy(logits, labels):
    """Returns the negative log probability of the true class, `(n,)` float32 in nats.
    Unlike `keras.losses.sparse_categorical_crossentropy`, the gradient computes the
    exponentials again: on a CPU that is faster than storing them."""
    labels = ops.cast(labels, "int32")
    largest = ops.max(logits, axis=-1)
    # A loss is never exported, so it may be compiled outside of training too.
    total = fusion.run(_sum_of_exponentials, logits, largest, training=True)

    def gradient(upstream):
        tensors = (logits, labels, largest, total, upstream)
        return fusion.run(_logits_gradient, *tensors, training=True), None

    # The difference first: logits may be far from 0, all of them.
    return ops.log(total) + (largest - logit_of(logits, labels)[:, 0]), gradient


def _sum_of_exponentials(logits, largest):
    return ops.sum(ops.exp(logits - largest[:, None]), axis=-1)


def _logits_gradient(logits, labels, largest, total, upstream):
    probabilities = ops.exp(logits - largest[:, None]) / total[:, None]
    classes = ops.arange(logits.shape[-1], dtype="int32")
    is_label = ops.cast(ops.equal(classes, labels[:, None]), logits.dtype)
    return (probabilities - is_label) * upstream[:, None]


def logit_of(logits, labels):
    """Returns each label's logit, `(n, 1)`."""
    return ops.take_along_axis(logits, labels[:, None], axis=-1)


def is_right(logits, labels):
    """Returns 1 where no class scores as high as the true one, else 0: `(n,)` float32.
    A tie is wrong: constant logits are not right every time."""
    # A loss is never exported, so it may be compiled outside of training too.
    return fusion.run(_is_highest, logits, labels, training=True)


def _is_highest(logits, labels):
    # Counting is cheaper than Keras's argmax, which looks at the sign of zero.
    as_high = logits >= logit_of(logits, ops.cast(labels, "int32"))
    return ops.cast(
        ops.equal(ops.sum(ops.cast(as_high, "int32"), axis=-1), 1), "float32"
    )


def classification_terms(logits, labels, weights) -> dict[str, tuple[Any, Any]]:
    """Returns `loss` and `accuracy`, each a pair of float32 scalars: weighted sum and
    weight. Logits are `(..., num_classes)` float32, labels `(...)` integers, weights
    `(...)` float32, 0 for a label that does not count."""
    logits = ops.reshape(logits, (-1, logits.shape[-1]))
    labels, weights = ops.reshape(labels, (-1,)), ops.reshape(weights, (-1,))
    loss, right = cross_entropy(logits, labels), is_right(logits, labels)
    return weighted_terms(weights, loss=loss, accuracy=right)


def weighted_terms(weights, **values) -> dict[str, tuple[Any, Any]]:
    """Returns a pair of float32 scalars for each quantity: weighted sum and weight.
    Values and weights are `(n,)` float32."""
    weight = ops.sum(weights)
    return {name: (ops.sum(value * weights), weight) for name, value in values.items()}


def divergence(students, teachers):
    """Returns the Kullback-Leibler divergence of the student's probabilities from the
    teacher's, `(...)` float32, from log probabilities of both, `(..., width)`."""
    return ops.sum(ops.exp(teachers) * (teachers - students), axis=-1)


def soft_cross_entropy(students, teachers, temperature: float):
    """Returns the distance of the student's choice among classes from its teacher's.

    From `(..., width)` float32 logits of both, `(...)` float32: the divergence of the
    probabilities, both of logits divided by the temperature, times its square, so that
    gradients are as large at every temperature (Hinton et al., 2015, section 2). Its
    gradient is the gradient of the cross entropy; equal answers have a divergence of 0.
    """
    return temperature**2 * divergence(
        ops.log_softmax(students / temperature, axis=-1),
        ops.log_softmax(teachers / temperature, axis=-1),
    )
