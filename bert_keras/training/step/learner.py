"""The training step, and the only call of `compile`.

A network states its loss as sums and weights: `loss_terms(features, outputs)` gives
`{name: (sum, weight)}` over its examples, `loss_names` the terms that add up to the
loss, and `loss_weights(features)` the weights of these before anything is computed, and
perhaps `tokens`, for the log. Summed over replicas and parts of a batch, these give the
mean that one device would compute over the whole batch.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from bert_keras.core.settings import architecture
from bert_keras.model import recomputation
from bert_keras.training.step import fit, optimization, precision, replicas

REQUESTS = tuple(f"{name}_requested" for name in ("stop", "save", "evaluate", "draw"))
"""Requests that one worker raises and every worker carries out at the same step."""

MIN_WEIGHT = 1e-5
"""Least divisor of a sum: a batch may have no prediction."""


class Learner(fit.ReplicatedModel):
    """Trains a network on batches of features, labels included.

    A step sums the gradients of all parts of all replicas' batches, clips and applies
    them once. If the loss or a gradient is not finite, weights and moments keep their
    values, but the step counts, so that step N always has batch N.

    Args:
        max_grad_norm: global norm to clip gradients to; `None`: no clipping.
        num_parts: parts in which a replica computes its batch, one after the other.
        compile_step: compile each replica's forward and backward pass with XLA.
        scales_loss: multiply the loss by an adaptive scale, for float16.
        branches: skip clipping and updates that are not finite or not needed. At a
            branch the host would have to wait for any device but a CPU, so others
            compute all.
    """

    def __init__(
        self,
        network: keras.Model,
        *,
        max_grad_norm: float | None,
        num_parts: int = 1,
        compile_step: bool = False,
        scales_loss: bool = False,
        branches: bool = True,
    ):
        super().__init__(name="learner")
        self.network = network
        self.num_parts = num_parts
        self._max_grad_norm = max_grad_norm
        self._compile_step = compile_step
        self._scales_loss = scales_loss
        self._branches = branches
        self._means: dict[str, keras.metrics.Mean] = {}

    def call(self, batch, training=None):
        return self.network(batch, training=training)

    def describe(self, batch_size: int) -> str:
        """Returns a line on devices and precision; a batch is for all replicas."""
        num_replicas = self.distribute_strategy.num_replicas_in_sync
        examples = f"{batch_size / num_replicas:g} examples each"
        if self.num_parts > 1:
            examples += f", in {self.num_parts} parts"
        compiler = "with XLA" if self._compile_step else "without XLA"
        return (
            f"training on {replicas.describe_devices(self.distribute_strategy)}, "
            f"{examples}; {self.network.dtype_policy.name}, {compiler}"
        )

    def build_on(self, batch: Mapping[str, Any]) -> None:
        """Makes all variables; call it inside the strategy's scope."""
        terms = self.network.loss_terms(batch, self.network(batch))
        self._means = {name: keras.metrics.Mean(name=name) for name in terms}
        self.skipped_steps = self._add_variable("skipped_steps")
        self.skipped_in_a_row = self._add_variable("skipped_in_a_row")
        if self._scales_loss:
            self.loss_scale = self._add_variable(
                "loss_scale", "float32", precision.INITIAL_LOSS_SCALE
            )
            self.good_steps = self._add_variable("good_steps")
        self.optimizer.build(self.trainable_variables)
        # Each process has its own values: whether it asks all for something.
        self._requests = {
            name: tf.Variable(
                0.0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
                name=name,
            )
            for name in REQUESTS
            if replicas.is_multi_worker(self.distribute_strategy)
        }
        self.built = True

    def use_parts(self, num_parts: int) -> None:
        """Changes the number of parts; the next step and evaluation are traced anew."""
        if num_parts != self.num_parts:
            self.num_parts = num_parts
            self.train_function = self.test_function = None

    def request(self, name: str, value: float = 1.0) -> None:
        """Raises one of `REQUESTS` in all workers, or withdraws this worker's with 0.

        All see it in their next step's logs, `stop_requested` also in an evaluation.
        """
        strategy = self.distribute_strategy
        # Assigning to the variable as a whole would wait for the other workers.
        for copy in strategy.experimental_local_results(self._requests[name]):
            copy.assign(value)

    def _add_variable(self, name: str, dtype: str = "int32", value: float = 0):
        """Adds a variable that is no weight of the network."""
        return self.add_weight(
            name=name,
            shape=(),
            dtype=dtype,
            initializer=keras.initializers.Constant(value),
            trainable=False,
            # All replicas assign the same value.
            aggregation="only_first_replica",
        )

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return list(self._means.values())

    def train_step(self, batch):
        """Makes a step; returns its own scalars, the same on all replicas."""
        # 1. What the sums of the loss are divided by, over all replicas and parts.
        learning_rate = self.optimizer.learning_rate
        weights = replicas.sum_over_replicas(self.network.loss_weights(batch))
        scale = tf.constant(1.0)
        if self._scales_loss:
            scale = optimization.local_value(self.loss_scale)
        # 2. Gradients of this replica's parts.
        compute = self._forward_backward
        if self._compile_step:
            # One for each replica: a compiled function reads the variables of one
            # device only.
            compute = tf.function(compute, jit_compile=True, autograph=False)
        gradients, sums = self._over_parts(
            batch, lambda part: compute(part, weights, scale)
        )
        # 3. One exchange between replicas, of gradients, sums and requests.
        requests = {k: request.read_value() for k, request in self._requests.items()}
        everything = sums, requests
        flat = [tf.cast(value, tf.float32) for value in tf.nest.flatten(everything)]
        *gradients, numbers = replicas.sum_over_replicas([*gradients, tf.stack(flat)])
        sums, requests = tf.nest.pack_sequence_as(everything, tf.unstack(numbers))
        if self._scales_loss:
            gradients = [gradient / scale for gradient in gradients]
        # 4. One update, alike on all replicas, unless a number is not finite.
        gradient_norm = self._apply(gradients, sums["loss"][0])
        logs = {
            name: total / tf.maximum(weight, MIN_WEIGHT)
            for name, (total, weight) in sums.items()
        }
        # A sum of shares, each divided already.
        logs["loss"], _ = sums["loss"]
        return logs | {
            **requests,
            "learning_rate": learning_rate,
            "gradient_norm": gradient_norm,
            "skipped_steps": optimization.local_value(self.skipped_steps),
            **({"loss_scale": scale} if self._scales_loss else {}),
            **({"tokens": weights["tokens"]} if "tokens" in weights else {}),
        }

    def _over_parts(self, batch, compute):
        """Sums the results of `compute` over the parts of a batch, one by one."""
        num_parts = self.num_parts
        if num_parts == 1:
            return compute(batch)
        first = next(iter(batch.values()))
        if first.shape[0] is not None:
            parts = {
                name: tf.reshape(value, [num_parts, -1, *value.shape[1:]])
                for name, value in batch.items()
            }

            def part(index):
                return {name: value[index] for name, value in parts.items()}
        else:
            # Batches of labelled examples differ in size: the last parts may be
            # missing.
            num_rows = tf.shape(first)[0]
            size = -(-num_rows // num_parts)
            num_parts = -(-num_rows // size)

            def part(index):
                rows = slice(index * size, (index + 1) * size)
                return {name: value[rows] for name, value in batch.items()}

        def add_part(index, totals):
            more = compute(part(index))
            return index + 1, tf.nest.map_structure(tf.add, totals, more)

        _, totals = tf.while_loop(
            lambda index, totals: index < num_parts,
            add_part,
            (tf.constant(1), compute(part(0))),
            parallel_iterations=1,
        )
        return totals

    def _forward_backward(self, batch, weights, scale):
        is_tpu = replicas.kind_of_devices(self.distribute_strategy) == "TPU"
        with recomputation.compiled_whole(self._compile_step or is_tpu):
            with tf.GradientTape() as tape:
                terms = self.network.loss_terms(batch, self(batch, training=True))
                # This part's share of the loss over the global batch.
                loss = sum(
                    terms[name][0] / tf.maximum(weights[name], MIN_WEIGHT)
                    for name in self.network.loss_names
                )
                scaled = loss * scale
            gradients = tape.gradient(scaled, self.trainable_variables)
        # Adam and norms need the sum of the slices of a row.
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return gradients, terms | {"loss": (loss, 0.0)}

    def _apply(self, gradients, loss):
        """Updates the weights, unless something is not finite, and all counters.

        Takes summed, unscaled gradients; returns their global norm before clipping.
        """
        # An assignment to the variable as a whole would be exchanged between replicas.
        assign, read = optimization.assign_local, optimization.local_value
        steps = read(self.optimizer.iterations)
        num_updates = steps - tf.cast(read(self.skipped_steps), steps.dtype)
        update = self._update
        if self._compile_step and not self._branches:
            update = tf.function(update, jit_compile=True, autograph=False)
        gradient_norm, is_finite = update(gradients, loss, num_updates)
        # A step counts once its gradients are there. Without the dependency TensorFlow
        # may count it before its batch is read, and keeps the count if reading fails.
        with tf.control_dependencies([gradient_norm]):
            assign(self.optimizer.iterations, steps + 1)
        skipped = tf.cast(~is_finite, tf.int32)
        assign(self.skipped_steps, read(self.skipped_steps) + skipped)
        assign(self.skipped_in_a_row, (read(self.skipped_in_a_row) + 1) * skipped)
        if self._scales_loss:
            scale, good_steps = precision.next_loss_scale(
                read(self.loss_scale), read(self.good_steps), is_finite
            )
            assign(self.loss_scale, scale)
            assign(self.good_steps, good_steps)
        return gradient_norm

    def _update(self, gradients, loss, num_updates):
        """Clips and applies gradients; returns their norm and whether all is finite."""
        gradients, norm = optimization.clip_by_global_norm(
            gradients, self._max_grad_norm, branches=self._branches
        )
        is_finite = tf.math.is_finite(norm) & tf.math.is_finite(loss)
        apply = functools.partial(
            self.optimizer.apply_in_replica, gradients, num_updates=num_updates
        )
        if self._branches:
            tf.cond(is_finite, apply, lambda: None)
        else:
            apply(only_if=is_finite)
        return norm, is_finite

    def test_step(self, batch):
        """Adds a batch to the running means, in as many parts as a step.

        Sums of several parts may differ from the sum of the whole in the last bits.
        """
        terms = self._over_parts(
            batch,
            lambda part: self.network.loss_terms(part, self(part, training=False)),
        )
        for name, (total, weight) in terms.items():
            mean = total / tf.maximum(weight, MIN_WEIGHT)
            self._means[name].update_state(mean, sample_weight=weight)
        results = self.get_metrics_result()
        if self._requests:
            results["stop_requested"] = replicas.sum_over_replicas(
                self._requests["stop_requested"].read_value()
            )
        return results

    def get_metrics_result(self) -> dict[str, Any]:
        """Returns the means so far; the loss is the sum of its terms' means."""
        results = {name: mean.result() for name, mean in self._means.items()}
        results["loss"] = sum(results[name] for name in self.network.loss_names)
        return results


def build_learner(
    make_network: Callable[[], keras.Model],
    batch: Mapping[str, Any],
    *,
    optimizer: Callable[[], keras.optimizers.Optimizer],
    strategy: tf.distribute.Strategy,
    max_grad_norm: float | None,
    steps_per_execution: int | None = 1,
    recompute: architecture.Recompute = "none",
    compile_step: bool | None = False,
    **options: Any,
) -> Learner:
    """Builds and compiles a `Learner` inside a strategy's scope, with its `options`.

    The shapes of `batch`, any batch, determine those of the variables. `None` for
    `steps_per_execution` and `compile_step`: what suits the devices.
    """
    options = {"branches": replicas.kind_of_devices(strategy) == "CPU"} | options
    if isinstance(strategy, tf.distribute.TPUStrategy):
        # A TPU compiles the step by itself.
        compile_step = False
    elif compile_step is None:
        compile_step = replicas.are_gpus(strategy)
    if steps_per_execution is None:
        steps_per_execution = replicas.steps_per_execution(strategy)
    with strategy.scope():
        network = make_network()
        if recompute != "none":
            network.encoder.recompute = recompute
        learner = Learner(
            network, max_grad_norm=max_grad_norm, compile_step=compile_step, **options
        )
        # XLA goes inside of the replica's step, never around the strategy.
        learner.compile(
            optimizer=optimizer(),
            jit_compile=False,
            auto_scale_loss=False,
            steps_per_execution=steps_per_execution,
        )
        learner.build_on(batch)
    return learner
