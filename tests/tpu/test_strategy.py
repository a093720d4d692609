import pytest
import tensorflow as tf

from bert_keras.errors import InputError
from tpu import strategy

needs_no_gpu = pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="this machine has a GPU"
)


def test_cpu():
    made = strategy.get_strategy("cpu")
    assert isinstance(made, tf.distribute.OneDeviceStrategy)
    assert "CPU:0" in made.extended.worker_devices[0]


@needs_no_gpu
def test_auto_without_a_gpu_is_the_cpu():
    assert "CPU:0" in strategy.get_strategy("auto").extended.worker_devices[0]


@needs_no_gpu
def test_a_gpu_that_is_not_there():
    message = "TensorFlow sees no GPU here, only .*CPU:0.*; use --strategy cpu"
    with pytest.raises(InputError, match=message):
        strategy.get_strategy("gpu")


@pytest.mark.parametrize("name", ["tpu", "tpu:none-of-that-name"])
def test_a_tpu_that_is_not_there(name):
    with pytest.raises(InputError, match="--strategy tpu: no TPU .*use --strategy cpu"):
        strategy.get_strategy(name)


def test_an_unknown_name():
    message = "--strategy is one of auto, cpu, gpu, tpu, tpu:NAME, got 'cuda'"
    with pytest.raises(InputError, match=message):
        strategy.get_strategy("cuda")
