"""Keras's `fit` and `evaluate`: the only calls of both, and what they call."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_keras.model import recomputation
from bert_keras.training.step import replicas

Evaluation = tuple[replicas.Batches, int]
"""Endless batches, and their number in one round."""
Logs = dict[str, float]


class ReplicatedModel(keras.Model):
    """A model that Keras's `fit` trains correctly under any strategy, once it is built.

    `fit` and `evaluate` are given `_ticks`, data that only count the executions: the
    batches come from a `Stream`. Stock Keras begins its data anew in each `fit`, takes
    all executions for equally long, and leaves its iterators to the garbage collector.

    `train_step` returns scalars that are the same on every replica; callbacks get
    replica 0's, with `steps_per_execution` above 1 those of the last step. `input_wait`
    is added: seconds for which the steps waited for data.
    """

    _stream: replicas.Stream
    _last_step: int
    _num_to_test: int
    stop_requested_in_test: Any = 0.0
    """`stop_requested` of an evaluation's last batch; it is no metric."""

    @functools.cached_property
    def _ticks(self) -> replicas.Batches:
        one = tf.data.Dataset.from_tensors(0).repeat()
        return replicas.distribute(
            self.distribute_strategy, lambda *_: replicas.without_autotune(one)
        )

    def make_steps(
        self,
        batches: replicas.Batches | replicas.Stream,
        last_step: int,
        *,
        before: Callable[[int], None] = lambda step: None,
        after: Callable[[int, Logs], bool] = lambda step, logs: False,
    ) -> Logs:
        """Trains to `last_step`; returns its scalars, empty without a step.

        `before` and `after` are called around each execution; `after` returns whether
        to end the training early. A stream that is given stays open.
        """

        def after_execution(batch: int, logs: Logs) -> None:
            step = replicas.optimizer_step(self)
            if after(step, logs) or step >= last_step:
                self.stop_training = True

        num_steps = last_step - replicas.optimizer_step(self)
        if num_steps <= 0:
            return {}
        callback = keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs: before(
                replicas.optimizer_step(self)
            ),
            on_train_batch_end=after_execution,
        )
        self._last_step = last_step
        with self._following(batches):
            history = self.fit(
                self._ticks,
                # An execution has one step at least; the callback ends the epoch.
                steps_per_epoch=num_steps * self.steps_per_execution,
                callbacks=[callback],
                shuffle=False,
                verbose=0,
            )
        return {name: numbers[-1] for name, numbers in history.history.items()}

    def evaluate_round(
        self,
        evaluation: Evaluation,
        *,
        after_test_batch: Callable[[bool], None] = lambda stop_is_requested: None,
    ) -> Logs:
        """Returns the metrics of one round; `after_test_batch` follows each execution.

        It is called with whether a worker asked for a stop.
        """
        batches, num_batches = evaluation
        callback = keras.callbacks.LambdaCallback(
            on_test_batch_end=lambda batch, logs: after_test_batch(
                float(self.stop_requested_in_test) > 0
            )
        )
        self._num_to_test = num_batches
        with self._following(batches):
            metrics = self.evaluate(
                self._ticks,
                steps=num_batches,
                callbacks=[callback],
                return_dict=True,
                verbose=0,
            )
        return {name: float(value) for name, value in metrics.items()}

    @contextlib.contextmanager
    def _following(self, batches: replicas.Batches | replicas.Stream) -> Iterator[None]:
        is_stream = isinstance(batches, replicas.Stream)
        self._stream = batches if is_stream else replicas.Stream(batches)
        with (
            contextlib.nullcontext() if is_stream else contextlib.closing(self._stream),
            replicas.device_iterators_without_autotune(),
            recomputation.custom_gradients_end(),
        ):
            yield

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # The only private name of Keras: stock Keras draws a batch here, in a way that
        # `MultiWorkerMirroredStrategy` does not have (benchmarks/upstream:
        # multi_worker_fit.py, data_read_twice.py), to build what is built already.
        if not self.built:
            raise ValueError("build the model inside the strategy's scope before fit")

    def make_train_function(self, force=False):
        """Replaces Keras's method, which compiles and reduces around the strategy."""
        if self.train_function is not None and not force:
            return self.train_function
        executions: dict[Any, tuple[Callable, list[str]]] = {}

        def train_function(_):
            step, stream = replicas.optimizer_step(self), self._stream
            spec = stream.spec_of_step and stream.spec_of_step(step)
            shapes = spec and tuple((k, tuple(v.shape)) for k, v in spec.items())
            if shapes not in executions:
                executions[shapes] = self._traced_execution(self.train_step, spec)
            end = min(step + self.steps_per_execution, self._last_step)
            execute, names = executions[shapes]
            num_steps = tf.constant(stream.num_alike(step, end))
            # One transfer for all numbers: on a TPU each would wait for the device.
            numbers = execute(stream.iterator, num_steps).numpy()
            return dict(zip(names, numbers, strict=True))

        self.train_function = train_function
        return train_function

    def make_test_function(self, force=False):
        """Replaces Keras's method; counts the batches that a round still has."""
        if self.test_function is not None and not force:
            return self.test_function
        execute, names = self._traced_execution(self.test_step)

        def test_function(_):
            num_steps = min(self.steps_per_execution, self._num_to_test)
            self._num_to_test -= num_steps
            numbers = execute(self._stream.iterator, tf.constant(num_steps)).numpy()
            results = dict(zip(names, numbers, strict=True))
            # Keras would take all of these for metrics.
            results.pop("input_wait")
            self.stop_requested_in_test = results.pop("stop_requested", 0.0)
            return results

        self.test_function = test_function
        return test_function

    def _traced_execution(
        self, step_function: Callable, spec: Mapping[str, tf.TensorSpec] | None = None
    ) -> tuple[tf.types.experimental.PolymorphicFunction, list[str]]:
        """Returns the graph function of an execution and, once traced, its names.

        The step is traced once, in a loop or by itself: a second trace would double the
        time, and be a second program for a device.
        """
        strategy = self.distribute_strategy
        has_loop = self.steps_per_execution > 1
        names: list[str] = []

        # Steps have no branches on tensors for AutoGraph to find: reading their source
        # took a third of the time of tracing one.
        @tf.autograph.experimental.do_not_convert
        def step(batch):
            outputs = step_function(batch)
            names[:] = [*outputs, "input_wait"]
            return tf.stack([tf.cast(x, tf.float32) for x in outputs.values()])

        # The form that every strategy takes, TPUs among them: a plain loop around the
        # strategy, where stock Keras has optionals in nested conditions.
        @tf.function
        def execute(iterator, num_steps):
            waited = tf.constant(0.0, tf.float64)
            if has_loop:
                numbers = tf.zeros([0])
                for _ in tf.range(num_steps):
                    tf.autograph.experimental.set_loop_options(
                        shape_invariants=[(numbers, tf.TensorShape([None]))]
                    )
                    batch, seconds = _timed_next(iterator, spec)
                    of_replicas = strategy.run(step, args=(batch,))
                    numbers = strategy.experimental_local_results(of_replicas)[0]
                    waited += seconds
            else:
                batch, waited = _timed_next(iterator, spec)
                of_replicas = strategy.run(step, args=(batch,))
                numbers = strategy.experimental_local_results(of_replicas)[0]
            return tf.concat([numbers, [tf.cast(waited, tf.float32)]], axis=0)

        return execute, names


def _timed_next(
    iterator, spec: Mapping[str, tf.TensorSpec] | None
) -> tuple[Any, tf.Tensor]:
    """Returns the next batch, with the shapes of `spec`, and the seconds it took."""
    # Without the dependencies TensorFlow reads the clock twice at once.
    start = tf.timestamp()
    with tf.control_dependencies([start]):
        batch = next(iterator)
    parts = tf.nest.flatten(batch, expand_composites=True)
    with tf.control_dependencies(parts):
        seconds = tf.timestamp() - start
    if spec is not None:
        # Outside of the replica: a TPU's is given known shapes only.
        batch = {
            name: tf.nest.map_structure(
                functools.partial(tf.ensure_shape, shape=spec[name].shape),
                value,
                expand_composites=True,
            )
            for name, value in batch.items()
        }
    return batch, seconds
