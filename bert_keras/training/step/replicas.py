"""Fixes, in one place, of faults that Keras 3 has under `tf.distribute`.

Stock Keras on TensorFlow clips each replica's gradients before they are summed,
averages weighted losses per replica, squares the slices of a sparse gradient one by
one, begins the data of `fit` twice, wraps XLA around the strategy, cannot run several
steps per call under `MirroredStrategy`, cannot `fit` under
`MultiWorkerMirroredStrategy` at all, and leaves its iterators to the garbage collector.
TensorFlow keeps each network traced for the life of the process. `benchmarks/upstream/`
shows each fault. This module has the sums over replicas and their batches, `fit.py` the
calls of `fit` and what `fit` calls, `learner.py` the step.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

Batches = tf.data.Dataset | tf.distribute.DistributedDataset


def sum_over_replicas(value):
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return value
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)


def rows_of_all(rows) -> tuple[Any, Any]:
    """Returns the rows of all replicas, and the place of this one's first row.

    All have equally many rows; gradients go back to the replicas of the rows.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return rows, 0
    own, total = context.replica_id_in_sync_group, context.num_replicas_in_sync
    is_own = tf.one_hot(own, total, dtype=rows.dtype)
    # A sum with zeros: gathering is not on all devices, and has no shape under XLA.
    spread = tf.einsum("r,b...->rb...", is_own, rows)
    shape = tf.shape(rows)
    whole = tf.reshape(sum_over_replicas(spread), tf.concat([[-1], shape[1:]], 0))
    return whole, own * shape[0]


def on_replicas(
    strategy: tf.distribute.Strategy, compute: Callable
) -> tf.types.experimental.PolymorphicFunction:
    """Returns a graph function that computes on the strategy's devices.

    Every replica gets and computes the same; other processes need not take part.
    """

    @tf.function(autograph=False)
    def run(*tensors):
        outputs = strategy.run(compute, args=tensors)
        return tf.nest.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], outputs
        )

    return run


def optimizer_step(model: keras.Model) -> int:
    """Returns the steps so far, also where the counter is mirrored over replicas."""
    return int(keras.ops.convert_to_numpy(model.optimizer.iterations))


def is_multi_worker(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def kind_of_devices(strategy: tf.distribute.Strategy) -> str:
    """Returns `TPU`, also where devices are said to be TPUs, else `GPU` or `CPU`."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return "TPU"
    if strategy is not tf.distribute.get_strategy() or tf.distribute.has_strategy():
        devices = strategy.extended.worker_devices
    else:
        # The default strategy does not say: TensorFlow takes the first GPU.
        gpus = tf.config.list_logical_devices("GPU")
        found = gpus or tf.config.list_logical_devices()
        devices = [device.name for device in found[:1]]
    names = " ".join(devices).upper()
    return next((kind for kind in ("TPU", "GPU", "CPU") if kind in names), "OTHER")


def are_gpus(strategy: tf.distribute.Strategy) -> bool:
    return kind_of_devices(strategy) == "GPU"


def details_of_gpus(name: str, default: Any) -> list:
    """Returns a detail of each GPU of this machine, such as its `device_name`."""
    details = tf.config.experimental.get_device_details
    gpus = tf.config.list_physical_devices("GPU")
    return [details(gpu).get(name, default) for gpu in gpus]


def steps_per_execution(strategy: tf.distribute.Strategy) -> int:
    """Returns the steps that suit the devices: the faster, the more Python costs."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return 50
    return 1 if kind_of_devices(strategy) == "CPU" else 10


def describe_devices(strategy: tf.distribute.Strategy) -> str:
    """Returns the devices as a text: `4 GPUs (NVIDIA A100, MirroredStrategy)`."""
    kind, names = kind_of_devices(strategy), {type(strategy).__name__}
    if kind == "GPU":
        names |= set(details_of_gpus("device_name", "GPU of an unknown kind"))
    count = strategy.num_replicas_in_sync
    end = "s" if count > 1 else ""
    return f"{count} {kind}{end} ({', '.join(sorted(names))})"


def wait_for_all(strategy: tf.distribute.Strategy) -> None:
    _sum_over_workers(strategy, np.zeros(1))


def differing(strategy: tf.distribute.Strategy, values: Mapping[str, Any]) -> list[str]:
    """Returns the names of values that differ between worker processes.

    All workers call it at the same point, with the same names, and get the same answer.
    """
    digests = [
        hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
        for value in values.values()
    ]
    # In 16 bits, squares and their sums over two million replicas are exact in float64.
    numbers = np.frombuffer(b"".join(digests), np.uint16).astype(np.float64)
    sums = _sum_over_workers(strategy, np.stack([numbers, numbers**2]))
    # Cauchy and Schwarz: equal only if all numbers are.
    count = strategy.num_replicas_in_sync
    differ = [count * int(square) != int(total) ** 2 for total, square in sums.T]
    per_value = np.reshape(differ, (len(values), -1)).any(axis=1)
    return [*itertools.compress(values, per_value)]


def checksums(
    strategy: tf.distribute.Strategy, variables: Mapping[str, keras.Variable]
) -> dict[str, list[int]]:
    """Returns two sums of the bits of each variable, in this process, by name.

    A copy to the host and a cryptographic hash would take seconds for a large model.
    """
    sums = {}
    for name, variable in variables.items():
        copy = strategy.experimental_local_results(variable.value)[0]
        sums[name] = _bit_sums(tf.convert_to_tensor(copy)).numpy().tolist()
    return sums


@tf.function
def _bit_sums(value):
    if value.dtype.is_floating:
        value = tf.bitcast(
            value, {2: tf.int16, 4: tf.int32, 8: tf.int64}[value.dtype.size]
        )
    bits = tf.cast(tf.reshape(value, [-1]), tf.int64)
    # The second sum depends on the order, too; both wrap around.
    places = tf.range(1, tf.size(bits, out_type=tf.int64) + 1)
    return tf.stack([tf.reduce_sum(bits), tf.reduce_sum(bits * places)])


def take_first_workers(
    strategy: tf.distribute.Strategy, numbers: np.ndarray
) -> np.ndarray:
    """Returns the first worker's numbers, bit for bit, in all processes at once."""
    summed = _sum_over_workers(strategy, numbers, only_first=True)
    return summed.astype(numbers.dtype)


def _sum_over_workers(
    strategy: tf.distribute.Strategy, numbers: np.ndarray, *, only_first: bool = False
) -> np.ndarray:
    """Sums each process's numbers in float64, counted once for each of its replicas.

    With `only_first`, the others' numbers count as 0.
    """
    if not is_multi_worker(strategy):
        return numbers if only_first else numbers * strategy.num_replicas_in_sync

    def own_and_others() -> tf.Tensor:
        own = tf.constant(numbers, tf.float64)
        context = tf.distribute.get_replica_context()
        is_first = tf.equal(context.replica_id_in_sync_group, 0)
        counts = is_first if only_first else tf.constant(True)
        return sum_over_replicas(tf.where(counts, own, tf.zeros_like(own)))

    total = tf.function(lambda: strategy.run(own_and_others))()
    return strategy.experimental_local_results(total)[0].numpy()


def without_autotune(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the batches without TensorFlow's autotuner, whose end may take a minute.

    The autotuner is a thread of each iterator. It sleeps for up to 60 seconds between
    two looks at the pipeline, and the end of the iterator waits for it (measured with
    TensorFlow 2.20: up to 60 s for one, 0.05 s for 60 without the autotuner). Probably
    the call that should wake it comes before the flag that it then reads, so that it
    goes to sleep again (`Model::OptimizeLoop`). Without it, `tf.data.AUTOTUNE` calls
    are as many as the processor has cores.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return batches.with_options(options)


@contextlib.contextmanager
def device_iterators_without_autotune() -> Iterator[None]:
    """Applies `without_autotune` to the datasets that a strategy adds.

    It has no public name for them (TensorFlow 2.20; benchmarks/upstream:
    iterators_left.py).
    """
    create = multi_device_iterator_ops._create_device_dataset
    multi_device_iterator_ops._create_device_dataset = lambda *args: without_autotune(
        create(*args)
    )
    try:
        yield
    finally:
        multi_device_iterator_ops._create_device_dataset = create


def distribute(
    strategy: tf.distribute.Strategy,
    make_batches: Callable[[int, int, int], tf.data.Dataset],
) -> Batches:
    """Gives every replica its batches.

    `make_batches` takes a worker's index, the number of workers and its number of
    replicas, and returns one element per replica and step, in turn.
    """

    def of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        index, num_workers = context.input_pipeline_id, context.num_input_pipelines
        num_replicas = context.num_replicas_in_sync // num_workers
        return make_batches(index, num_workers, num_replicas)

    if strategy.num_replicas_in_sync == 1:
        return make_batches(0, 1, 1)
    return strategy.distribute_datasets_from_function(of_worker)


@dataclasses.dataclass
class Stream:
    """Endless batches, and the position in them that several calls have reached.

    A new iterator would read the shuffled records before the position again.
    """

    batches: Batches
    spec_of_step: Callable[[int], Mapping[str, tf.TensorSpec]] | None = None
    """Returns the fixed shapes of a replica's batch in the step after the given step;
    each shape is traced by itself. `None`: the data state their shapes."""

    def num_alike(self, step: int, end: int) -> int:
        """Returns how many of the steps from `step` to `end` begin with one shape."""
        if (spec_of_step := self.spec_of_step) is None:
            return end - step
        first = spec_of_step(step)
        others = (n for n in range(step + 1, end) if spec_of_step(n) != first)
        return next(others, end) - step

    @functools.cached_property
    def iterator(self) -> Any:
        return iter(self.batches)

    def close(self) -> None:
        """Ends the iterator with its threads and buffers; the next one begins anew."""
        vars(self).pop("iterator", None)
