"""Name -> `tf.distribute.Strategy`, or a clear error."""

import contextlib
import faulthandler
import logging
import os
import signal
from collections.abc import Sequence

import tensorflow as tf

from bert_keras.core import chips
from bert_keras.core.errors import InputError, check_choice, one_line
from bert_keras.tpu import STRATEGIES, cluster

logger = logging.getLogger(__name__)

_HANG_SECONDS = 120
"""Limit for TensorFlow to connect workers that all answer."""


def get_strategy(
    name: str,
    *,
    workers: Sequence[str] = (),
    worker_index: int | None = None,
    startup_timeout_seconds: float = 300,
) -> tf.distribute.Strategy:
    """Makes the strategy to train under.

    Args:
        name: `cpu`: one device, the CPU. `gpu`: all GPUs of this machine, with
            `MirroredStrategy` if there are several. `tpu` or `tpu:NAME`: the TPU of
            this machine or the one of that name. `multi_worker`: one of several
            processes, each with its machine's GPUs or CPU; made before TensorFlow
            computes anything. `auto`: `multi_worker` if there are `workers` or the
            environment has `TF_CONFIG`, else the GPUs if there are any, else the CPU; a
            TPU has to be named. Neither `auto` nor `multi_worker` takes the CPU of a
            machine with GPUs that TensorFlow cannot use.
        workers: `HOST:PORT` of every worker process, the chief first; by default those
            of `TF_CONFIG`. Their connections are neither encrypted nor authenticated:
            for private networks only.
    """
    kind, _, tpu_name = name.partition(":")
    if kind != "tpu":
        check_choice("--strategy", name, STRATEGIES)
        # GPU memory is taken as it is needed, and the rest left to other processes.
        for gpu in tf.config.list_physical_devices("GPU"):
            # In a process that has used its GPUs already, they stay as they are.
            with contextlib.suppress(RuntimeError):
                tf.config.experimental.set_memory_growth(gpu, True)
    if name in ("auto", "multi_worker"):
        peers = _find_cluster(workers, worker_index)
        if peers is not None:
            return _multi_worker_strategy(peers, startup_timeout_seconds)
        if name == "multi_worker":
            raise InputError(
                "--strategy multi_worker needs --workers HOST:PORT,HOST:PORT and "
                "--worker_index N, or the environment variable TF_CONFIG"
            )
    elif workers or worker_index is not None:
        raise InputError(
            "--workers and --worker_index go with --strategy multi_worker, "
            f"got --strategy {name}"
        )
    if kind != "tpu":
        return _local_strategy(name)
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=tpu_name or "local"
        )
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        reason = one_line(error)
        raise InputError(
            f"--strategy tpu: no TPU {tpu_name or 'on this machine'}, only "
            f"{_device_names()} ({reason}); use --strategy cpu to run without one"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def _find_cluster(
    workers: Sequence[str], worker_index: int | None
) -> cluster.Cluster | None:
    if workers:
        if worker_index is None:
            raise InputError(
                f"--workers needs --worker_index, 0 to {len(workers) - 1}: "
                "which of them this process is"
            )
        return cluster.Cluster(tuple(workers), worker_index)
    if worker_index is not None:
        raise InputError("--worker_index needs --workers HOST:PORT,HOST:PORT")
    tf_config = os.environ.get("TF_CONFIG")
    return cluster.cluster_from_tf_config(tf_config) if tf_config else None


def _multi_worker_strategy(
    peers: cluster.Cluster, timeout_seconds: float
) -> tf.distribute.Strategy:
    """Makes the strategy of one worker of several, once all of them answer.

    TensorFlow's heartbeat notices after about ten seconds a worker that later dies or
    stops (see `bert_keras.training.step.stopping`). So communication has no time-out,
    which would also hit the chief while it writes a large checkpoint.
    """
    cluster.wait_for_peers(peers, timeout_seconds=timeout_seconds)
    if peers.is_local:
        logger.warning(
            "TensorFlow listens at port %d on all interfaces, not on %s alone, and "
            "lets anybody in: close the port to other machines",
            *reversed(cluster.host_and_port(peers.addresses[peers.index])),
        )
    # Physical ones: to list logical devices would start TensorFlow's runtime, after
    # which this strategy can no longer be made.
    num_gpus = len(tf.config.list_physical_devices("GPU"))
    if not num_gpus:
        _check_no_gpu("CUDA_VISIBLE_DEVICES=-1 trains on the processor")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(peers.addresses)}),
        task_type="worker",
        task_id=peers.index,
        # Unless told, this resolver says that there are none, and the CPU would train.
        num_accelerators={"GPU": num_gpus},
        rpc_layer="grpc",
    )
    implementations = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementations.AUTO if num_gpus else implementations.RING
    )
    logger.info("task %d: all %d workers answer", peers.index, len(peers.addresses))
    # TensorFlow waits for a worker that died this very moment with Python locked: no
    # thread and no signal handler can run, but faulthandler's own timer ends it. It
    # also takes over SIGTERM, for a service of its own that is not used here.
    on_sigterm = signal.getsignal(signal.SIGTERM)
    faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
    except tf.errors.OpError as error:
        reason = one_line(error)
        raise InputError(
            f"{peers.named([peers.index])} could not join the other workers: {reason}"
        ) from error
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGTERM, on_sigterm)


def _check_no_gpu(otherwise: str) -> None:
    """Refuses a machine that has GPUs after all; `otherwise` says what else to do."""
    if names := chips.visible_gpus():
        raise InputError(
            f"this machine has {len(names)} NVIDIA GPUs, but TensorFlow cannot use "
            "them: run `pip install '.[train,gpu]' -c constraints.txt` in the checkout "
            "for its CUDA libraries; TF_CPP_MIN_LOG_LEVEL=0 shows its own reasons; "
            + otherwise
        )


def _local_strategy(name: str) -> tf.distribute.Strategy:
    devices = tf.config.list_logical_devices("GPU")
    if name != "cpu" and not devices:
        _check_no_gpu("--strategy cpu trains on the processor")
    if name == "gpu" and not devices:
        raise InputError(
            "--strategy gpu: TensorFlow sees no GPU here, only "
            f"{_device_names()}; use --strategy cpu, or install a TensorFlow with CUDA"
        )
    if name == "cpu" or not devices:
        return tf.distribute.OneDeviceStrategy("/cpu:0")
    if len(devices) == 1:
        return tf.distribute.OneDeviceStrategy("/gpu:0")
    return tf.distribute.MirroredStrategy()


def _device_names() -> str:
    return ", ".join(device.name for device in tf.config.list_logical_devices())
