"""`steps_per_execution` above 1 fails under `MirroredStrategy` (keras#19246)."""

import keras
from stock import X, mirrored, outcome


def options() -> dict[str, object]:
    sgd = keras.optimizers.SGD(0.1)
    return {"optimizer": sgd, "loss": "mse", "steps_per_execution": 3}


def stock() -> dict[str, str]:
    return outcome(mirrored(options), slice(-350, None))


def ours() -> dict[str, str]:
    import slope

    return slope.compare_with_one_device(X, steps_per_execution=3)
