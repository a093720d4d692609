"""Fine-tunings that are interrupted end like those that never were: bit for bit."""

import json
import math
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_file_loader

from bert_keras.checkpoints import conversion
from bert_keras.core import files as project_files
from bert_keras.core.errors import InputError, Stopped
from bert_keras.core.settings import finetuning
from bert_keras.inference import finetuned, forward
from bert_keras.report import task_summaries
from bert_keras.training import finetune
from bert_keras.training.finetuning import checkpoint_policy
from tests.bert_keras.training.finetuning.test_finetune import (
    BERT_CONFIG,
    make_init,
    opinions,
    write_tsv,
)
from tests.bert_keras.training.finetuning.test_finetune_tasks import tagged_file

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


def run(files: dict[str, Path], directory: Path, **changes) -> dict:
    settings = SETTINGS.model_copy(update=changes)
    return finetune.finetune(
        settings,
        train=files[settings.task],
        dev=[files[f"{settings.task}_dev"]],
        init=files["init"],
        from_scratch=False,
        output_dir=directory,
        strategy=tf.distribute.get_strategy(),
    )


def results(directory: Path) -> dict:
    """Results without times."""
    content = json.loads((directory / "results.json").read_text())
    assert content.pop("seconds") >= 0
    content.get("train", {}).pop("input_wait", None)
    return content


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


def assert_same(found: Path, expected: Path) -> None:
    """Weights, results, answers and curves are the same, bit for bit."""
    ours, theirs = (conversion.read(path).arrays for path in (found, expected))
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert ours[name].tobytes() == array.tobytes(), name
    assert results(found) == results(expected)
    ours, theirs = (path / "dev_answers.jsonl" for path in (found, expected))
    assert ours.exists() == theirs.exists()
    assert not theirs.exists() or ours.read_bytes() == theirs.read_bytes()
    ours, theirs = scalars(found), scalars(expected)
    assert ours.keys() == theirs.keys()
    assert [key for key in theirs if ours[key] != theirs[key]] == []
    assert {path.name for path in found.iterdir()} == {
        path.name for path in expected.iterdir()
    }


def test_texts_of_which_the_best_weights_are_kept(files, tmp_path, at_step):
    """Killed between checkpoints, then asked to end; saved with the best evaluation."""
    settings = {"task": "text", "keep": "best", "evaluate_steps": 4}
    whole = run(files, tmp_path / "whole", **settings)
    assert whole["steps"] == 25
    assert whole["kept_step"] < 25
    directory = tmp_path / "run"
    at_step(11, die)
    with pytest.raises(Killed):
        run(files, directory, **settings, save_checkpoint_steps=3)
    with pytest.raises(InputError, match="not finished; give its command again to re"):
        finetuned.evaluate(directory, files["text_dev"])
    at_step(17, terminate)
    with pytest.raises(Stopped, match="stopped by SIGTERM at step 18"):
        run(files, directory, **settings)
    with np.load(directory / "checkpoints/step-0000000018.npz") as state:
        seconds = float(state["run/seconds"])
    assert seconds > 0
    assert run(files, directory, **settings)["seconds"] > seconds
    assert_same(directory, tmp_path / "whole")
    scores = finetuned.evaluate(directory, files["text_dev"])
    assert scores["loss"] == pytest.approx(whole["eval"]["loss"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"task": "text", "pack_examples": True},
        {"task": "tagging", "pack_examples": True},
        {"task": "text", "long_texts": "windows_max", "max_seq_length": 16},
    ],
)
def test_examples_that_share_rows_or_have_several(settings, files, tmp_path, at_step):
    """Killed between checkpoints, in an epoch of other batches than the first."""
    settings = {"lengths": (), **settings}
    run(files, tmp_path / "whole", **settings)
    directory = tmp_path / "run"
    at_step(14, die)
    with pytest.raises(Killed):
        run(files, directory, **settings, save_checkpoint_steps=4)
    at_step(NEVER, die)
    run(files, directory, **settings)
    assert_same(directory, tmp_path / "whole")


@pytest.mark.slow
def test_tags_whose_training_ends_early(files, tmp_path, at_step):
    """SIGTERM with the last step before an evaluation, which the resumed run makes."""
    settings = {"task": "tagging", "early_stopping": 2, "evaluate_steps": 3}
    settings["learning_rate"] = 1e-6  # no gain at all
    whole = run(files, tmp_path / "whole", **settings)
    assert whole["steps"] == 9
    at_step(5, terminate)
    with pytest.raises(Stopped, match="stopped by SIGTERM at step 6"):
        run(files, tmp_path / "run", **settings)
    run(files, tmp_path / "run", **settings)
    assert_same(tmp_path / "run", tmp_path / "whole")


@pytest.fixture
def in_forward(monkeypatch):
    """A function that has a signal come in the Nth forward pass, and notes them all."""
    original = forward.BatchPredictor._run

    def arrange(number: int) -> list[None]:
        passes = []

        def run_and_terminate(self, batch):
            passes.append(None)
            if len(passes) == number:
                terminate()
            return original(self, batch)

        monkeypatch.setattr(forward.BatchPredictor, "_run", run_and_terminate)
        return passes

    return arrange


@pytest.mark.slow
def test_sigterm_leaves_an_evaluation(files, tmp_path, in_forward, monkeypatch):
    """In one on the way, in that of the last step, and in that of the best weights: at
    once, with nothing lost, and the resumed run has the same bits."""
    monkeypatch.setattr(forward, "TOKENS_PER_BATCH", 64)  # passes of few examples
    settings = {"task": "text", "keep": "best", "evaluate_steps": 10}
    settings["num_train_epochs"] = 2.0
    passes = in_forward(0)
    whole = run(files, tmp_path / "whole", **settings)
    assert whole["steps"] == 20
    assert whole["kept_step"] == 10
    per_evaluation = len(passes) // 3
    assert per_evaluation > 2
    directory = tmp_path / "run"
    for first, step in ((0, 10), (per_evaluation, 20), (per_evaluation, None)):
        # Not in the first pass: one that was resumed makes an evaluation at once.
        passes = in_forward(first + 2)
        message = "stopped by SIGTERM" + (
            f" at step {step}; give" if step else "; give"
        )
        with pytest.raises(Stopped, match=message):
            run(files, directory, **settings)
        assert len(passes) == first + 2
        assert not (directory / "results.json").exists()
    in_forward(0)
    run(files, directory, **settings)
    assert_same(directory, tmp_path / "whole")


@pytest.mark.parametrize("damaged", ["", "{", "[]", "null", '{"train": {}}', "\xff"])
def test_what_a_run_was_interrupted_in(tmp_path, damaged):
    path = tmp_path / checkpoint_policy.PENDING_NAME
    assert checkpoint_policy.read_pending(path) == {}
    values = {"step": 7, "kept_step": None, "train": {"loss": math.nan, "lr": 0.1}}
    project_files.write_json(path, values)
    found = checkpoint_policy.read_pending(path)
    assert math.isnan(found["train"].pop("loss"))
    assert found == {"step": 7, "kept_step": None, "train": {"lr": 0.1}}
    path.write_bytes(damaged.encode("latin1"))
    assert checkpoint_policy.read_pending(path) == {}


def test_sigterm_while_answers_are_drawn(files, tmp_path, monkeypatch, caplog):
    """The run is finished by then, and ends well."""
    monkeypatch.setattr(
        task_summaries, "write", lambda *_, **__: (terminate(), time.sleep(60))
    )
    assert run(files, tmp_path / "run", task="text", num_train_epochs=0.1)["eval"]
    assert "lacks pictures of its answers; `bert-keras report` draws" in caplog.text
