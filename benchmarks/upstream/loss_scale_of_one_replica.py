"""`LossScaleOptimizer` with two replicas looks at the gradients of the first only.

An overflow on the second one goes into the weights, and the scale stays.
"""

import keras
import numpy as np
from stock import batches_of, mean, mirrored

X = np.array([[1.0, 1.0], [np.inf, 1.0]], np.float32)
SCALE = 4.0


def stock() -> dict[str, bool | float]:
    def options():
        optimizer = keras.optimizers.SGD(1.0)
        scaled = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=SCALE)
        return {"optimizer": scaled, "loss": mean}

    model = mirrored(options)
    model.fit(batches_of(X, X[:, :1], size=2), steps_per_epoch=1, verbose=0)
    scale = keras.ops.convert_to_numpy(model.optimizer.dynamic_scale)
    weights = keras.ops.convert_to_numpy(model.w)
    return {
        "weights are finite": bool(np.isfinite(weights).all()),
        "scale / scale before": float(scale) / SCALE,
        "right": 0.5,
    }


def ours() -> dict[str, bool | float]:
    import slope

    from bert_keras.training.step import precision

    trained = slope.train({"x": X}, num_replicas=2, scales_loss=True)
    scale = keras.ops.convert_to_numpy(trained.loss_scale)
    return {
        "weights are finite": bool(np.isfinite(slope.weights(trained)).all()),
        "scale / scale before": float(scale) / precision.INITIAL_LOSS_SCALE,
        "right": 0.5,
    }
