"""Precision of the computation: the hardware's best and its highest speed, and
float16's loss scale."""

import os
from pathlib import Path

import tensorflow as tf

from bert_keras.core import chips
from bert_keras.core.settings import architecture
from bert_keras.training.step import replicas

INITIAL_LOSS_SCALE = 2.0**15
LOSS_SCALE_GROWTH_STEPS = 2000
"""Steps with finite gradients after which the scale doubles."""


def resolve(
    precision: architecture.Precision, strategy: tf.distribute.Strategy
) -> architecture.Precision:
    """Replaces `auto` by the precision that suits the devices of the strategy.

    This is bfloat16 on TPUs, on GPUs from compute capability 8.0 on, and on processors
    that multiply in bfloat16, else float32; never float16.
    """
    if precision != "auto":
        return precision
    if isinstance(strategy, tf.distribute.TPUStrategy):
        multiplies_in_bfloat16 = True
    elif replicas.are_gpus(strategy):
        capabilities = replicas.details_of_gpus("compute_capability", (0, 0))
        multiplies_in_bfloat16 = min(capabilities) >= (8, 0)
    else:
        multiplies_in_bfloat16 = processor_multiplies_in_bfloat16()
    return "mixed_bfloat16" if multiplies_in_bfloat16 else "float32"


def processor_multiplies_in_bfloat16(cpuinfo: str | Path = "/proc/cpuinfo") -> bool:
    """Whether the processor has bfloat16 instructions; `False` if that is unknown."""
    try:
        text = Path(cpuinfo).read_text(encoding="utf-8")
    except OSError:
        return False
    return bool({"avx512_bf16", "amx_bf16"} & set(text.split()))


def peak_flops(
    strategy: tf.distribute.Strategy, precision: architecture.Precision
) -> float | None:
    """Returns the operations a second of all devices, from the makers' data sheets.

    `None` for processors and devices without a data sheet here: the speed of a product
    measured on a busy machine is no upper limit.
    """
    dtype = precision.removeprefix("mixed_")
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


def next_loss_scale(
    scale: tf.Tensor, good_steps: tf.Tensor, is_finite: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Halves the scale after an overflow, doubles it after many steps without one.

    The scale multiplies the loss, which keeps small float16 gradients from becoming 0.
    """
    good_steps = tf.where(is_finite, good_steps + 1, 0)
    grows = good_steps >= LOSS_SCALE_GROWTH_STEPS
    grown = tf.where(grows, scale * 2.0, scale)
    return tf.where(is_finite, grown, scale / 2.0), tf.where(grows, 0, good_steps)
