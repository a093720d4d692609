"""The report of a run, from event files that TensorFlow itself has written."""

import dataclasses
import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import tensorflow as tf
import yaml
from PIL import Image

from bert_keras import report
from bert_keras.checkpoints import run_directory
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning, loading
from bert_keras.report import curves, event_log, facts, writing


def write_process(
    directory: Path,
    scalars: dict[str, dict[int, float]],
    *,
    pid: int,
    texts: dict[str, dict[int, str]] | None = None,
    start_step: int | None = None,
) -> Path:
    """Logs scalars, texts and a picture as process `pid`; returns the event file.

    The first event comes at second `1000 * pid`, and each further one a second later.
    """
    new = directory / "new"
    if start_step is not None:
        session = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        with tf.Graph().as_default(), tf.compat.v1.summary.FileWriter(new) as writer:
            writer.add_session_log(session, start_step)
    writer = tf.summary.create_file_writer(str(new))
    with writer.as_default():
        for tag, values in scalars.items():
            for step, value in values.items():
                tf.summary.scalar(tag, value, step)
        for tag, strings in (texts or {}).items():
            for step, text in strings.items():
                tf.summary.text(tag, text, step)
        tf.summary.image("picture", np.zeros((1, 2, 2, 3)), 1)
    writer.close()
    name = f"events.out.tfevents.{1000 * pid}.host"
    for path in sorted(new.iterdir()):
        target = directory / (f"{name}.{pid}.0.v2" if path.suffix == ".v2" else name)
        copy_with_times(path, target, first=1000 * pid)
    shutil.rmtree(new)
    return target


def copy_with_times(source: Path, target: Path, *, first: int) -> None:
    with tf.io.TFRecordWriter(str(target)) as file:
        records = tf.data.TFRecordDataset(str(source)).as_numpy_iterator()
        for number, record in enumerate(records):
            event = tf.compat.v1.Event.FromString(record)
            event.wall_time = first + number
            file.write(event.SerializeToString())


def as_dict(curve: event_log.Curve) -> dict[int, float]:
    return dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True))


def test_what_tensorflow_writes_is_read(tmp_path):
    losses = {1: 4.0, 10: 3.5, 20: float("nan"), 30: -2.25}
    path = write_process(tmp_path, {"a/loss": losses}, pid=1, texts={"t": {3: "x|y"}})
    # The older kind of summary, in another file of the same process.
    with tf.io.TFRecordWriter(str(path).replace(".0.v2", ".1.v2")) as file:
        value = tf.compat.v1.Summary.Value(tag="rate", simple_value=0.5)
        summary = tf.compat.v1.Summary(value=[value])
        event = tf.compat.v1.Event(wall_time=1100, step=40, summary=summary)
        file.write(event.SerializeToString())
    found = event_log.read_log(tmp_path)
    assert found.scalars.keys() == {"a/loss", "rate"}
    np.testing.assert_equal(as_dict(found.scalars["a/loss"]), losses)
    assert as_dict(found.scalars["rate"]) == {40: 0.5}
    assert found.texts == {"t": event_log.Text(step=3, text="x|y")}
    assert (found.num_files, found.restarts, found.seconds) == (2, (), 100.0)


def test_a_later_process_replaces_what_it_did_again(tmp_path):
    write_process(tmp_path, {"loss": {1: 9, 10: 8, 20: 7, 21: 6}, "a": {1: 1}}, pid=1)
    write_process(tmp_path, {"loss": {11: 5, 20: 4}}, pid=2)
    write_process(tmp_path, {"loss": {21: 3, 30: 2}}, pid=3)
    found = event_log.read_log(tmp_path)
    assert as_dict(found.scalars["loss"]) == {1: 9, 10: 8, 11: 5, 20: 4, 21: 3, 30: 2}
    assert as_dict(found.scalars["a"]) == {1: 1}
    assert found.restarts == (11, 21)
    # Version, scalars and picture of each, a second apart: 6, 3 and 3 seconds.
    assert found.seconds == 12


def test_a_session_start_forgets_later_steps_of_all_tags(tmp_path):
    texts = {"t": {5: "kept", 20: "gone"}}
    write_process(tmp_path, {"loss": {1: 9, 15: 8}, "b": {16: 7}}, pid=1, texts=texts)
    write_process(tmp_path, {"loss": {30: 6}}, pid=2, start_step=11)
    found = event_log.read_log(tmp_path)
    assert {tag: as_dict(curve) for tag, curve in found.scalars.items()} == {
        "loss": {1: 9, 30: 6}
    }
    assert found.texts == {"t": event_log.Text(step=5, text="kept")}


def test_writers_of_one_process_are_no_restart(tmp_path):
    first = write_process(tmp_path, {"loss": {1: 9}}, pid=1)
    second = write_process(tmp_path, {"loss": {2: 8}}, pid=2)
    second = second.rename(first.with_name(first.name.replace(".0.v2", ".4.v2")))
    assert event_log.read_log(tmp_path).restarts == ()
    # In containers every process may have the same number; the count begins again.
    second.rename(first.with_name("events.out.tfevents.2000.host.1.0.v2"))
    assert event_log.read_log(tmp_path).restarts == (2,)


def test_a_record_that_is_cut_off_ends_the_file(tmp_path, caplog):
    path = write_process(tmp_path, {"loss": {1: 3.0, 2: 2.0}}, pid=1)
    whole = path.read_bytes()
    found = set()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        curve = event_log.read_log(tmp_path).scalars.get("loss")
        found.add(tuple(curve.values.tolist()) if curve else ())
    assert found == {(), (3.0,), (3.0, 2.0)}
    assert not caplog.records


def test_a_damaged_record_is_told(tmp_path, caplog):
    path = write_process(tmp_path, {"loss": {1: 3.0, 2: 2.0}}, pid=1)
    data = bytearray(path.read_bytes())
    position = data.rindex(b"loss")
    data[position] ^= 1
    path.write_bytes(data)
    assert as_dict(event_log.read_log(tmp_path).scalars["loss"]) == {1: 3.0}
    assert re.search(r"\.v2: damaged at byte \d+, read up to there", caplog.text)


def pretraining_run(directory: Path, *, results: dict | None, num_steps: int = 40):
    """A run in two phases, killed after step 30 and taken up after step 20."""
    write_settings(
        directory,
        config.PretrainingConfig(
            num_train_steps=num_steps,
            global_batch_size=4,
            optimizer=config.OptimizerConfig(warmup_steps=2),
            phases=(
                config.PhaseConfig(fraction=0.5),
                config.PhaseConfig(fraction=0.5, global_batch_size=2),
            ),
            precision="float32",
        ),
        kind="pretraining",
        inputs={"examples_sha256": ["ab" * 32, "cd" * 32]},
    )
    train, evaluation = directory / "logs/train", directory / "logs/eval"
    rates = {
        "speed/sequences_per_second": {10: 20.0, 20: 24.0},
        "speed/tokens_per_second": {10: 160.0, 20: 192.0},
    }
    write_process(train, {"loss/loss": {1: 3, 10: 2.5, 30: 9}, **rates}, pid=1)
    rates = {
        "speed/sequences_per_second": {30: 10.0, 40: 11.0},
        "speed/tokens_per_second": {30: 160.0, 40: 176.0},
    }
    skipped = {"optimizer/skipped_steps": {21: 0, 40: 1}}
    write_process(train, {"loss/loss": {21: 2, 40: 1.5}, **skipped, **rates}, pid=2)
    write_process(
        evaluation,
        {
            "loss/masked_lm_loss": {20: 1.0, 30: 2.0, 40: 2.5},
            "accuracy/masked_lm_accuracy": {20: 0.75, 30: 0.25, 40: 0.5},
        },
        pid=1,
    )
    texts = {
        "masked_lm/example_02": {40: "worse **[1]**"},
        "masked_lm/example_04": {40: "one too many"},
        "masked_lm/example_03": {40: "third"},
        "masked_lm/example_01": {20: "old", 40: "better"},
    }
    write_process(directory / "logs/panels", {}, pid=1, texts=texts)
    if results is not None:
        (directory / "results.json").write_text(json.dumps(results))


def write_settings(directory: Path, settings, *, kind: str, inputs: dict) -> None:
    directory.mkdir()
    values = settings.model_dump(mode="json")
    (directory / "config.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    task = {"kind": kind, "labels": None if kind == "pretraining" else ["no", "y|s"]}
    (directory / "task.json").write_text(json.dumps(task))
    (directory / "inputs.json").write_text(json.dumps(inputs))
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 30522}
    (directory / "bert_config.json").write_text(json.dumps(sizes))


RESULTS = {
    "steps": 40,
    "seconds": 3.0,
    "skipped_steps": 1,
    "num_parameters": 1234567,
    "num_replicas": 2,
    "train": {},
    "eval": {"masked_lm_accuracy": 0.5},
    "eval_baseline": {"commonest_token": "the", "masked_lm_accuracy": 0.0625},
}

PAGE = """\
<!-- Made by `bert-keras report`; writing it again replaces all of it. -->
# run

Pre-training, finished at step 40 of 40.

| evaluation | last | at step | best | at step | baseline |
| --- | --- | --- | --- | --- | --- |
| masked_lm_accuracy | 0.5000 | 40 | 0.5000 | 40 | 0.0625 |
| masked_lm_loss | 2.5000 | 40 | 2.0000 | 30 |  |
| masked_lm_perplexity | 12.1825 | 40 | 7.3891 | 30 |  |

Best: among evaluations of the same phase as the last one.

Baseline: the commonest masked token, `the`, always guessed.

|  | the run |
| --- | --- |
| training time, loading left out | 0:00:17 |
| tokens seen, padding included | 1,280 |
| sequences per second, median | 15.5 |
| tokens per second, median | 168.0 |
| restarts | 1, first logged step after it: 21 |
| skipped steps | 1 |
| num_replicas | 2 |

## Model, data and settings

|  | model and data |
| --- | --- |
| parameters | 1,234,567 |
| num_hidden_layers | 2 |
| hidden_size | 8 |
| vocab_size | 30,522 |
| precision | float32 |
| examples_sha256 | `abababababab…`, `cdcdcdcdcdcd…` |

Settings that differ from the defaults:

```
bert-keras pretrain --examples EXAMPLES EXAMPLES_2 --output_dir run \\
    --set optimizer.warmup_steps=2 \\
    --set global_batch_size=4 \\
    --set num_train_steps=40 \\
    --set 'phases=[{"fraction": 0.5}, {"fraction": 0.5, "global_batch_size": 2}]' \\
    --set precision=float32
```

## Curves

![loss](loss.png)

![masked-LM loss](masked_lm_loss.png)

![masked-LM accuracy](masked_lm_accuracy.png)

![speed](sequences_per_second.png)

![speed in tokens](tokens_per_second.png)

![skipped steps](skipped_steps.png)

## Guesses for masked words at step 40

### example 01

better

### example 02

worse **[1]**

### example 03

third
"""


def test_the_report_of_a_pretraining(tmp_path):
    run = tmp_path / "run"
    pretraining_run(run, results=RESULTS)
    output = report.write_report(run)
    assert output == run / "report"
    page = (output / "report.md").read_text()
    assert page == PAGE
    pictures = set(re.findall(r"\]\((.+?)\)", page))
    assert {path.name for path in output.iterdir()} == pictures | {"report.md"}
    for name in pictures:
        with Image.open(output / name) as image:
            assert image.size == (1200, 675)
            assert len(image.convert("RGB").getcolors(1 << 20)) > 10


def test_the_settings_of_the_page_can_be_given_again(tmp_path):
    pretraining_run(tmp_path / "run", results=RESULTS)
    run = facts.read_facts(tmp_path / "run")
    page = (report.write_report(tmp_path / "run") / "report.md").read_text()
    command = page.split("```")[1].replace("\\\n", " ")
    arguments = subprocess.run(
        ["bash", "-c", f'bert-keras() {{ printf "%s\\n" "$@"; }}\n{command}'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    overrides = [
        b for a, b in zip(arguments, arguments[1:], strict=False) if a == "--set"
    ]
    given = loading.load(config.PretrainingConfig, overrides=overrides)
    assert run_directory.flat(given.model_dump(mode="json")) == run.settings


def test_an_unfinished_run(tmp_path):
    pretraining_run(tmp_path / "run", results=None)
    page = (report.write_report(tmp_path / "run") / "report.md").read_text()
    assert "Pre-training, not finished: step 40 of 40 so far." in page
    assert "| skipped steps | 1 |" in page
    assert "| evaluation | last | at step | best | at step |\n" in page
    for unknown in ("baseline", "Baseline", "parameters", "None", "nan"):
        assert unknown not in page


def test_a_fine_tuning(tmp_path):
    write_settings(
        tmp_path / "sst",
        finetuning.FinetuningConfig(learning_rate=1e-5),
        kind="classification",
        inputs={"train_sha256": "ef" * 32, "from_scratch": False},
    )
    write_process(tmp_path / "sst/logs/train", {"loss": {1: 0.7}}, pid=1)
    evaluation = {"accuracy": {5: 0.75, 10: 0.5}, "loss": {5: 0.5, 10: float("nan")}}
    write_process(tmp_path / "sst/logs/eval", evaluation, pid=1)
    output = report.write_report(tmp_path / "sst", tmp_path / "deep/er")
    page = (output / "report.md").read_text()
    assert "Fine-tuning for classification, not finished: step 10 so far." in page
    assert "| accuracy | 0.5000 | 10 | 0.7500 | 5 |" in page
    assert "| loss | nan | 10 | 0.5000 | 5 |" in page
    assert "| labels | no, y&#124;s |" in page
    assert "| from_scratch | false |" in page
    assert "--init INIT --output_dir sst \\\n    --set learning_rate=1e-05\n" in page


def test_the_picture_of_a_metric(tmp_path):
    pretraining_run(tmp_path / "run", results=RESULTS)
    run = facts.read_facts(tmp_path / "run")
    (plot,) = curves.draw_metric(run, "masked_lm_accuracy").axes
    assert plot.get_title() == "run: masked-LM accuracy"
    lines = {line.get_label(): line for line in plot.get_lines()}
    assert lines.keys() == {"evaluation", "baseline", "next phase", "restart"}
    np.testing.assert_allclose(
        lines["evaluation"].get_xydata(), [[20, 0.75], [30, 0.25], [40, 0.5]]
    )
    assert lines["baseline"].get_ydata()[0] == 0.0625
    assert lines["next phase"].get_xdata()[0] == 20
    assert lines["restart"].get_xdata()[0] == 21
    (plot,) = curves.draw_metric(run, "loss").axes
    training = plot.get_lines()[0]
    np.testing.assert_allclose(
        training.get_xydata(), [[1, 3], [10, 2.5], [21, 2], [40, 1.5]]
    )
    assert curves.draw_metric(run, "gradient_norm") is None


def test_pictures_of_hostile_numbers(tmp_path):
    """Numbers that matplotlib cannot place are drawn as the largest it can."""
    huge = 1.7e308
    baseline = {"eval_baseline": {"masked_lm_loss": huge, "loss": float("inf")}}
    pretraining_run(tmp_path / "run", results=RESULTS | baseline)
    found = facts.read_facts(tmp_path / "run")
    curve = event_log.Curve(np.array([-(2**62), 2**62]), np.array([huge, -huge]))
    log = dataclasses.replace(
        found.train, scalars={"all/loss": curve, "masked_lm_loss": curve}
    )
    run = dataclasses.replace(found, train=log, eval=log)
    for name in ("loss", "masked_lm_loss"):
        picture, file = curves.draw_metric(run, name), io.BytesIO()
        with matplotlib.rc_context({"savefig.dpi": 10}):
            picture.savefig(file)
        assert file.getvalue().startswith(b"\x89PNG")
        (plot,) = picture.axes
        drawn = np.concatenate([line.get_ydata() for line in plot.get_lines()])
        assert drawn.max() == 1e100 == -drawn.min()


def test_noisy_training_is_smoothed(tmp_path):
    pretraining_run(tmp_path / "run", results=RESULTS)
    train = tmp_path / "run/logs/train"
    noise = {step: 2.0 + (-1) ** step for step in range(41, 121)}
    write_process(train, {"loss/loss": noise}, pid=3)
    run = facts.read_facts(tmp_path / "run")
    (plot,) = curves.draw_metric(run, "loss").axes
    raw, smoothed = plot.get_lines()[:2]
    assert smoothed.get_label() == "training, smoothed"
    np.testing.assert_array_equal(raw.get_xdata(), smoothed.get_xdata())
    assert np.ptp(raw.get_ydata()[10:-10]) == 2
    assert np.ptp(smoothed.get_ydata()[10:-10]) == pytest.approx(0.4)


def test_moving_mean():
    values = np.array([1.0, 2.0, 6.0, 4.0])
    np.testing.assert_allclose(curves.moving_mean(values, 3), [1.5, 3.0, 4.0, 5.0])
    np.testing.assert_allclose(curves.moving_mean(values, 1), values)


def test_an_earlier_report_is_replaced_and_nothing_else(tmp_path):
    run, output = tmp_path / "run", tmp_path / "out"
    pretraining_run(run, results=None)
    report.write_report(run, output)
    (output / "of_before.png").write_bytes(b"")
    (run / "results.json").write_text(json.dumps(RESULTS))
    report.write_report(run, output)
    assert (output / "report.md").read_text() == PAGE
    assert not (output / "of_before.png").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}
    (output / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds 'notes.txt' besides an earlier rep"):
        report.write_report(run, output)
    assert (output / "report.md").read_text() == PAGE
    with pytest.raises(InputError, match="expected a new directory or an earlier rep"):
        report.write_report(run, run / "logs")


def test_a_report_that_fails_leaves_nothing(tmp_path, monkeypatch):
    run = tmp_path / "run"
    pretraining_run(run, results=RESULTS)
    before = sorted(path.name for path in run.iterdir())

    def breaks_off(run, output):
        (output / "loss.png").touch()
        raise ValueError("no such colour")

    with monkeypatch.context() as patched:
        patched.setattr(writing.curves, "draw_curves", breaks_off)
        with pytest.raises(ValueError, match="no such colour"):
            report.write_report(run)
    assert sorted(path.name for path in run.iterdir()) == before
    with pytest.raises(InputError, match="task.json: expected a directory, found a"):
        report.write_report(run, run / "task.json" / "report")


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"distill`, found no such directory"):
        report.write_report(tmp_path / "none")
    with pytest.raises(InputError, match="found no task.json in it"):
        report.write_report(tmp_path)
    pretraining_run(tmp_path / "run", results=None)
    (tmp_path / "run/results.json").write_text("{")
    with pytest.raises(InputError, match=r"results.json: expected JSON"):
        report.write_report(tmp_path / "run")
    (tmp_path / "run/config.yaml").write_text("3")
    with pytest.raises(InputError, match=r"config.yaml: expected keys and values"):
        report.write_report(tmp_path / "run")
    shutil.rmtree(tmp_path / "run/logs")
    with pytest.raises(InputError, match="expected event files with scalars in logs/"):
        report.write_report(tmp_path / "run")
