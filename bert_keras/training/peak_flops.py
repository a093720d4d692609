"""Highest speed of a strategy's devices: the yardstick of model FLOP utilization."""

import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from bert_keras import chips, config
from bert_keras.training import replicas

# A TPU's replica is a core, half of a chip, before v4; then it is a chip.
_CORES = {"V2-": 22.5e12, "V3-": 61.5e12}
"""Operations a second of a core, by the beginning of the TPU's type."""


class Peak(NamedTuple):
    """Highest speed of all devices of a strategy together."""

    flops: float
    """Operations per second."""
    is_estimate: bool
    """Measured here, for want of a data sheet: a busy machine seems slower."""


def of_strategy(strategy: tf.distribute.Strategy, precision: config.Precision) -> Peak:
    """The highest speed of the devices, from the makers' data sheets or measured.

    Args:
        strategy: that trains on them.
        precision: of the products.
    """
    names = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}
    dtype = names.get(precision, "float32")
    count = strategy.num_replicas_in_sync
    known = [of_device(name, dtype) for name in _device_names(strategy)]
    if known and None not in known:
        return Peak(min(filter(None, known)) * count, is_estimate=False)
    if not known:
        # Logical devices share the one processor of each process.
        resolver = getattr(strategy, "cluster_resolver", None)
        spec = resolver.cluster_spec() if resolver else None
        count = spec.num_tasks("worker") if spec and spec.jobs else 1
    return Peak(_measure(dtype) * count, is_estimate=True)


def of_device(name: str, dtype: str) -> float | None:
    """Operations per second of a device of the table; `None`: it is not there.

    Args:
        name: of a GPU, or the type of a TPU with its number of cores, such as `v4-32`.
        dtype: the factors' type.
    """
    if (chip := chips.by_device_name(name)) is not None:
        return chip.flops(dtype)
    if dtype not in ("float32", "bfloat16"):
        return None
    return next((f for part, f in _CORES.items() if part in name.upper()), None)


def _device_names(strategy: tf.distribute.Strategy) -> Sequence[str]:
    """Names of the accelerators; none where processors train."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        # TPU machines have it; TensorFlow does not know the generation.
        return [os.environ.get("TPU_ACCELERATOR_TYPE", "")]
    if not replicas.are_gpus(strategy):
        return []
    details = tf.config.experimental.get_device_details
    gpus = tf.config.list_physical_devices("GPU")
    return [details(gpu).get("device_name", "") for gpu in gpus]


@functools.cache
def _measure(dtype: str) -> float:
    """Highest rate of a large matrix product on one device, in operations per second.

    The device is the first accelerator, or the processor with all its cores.
    """
    accelerators = [
        device
        for kind in ("TPU", "GPU")
        for device in tf.config.list_logical_devices(kind)
    ]
    device = (accelerators or tf.config.list_logical_devices("CPU"))[0]
    size = 8192 if accelerators else 1024
    with tf.device(device.name):
        # With this deviation the products neither grow nor vanish.
        factor = tf.random.stateless_normal([size, size], (0, 1), stddev=size**-0.5)
        factor = tf.cast(factor, dtype)

        @tf.function
        def multiply(num_products):
            product = factor
            for _ in tf.range(num_products):
                product = tf.matmul(product, factor)
            return product[0, 0]

        return 2 * size**3 * _best_rate(lambda n: multiply(tf.constant(n)).numpy())


def _best_rate(
    run: Callable[[int], object], *, num_bursts: int = 5, seconds: float = 0.1
) -> float:
    """Highest number of runs per second in short bursts, with pauses between them.

    In one of them the machine is perhaps not busy with other things.
    """
    run(1)
    rate = 0.0
    for _ in range(num_bursts):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            start = time.monotonic()
            run(4)
            rate = max(rate, 4 / (time.monotonic() - start))
        time.sleep(seconds)
    return rate
