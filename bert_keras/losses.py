"""Cross entropy and accuracy over a large vocabulary, in few passes over the logits.

`keras` and `keras.ops` only.
"""

from typing import Any

from keras import ops


def cross_entropy(logits, labels):
    """Negative log probability of the true class.

    As `keras.losses.sparse_categorical_crossentropy` from logits, but keeps the
    exponentials for its gradient, which is faster on a CPU.

    Args:
        logits: `(n, num_classes)` float32.
        labels: `(n,)` integers below `num_classes`.

    Returns:
        `(n,)` float32, in nats.
    """
    return _cross_entropy(logits, ops.cast(labels, "int32"))


@ops.custom_gradient
def _cross_entropy(logits, labels):
    # `labels` is an argument, because JAX cannot differentiate a closure over a tracer.
    largest = ops.max(logits, axis=-1, keepdims=True)
    exponentials = ops.exp(logits - largest)
    total = ops.sum(exponentials, axis=-1, keepdims=True)
    losses = ops.log(total) + largest - logit_of(logits, labels)

    def gradient(upstream):
        classes = ops.arange(logits.shape[-1], dtype="int32")
        is_label = ops.cast(ops.equal(classes, labels[:, None]), logits.dtype)
        return (exponentials / total - is_label) * upstream[:, None], None

    return losses[:, 0], gradient


def logit_of(logits, labels):
    """The logit of each label: `(n, num_classes)` and `(n,)` to `(n, 1)`."""
    return ops.take_along_axis(logits, labels[:, None], axis=-1)


def is_right(logits, labels):
    """Whether no other class scores as high as the true one.

    A tie is wrong, so that constant logits are not right every time.

    Args:
        logits: `(n, num_classes)` float32.
        labels: `(n,)` integers below `num_classes`.

    Returns:
        `(n,)` float32, 1 or 0.
    """
    # Counting is cheaper than Keras's argmax, which minds the sign of zero.
    as_high = logits >= logit_of(logits, ops.cast(labels, "int32"))
    return ops.cast(
        ops.equal(ops.sum(ops.cast(as_high, "int32"), axis=-1), 1), "float32"
    )


def classification_terms(logits, labels, weights) -> dict[str, tuple[Any, Any]]:
    """Weighted sums of cross entropy and of right answers, with the sum of weights.

    Args:
        logits: `(..., num_classes)` float32.
        labels: `(...)` integers, the true classes.
        weights: `(...)` float32, 0 for what does not count.

    Returns:
        From `loss` and `accuracy` to a pair of float32 scalars, sum and weight.
    """
    logits = ops.reshape(logits, (-1, logits.shape[-1]))
    labels, weights = ops.reshape(labels, (-1,)), ops.reshape(weights, (-1,))
    weight = ops.sum(weights)
    return {
        "loss": (ops.sum(cross_entropy(logits, labels) * weights), weight),
        "accuracy": (ops.sum(is_right(logits, labels) * weights), weight),
    }
