"""Two weights under our learner: what a step makes of them is computed by hand.

The loss is the weighted mean of `x . w`, so its gradient is the weighted mean of `x`,
and the optimizer is plain gradient descent with a rate of 1.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_keras.training.step import learner, optimization, replicas


class Slope(keras.Model):
    """Features `x`, `(batch_size, 2)`, and `weights`, `(batch_size,)` or none."""

    loss_names = ("mean",)

    def build(self, input_shape=None):
        self.w = self.add_weight(name="w", shape=(2, 1), initializer="zeros")

    def call(self, features, training=None):
        return keras.ops.matmul(features["x"], self.w)[:, 0]

    def loss_weights(self, features):
        return {"mean": tf.reduce_sum(self._weights(features))}

    def loss_terms(self, features, outputs):
        weights = self._weights(features)
        return {"mean": (tf.reduce_sum(outputs * weights), tf.reduce_sum(weights))}

    def _weights(self, features):
        return features.get("weights", tf.ones_like(features["x"][:, 0]))


class GradientDescent(optimization.ReplicaOptimizer):
    """Subtracts the gradient."""

    def update_variable(self, index, gradient, learning_rate, num_updates):
        tf.raw_ops.AssignSubVariableOp(
            resource=self._trainable_variables[index].value.handle,
            value=learning_rate * gradient,
        )


def build(
    *,
    num_replicas: int = 1,
    strategy: tf.distribute.Strategy | None = None,
    max_grad_norm: float | None = None,
    network: type[Slope] = Slope,
    **options: Any,
) -> learner.Learner:
    """Returns a learner whose weights are 0, on `num_replicas` CPUs or a strategy."""
    if strategy is None and num_replicas == 1:
        strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    elif strategy is None:
        devices = [f"/cpu:{index}" for index in range(num_replicas)]
        # Without collectives, which two strategies in one process may get mixed up.
        strategy = tf.distribute.MirroredStrategy(
            devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
        )
    return learner.build_learner(
        lambda: network(name="slope"),
        {"x": np.zeros((1, 2), np.float32)},
        optimizer=lambda: GradientDescent(1.0, name="gradient_descent"),
        strategy=strategy,
        max_grad_norm=max_grad_norm,
        **options,
    )


def fit(
    trained: learner.Learner,
    examples: dict[str, np.ndarray] | tf.data.Dataset,
    *,
    batch_size: int,
    num_steps: int,
) -> None:
    """Trains up to a step; step N has the Nth batch of the repeated examples."""
    if isinstance(examples, dict):
        examples = tf.data.Dataset.from_tensor_slices(examples)
    start_step = replicas.optimizer_step(trained)

    def make_batches(worker_index, num_workers, num_local_replicas):
        num_replicas = num_workers * num_local_replicas
        batches = examples.repeat().skip(start_step * batch_size)
        batches = batches.batch(batch_size // num_replicas, drop_remainder=True)
        # With several workers each of them has one replica here.
        return batches.shard(num_workers, worker_index)

    trained.make_steps(
        replicas.distribute(trained.distribute_strategy, make_batches),
        num_steps,
    )


def train(
    examples: dict[str, np.ndarray] | tf.data.Dataset,
    *,
    batch_size: int | None = None,
    num_steps: int = 1,
    **options: Any,
) -> learner.Learner:
    """Builds and fits; without `batch_size` on all examples of a dict at once."""
    trained = build(**options)
    batch_size = batch_size or len(examples["x"])
    fit(trained, examples, batch_size=batch_size, num_steps=num_steps)
    return trained


def weights(trained: learner.Learner) -> list[float]:
    """Returns the two weights, to three places."""
    both = keras.ops.convert_to_numpy(trained.network.w)[:, 0]
    return [round(float(weight), 3) for weight in both]


def compare_with_one_device(x: np.ndarray, **options: Any) -> dict[str, str]:
    """Returns whether two replicas with options make the weights of one device."""
    sizes = {"batch_size": 8, "num_steps": 3}
    one = train({"x": x}, num_replicas=1, **sizes)
    two = train({"x": x}, num_replicas=2, **sizes, **options)
    same = np.allclose(weights(one), weights(two), rtol=1e-6)
    return {"fit": "works" if same else "differs from one device"}
