"""`exclude_from_weight_decay` is not part of an optimizer's configuration.

A copy of the optimizer, or the one of a model that was saved and loaded, decays all.
"""

import keras
import tensorflow as tf


def after_a_step(optimizer) -> float:
    """What a step with a gradient of 0 makes of a bias of 1."""
    bias = keras.Variable(1.0, name="bias")
    optimizer.apply([tf.constant(0.0)], [bias])
    return round(float(bias), 3)


def stock() -> dict[str, float]:
    optimizer = keras.optimizers.AdamW(1.0, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    copy = keras.optimizers.AdamW.from_config(optimizer.get_config())
    return {"bias": after_a_step(optimizer), "by a copy": after_a_step(copy)}


def ours() -> dict[str, float]:
    from bert_keras.training.step import optimization

    optimizer = optimization.BertAdamW(1.0, weight_decay_rate=0.1, not_decayed=["bias"])
    copy = optimization.BertAdamW.from_config(optimizer.get_config())
    return {"bias": after_a_step(optimizer), "by a copy": after_a_step(copy)}
