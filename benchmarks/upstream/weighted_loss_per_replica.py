"""A weighted mean with two replicas is the mean of two means.

`reduction="mean_with_sample_weight"`, the loss of masked tokens, divides by the sum of
the weights of one replica. The three examples that count have weight 1 each.
"""

import keras
import numpy as np
from stock import batches_of, mirrored

X = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], np.float32)
WEIGHTS = np.array([1, 1, 1, 0], np.float32)


class Mean(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return y_pred[:, 0]


def stock() -> dict[str, list[float]]:
    loss = Mean(reduction="mean_with_sample_weight")
    model = mirrored(lambda: {"optimizer": keras.optimizers.SGD(1.0), "loss": loss})
    model.fit(batches_of(X, X[:, :1], WEIGHTS, size=4), steps_per_epoch=1, verbose=0)
    step = keras.ops.convert_to_numpy(model.w)[:, 0]
    return {"step": [round(float(w), 3) for w in step], "right": [-0.667, -0.333]}


def ours() -> dict[str, list[float]]:
    import slope

    trained = slope.train({"x": X, "weights": WEIGHTS}, num_replicas=2)
    return {"step": slope.weights(trained), "right": [-0.667, -0.333]}
