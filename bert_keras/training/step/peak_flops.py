"""Highest speed of a strategy's devices: the yardstick of model FLOP utilization."""

import os
from collections.abc import Sequence

import tensorflow as tf

from bert_keras.core import chips
from bert_keras.core.settings import config
from bert_keras.training.step import replicas

# A TPU's replica is a core, half of a chip, before v4; then it is a chip.
_CORES = {"V2-": 22.5e12, "V3-": 61.5e12}
"""Operations a second of a core, by the beginning of the TPU's type."""


def of_strategy(
    strategy: tf.distribute.Strategy, precision: config.Precision
) -> float | None:
    """Returns the operations a second of all devices, from the makers' data sheets.

    `None` for processors and devices without a data sheet here: the speed of a product
    measured on a busy machine is no upper limit.
    """
    names = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}
    dtype = names.get(precision, "float32")
    known = [of_device(name, dtype) for name in _device_names(strategy)]
    if not known or None in known:
        return None
    return min(filter(None, known)) * strategy.num_replicas_in_sync


def of_device(name: str, dtype: str) -> float | None:
    """Returns a device's operations a second; `None`: no data sheet has it.

    `name` is a GPU's, or a TPU's type with its number of cores, such as `v4-32`.
    """
    if (peak := chips.peak_flops(name, dtype)) is not None:
        return peak
    if dtype not in ("float32", "bfloat16"):
        return None
    return next((f for part, f in _CORES.items() if part in name.upper()), None)


def _device_names(strategy: tf.distribute.Strategy) -> Sequence[str]:
    """Returns the names of the accelerators; empty where processors train."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        # TPU machines have it; TensorFlow does not know the generation.
        return [os.environ.get("TPU_ACCELERATOR_TYPE", "")]
    is_gpu = replicas.are_gpus(strategy)
    return replicas.details_of_gpus("device_name", "") if is_gpu else []
