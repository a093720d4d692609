"""Functions of tensors that the layers compute between the matrix products.

Elementwise functions compute in float32 in every precision, and are written to be run
by `bert_keras.model.fusion`. `keras` and `keras.ops` only.
"""

import math

from keras import ops

from bert_keras.model import dropout

# 1e-12, not Keras's 1e-3: released BERT checkpoints were trained with it.
LAYER_NORM_EPSILON = 1e-12

# Added to the score of a token that must not be attended to: its exponential is exactly
# 0 in float32, yet a row without any other token keeps a finite softmax.
EXCLUDED_BIAS = -10000.0


def gelu(x):
    """Computes the exact Gaussian error linear unit, `x * P(X <= x)`, X normal.

    Written with `erf`: JAX's own form becomes `erfc`, which ONNX does not have.
    """
    return 0.5 * x * (1.0 + ops.erf(x / math.sqrt(2.0)))


def gelu_tanh(x):
    """Approximates `gelu` as in the training of Google's checkpoints."""
    return ops.gelu(x, approximate=True)


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": ops.relu}


def activate(inputs, *, activation: str):
    """Applies one of `ACTIVATIONS` and keeps shape and dtype."""
    values = ACTIVATIONS[activation](ops.cast(inputs, "float32"))
    return ops.cast(values, inputs.dtype)


def normalize(inputs, gamma, beta):
    """Centres and scales the last axis: `gamma * (x - mean) / deviation + beta`."""
    values = ops.cast(inputs, "float32")
    centred = values - ops.mean(values, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
    scaled = centred * ops.rsqrt(variance + LAYER_NORM_EPSILON)
    return ops.cast(scaled * gamma + beta, inputs.dtype)


def add_and_normalize(
    residual, inputs, gamma, beta, dropout_seeds=None, salt=None, *, rate: float
):
    """Computes `normalize(residual + drop(inputs))` in float32, all three `(batch_size,
    sequence_length, size)`; `gamma` and `beta` are `(size,)` float32."""
    values = ops.cast(inputs, "float32")
    values = dropout.drop(values, dropout_seeds, salt, rate=rate)
    values = values + ops.cast(residual, "float32")
    return ops.cast(normalize(values, gamma, beta), inputs.dtype)


def attention_probabilities(
    scores, bias, dropout_seeds=None, salt=None, *, scale: float, rate: float
):
    """Computes attention probabilities, with dropout, from `(batch_size, heads, query,
    key)` scores. The bias is float32, added to `scale * scores` and broadcast to their
    shape; or `(batch_size, length)` int32, see `bias_between`."""
    if len(bias.shape) == 2:
        bias = bias_between(bias)
    # The bias comes from the mask and has no weights. XLA would sum its gradient over
    # all scores, which takes as long as the rest of the backward pass.
    bias = ops.stop_gradient(bias)
    probabilities = ops.softmax(ops.cast(scores, "float32") * scale + bias)
    dropped = dropout.drop(probabilities, dropout_seeds, salt, rate=rate)
    return ops.cast(dropped, scores.dtype)


def bias_between(instance_ids):
    """Returns the bias, 0 or `EXCLUDED_BIAS`, that excludes tokens of other instances:
    `(batch_size, 1, query, key)` float32 from `(batch_size, length)` int32. Within a
    chain that is one pass over the scores, the bias is never in memory."""
    is_other = ops.not_equal(
        instance_ids[:, None, :, None], instance_ids[:, None, None]
    )
    return EXCLUDED_BIAS * ops.cast(is_other, "float32")


def take_rows(table, ids):
    """Returns `(*ids.shape, size)` rows; their gradient is dense and adds up repeated
    ids.

    On TensorFlow the gradient of a plain gather is a list of rows, one per id, and
    Keras' optimizers square it row by row: Adam then sees `sum(g ** 2)` instead of
    `sum(g) ** 2` for an id that occurs more than once.
    """
    # A tensor in place of a variable: `custom_gradient` takes no variables.
    table = ops.reshape(table, (-1, table.shape[-1]))
    return _take_rows(table, ops.convert_to_tensor(ids))


@ops.custom_gradient
def _take_rows(table, ids):
    # `ids` is an argument, because JAX cannot differentiate a closure over a tracer.
    num_rows, size = ops.shape(table)

    def gradient(upstream):
        # In float32: bfloat16 has 8 bits, too few for a sum over many occurrences.
        rows = ops.reshape(ops.cast(upstream, "float32"), (-1, size))
        total = ops.segment_sum(rows, ops.reshape(ids, (-1,)), num_rows)
        return ops.cast(total, table.dtype), None

    return ops.take(table, ids, axis=0), gradient


def gather_positions(sequence_output, positions):
    """Returns the vectors at `positions`, `(batch_size, num_positions)`, of each
    sequence end to end: `(batch_size * num_positions, hidden_size)`."""
    batch_size, length = ops.shape(sequence_output)[:2]
    first_rows = ops.arange(batch_size, dtype="int32")[:, None] * length
    rows = ops.reshape(ops.cast(positions, "int32") + first_rows, (-1,))
    flat = ops.reshape(sequence_output, (-1, sequence_output.shape[-1]))
    return take_rows(flat, rows)
