"""`jit_compile=True` fails under `MirroredStrategy`: XLA goes around the strategy."""

import keras
from stock import X, mirrored, outcome


def options() -> dict[str, object]:
    sgd = keras.optimizers.SGD(0.1)
    return {"optimizer": sgd, "loss": "mse", "jit_compile": True}


def stock() -> dict[str, str]:
    return outcome(mirrored(options), slice(-250, None))


def ours() -> dict[str, str]:
    import slope

    return slope.compare_with_one_device(X, compile_step=True)
