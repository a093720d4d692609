import pytest
import tensorflow as tf


@pytest.fixture(scope="module")
def eagerly():
    """A few batches of a tiny network: a trace would take longer."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)
