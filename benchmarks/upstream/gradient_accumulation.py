"""`gradient_accumulation_steps` fails under `MirroredStrategy` (keras#20582)."""

import keras
from stock import X, mirrored, outcome


def options() -> dict[str, object]:
    sgd = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    return {"optimizer": sgd, "loss": "mse"}


def stock() -> dict[str, str]:
    return outcome(mirrored(options), slice(120))


def ours() -> dict[str, str]:
    import slope

    return slope.compare_with_one_device(X, num_parts=2)
