"""Chains of elementwise operations as one pass over memory, where that pays.

On a CPU, TensorFlow writes the result of every operation to memory and reads it back
for the next one, which takes longer than the matrix products of a training step. XLA
makes one loop of such a chain, but has slower matrix products. So only the chains
between the products are compiled.

In a step that XLA compiles as a whole, such a chain is one pass anyway, and XLA chooses
what it keeps for the backward pass: too much only of attention's scores. Other
backends, and GPUs without XLA, call the functions as they are. Outside of training,
TensorFlow itself puts an activation into the product before it.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras

from bert_keras.model import recomputation

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def run(
    function: Callable,
    *tensors: Any,
    training: bool | None,
    recompute: bool = False,
    **options: Any,
):
    """Calls a function of tensors, in training as one pass each way where that pays.

    The backward pass computes the function again instead of storing intermediate
    results: for elementwise functions that is faster than reading them, and takes no
    memory. Numbers may differ in their last bits.

    Args:
        function: defined in a module; takes tensors and returns one, touches no
            variables, and works element by element, by row, or by broadcasting vectors
            of floats along the last axis.
        training: outside of training the function is called as it is, so that an
            exported model holds plain operations.
        recompute: also within XLA, let the backward pass compute the function again.
            XLA can then no longer choose what it recomputes: with every chain, the
            largest batch of BERT-BASE on a TPU v5e is 344 and not 504.
        **options: keyword arguments, static and hashable.
    """
    if training and recompute and recomputation.is_compiled_whole():
        chain = functools.partial(function, **options)
        return recomputation.recomputed(chain, *tensors)
    if not training or recomputation.is_compiled_whole() or not _pays(tensors):
        return function(*tensors, **options)
    return _compiled(function, tuple(sorted(options.items())))(*tensors)


def is_within_product(activation: str, product: Any, *, training: bool | None) -> bool:
    """Returns whether TensorFlow computes an activation within the product before it.

    On CPUs TensorFlow does so outside of training, if both have one precision: in
    float32, rounded once. A cast between the two would keep them apart.
    """
    if training or keras.backend.backend() != "tensorflow" or tf.executing_eagerly():
        return False
    # TensorFlow has `gelu_tanh` in another order of operations. Float32 needs no cast.
    if activation not in ("gelu", "relu") or product.dtype != "bfloat16":
        return False
    has_other_device = any(map(tf.config.list_physical_devices, ("GPU", "TPU_SYSTEM")))
    return not has_other_device and not recomputation.is_compiled_whole()


def _pays(tensors: tuple) -> bool:
    if keras.backend.backend() != "tensorflow" or tf.executing_eagerly():
        return False
    # XLA compiles once for each shape: for batches of many lengths that would take
    # longer than the training.
    if not all(tensor.shape.is_fully_defined() for tensor in tensors):
        return False
    # The package tensorflow-tpu has no XLA for processors, be there a TPU or not.
    if tf.config.list_physical_devices("TPU_SYSTEM"):
        return False
    strategy = tf.distribute.get_strategy()
    if not tf.distribute.has_strategy():
        return not tf.config.list_physical_devices("GPU")
    is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    devices = strategy.extended.worker_devices
    return not is_tpu and all("CPU" in device.upper() for device in devices)


@functools.cache
def _compiled(function: Callable, options: tuple[tuple[str, Any], ...]) -> Callable:
    function = functools.partial(function, **dict(options))
    forward = tf.function(function, jit_compile=True, autograph=False)

    @tf.function(jit_compile=True, autograph=False)
    def gradients(upstream, *tensors):
        inputs = [
            tf.broadcast_to(tensor, upstream.shape) if _is_vector(tensor) else tensor
            for tensor in tensors
        ]
        results = recomputation.gradients(function, inputs, upstream)
        # Within the compiled chain, so that of these matrices half is written and read.
        return [
            tf.cast(gradient, upstream.dtype) if _is_vector(tensor) else gradient
            for gradient, tensor in zip(results, tensors, strict=True)
        ]

    @tf.custom_gradient
    def differentiable(*tensors):
        def backward(upstream):
            results = list(gradients(upstream, *tensors))
            for index, tensor in enumerate(tensors):
                if _is_vector(tensor):
                    # Sums over all axes but the last, as a product: XLA sums rows
                    # slowly.
                    matrix = results[index]
                    rows = tf.reshape(matrix, (-1, matrix.shape[-1]))
                    ones = tf.ones((1, rows.shape[0]), rows.dtype)
                    sums = tf.matmul(ones, rows)[0]
                    results[index] = tf.cast(sums, tensor.dtype)
            return results

        return forward(*tensors), backward

    return differentiable


def _is_vector(tensor) -> bool:
    return tensor.dtype.is_floating and tensor.shape.rank == 1
