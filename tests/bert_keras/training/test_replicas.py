import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_keras.training import replicas


def test_this_keras_is_the_one_whose_private_names_are_used():
    assert keras.__version__.startswith("3.15.")
    names = ("_maybe_symbolic_build", "make_train_function", "make_test_function")
    assert all(callable(getattr(keras.Model, name)) for name in names)


def test_sparse_gradients_are_summed_by_row():
    slices = tf.IndexedSlices(
        tf.constant([[1.0], [2.0], [4.0]]), tf.constant([1, 0, 1]), tf.constant([2, 1])
    )
    (dense,) = replicas.dense_gradients([slices])
    np.testing.assert_array_equal(dense, [[2.0], [5.0]])


def test_a_value_outside_of_replicas_is_itself():
    assert float(replicas.sum_over_replicas(tf.constant(3.0))) == 3.0


def test_a_model_must_be_built_before_fit():
    model = replicas.ReplicatedModel()
    with pytest.raises(ValueError, match="build the model inside the strategy's scope"):
        model._maybe_symbolic_build()
