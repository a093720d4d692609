"""`Lamb` decays weights outside of the trust ratio.

In the paper (algorithm 2) the update `m / sqrt(v) + decay * w` is rescaled as a whole
to the norm of the weights. With a gradient of 0 a step is then `learning_rate * w`.
"""

import keras
import tensorflow as tf


def after_a_step(optimizer) -> float:
    """What a step with a gradient of 0 makes of a weight of 1."""
    weight = keras.Variable(1.0, name="weight")
    optimizer.apply([tf.constant(0.0)], [weight])
    return round(float(weight), 3)


def stock() -> dict[str, float]:
    optimizer = keras.optimizers.Lamb(0.1, weight_decay=0.01)
    return {"weight": after_a_step(optimizer), "right": 0.9}


def ours() -> dict[str, float]:
    from bert_keras.training.step import optimization

    optimizer = optimization.Lamb(0.1, weight_decay_rate=0.01)
    return {"weight": after_a_step(optimizer), "right": 0.9}
