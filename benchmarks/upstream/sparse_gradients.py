"""A row of an embedding that occurs three times in a batch: Adam's step is too long.

The gradient of a gather is `tf.IndexedSlices`, one slice for each occurrence.
Keras squares and clips them one by one: `v` is the sum of squares where the square of
the sum belongs. The first step of Adam is the learning rate, whatever the gradient.
"""

import keras
import numpy as np
import tensorflow as tf

LEARNING_RATE = 0.01


def first_step(optimizer) -> float:
    """How far row 0 goes, in learning rates."""
    embedding = keras.layers.Embedding(2, 4)
    embedding.build(())
    before = embedding.embeddings.numpy()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(embedding(np.array([0, 0, 0, 1])))
    optimizer.apply(
        tape.gradient(loss, [embedding.embeddings.value]), [embedding.embeddings]
    )
    moved = np.abs(embedding.embeddings.numpy() - before)[0].mean()
    return round(float(moved) / LEARNING_RATE, 3)


def stock() -> dict[str, float]:
    optimizer = keras.optimizers.Adam(LEARNING_RATE)
    return {"first step / learning rate": first_step(optimizer), "right": 1.0}


def ours() -> dict[str, float]:
    from bert_keras.training.step import optimization

    optimizer = optimization.BertAdamW(
        LEARNING_RATE, mode="corrected", weight_decay_rate=0.0
    )
    return {"first step / learning rate": first_step(optimizer), "right": 1.0}
