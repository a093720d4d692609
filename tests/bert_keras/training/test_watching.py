"""Curves of a training, and lines on its progress."""

import logging
import re

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from bert_keras.report import scalar_log
from bert_keras.training import watching


def write(directory, first_step, last_step, *, stride=1, more=(), **options):
    """Curves of executions of `stride` steps, with scalars that follow from the step,
    as the learner's do, and an evaluation after the last one."""
    sizes = watching.Sizes(100, 4, *more)
    drawn = watching.Curves(directory, first_step, sizes, **options)
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
    write(tmp_path, 0, 25, more=(128, 1000, 1e6))
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
    write(tmp_path / "whole", 0, 50)
    write(tmp_path / "killed", 0, 43)
    # It died while it wrote, and its last checkpoint was that of step 32: 40 comes
    # again.
    (file,) = (tmp_path / "killed" / "train").glob("events.*")
    file.write_bytes(file.read_bytes()[:-7])
    write(tmp_path / "killed", 32, 50)
    whole, killed = (scalars(tmp_path / name / "train") for name in ("whole", "killed"))
    assert [step for step, _ in whole["loss/loss"]] == [1, 10, 20, 30, 40, 50]
    for tag in ("loss/loss", "accuracy/masked_lm_accuracy", "optimizer/learning_rate"):
        assert killed[tag] == whole[tag]
    assert scalars(tmp_path / "killed" / "eval") == {"loss/loss": [(50, 0.25)]}
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
        assert watching.scalar_tag(name) == tag


def test_line_for_people():
    least = {"loss": 1.0, "learning_rate": 0.0}
    losses = {"masked_lm_loss": 5.9, "masked_lm_accuracy": 0.1312, "loss": 6.4123}
    whole = {**losses, "learning_rate": 1.2e-5, "gradient_norm": 3.0}
    for tokens_per_example, arguments, expected in (
        (
            *(None, (1200, whole, 812.4)),
            "step 1200/100000  masked_lm_accuracy 0.131  loss 6.412  lr 1.2e-05  "
            "812 seq/s  1:04:52 left",
        ),
        # Special tokens are no padding.
        (
            *(128, (1, {**least, "tokens": 3970.0}, 0.0)),
            "step 1/100000  loss 1.000  lr 0  3% padding",
        ),
        # The first line has no rate.
        (None, (1, least, 0.0), "step 1/100000  loss 1.000  lr 0"),
    ):
        sizes = watching.Sizes(100_000, 32, tokens_per_example)
        line = watching.ProgressLine(sizes, "x")
        assert line.line(*arguments) == expected


def test_the_rate_is_that_of_steps(caplog, monkeypatch):
    """Not of the graph, of evaluations, or of what was more than a minute ago."""
    caplog.set_level(logging.INFO, logger="bert_keras")
    line = watching.ProgressLine(watching.Sizes(1000, 24), "x")
    monkeypatch.setattr(watching.progress, "LINE_SECONDS", 0.0)
    rates = []
    line.resume()
    for seconds, step in (
        *((500.0, 10), (502.0, 20), (506.0, 30), (9000.0, None), (9002.0, 40)),
        *((9002.0 + step - 40, step) for step in range(50, 200, 10)),
    ):
        monkeypatch.setattr(watching.time, "monotonic", lambda now=seconds: now)
        if step is None:
            line.resume()
            continue
        line.after_steps(step, {"loss": 1.0, "learning_rate": 0.5})
        rate = re.search(r"(\d+) seq/s", caplog.records[-1].message)
        rates.append(rate and int(rate[1]))
    assert rates[:4] == [None, 24 * 5, 24 * 20 / 6, 24 * 30 / 8]
    assert rates[-1] == 24


def test_a_line_comes_every_ten_seconds_whatever_an_epoch_takes(caplog, monkeypatch):
    """Epochs of 4 seconds, of 2 steps each, after a graph that takes a minute."""
    caplog.set_level(logging.INFO, logger="bert_keras")
    line = watching.ProgressLine(watching.Sizes(100, 4), "x")
    now = 0.0
    monkeypatch.setattr(watching.time, "monotonic", lambda: now)
    for epoch in range(6):
        line.resume()
        for step in (2 * epoch + 1, 2 * epoch + 2):
            now += 60.0 if step == 1 else 2.0
            line.after_steps(step, {"loss": 1.0, "learning_rate": 0.5})
        now += 100.0  # an evaluation
    lines = [record.message for record in caplog.records[1:]]
    assert lines[0] == "step 1/100  loss 1.000  lr 0.5"
    assert lines[1] == "step 3/100  loss 1.000  lr 0.5  2 seq/s  0:03:14 left"
    assert len(lines) == 6


def test_lines_of_a_run(caplog):
    """The first step has a line, the last one and every evaluation."""
    caplog.set_level(logging.INFO, logger="bert_keras")
    line = watching.ProgressLine(watching.Sizes(4, 4), "on 9 GPUs")
    for step in range(1, 5):
        line.after_steps(step, {"loss": 1.0, "learning_rate": 0.5})
        if step % 2 == 0:
            line.evaluated(step, {"loss": 1.0})
    started = caplog.records.pop(0).message
    assert started == "on 9 GPUs; building the graph"
    first, evaluated, last, evaluated_again = [x.message for x in caplog.records]
    assert first == "step 1/4  loss 1.000  lr 0.5"
    assert evaluated == "evaluation at step 2  loss 1.0000"
    assert re.fullmatch(
        r"step 4/4  loss 1\.000  lr 0\.5  \d+ seq/s  0:00:00 left", last
    )
    assert evaluated_again == "evaluation at step 4  loss 1.0000"
