"""`fit` fails under `MultiWorkerMirroredStrategy` (keras#20585), in two places.

The strategy's sums are asked for in a way it does not have: `_maybe_symbolic_build`
averages a batch, `reduce_per_replica` averages scalars over an axis.
"""

import json
import os
import socket
import subprocess
import sys

import keras
import numpy as np
import tensorflow as tf
from stock import Slope, X, mean, outcome


def fit_stock() -> str:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = Slope()
        model.build((8, 2))
        model.compile(keras.optimizers.SGD(1.0), loss=mean)
    return outcome(model, slice(200))["fit"]


def fit_ours() -> str:
    import slope

    from bert_keras.tpu import strategy

    made = strategy.get_strategy("multi_worker")
    trained = slope.train({"x": X}, strategy=made, batch_size=8, num_steps=3)
    # The mean of three batches of 8 rows, three times.
    right = -3 * X.mean(0)
    return "works" if np.allclose(slope.weights(trained), right) else "is wrong"


def two_workers(fit: str) -> dict[str, str]:
    """Returns what comes of `fit` in the first of two processes."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(2)]
    addresses = [f"localhost:{held.getsockname()[1]}" for held in sockets]
    for held in sockets:
        held.close()
    workers = []
    for index in range(2):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": {"worker": addresses}, "task": task})
        workers.append(
            subprocess.Popen(
                [sys.executable, __file__, fit],
                env={**os.environ, "TF_CONFIG": config, "TF_CPP_MIN_LOG_LEVEL": "3"},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
    results = [worker.communicate(timeout=400)[0].strip() for worker in workers]
    return {"fit": results[0]}


def stock() -> dict[str, str]:
    return two_workers("stock")


def ours() -> dict[str, str]:
    return two_workers("ours")


if __name__ == "__main__":
    print({"stock": fit_stock, "ours": fit_ours}[sys.argv[1]](), flush=True)
    # Not waiting for the other worker.
    os._exit(0)
