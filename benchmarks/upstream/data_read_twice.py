"""`fit` under a strategy starts to read its data twice.

`_maybe_symbolic_build` takes a batch to see its shapes; training then begins with a new
iterator. A shuffled dataset comes in the order of its second pass, so two replicas see
other batches than one device, and a stream loses what was read ahead.
"""

import keras
import numpy as np
import tensorflow as tf
from stock import mean, mirrored


class Stream:
    """Endless examples; counts how often somebody begins to read them."""

    def __init__(self):
        self.times_read = 0

    def __call__(self):
        self.times_read += 1
        while True:
            yield np.ones(2, np.float32)

    def dataset(self):
        return tf.data.Dataset.from_generator(
            self, output_signature=tf.TensorSpec((2,))
        )


def stock() -> dict[str, int]:
    stream = Stream()
    model = mirrored(lambda: {"optimizer": keras.optimizers.SGD(1.0), "loss": mean})
    batches = stream.dataset().map(lambda x: (x, x[:1])).batch(2)
    model.fit(batches, steps_per_epoch=2, verbose=0)
    return {"times read": stream.times_read, "right": 1}


def ours() -> dict[str, int]:
    import slope

    stream = Stream()
    examples = stream.dataset().map(lambda x: {"x": x})
    slope.train(examples, num_replicas=2, batch_size=2, num_steps=2)
    return {"times read": stream.times_read, "right": 1}
