"""Speed that a device can reach, measured: the yardstick of model FLOP utilization."""

import time
from collections.abc import Callable

import tensorflow as tf


def measure(dtype: str) -> float:
    """Highest rate of a large matrix product on one device, in operations per second.

    The device is the first accelerator, or the processor with all its cores. Data
    sheets claim more than any program reaches.

    Args:
        dtype: the factors' type, for instance `"float32"` or `"bfloat16"`.
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


def _best_rate(run: Callable[[int], object], *, seconds: float = 0.4) -> float:
    """Highest number of runs per second seen within `seconds`."""
    run(1)
    rate, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.monotonic()
        run(8)
        rate = max(rate, 8 / (time.monotonic() - start))
    return rate
