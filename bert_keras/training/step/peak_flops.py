"""Highest speed of a strategy's devices: the yardstick of model FLOP utilization."""

import os

import tensorflow as tf

from bert_keras.core import chips
from bert_keras.core.settings import architecture
from bert_keras.training.step import replicas


def of_devices(
    strategy: tf.distribute.Strategy, precision: architecture.Precision
) -> float | None:
    """Returns the operations a second of all devices, from the makers' data sheets.

    `None` for processors and devices without a data sheet here: the speed of a product
    measured on a busy machine is no upper limit.
    """
    names = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}
    dtype = names.get(precision, "float32")
    device_names = []
    if isinstance(strategy, tf.distribute.TPUStrategy):
        # TPU machines have it; TensorFlow does not know the generation.
        device_names = [os.environ.get("TPU_ACCELERATOR_TYPE", "")]
    elif replicas.are_gpus(strategy):
        device_names = replicas.details_of_gpus("device_name", "")
    # A TPU's replica is a core before v4, as in the data sheet; then it is a chip.
    known = [chips.peak_flops(name, dtype) for name in device_names]
    if not known or None in known:
        return None
    return min(filter(None, known)) * strategy.num_replicas_in_sync
