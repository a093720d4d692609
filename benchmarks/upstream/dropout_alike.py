"""`Dropout` drops the same elements on both replicas.

The state of a `SeedGenerator` is mirrored, so all replicas draw the same numbers.
"""

import keras
import numpy as np
import tensorflow as tf

ONES = tf.ones((1, 64))


def kept_alike(call) -> float:
    """The fraction of elements that both replicas keep or both drop."""
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    masks = strategy.experimental_local_results(call(strategy))
    first, second = (mask.numpy() != 0 for mask in masks)
    return round(float(np.mean(first == second)), 2)


def stock() -> dict[str, float]:
    def call(strategy):
        with strategy.scope():
            layer = keras.layers.Dropout(0.5, seed=1)
        return strategy.run(lambda: layer(ONES, training=True))

    return {"kept alike": kept_alike(call), "right": 0.5}


def ours() -> dict[str, float]:
    """Every example has a seed of its own."""
    from bert_keras.model import dropout

    def call(strategy):
        layer = dropout.Dropout(0.5, seed=1)
        seeds = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant([context.replica_id_in_sync_group])
        )
        return strategy.run(lambda seed: layer(ONES, seed, training=True), (seeds,))

    return {"kept alike": kept_alike(call), "right": 0.5}
