import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from bert_keras.training.step import replicas
from bert_keras.training.tensorboard import curves


@pytest.fixture
def model():
    """A model of one weight whose optimizer counts steps."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse")
    model.optimizer.build(model.trainable_variables)
    return model


class StepLogs(keras.callbacks.Callback):
    """Puts scalars that follow from the step into the logs, as the learner's do."""

    def on_train_batch_end(self, batch, logs=None):
        step = replicas.optimizer_step(self.model)
        logs.update(
            loss=1 / step,
            masked_lm_accuracy=step / 100,
            learning_rate=0.5,
            gradient_norm=2.0,
            skipped_steps=step // 10,
            input_wait=0.25,
            stop_requested=0.0,
        )


def fitted(model, callback, *, steps):
    data = tf.data.Dataset.from_tensors((np.ones((4, 1)), np.ones((4, 1)))).repeat()
    model.fit(
        data,
        steps_per_epoch=steps,
        validation_data=data,
        validation_steps=1,
        callbacks=[StepLogs(), callback],
        verbose=0,
    )


def curves_in(directory, **options):
    return curves.Curves(directory, batch_size=4, **options)


def scalars(directory):
    """All points of all curves, in the order of their steps.

    Event files are told apart by the second in which they were opened, so here their
    order is chance.
    """
    events = event_accumulator.EventAccumulator(str(directory))
    events.Reload()
    return {
        tag: sorted(
            (event.step, float(tf.make_ndarray(event.tensor_proto)))
            for event in events.Tensors(tag)
        )
        for tag in events.Tags()["tensors"]
    }


def test_scalars_of_a_run(model, tmp_path):
    drawn = curves_in(
        tmp_path, tokens_per_example=128, flops_per_example=1000, peak_flops=1e6
    )
    fitted(model, drawn, steps=25)
    train = scalars(tmp_path / "train")
    speeds = {name: train.pop(name) for name in sorted(train) if "speed" in name}
    expected = {
        "loss/loss": [(1, 1.0), (10, 0.1), (20, 0.05)],
        "accuracy/masked_lm_accuracy": [(1, 0.01), (10, 0.1), (20, 0.2)],
        "optimizer/learning_rate": [(1, 0.5), (10, 0.5), (20, 0.5)],
        "optimizer/gradient_norm": [(1, 2.0), (10, 2.0), (20, 2.0)],
        "optimizer/skipped_steps": [(1, 0.0), (10, 1.0), (20, 2.0)],
    }
    assert train.keys() == expected.keys()
    for tag, points in expected.items():
        assert train[tag] == [(s, pytest.approx(v, rel=1e-6)) for s, v in points], tag
    # Step 1 builds the graph: it has no speed.
    assert {name: [s for s, _ in points] for name, points in speeds.items()} == {
        "speed/input_wait": [10, 20],
        "speed/input_wait_share": [10, 20],
        "speed/model_flop_utilization": [10, 20],
        "speed/sequences_per_second": [10, 20],
        "speed/tokens_per_second": [10, 20],
    }
    for index in range(2):
        rate = speeds["speed/sequences_per_second"][index][1]
        at = {name: points[index][1] for name, points in speeds.items()}
        assert 1 < rate < 1e6
        assert at["speed/tokens_per_second"] == pytest.approx(128 * rate, rel=1e-5)
        assert at["speed/model_flop_utilization"] == pytest.approx(rate / 1e3, rel=1e-5)
        assert at["speed/input_wait"] == 0.25
        # Waited 0.25 s in each step of 4 sequences.
        assert at["speed/input_wait_share"] == pytest.approx(rate / 16, rel=1e-5)
    evaluation = scalars(tmp_path / "eval")
    assert {tag: [s for s, _ in points] for tag, points in evaluation.items()} == {
        "loss/loss": [25]
    }
    assert drawn.last_step_logs == {
        "loss": 1 / 25,
        "masked_lm_accuracy": 0.25,
        "learning_rate": 0.5,
        "gradient_norm": 2.0,
        "skipped_steps": 2.0,
        "input_wait": 0.25,
        "stop_requested": 0.0,
    }


def test_a_killed_and_resumed_run_has_the_curves_of_an_uninterrupted_one(
    model, tmp_path
):
    fitted(model, curves_in(tmp_path / "whole", every_steps=4), steps=20)
    model.optimizer.iterations.assign(0)
    fitted(model, curves_in(tmp_path / "killed", every_steps=4), steps=17)
    # It died while it wrote, and its last checkpoint was that of step 12: 16 comes
    # again.
    (file,) = (tmp_path / "killed" / "train").iterdir()
    file.write_bytes(file.read_bytes()[:-7])
    model.optimizer.iterations.assign(12)
    fitted(model, curves_in(tmp_path / "killed", every_steps=4), steps=8)
    whole, killed = (scalars(tmp_path / name / "train") for name in ("whole", "killed"))
    assert [step for step, _ in whole["loss/loss"]] == [1, 4, 8, 12, 16, 20]
    for tag in ("loss/loss", "accuracy/masked_lm_accuracy", "optimizer/learning_rate"):
        assert killed[tag] == whole[tag]
    evaluated = scalars(tmp_path / "killed" / "eval")["loss/loss"]
    assert [step for step, _ in evaluated] == [20]
    assert not [
        path.name
        for path in (tmp_path / "killed" / "train").iterdir()
        if not path.name.startswith("events.")
    ]


def test_two_phases_write_one_curve(model, tmp_path):
    fitted(model, curves_in(tmp_path), steps=25)
    fitted(model, curves_in(tmp_path), steps=25)
    train, evaluation = scalars(tmp_path / "train"), scalars(tmp_path / "eval")
    assert [step for step, _ in train["loss/loss"]] == [1, 10, 20, 30, 40, 50]
    assert [step for step, _ in evaluation["loss/loss"]] == [25, 50]


def test_several_steps_per_execution(model, tmp_path):
    model.compile(
        optimizer=model.optimizer, loss="mse", steps_per_execution=4, jit_compile=False
    )
    fitted(model, curves_in(tmp_path), steps=32)
    assert scalars(tmp_path / "train")["loss/loss"] == [
        (12, pytest.approx(1 / 12)),
        (20, pytest.approx(1 / 20)),
        (32, pytest.approx(1 / 32)),
    ]


@pytest.mark.parametrize("resumed_at", range(24))
@pytest.mark.parametrize("every_steps", [1, 5, 24])
def test_which_steps_are_written_does_not_depend_on_the_resume(resumed_at, every_steps):
    written = [
        step
        for step in range(resumed_at + 1, 25)
        if curves.is_logged(step - 1, step, every_steps=every_steps)
    ]
    assert written == [
        step
        for step in range(resumed_at + 1, 25)
        if step == 1 or step % every_steps == 0
    ]


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("loss", "loss/loss"),
        ("next_sentence_loss", "loss/next_sentence_loss"),
        ("next_sentence_accuracy", "accuracy/next_sentence_accuracy"),
        ("loss_scale", "optimizer/loss_scale"),
        ("matthews_correlation", "metrics/matthews_correlation"),
    ],
)
def test_tags(name, tag):
    assert curves.scalar_tag(name) == tag
