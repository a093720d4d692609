import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from bert_keras.report import scalar_log
from bert_keras.training.tensorboard import curves


def write(directory, first_step, last_step, *, stride=1, **options):
    """Curves of executions of `stride` steps, with scalars that follow from the step,
    as the learner's do, and an evaluation after the last one."""
    drawn = curves.Curves(directory, first_step, batch_size=4, **options)
    drawn.resume()
    for step in range(first_step + stride, last_step + 1, stride):
        scalars = {
            "loss": 1 / step,
            "masked_lm_accuracy": step / 100,
            "learning_rate": 0.5,
            "gradient_norm": 2.0,
            "skipped_steps": step // 10,
            "input_wait": 0.25,
        }
        drawn.after_steps(step, scalars)
    drawn.evaluated(last_step, {"loss": 0.25})
    drawn.close()


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


def test_scalars_of_a_run(tmp_path):
    write(
        *(tmp_path, 0, 25),
        tokens_per_example=128,
        flops_per_example=1000,
        peak_flops=1e6,
    )
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
        assert 1 < rate < 1e9
        assert at["speed/tokens_per_second"] == pytest.approx(128 * rate, rel=1e-5)
        assert at["speed/model_flop_utilization"] == pytest.approx(rate / 1e3, rel=1e-5)
        assert at["speed/input_wait"] == 0.25
        # Waited 0.25 s in each step of 4 sequences.
        assert at["speed/input_wait_share"] == pytest.approx(rate / 16, rel=1e-5)
    evaluation = scalars(tmp_path / "eval")
    assert {tag: [s for s, _ in points] for tag, points in evaluation.items()} == {
        "loss/loss": [25]
    }


def test_a_killed_and_resumed_run_has_the_curves_of_an_uninterrupted_one(tmp_path):
    write(tmp_path / "whole", 0, 20, every_steps=4)
    write(tmp_path / "killed", 0, 17, every_steps=4)
    # It died while it wrote, and its last checkpoint was that of step 12: 16 comes
    # again.
    (file,) = (tmp_path / "killed" / "train").glob("events.*")
    file.write_bytes(file.read_bytes()[:-7])
    write(tmp_path / "killed", 12, 20, every_steps=4)
    whole, killed = (scalars(tmp_path / name / "train") for name in ("whole", "killed"))
    assert [step for step, _ in whole["loss/loss"]] == [1, 4, 8, 12, 16, 20]
    for tag in ("loss/loss", "accuracy/masked_lm_accuracy", "optimizer/learning_rate"):
        assert killed[tag] == whole[tag]
    assert scalars(tmp_path / "killed" / "eval") == {"loss/loss": [(20, 0.25)]}
    assert not [
        path.name
        for path in (tmp_path / "killed" / "train").iterdir()
        if not path.name.startswith(("events.", "scalars."))
    ]


def test_two_phases_write_one_curve(tmp_path):
    """The second one repeats the evaluation that the first was interrupted in."""
    write(tmp_path, 0, 25)
    write(tmp_path, 25, 25, repeats_evaluation=True)
    write(tmp_path, 25, 50)
    assert [step for step, _ in scalars(tmp_path / "train")["loss/loss"]] == [
        *(1, 10, 20, 30, 40, 50)
    ]
    assert scalars(tmp_path / "eval") == {"loss/loss": [(25, 0.25), (50, 0.25)]}
    log = scalar_log.read_log(tmp_path / "train")
    assert log.scalars["loss/loss"].steps.tolist() == [1, 10, 20, 30, 40, 50]
    assert log.restarts == ()


def test_several_steps_per_execution(tmp_path):
    write(tmp_path, 0, 32, stride=4)
    assert scalars(tmp_path / "train")["loss/loss"] == [
        (12, pytest.approx(1 / 12)),
        (20, pytest.approx(1 / 20)),
        (32, pytest.approx(1 / 32)),
    ]


@pytest.mark.parametrize("every_steps", [1, 5, 24])
def test_which_steps_are_written_does_not_depend_on_the_resume(every_steps):
    for step in range(1, 25):
        is_multiple = step == 1 or step % every_steps == 0
        assert curves.is_logged(step - 1, step, every_steps=every_steps) == is_multiple


def test_tags():
    for name, tag in {
        "loss": "loss/loss",
        "next_sentence_loss": "loss/next_sentence_loss",
        "next_sentence_accuracy": "accuracy/next_sentence_accuracy",
        "loss_scale": "optimizer/loss_scale",
        "groups/minimal_pairs_accuracy/a/b": "groups/minimal_pairs_accuracy/a/b",
        # A label may have a slash in its name.
        "f1 of n/a": "metrics/f1 of n/a",
        "matthews_correlation": "metrics/matthews_correlation",
    }.items():
        assert curves.scalar_tag(name) == tag
