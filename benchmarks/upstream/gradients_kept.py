"""TensorFlow keeps each traced custom gradient for the life of the process.

`custom_gradient` registers a function for every call that is traced, under a new name,
and never takes it back. The function holds the graph that it was traced in, and with it
all variables that the graph reads: each network trained stays in memory.
"""

import gc
from collections.abc import Callable

import keras
import numpy as np
from tensorflow.python.framework import ops

X = np.ones((8, 2), np.float32)


@keras.ops.custom_gradient
def twice(values):
    def backward(*upstream):
        return 2 * upstream[0]

    return 2 * values, backward


def _num_kept(train: Callable[[], object]) -> int:
    """Custom gradients that are registered after a training and not before it."""
    before = set(ops.gradient_registry.list())
    train()
    keras.backend.clear_session()
    gc.collect()
    return len(set(ops.gradient_registry.list()) - before)


def stock() -> dict[str, bool]:
    def train():
        inputs = keras.Input((2,))
        outputs = keras.layers.Lambda(twice)(keras.layers.Dense(1)(inputs))
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(1.0), loss="mse")
        # Keras has a trace of its own before the step's.
        model.fit(X, X[:, :1], batch_size=8, verbose=0)

    return {"is kept": _num_kept(train) > 0}


def ours() -> dict[str, bool]:
    import slope

    class Twice(slope.Slope):
        def call(self, features, training=None):
            return twice(super().call(features))

    def train():
        slope.train({"x": X}, network=Twice)

    return {"is kept": _num_kept(train) > 0}
