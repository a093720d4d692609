"""The report of a run, from its log and its files."""

import dataclasses
import io
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from bert_keras.checkpoints import run_directory
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, loading
from bert_keras.core.settings.pretraining import PhaseConfig, PretrainingConfig
from bert_keras.report import curves, facts, measured_runs, scalar_log, writing
from tests.bert_keras.report import runs, test_diagnosis


def as_dict(curve: scalar_log.Curve) -> dict[int, float]:
    return dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True))


def test_a_log_of_three_processes(tmp_path):
    texts = {1: "old", 20: "x|y"}
    losses = {1: 9, 10: 8, 20: float("nan")}
    runs.write_process(tmp_path, {"loss": losses, "t": texts, "a": {1: 1}})
    # It logged nothing of its own steps.
    runs.write_process(tmp_path, {}, start_step=20, begin=2000)
    runs.write_process(tmp_path, {"loss": {21: 3, 30: -2.25}}, start_step=20, begin=3e3)
    found = scalar_log.read_log(tmp_path)
    assert found.scalars.keys() == {"loss", "a"}
    np.testing.assert_equal(as_dict(found.scalars["loss"]), losses | {21: 3, 30: -2.25})
    assert as_dict(found.scalars["a"]) == {1: 1}
    assert found.texts == {"t": (20, "x|y")}
    # Three lines a second apart, none, and two.
    assert (found.restarts, found.seconds) == ((21,), 5.0)
    assert scalar_log.read_log(tmp_path / "nothing").scalars == {}


def test_a_line_that_is_cut_off_ends_the_log(tmp_path, caplog):
    path = runs.write_process(tmp_path, {"loss": {1: 3.0, 2: 2.0}})
    whole = path.read_bytes()
    found = set()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        curve = scalar_log.read_log(tmp_path).scalars.get("loss", ((), ()))
        found.add(tuple(curve[1]))
    assert found == {(), (3.0,), (3.0, 2.0)}
    assert not caplog.records
    for damage in (b"{", b"\xff", b"3", b'{"step": 2}'):
        path.write_bytes(damage + b"\n" + whole)
        assert as_dict(scalar_log.read_log(tmp_path).scalars["loss"]) == {1: 3, 2: 2}
        assert "scalars.jsonl: line 1 is damaged and was ignored" in caplog.text
        caplog.clear()


PAGES = ("report.md", "report.html")
PAGE = """\
<!-- Made by `bert-keras report`; writing it again replaces all of it. -->
# run

Pre-training, finished at step 40 of 40.

**masked_lm_accuracy 0.500** on text that was held out; the baseline has 0.062.

| evaluation | last | at step | best | at step | baseline |
| --- | --- | --- | --- | --- | --- |
| masked_lm_accuracy | 0.5000 | 40 | 0.5000 | 40 | 0.0625 |
| masked_lm_loss | 2.5000 | 40 | 2.0000 | 30 |  |
| masked_lm_perplexity | 12.1825 | 40 | 7.3891 | 30 |  |

Best: among evaluations of the same phase as the last one.

Baseline: the commonest masked token, `the`, always guessed.

## What may be wrong

- **rate too low**: 40 steps at a rate of up to 0.0001 move a weight by about 0.004 at most, and initial weights are of a size of 0.02: raise `optimizer.learning_rate`, or make more steps.

## Guesses for masked words at step 40

### example 01

better

### example 02

worse **[1]**

### example 03

third

## Curves

![loss](loss.png)
![masked-LM loss](masked_lm_loss.png)
![masked-LM accuracy](masked_lm_accuracy.png)
![speed](sequences_per_second.png)
![speed in tokens](tokens_per_second.png)
![skipped steps](skipped_steps.png)

## Model, data and settings

|  | the run |
| --- | --- |
| training time, loading left out | 0:00:06 |
| tokens seen, padding included | 1,280 |
| sequences per second, median | 15.5 |
| tokens per second, median | 168.0 |
| restarts | 1, first logged step after it: 21 |
| skipped steps | 1 |
| num_replicas | 2 |

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
"""  # noqa: E501


@pytest.fixture(scope="module")
def pretraining(reported) -> facts.Facts:
    return facts.read_facts(reported / "run")


def test_the_report_of_a_pretraining(reported):
    output = reported / "run/report"
    text = (output / "report.md").read_text()
    assert text == PAGE
    pictures = set(re.findall(r"\]\((.+?)\)", text))
    assert {path.name for path in output.iterdir()} == {*pictures, *PAGES}
    for name in pictures:
        with Image.open(output / name) as image:
            assert image.size == (1200, 675)
            assert len(image.convert("RGB").getcolors(1 << 20)) > 10


def test_the_settings_of_the_page_can_be_given_again(pretraining):
    command = writing.render(pretraining, []).split("```")[1].replace("\\\n", " ")
    arguments = subprocess.run(
        ["bash", "-c", f'bert-keras() {{ printf "%s\\n" "$@"; }}\n{command}'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    pairs = itertools.pairwise(arguments)
    overrides = [value for option, value in pairs if option == "--set"]
    loaded = loading.load(PretrainingConfig, overrides=overrides)
    assert run_directory.flat(loaded.model_dump(mode="json")) == pretraining.settings


def test_an_unfinished_run(pretraining):
    text = writing.render(dataclasses.replace(pretraining, results=None), [])
    for line in (
        "Pre-training, not finished: step 40 of 40 so far.",
        "| skipped steps | 1 |",
        "| evaluation | last | at step | best | at step |\n",
    ):
        assert line in text
    for unknown in ("baseline", "Baseline", "parameters", "None", "nan"):
        assert unknown not in text


@pytest.mark.parametrize("inputs", [{}, {"init_sha256": "ef" * 32}])
def test_usual_losses_stand_beside_the_problems(inputs, tmp_path):
    """But those of a model that was trained before are not known."""
    run = tmp_path / "run"
    settings = PretrainingConfig(
        phases=[PhaseConfig(fraction=1, global_batch_size=32)],
        num_train_steps=4000,
        optimizer={"warmup_steps": 100},
    )
    runs.write_settings(run, settings, kind="pretraining", inputs=inputs)
    steps = range(10, 4010, 10)
    curves = {
        "loss/masked_lm_loss": dict.fromkeys(steps, 5.9),
        "speed/sequences_per_second": {10: 2.0},
        "speed/tokens_per_second": {10: 256.0},
    }
    runs.write_process(run / "logs/train", curves)
    assert facts.read_facts(run).num_tokens == 4000 * 32 * 128
    sample = test_diagnosis.SOUND | {"tokens_per_example": 100}
    (run / "text_sample.json").write_text(json.dumps(sample))
    low, high = measured_runs.usual_losses(4000 * 32 * 100, entropy=sample["entropy"])
    text = (writing.write_report(run) / "report.md").read_text()
    line = f"At step 4,000 masked-LM losses of {low:.1f} to {high:.1f} are usual."
    assert (line in text) == (not inputs)
    assert f"is 5.90, where {low:.1f} to {high:.1f} are usual at this step" in text


def test_a_fine_tuning(tmp_path):
    run = tmp_path / "sst"
    settings = finetuning.FinetuningConfig(learning_rate=1e-5)
    inputs = {"train_sha256": "ef" * 32, "from_scratch": False}
    runs.write_settings(run, settings, kind="classification", inputs=inputs)
    runs.write_process(run / "logs/train", {"loss": {1: 0.7}})
    evaluation = {"accuracy": {5: 0.75, 10: 0.5}, "loss": {5: 0.5, 10: float("nan")}}
    runs.write_process(run / "logs/eval", evaluation)
    text = writing.render(facts.read_facts(run), [])
    for line in (
        "Fine-tuning for classification, not finished: step 10 so far.",
        "| accuracy | 0.5000 | 10 | 0.7500 | 5 |",
        "| loss | nan | 10 | 0.5000 | 5 |",
        "| labels | no, y&#124;s |",
        "| from_scratch | false |",
        "--init INIT --output_dir sst \\\n    --set learning_rate=1e-05\n",
    ):
        assert line in text


def test_the_picture_of_a_metric(pretraining):
    (plot,) = curves.draw_metric(pretraining, "masked_lm_accuracy").axes
    assert plot.get_title() == "run: masked-LM accuracy"
    lines = {line.get_label(): line for line in plot.get_lines()}
    assert lines.keys() == {"evaluation", "baseline", "next phase", "restart"}
    np.testing.assert_allclose(
        lines["evaluation"].get_xydata(), [[20, 0.75], [30, 0.25], [40, 0.5]]
    )
    assert lines["baseline"].get_ydata()[0] == 0.0625
    assert lines["next phase"].get_xdata()[0] == 20
    assert lines["restart"].get_xdata()[0] == 21
    (plot,) = curves.draw_metric(pretraining, "loss").axes
    training = plot.get_lines()[0].get_xydata()
    np.testing.assert_allclose(training, [[1, 3], [10, 2.5], [21, 2], [40, 1.5]])
    assert curves.draw_metric(pretraining, "gradient_norm") is None


def test_pictures_of_hostile_numbers(pretraining):
    """Numbers that matplotlib cannot place are drawn as the largest it can."""
    huge = 1.7e308
    baseline = {"masked_lm_loss": huge, "loss": float("inf")}
    results = runs.RESULTS | {"eval_baseline": baseline}
    curve = scalar_log.Curve(np.array([-(2**62), 2**62]), np.array([huge, -huge]))
    scalars = {"all/loss": curve, "masked_lm_loss": curve}
    log = dataclasses.replace(pretraining.train, scalars=scalars)
    run = dataclasses.replace(pretraining, train=log, eval=log, results=results)
    for name in ("loss", "masked_lm_loss"):
        picture, file = curves.draw_metric(run, name), io.BytesIO()
        with matplotlib.rc_context({"savefig.dpi": 10}):
            picture.savefig(file)
        assert file.getvalue().startswith(b"\x89PNG")
        (plot,) = picture.axes
        drawn = np.concatenate([line.get_ydata() for line in plot.get_lines()])
        assert drawn.max() == 1e100 == -drawn.min()


def test_noisy_training_is_smoothed(pretraining):
    steps = np.arange(41, 121)
    curve = scalar_log.Curve(steps, 2.0 + (-1.0) ** steps)
    log = dataclasses.replace(pretraining.train, scalars={"loss/loss": curve})
    run = dataclasses.replace(pretraining, train=log)
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


def copied(reported: Path, tmp_path: Path) -> Path:
    """A fine-tuning with one curve and no report."""
    run = Path(shutil.copytree(reported / "classification", tmp_path / "run"))
    shutil.rmtree(run / "report")
    (run / "dev_answers.jsonl").unlink()
    return run


def test_an_earlier_report_is_replaced_and_nothing_else(reported, tmp_path):
    run, output = copied(reported, tmp_path), tmp_path / "deep/er"
    results = (run / "results.json").read_text()
    (run / "results.json").unlink()
    assert writing.write_report(run, output) == output
    assert "not finished" in (output / "report.md").read_text()
    (output / "of_before.png").write_bytes(b"")
    (run / "results.json").write_text(results)
    writing.write_report(run, output)
    assert {path.name for path in output.iterdir()} == {"loss.png", *PAGES}
    text = (output / "report.md").read_text()
    assert "not finished" not in text
    (output / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds 'notes.txt' besides an earlier rep"):
        writing.write_report(run, output)
    assert (output / "report.md").read_text() == text
    with pytest.raises(InputError, match="expected a new directory or an earlier rep"):
        writing.write_report(run, run / "logs")
    assert not (run / "report").exists()


def test_a_report_that_fails_leaves_nothing(reported, tmp_path, monkeypatch):
    run = copied(reported, tmp_path)
    before = sorted(path.name for path in run.iterdir())

    def breaks_off(run, output):
        (output / "loss.png").touch()
        raise ValueError("no such colour")

    with monkeypatch.context() as patched:
        patched.setattr(writing.curves, "draw_curves", breaks_off)
        with pytest.raises(ValueError, match="no such colour"):
            writing.write_report(run)
    assert sorted(path.name for path in run.iterdir()) == before
    with pytest.raises(InputError, match="task.json: expected a directory, found a"):
        writing.write_report(run, run / "task.json" / "report")


def test_what_is_no_run_is_refused(reported, tmp_path):
    with pytest.raises(InputError, match=r"distill`, found no such directory"):
        writing.write_report(tmp_path / "none")
    with pytest.raises(InputError, match="found no task.json in it"):
        writing.write_report(tmp_path)
    run = copied(reported, tmp_path)
    for name, text in (("results.json", "{"), ("config.yaml", "3")):
        (run / name).write_text(text)
        with pytest.raises(
            InputError, match=f"{name}: expected (JSON|keys and values)"
        ):
            writing.write_report(run)
    shutil.rmtree(run / "logs")
    with pytest.raises(InputError, match=r"expected scalars in logs/\*/scalars.jsonl"):
        writing.write_report(run)
