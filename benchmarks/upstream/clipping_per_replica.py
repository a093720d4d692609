"""`global_clipnorm` with two replicas: each clips its own gradient before the sum.

The optimizer's `_backend_apply_gradients` clips, and only then its update step sums
over replicas. A step of SGD with a rate of 1 and a clipped gradient is 1 long.
"""

import keras
import numpy as np
from stock import batches_of, mean, mirrored

X = np.array([[4.0, 0.0], [0.0, 3.0]], np.float32)


def stock() -> dict[str, float]:
    model = mirrored(
        lambda: {
            "optimizer": keras.optimizers.SGD(1.0, global_clipnorm=1.0),
            "loss": mean,
        }
    )
    model.fit(batches_of(X, X[:, :1], size=2), steps_per_epoch=1, verbose=0)
    step = keras.ops.convert_to_numpy(model.w)
    return {"length of the step": round(float(np.linalg.norm(step)), 3), "right": 1.0}


def ours() -> dict[str, float]:
    import slope

    trained = slope.train({"x": X}, num_replicas=2, max_grad_norm=1.0)
    step = slope.weights(trained)
    return {"length of the step": round(float(np.linalg.norm(step)), 3), "right": 1.0}
