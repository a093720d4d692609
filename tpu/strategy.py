"""A name becomes a `tf.distribute.Strategy`, or a clear error."""

import logging

import tensorflow as tf

from bert_keras.errors import InputError

logger = logging.getLogger(__name__)

NAMES = ("auto", "cpu", "gpu", "tpu", "tpu:NAME")


def get_strategy(name: str) -> tf.distribute.Strategy:
    """Returns the strategy to train under.

    Args:
        name: `cpu`: one device, the CPU. `gpu`: all GPUs of this machine, with
            `MirroredStrategy` if there are several. `tpu` or `tpu:NAME`: the TPU of
            this machine or the one of that name. `auto`: the GPUs if there are any,
            else the CPU; a TPU has to be named.

    Raises:
        InputError: the name is unknown, or what it names is not there.
    """
    kind, _, tpu_name = name.partition(":")
    if kind == "tpu":
        return _tpu_strategy(tpu_name)
    if name not in ("auto", "cpu", "gpu"):
        raise InputError(f"--strategy is one of {', '.join(NAMES)}, got {name!r}")
    gpus = tf.config.list_logical_devices("GPU")
    if name == "gpu" and not gpus:
        raise InputError(
            "--strategy gpu: TensorFlow sees no GPU here, only "
            f"{_device_names()}; use --strategy cpu, or install a TensorFlow with CUDA"
        )
    if name == "cpu" or not gpus:
        return tf.distribute.OneDeviceStrategy("/cpu:0")
    if len(gpus) == 1:
        return tf.distribute.OneDeviceStrategy("/gpu:0")
    return tf.distribute.MirroredStrategy()


def _tpu_strategy(tpu_name: str) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=tpu_name or "local"
        )
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"--strategy tpu: no TPU {tpu_name or 'on this machine'}, only "
            f"{_device_names()} ({reason}); use --strategy cpu to run without one"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def _device_names() -> str:
    return ", ".join(device.name for device in tf.config.list_logical_devices())
