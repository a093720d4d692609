"""Runs that are interrupted end like those that never were: bit for bit."""

import json
import logging
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from tensorboard.backend.event_processing import event_file_loader

from bert_keras.checkpoints import conversion, training_state
from bert_keras.core.errors import InputError, Stopped
from bert_keras.core.settings import finetuning
from bert_keras.inference import finetuned
from bert_keras.report import scalar_log, task_summaries
from bert_keras.training.step import engine
from bert_keras.training.tensorboard import panels
from tests import make
from tests.bert_keras.training.finetuning.test_finetune import (
    BERT_CONFIG,
    make_init,
    opinions,
    run_finetune,
    write_tsv,
)
from tests.bert_keras.training.finetuning.test_finetune_tasks import tagged_file

SLOW = pytest.mark.slow
SETTINGS = finetuning.FinetuningConfig(
    max_seq_length=32,
    batch_size=8,
    num_train_epochs=2.5,
    learning_rate=2e-3,
    save_checkpoint_minutes=None,
)


NEVER = -1


class Killed(Exception):
    """The end of a process, without the costs of a new one."""


def die() -> None:
    raise Killed


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    return {
        "init": make_init(folder / "init", BERT_CONFIG),
        "text": write_tsv(folder / "train.tsv", opinions(80, seed=1)),
        "text_dev": write_tsv(folder / "dev.tsv", opinions(21, seed=2)),
        "tagging": tagged_file(folder / "train.txt", 80, seed=1),
        "tagging_dev": tagged_file(folder / "dev.txt", 20, seed=2),
    }


def run(files: dict[str, Path], directory: Path, *, task: str, **changes) -> dict:
    paths = files["init"], files[task], files[f"{task}_dev"], directory
    return run_finetune(*paths, settings=SETTINGS, task=task, **changes)


def results(directory: Path) -> dict:
    return json.loads((directory / "results.json").read_text())


def scalars(run: Path) -> dict[tuple[str, str, int], bytes]:
    """From curve, tag and step to what was written last, without what depends on time.

    Values are float32 as they stand in the file.
    """
    found = {}
    for path in sorted((run / "logs").rglob("events.out.tfevents.*")):
        for event in event_file_loader.EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    key = (path.parent.name, value.tag, event.step)
                    found[key] = value.tensor.SerializeToString()
    return {key: v for key, v in found.items() if not key[1].startswith("speed/")}


def newest_state(run: Path) -> dict[str, np.ndarray]:
    """The newest checkpoint, if one is left, or the weights."""
    if newest := max(run.glob("checkpoints/step-*.safetensors"), default=None):
        return safetensors.numpy.load_file(newest)
    return conversion.read(run).arrays


def assert_same_state(first: Path, second: Path, atol: float = 0.0) -> None:
    first, second = newest_state(first), newest_state(second)
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_allclose(
            first[name], second[name], rtol=0, atol=atol, err_msg=name
        )


def state(run: Path) -> dict[str, bytes]:
    """The newest checkpoint, if one is left, and the weights."""
    newest = [path.name for path in run.glob("checkpoints/step-*.safetensors")]
    arrays = {f"{max(newest, default='')} {k}": v for k, v in newest_state(run).items()}
    arrays |= conversion.read(run).arrays
    return {name: array.tobytes() for name, array in arrays.items()}


def assert_same(found: Path, expected: Path) -> None:
    """State, results, answers and curves are the same, bit for bit."""
    for read in (state, scalars):
        ours, theirs = read(found), read(expected)
        assert ours.keys() == theirs.keys()
        assert [key for key in theirs if ours[key] != theirs[key]] == []
    assert results(found) == results(expected)
    names, expected_names = (sorted(os.listdir(path)) for path in (found, expected))
    assert names == expected_names
    if "dev_answers.jsonl" in names:
        ours, theirs = (path / "dev_answers.jsonl" for path in (found, expected))
        assert ours.read_bytes() == theirs.read_bytes()


def broken_off(run: Path, copy: Path, last_step: int) -> Path:
    """A copy of a pre-training as if it had been killed after `last_step`."""
    shutil.copytree(run, copy)
    for name in ("results.json", "model.safetensors"):
        (copy / name).unlink()
    for path in copy.glob("checkpoints/*.safetensors"):
        if int(path.stem.removeprefix("step-")) > last_step:
            path.unlink()
    return copy


@pytest.mark.parametrize(
    ("last", "changes"),
    [
        (5, {}),
        pytest.param(5, {"steps_per_execution": 4}, marks=SLOW),
        pytest.param(10, {"num_checkpoints": 1}, marks=SLOW),
    ],
)
def test_a_pretraining_that_was_killed(
    last, changes, pretrained_run, tiny_examples, tmp_path, caplog, monkeypatch
):
    """Dropout and all, also where settings change that do not decide the outcome."""
    resumed = broken_off(pretrained_run, tmp_path / "resumed", last)
    earlier = scalar_log.read_log(resumed / "logs/train").seconds
    caplog.set_level(logging.INFO, logger="bert_keras")
    monkeypatch.setattr(panels.EvaluationPanels, "draw", lambda *_: None)
    settings = make.pretraining_config(**changes)
    done = make.pretrain([tiny_examples], resumed, settings)
    assert done["seconds"] > earlier + 1
    assert_same(resumed, pretrained_run)
    pieces = "examples of 32 word pieces, [CLS], [SEP] and padding included, 8 a step"
    assert pieces in caplog.text and "% padding" in caplog.text
    # Of the whole phase, not of the steps that were left.
    reads = ", so that the phase reads each 0.3 times"
    assert pieces + reads in caplog.text
    assert "for evaluation, which masks 15 % of the tokens" in caplog.text
    assert f"wrote model.safetensors and results.json in {resumed}" in caplog.text


def killed_at(step: int, files, tmp_path, at_step, **settings) -> tuple[Path, Path]:
    """A whole fine-tuning, and its directory as a kill after a step had left it."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    at_step(step, lambda: shutil.copytree(whole, killed))
    run(files, whole, save_checkpoint_steps=3, **settings)
    at_step(NEVER, die)
    return whole, killed


def test_texts_of_which_the_best_weights_are_kept(
    files, tmp_path, at_step, monkeypatch, caplog
):
    """A signal while answers are drawn is too late: the run is finished by then."""
    settings = {
        **{"task": "text", "keep": "best", "evaluate_steps": 4},
        # With these, a text has one row or two.
        **{"long_texts": "windows_max", "max_seq_length": 16, "num_train_epochs": 1.5},
    }
    whole, killed = killed_at(11, files, tmp_path, at_step, **settings)
    done = results(whole)
    assert 11 < done["kept_step"] < done["steps"]
    with pytest.raises(InputError, match="not finished; run its command again to res"):
        finetuned.evaluate(killed, files["text_dev"])
    newest = killed / "checkpoints/step-0000000009.safetensors"
    seconds = float(safetensors.numpy.load_file(newest)["run/seconds"])
    assert seconds > 0
    monkeypatch.setattr(
        task_summaries, "write", lambda *_, **__: (terminate(), time.sleep(60))
    )
    assert run(files, killed, **settings)["seconds"] > seconds
    assert "lacks pictures of its answers; `bert-keras report` draws" in caplog.text
    assert_same(killed, whole)
    scores = finetuned.evaluate(killed, files["text_dev"])
    assert scores["loss"] == pytest.approx(done["eval"]["loss"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed_after", "stopped_at", "settings"),
    [
        # In an epoch of other batches than the first.
        (14, 20, {"batches": "by_length", "lengths": ()}),
        # The resumed run makes the evaluation of step 6. There is no gain at all.
        (5, 6, {"early_stopping": 2, "evaluate_steps": 3, "learning_rate": 1e-6}),
    ],
)
def test_a_tuning_that_was_killed_and_then_stopped(
    killed_after, stopped_at, settings, files, tmp_path, at_step
):
    """Killed between two checkpoints, and asked to end with the step before another."""
    settings = {"task": "tagging", **settings}
    whole, killed = killed_at(killed_after, files, tmp_path, at_step, **settings)
    assert (results(whole)["steps"] == 9) == ("early_stopping" in settings)
    at_step(stopped_at - 1, terminate)
    with pytest.raises(Stopped, match=f"stopped by SIGTERM at step {stopped_at}"):
        run(files, killed, **settings)
    at_step(NEVER, die)
    run(files, killed, **settings)
    assert_same(killed, whole)


@pytest.mark.slow
def test_a_best_checkpoint_that_is_damaged(files, tmp_path, monkeypatch, caplog):
    """It is set aside, and the run ends from the last weights."""
    restore, set_aside = training_state.CheckpointDirectory.restore, []

    def damage_and_restore(self, step, variables):
        path = self._path(step)
        path.write_bytes(path.read_bytes()[:-1000])
        return restore(self, step, variables)

    checkpoints, name = training_state.CheckpointDirectory, "restore"
    monkeypatch.setattr(checkpoints, name, damage_and_restore)
    finish = engine.KerasEngine.finish

    def look_and_finish(*arguments):
        set_aside.extend(tmp_path.glob("run/checkpoints/*.damaged"))
        finish(*arguments)

    monkeypatch.setattr(engine.KerasEngine, "finish", look_and_finish)
    settings = {"task": "text", "keep": "best", "evaluate_steps": 10}
    done = run(files, tmp_path / "run", **settings, num_train_epochs=2.0)
    assert done["kept_step"] == done["steps"] == 20
    message = "at step 10: its checkpoint is damaged, so the last weights are kept"
    assert message in caplog.text and len(set_aside) == 1
    run(files, tmp_path / "last", **settings | {"keep": "last"}, num_train_epochs=2.0)
    assert state(tmp_path / "run") == state(tmp_path / "last")
