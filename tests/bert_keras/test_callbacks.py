import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from bert_keras import callbacks


def test_line_for_people():
    logs = {
        "masked_lm_loss": 5.9,
        "masked_lm_accuracy": 0.1312,
        "loss": 6.4123,
        "learning_rate": 1.2e-5,
        "gradient_norm": 3.0,
    }
    line = callbacks.step_line(
        logs,
        step=1200,
        num_train_steps=100_000,
        sequences_per_second=812.4,
        batch_size=32,
    )
    assert line == (
        "step 1200/100000  masked_lm_accuracy 0.131  loss 6.412  lr 1.2e-05  "
        "812 seq/s  1:04:52 left"
    )


def test_first_line_has_no_rate():
    line = callbacks.step_line(
        {"loss": 1.0, "learning_rate": 0.0},
        step=1,
        num_train_steps=10,
        sequences_per_second=None,
        batch_size=32,
    )
    assert line == "step 1/10  loss 1.000  lr 0"


@pytest.fixture
def model():
    """A model of one weight whose optimizer counts steps."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse")
    model.optimizer.build(model.trainable_variables)
    return model


def fitted(model, log, *, steps, extra=()):
    data = tf.data.Dataset.from_tensors((np.ones((4, 1)), np.ones((4, 1)))).repeat()
    add_rate = keras.callbacks.Callback()
    add_rate.on_train_batch_end = lambda batch, logs=None: logs.update(
        learning_rate=0.5
    )
    model.fit(
        data,
        steps_per_epoch=steps,
        validation_data=data,
        validation_steps=1,
        callbacks=[add_rate, log, *extra],
        verbose=0,
    )


def scalars(directory):
    events = event_accumulator.EventAccumulator(str(directory))
    events.Reload()
    return {
        tag: [
            (event.step, float(tf.make_ndarray(event.tensor_proto)))
            for event in events.Tensors(tag)
        ]
        for tag in events.Tags()["tensors"]
    }


def test_tensorboard_has_the_first_step_and_goes_on_after_a_resume(
    model, tmp_path, caplog
):
    caplog.set_level(logging.INFO, logger="bert_keras")
    for _ in range(2):
        log = callbacks.TrainingLog(
            tmp_path, num_train_steps=50, batch_size=4, every_steps=10
        )
        fitted(model, log, steps=25)
    train, evaluation = scalars(tmp_path / "train"), scalars(tmp_path / "eval")
    assert set(train) == {"loss", "learning_rate", "sequences_per_second"}
    assert [step for step, _ in train["loss"]] == [1, 10, 20, 26, 30, 40, 50]
    assert [value for _, value in train["learning_rate"]] == [0.5] * 7
    assert all(rate > 0 for _, rate in train["sequences_per_second"])
    assert [step for step, _ in evaluation["loss"]] == [25, 50]
    lines = [record.message for record in caplog.records]
    assert sum(line.startswith("step 1/50") for line in lines) == 1
    assert sum(line.startswith("step 50/50") for line in lines) == 1
    assert sum(line.startswith("evaluation at step 25  loss") for line in lines) == 1
    assert log.last_evaluation.keys() == {"loss"}


def test_training_stops_at_its_step_within_an_epoch(model, tmp_path):
    saved = []
    log = callbacks.TrainingLog(tmp_path, num_train_steps=7, batch_size=4)
    extra = [callbacks.StopAtStep(7), callbacks.SaveEachEpoch(saved.append)]
    fitted(model, log, steps=25, extra=extra)
    assert callbacks.optimizer_step(model) == 7
    assert saved == [7]
