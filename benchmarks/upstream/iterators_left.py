"""A `fit` that stops within an epoch leaves its iterators to the garbage collector.

They are part of a circle (`EpochIterator` and its generator), so their threads and
shuffle buffers live until a collection happens to come by, anywhere in the program. It
then stands still for as long as the iterators take to end, which with the autotuner of
`tf.data` may be a minute: the tuner's thread sleeps for up to 60 s, and the end of the
iterator does not always wake it (TensorFlow 2.20).
"""

import gc
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops

X = np.ones((8, 2), np.float32)


def _num_left(fit: Callable[[], object]) -> int:
    """Iterators that live after a `fit` and not before it."""
    gc.collect()
    gc.disable()
    try:
        before = _num_iterators()
        fit()
        return _num_iterators() - before
    finally:
        gc.enable()


def _num_iterators() -> int:
    # Those of batches: our learner gives `fit` a constant to count its steps by, which
    # has no threads and no buffers.
    iterators = [
        x for x in gc.get_objects() if isinstance(x, iterator_ops.OwnedIterator)
    ]
    return sum(not isinstance(x.element_spec, tf.TensorSpec) for x in iterators)


class StopAtOnce(keras.callbacks.Callback):
    """Ends training after the first step."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True


def stock() -> dict[str, int]:
    with tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
        # Without a bias: TensorFlow numbers the sums over replicas of all models alike,
        # and refuses those of another shape than an earlier model's of the process.
        layer = keras.layers.Dense(1, use_bias=False)
        model = keras.Sequential([keras.Input((2,)), layer])
        model.compile(keras.optimizers.SGD(1.0), loss="mse")
    batches = tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(8).repeat()
    num_left = _num_left(
        lambda: model.fit(
            batches, steps_per_epoch=2, verbose=0, callbacks=[StopAtOnce()]
        )
    )
    return {"iterators left": num_left, "right": 0}


def ours() -> dict[str, int]:
    import slope

    # Training stops at a step, so it always does within an epoch for Keras.
    trained = slope.build(num_replicas=2)
    num_left = _num_left(
        lambda: slope.fit(trained, {"x": X}, batch_size=8, num_steps=2)
    )
    return {"iterators left": num_left, "right": 0}
