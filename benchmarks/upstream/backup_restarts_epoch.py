"""`BackupAndRestore` restarts the epoch in which it was interrupted.

With `save_freq` it restores the weights from within the epoch, but begins its batches
from the first: the number of the batch is written to disk and never read.
"""

import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf
from stock import Slope, mean

NUM_STEPS = 12
X = np.repeat(np.arange(1, NUM_STEPS + 1), 2).reshape(NUM_STEPS, 2).astype(np.float32)


class Interrupt(keras.callbacks.Callback):
    """As a machine that is taken away after the eighth step."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 7:
            raise KeyboardInterrupt


def stock() -> dict[str, float]:
    batches = tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(1)

    def train(directory, *callbacks):
        model = Slope()
        model.build((1, 2))
        model.compile(keras.optimizers.SGD(1.0), loss=mean)
        backup = keras.callbacks.BackupAndRestore(directory, save_freq=3)
        model.fit(batches, callbacks=[backup, *callbacks], verbose=0)
        return model

    with tempfile.TemporaryDirectory() as directory:
        try:
            train(directory, Interrupt())
        except KeyboardInterrupt:
            model = train(directory)
    seen = -keras.ops.convert_to_numpy(model.w)[0, 0]
    return {"sum of all batches": float(seen), "right": float(X[:, 0].sum())}


def ours() -> dict[str, float]:
    import slope

    from bert_keras.checkpoints import training_state

    def variables(learner):
        return training_state.named_variables(learner, learner.optimizer)

    first, second = slope.build(), slope.build()
    slope.fit(first, {"x": X}, batch_size=1, num_steps=6)
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "step-6.safetensors"
        facts = training_state.Facts(step=6)
        training_state.save_state(path, variables(first), facts=facts)
        training_state.restore_state(path, variables(second))
    slope.fit(second, {"x": X}, batch_size=1, num_steps=NUM_STEPS)
    seen = -slope.weights(second)[0]
    return {"sum of all batches": seen, "right": float(X[:, 0].sum())}
