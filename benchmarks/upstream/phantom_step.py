"""Data of unknown length that runs out: one step too many, on no data at all.

`next(iterator)` fails within the graph of the step, where everything that does not
depend on the batch still runs: `iterations` goes up, weights decay, and an evaluation
with a fixed batch size divides by one batch too many.
"""

import keras
import numpy as np
import tensorflow as tf
from stock import Slope, mean

from bert_keras.training.step import replicas

NUM_BATCHES = 7
X = np.ones((2 * NUM_BATCHES, 2), np.float32)


def stock() -> dict[str, float]:
    model = Slope()
    model.build((2, 2))
    model.compile(keras.optimizers.AdamW(0.0), loss=mean, jit_compile=False)
    model.w.assign([[0.5], [0.5]])
    batches = tf.data.Dataset.from_tensor_slices((X, X[:, :1]))
    batches = batches.batch(2, drop_remainder=True).filter(lambda x, y: True)
    model.fit(batches, verbose=0)
    return {
        "steps": int(model.optimizer.iterations),
        "right": NUM_BATCHES,
        "mean of ones": round(float(model.evaluate(batches, verbose=0)), 3),
    }


def ours() -> dict[str, float]:
    """Batches are endless, and the number of steps is told."""
    import slope

    trained = slope.train({"x": X}, num_replicas=1, num_steps=NUM_BATCHES)
    trained.network.w.assign([[0.5], [0.5]])
    batches = tf.data.Dataset.from_tensor_slices({"x": X})
    batches = replicas.distribute(
        trained.distribute_strategy,
        lambda *place: batches.batch(2, drop_remainder=True).repeat(),
    )
    evaluated = trained.evaluate_round((batches, NUM_BATCHES))
    return {
        "steps": int(trained.optimizer.iterations),
        "right": NUM_BATCHES,
        "mean of ones": round(float(evaluated["mean"]), 3),
    }
