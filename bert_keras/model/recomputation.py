"""Backward passes that compute a part of the forward pass again, which need not be kept
in memory (Chen et al., 2016, "Training Deep Nets with Sublinear Memory Cost")."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
from keras import ops

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.python import xla
    from tensorflow.python.framework import ops as framework_ops

_compiled_whole = contextvars.ContextVar("compiled_whole", default=False)


@contextlib.contextmanager
def compiled_whole(is_compiled: bool = True) -> Iterator[None]:
    """Marks a trace that XLA compiles as one program, which TensorFlow does not tell.
    There a barrier keeps two computations apart, elsewhere a control dependency."""
    token = _compiled_whole.set(is_compiled)
    try:
        yield
    finally:
        _compiled_whole.reset(token)


def is_compiled_whole() -> bool:
    return _compiled_whole.get()


def recomputed(function: Callable, *tensors: Any):
    """Calls a function of tensors, which the backward pass computes again, bit for bit.
    The returned tensor depends on the arguments alone: the function reads no variables
    and draws no random numbers. Integer tensors have no gradient."""
    if keras.backend.backend() != "tensorflow":
        return keras.remat(function)(*tensors)

    @tf.custom_gradient
    def differentiable(*tensors):
        def backward(upstream):
            # The same tensors, available only once the backward pass reaches them.
            # Otherwise compilers find the repeated computation and keep its first
            # result. XLA follows no control dependencies, but its own barriers.
            if is_compiled_whole():
                *again, upstream = xla.optimization_barrier(*tensors, upstream)
            else:
                with tf.control_dependencies([upstream]):
                    again = [tf.identity(tensor) for tensor in tensors]
            return gradients(function, again, upstream)

        return function(*tensors), backward

    return differentiable(*tensors)


def gradients(function: Callable, tensors: Sequence, upstream: Any) -> list:
    """Returns the gradient of each tensor; integer tensors have none."""
    floats = [tensor for tensor in tensors if tensor.dtype.is_floating]
    with tf.GradientTape() as tape:
        tape.watch(floats)
        outputs = function(*tensors)
    of_floats: Any = iter(tape.gradient(outputs, floats, upstream))
    return [next(of_floats) if t.dtype.is_floating else None for t in tensors]


def layer(called: keras.layers.Layer, *tensors: Any, **options: Any):
    """Calls a built layer that returns a tensor; the backward pass computes it again.
    Some of the layer's variables may be frozen."""
    variables = called.weights

    def with_values(*arguments):
        inputs, values = arguments[: len(tensors)], arguments[len(tensors) :]
        mapping = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return called(*inputs, **options)

    return recomputed(with_values, *tensors, *map(ops.convert_to_tensor, variables))


@contextlib.contextmanager
def custom_gradients_end() -> Iterator[None]:
    """Removes at its end the custom gradients of all functions traced or loaded within.

    TensorFlow 2.20 registers each traced call of a custom gradient for the life of the
    process, and with it the graph and the variables that it read: 15 MB for a network
    of one small layer. Only the trace of its own backward pass looks it up.
    """
    registry = framework_ops.gradient_registry
    before = set(registry.list())
    try:
        yield
    finally:
        for name in set(registry.list()) - before:
            if name.startswith("CustomGradient-"):
                del registry._registry[name]
