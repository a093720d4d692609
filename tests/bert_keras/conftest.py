"""Small models with random weights, and batches for them."""

import time
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from obstore import store

from bert_keras.core import stores
from bert_keras.core.settings.architecture import BertConfig
from tests import conftest

# Before any test module makes a tensor: replicas on one processor need logical devices.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 4,
)


@pytest.fixture(scope="session")
def tiny_config() -> BertConfig:
    return conftest.TINY.model_copy(update={"num_hidden_layers": 2})


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., dict[str, np.ndarray]]:
    """A function that makes a pre-training batch of random tokens.

    Each sequence has its own length (`lengths`, in tokens, padding follows) and two
    segments. The first sequence has all its predictions, the last one none.
    """

    def make(
        config: BertConfig,
        *,
        lengths: tuple[int, ...] = (16, 11, 5, 16),
        num_predictions: int = 3,
    ) -> dict[str, np.ndarray]:
        random = np.random.default_rng(7)
        columns = np.arange(max(lengths))[None, :]
        ends = np.array(lengths)[:, None]
        mask = columns < ends
        tokens = random.integers(1, config.vocab_size, mask.shape)
        predictions = (len(lengths), num_predictions)
        counts = np.linspace(num_predictions, 0, len(lengths)).round()[:, None]
        real = np.arange(num_predictions)[None, :] < counts
        positions = np.stack(
            [
                np.sort(
                    random.choice(np.arange(1, end), num_predictions, replace=False)
                )
                for end in lengths
            ]
        )
        ids = random.integers(1, config.vocab_size, predictions)
        return {
            "input_ids": np.int32(tokens * mask),
            "input_mask": np.int32(mask),
            "segment_ids": np.int32((columns >= ends // 2) & mask),
            "masked_lm_positions": np.int32(positions * real),
            "masked_lm_ids": np.int32(ids * real),
            "masked_lm_weights": np.float32(real),
            "next_sentence_labels": np.int32(np.arange(len(lengths))[:, None] % 2),
        }

    return make


@pytest.fixture(scope="session")
def randomize() -> Callable[..., None]:
    """A function that gives every weight of a model a random value, so that no bias of
    zero and no scale of one hides a fault."""

    def randomize(model, *, stddev: float = 0.3) -> None:
        random = np.random.default_rng(11)
        for variable in model.trainable_variables:
            values = random.standard_normal(variable.shape, dtype=np.float32)
            centre = 1.0 if variable.path.endswith("gamma") else 0.0
            variable.assign(centre + stddev * values)

    return randomize


@pytest.fixture
def memory_store(monkeypatch) -> str:
    """An empty bucket of a store in memory; TensorFlow knows its scheme, too."""
    scheme = {"ram": lambda bucket, **_: store.MemoryStore()}
    monkeypatch.setattr(stores, "_STORES", stores._STORES | scheme)
    return f"ram://memory{time.monotonic_ns()}/dir"


@pytest.fixture
def at_step(monkeypatch):
    """A function that has something called after a step of the next trainings."""
    import keras

    from bert_keras.training.step import replicas

    fit = keras.Model.fit

    def arrange(step: int, action) -> None:
        class Act(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                if replicas.optimizer_step(self.model) == step:
                    action()

        def fit_and_act(self, *args, callbacks, **options):
            return fit(self, *args, callbacks=[Act(), *callbacks], **options)

        monkeypatch.setattr(keras.Model, "fit", fit_and_act)

    return arrange
