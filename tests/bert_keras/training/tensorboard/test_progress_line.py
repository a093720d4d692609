import logging
import re

from bert_keras.training.tensorboard import progress_line


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
        line = progress_line.ProgressLine(
            num_train_steps=100_000,
            batch_size=32,
            tokens_per_example=tokens_per_example,
            start_line="x",
        )
        assert line.line(*arguments) == expected


def test_the_rate_is_that_of_steps(caplog, monkeypatch):
    """Not of the graph, of evaluations, or of what was more than a minute ago."""
    caplog.set_level(logging.INFO, logger="bert_keras")
    line = progress_line.ProgressLine(
        num_train_steps=1000, batch_size=24, start_line="x"
    )
    monkeypatch.setattr(line, "LINE_SECONDS", 0.0)
    rates = []
    line.resume()
    for seconds, step in (
        *((500.0, 10), (502.0, 20), (506.0, 30), (9000.0, None), (9002.0, 40)),
        *((9002.0 + step - 40, step) for step in range(50, 200, 10)),
    ):
        monkeypatch.setattr(progress_line.time, "monotonic", lambda now=seconds: now)
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
    line = progress_line.ProgressLine(num_train_steps=100, batch_size=4, start_line="x")
    now = 0.0
    monkeypatch.setattr(progress_line.time, "monotonic", lambda: now)
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
    line = progress_line.ProgressLine(
        num_train_steps=4, batch_size=4, start_line="on 9 GPUs"
    )
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
