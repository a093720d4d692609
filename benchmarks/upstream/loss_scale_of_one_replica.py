"""`LossScaleOptimizer` with two replicas looks at the gradients of the first only.

An overflow on the second one goes into the weights, and the scale stays.
"""

import keras
import numpy as np
import tensorflow as tf

X = np.array([[1.0, 1.0], [np.inf, 1.0]], np.float32)
SCALE = 4.0


class Slope(keras.Model):
    """`x . w`: the gradient of its mean is the mean of `x`."""

    def build(self, input_shape):
        self.w = self.add_weight(shape=(2, 1), initializer="zeros")

    def call(self, x):
        return keras.ops.matmul(x, self.w)


def stock() -> dict[str, bool | float]:
    with tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
        model = Slope()
        model.build((2, 2))
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1.0), initial_scale=SCALE
        )
        model.compile(optimizer, loss=lambda y, y_pred: y_pred)
    batches = tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(2).repeat()
    model.fit(batches, steps_per_epoch=1, verbose=0)
    scale = keras.ops.convert_to_numpy(optimizer.dynamic_scale)
    return {
        "weights are finite": bool(
            np.isfinite(keras.ops.convert_to_numpy(model.w)).all()
        ),
        "scale / scale before": float(scale) / SCALE,
        "right": 0.5,
    }


def ours() -> dict[str, bool | float]:
    import slope

    from bert_keras.training import precision

    trained = slope.train({"x": X}, num_replicas=2, scales_loss=True)
    scale = keras.ops.convert_to_numpy(trained.loss_scale)
    return {
        "weights are finite": bool(np.isfinite(slope.weights(trained)).all()),
        "scale / scale before": float(scale) / precision.INITIAL_LOSS_SCALE,
        "right": 0.5,
    }


if __name__ == "__main__":
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )
    print(f"Keras {keras.__version__}, TensorFlow {tf.__version__}: {stock()}")
    print(f"bert_keras: {ours()}")
