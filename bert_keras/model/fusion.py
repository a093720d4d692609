"""Chains of elementwise operations as one pass over memory, where that pays.

On a CPU, TensorFlow writes the outcome of every operation to memory and reads it back
for the next one; the matrix products of a training step take less time than that. XLA
makes one loop of such a chain, but has slower matrix products. So the chains between
the products are compiled by themselves.

Everywhere else (other backends, GPUs, inside of a step that XLA compiles as a whole)
there is nothing to do.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def run(function: Callable, *tensors: Any, training: bool | None, **options: Any):
    """Calls a function of tensors, in training as one pass each way where that pays.

    The backward pass computes the function anew instead of keeping what it made on the
    way: for elementwise functions that is faster than to read it, and takes no memory.

    Args:
        function: defined in a module; takes tensors and returns one, touches no
            variables, and works element by element, by row, or by broadcasting
            vectors of floats along the last axis.
        *tensors: to call it with.
        training: outside of training it is called as it is, so that an exported model
            holds plain operations.
        **options: to call it with; static and hashable.

    Returns:
        What the function returns; numbers may differ in their last bits.
    """
    if not training or not _pays(tensors):
        return function(*tensors, **options)
    return _compiled(function, tuple(sorted(options.items())))(*tensors)


def _pays(tensors: tuple) -> bool:
    if keras.backend.backend() != "tensorflow" or tf.executing_eagerly():
        return False
    # XLA compiles anew for each shape: for batches of all lengths that would take
    # longer than training.
    if not all(tensor.shape.is_fully_defined() for tensor in tensors):
        return False
    return not tf.config.list_physical_devices("GPU")


@functools.cache
def _compiled(function: Callable, options: tuple[tuple[str, Any], ...]) -> Callable:
    function = functools.partial(function, **dict(options))
    forward = tf.function(function, jit_compile=True, autograph=False)

    @tf.function(jit_compile=True, autograph=False)
    def gradients(upstream, *tensors):
        tensors = [
            tf.broadcast_to(tensor, upstream.shape) if _is_vector(tensor) else tensor
            for tensor in tensors
        ]
        floats = [tensor for tensor in tensors if tensor.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(floats)
            outputs = function(*tensors)
        found = iter(tape.gradient(outputs, floats, upstream))
        return [next(found) if t.dtype.is_floating else None for t in tensors]

    def backward(upstream, *tensors):
        return [
            _column_sums(gradient, upstream.dtype) if _is_vector(tensor) else gradient
            for tensor, gradient in zip(
                tensors, gradients(upstream, *tensors), strict=True
            )
        ]

    @tf.custom_gradient
    def differentiable(*tensors):
        return forward(*tensors), lambda upstream: backward(upstream, *tensors)

    return differentiable


def _is_vector(tensor) -> bool:
    return tensor.dtype.is_floating and tensor.shape.rank == 1


def _column_sums(matrix, dtype):
    """Sums over all axes but the last, as a product: XLA's sums over rows are slow."""
    rows = tf.reshape(tf.cast(matrix, dtype), (-1, matrix.shape[-1]))
    ones = tf.ones((1, rows.shape[0]), dtype)
    return tf.cast(tf.matmul(ones, rows)[0], matrix.dtype)
