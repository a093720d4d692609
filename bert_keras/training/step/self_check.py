"""A check that devices add up right, before a training trusts their sums.

After a wrong sum over devices a training goes on with wrong gradients, or into NaN:
seen with several GPUs in tensorflow#90686 and #105552. The check has devices add known
numbers, and train a tiny network whose result one device alone must match.
"""

import functools
import logging
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from bert_keras.core.errors import InputError
from bert_keras.core.settings import pretraining
from bert_keras.model import losses
from bert_keras.training.step import learner, optimization, replicas

logger = logging.getLogger(__name__)

_SIZES = (1, 1000, 65_536)
"""Numbers of each device in the sums: libraries add few and many in different ways."""

_MAX_LOSS_DIFFERENCE = 1e-3
_MAX_UPDATE_DIFFERENCE = 0.1
"""Greatest difference after two steps, as a fraction of the norm of the weights'
update. Rounding makes some 1e-6 of it, in the reduced precision of GPUs up to 0.03;
without one device of a hundred the directions of Adam's steps differ by 0.3."""

_ADVICE = (
    "a device, its link to the others or its driver is faulty: set NCCL_P2P_DISABLE=1, "
    "or leave a device out with CUDA_VISIBLE_DEVICES, and look with NCCL_DEBUG=INFO"
)


def is_due(strategy: tf.distribute.Strategy) -> bool:
    """Whether sums of this strategy go over several GPUs or processes."""
    return strategy.num_replicas_in_sync > 1 and (
        replicas.are_gpus(strategy) or replicas.is_multi_worker(strategy)
    )


def check(strategy: tf.distribute.Strategy) -> None:
    """Checks sums and steps of all replicas, all workers at once, in seconds."""
    start = time.monotonic()
    check_sums(strategy)
    check_steps(strategy)
    logger.info(
        "%d devices add up right and train as one does (checked in %.1f s)",
        strategy.num_replicas_in_sync,
        time.monotonic() - start,
    )


def check_sums(strategy: tf.distribute.Strategy) -> None:
    """Has all replicas add numbers that identify each replica."""
    count = strategy.num_replicas_in_sync
    # Small integers: their sums are exact in whatever order.
    known = [1.0 + np.arange(size) % 7 for size in _SIZES]

    def add_up() -> tuple[Any, list]:
        own = tf.distribute.get_replica_context().replica_id_in_sync_group
        row = tf.one_hot(own, count) * tf.cast(own + 1, tf.float32)
        return own, replicas.sum_over_replicas(
            [row[:, None] * tf.constant(v[None], tf.float32) for v in known]
        )

    own, sums = tf.function(lambda: strategy.run(add_up))()
    local = strategy.experimental_local_results
    faults = [
        f"device {int(receiver)} gets {fault}"
        for expected, total in zip(known, sums, strict=True)
        for receiver, rows in zip(local(own), local(total), strict=True)
        for fault in _faults(rows.numpy(), expected)
    ]
    if faults:
        # Each size may give the same faults.
        faults = list(dict.fromkeys(faults))
        more = f" and {len(faults) - 3} more faults" if len(faults) > 3 else ""
        raise InputError(
            f"the sum over {count} devices is wrong: {', '.join(faults[:3])}{more} "
            f"({_named(strategy)}); {_ADVICE}"
        )


def _faults(rows: np.ndarray, known: np.ndarray) -> Iterator[str]:
    """Yields the faults of a sum; row N of `rows` has the numbers of device N alone."""
    for sender, row in enumerate(rows):
        times = row / (known * (sender + 1))
        if np.all(times == 1):
            continue
        if np.all(times == times[0]) and times[0] in (0, 2):
            yield f"{'nothing' if times[0] == 0 else 'twice the numbers'} of {sender}"
        else:
            yield f"wrong numbers of {sender}"


def _named(strategy: tf.distribute.Strategy) -> str:
    """Returns the devices of this process: `device 0 is GPU:0, device 1 is GPU:1`."""
    devices = strategy.extended.worker_devices
    first = 0
    if replicas.is_multi_worker(strategy):
        first = strategy.cluster_resolver.task_id * len(devices)
    return ", ".join(
        f"device {first + place} is {name.lower().rpartition('device:')[2].upper()}"
        for place, name in enumerate(devices)
    )


def check_steps(strategy: tf.distribute.Strategy) -> None:
    """Compares two steps of a tiny network on all replicas with one device's steps."""
    alone = tf.distribute.OneDeviceStrategy(strategy.extended.worker_devices[0])
    num_rows = 2 * strategy.num_replicas_in_sync
    before, together, loss = _two_steps(strategy, num_rows)
    _, single, single_loss = _two_steps(alone, num_rows)
    update = np.linalg.norm(single - before)
    difference = np.linalg.norm(together - single) / update
    # Written so that NaN is a fault.
    is_right = abs(loss - single_loss) <= _MAX_LOSS_DIFFERENCE
    if not (is_right and difference <= _MAX_UPDATE_DIFFERENCE):
        raise InputError(
            f"two training steps on {strategy.num_replicas_in_sync} devices are not "
            f"those of one: their loss is {loss:.6f} where it is {single_loss:.6f}, "
            f"and the update of the weights is off by {difference:.1%} "
            f"({_named(strategy)}); {_ADVICE}"
        )


def _two_steps(
    strategy: tf.distribute.Strategy, num_rows: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns weights before and after two steps, and the loss of the second."""
    random = np.random.default_rng(0)
    batch = {
        "ids": random.integers(0, _Probe.num_words, (num_rows, 4)).astype(np.int32),
        "labels": random.integers(0, _Probe.num_classes, num_rows).astype(np.int32),
    }
    trained = learner.build_learner(
        _Probe,
        {name: tf.constant(rows) for name, rows in batch.items()},
        optimizer=lambda: optimization.build_optimizer(
            pretraining.OptimizerConfig(learning_rate=1e-2, warmup_steps=0),
            num_train_steps=10,
        ),
        strategy=strategy,
        max_grad_norm=1.0,
    )

    def of_process(index, num_processes, num_replicas) -> tf.data.Dataset:
        size = num_rows // strategy.num_replicas_in_sync
        data = tf.data.Dataset.from_tensor_slices(batch)
        shares = data.batch(size, drop_remainder=True).skip(index * num_replicas)
        return replicas.without_autotune(shares.take(num_replicas).repeat())

    def weights() -> np.ndarray:
        return np.concatenate([np.ravel(each) for each in trained.trainable_variables])

    before = weights()
    distributed = replicas.distribute(strategy, of_process)
    logs = trained.make_steps(distributed, 2)
    return before, weights(), logs["loss"]


class _Probe(keras.Model):
    loss_names = ("loss",)
    num_words, num_classes = 50, 5

    def __init__(self) -> None:
        super().__init__(name="probe", dtype="float32")
        draw = functools.partial(keras.initializers.RandomNormal, stddev=0.3)
        self.words = layers.Embedding(self.num_words, 32, draw(seed=1), name="words")
        self.hidden = layers.Dense(
            32, "tanh", kernel_initializer=draw(seed=2), name="hidden"
        )
        self.classes = layers.Dense(
            self.num_classes, kernel_initializer=draw(seed=3), name="classes"
        )

    def call(self, features, training=None):
        vectors = ops.mean(self.words(features["ids"]), axis=1)
        return {"logits": self.classes(self.hidden(vectors))}

    def loss_weights(self, features) -> dict[str, Any]:
        return {"loss": ops.sum(ops.ones_like(features["labels"], "float32"))}

    def loss_terms(self, features, outputs) -> dict[str, tuple[Any, Any]]:
        labels = features["labels"]
        weights = ops.ones_like(labels, "float32")
        return losses.classification_terms(outputs["logits"], labels, weights)
