"""What Keras 3 leaves wrong under `tf.distribute`, mended in one place.

Stock Keras on TensorFlow clips each replica's gradients before they are summed,
averages weighted losses per replica, squares the slices of a sparse gradient one by
one, and takes a batch out of the data before `fit` starts. This module leans on
private names of Keras 3.15 (pinned in setup.cfg).
"""

from collections.abc import Sequence

import keras
import tensorflow as tf


def sum_over_replicas(value):
    """Sums a tensor, or a list of tensors, over all replicas.

    Outside a replica context, or with one replica, the value itself.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return value
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value)


def summed_gradients(gradients: Sequence) -> list:
    """Makes gradients dense and sums them over all replicas.

    `tf.IndexedSlices` hold one slice for each occurrence of a row; Adam and a global
    norm need the rows' sums.
    """
    return sum_over_replicas([tf.convert_to_tensor(g) for g in gradients])


class SummedGradients:
    """Mixin for an optimizer: can apply gradients that are summed over replicas.

    Goes before the Keras optimizer among the bases. `apply` keeps its meaning.
    """

    _gradients_are_summed = False

    def apply_summed(self, gradients: Sequence, variables: Sequence) -> None:
        """Applies what `summed_gradients` returned, on every replica alike."""
        self._gradients_are_summed = True
        self.apply(gradients, variables)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        if self._gradients_are_summed:
            return list(grads_and_vars)
        return super()._all_reduce_sum_gradients(grads_and_vars)


class ReplicatedModel(keras.Model):
    """A model that is built before `fit` and whose data `fit` leaves whole."""

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Stock Keras draws the first batch here under a strategy, to see its shapes,
        # and that batch is never trained on.
        if not self.built:
            raise ValueError("build the model inside the strategy's scope before fit")
        if self.optimizer is not None and not self.optimizer.built:
            with self.distribute_strategy.scope():
                self.optimizer.build(self.trainable_variables)
