"""Runs that are killed again and again end like one that never was: bit for bit, its
curves included."""

import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bert_keras.core.settings import config, finetuning, loading, strict
from tests.bert_keras.training.finetuning import (
    test_finetune,
    test_finetune_tasks,
    test_resumed_tuning,
)

pytestmark = pytest.mark.slow

NUM_STEPS = 58
INTERVAL = 5
TINY = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}


@pytest.fixture(scope="module")
def settings_path(tmp_path_factory) -> Path:
    """Two phases, the second with smaller batches in two parts, dropout and all."""
    settings = strict.build_config(
        config.PretrainingConfig,
        {
            "model": TINY,
            "optimizer": {"learning_rate": 1e-3, "warmup_steps": 2},
            "global_batch_size": 8,
            "phases": [
                {"fraction": 0.55},
                {
                    "fraction": 0.45,
                    "global_batch_size": 4,
                    "gradient_accumulation_steps": 2,
                },
            ],
            "num_train_steps": NUM_STEPS,
            "save_checkpoint_steps": INTERVAL,
            "num_eval_steps": 2,
            "shuffle_buffer_size": 100,
        },
    )
    path = tmp_path_factory.mktemp("settings") / "config.yaml"
    loading.save(settings, path)
    return path


@pytest.fixture(scope="module")
def live():
    """A function that gives a run a life by its order; returns its exit code."""
    script = Path(__file__).with_name("killed_runs.py")
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:

        def live(**order) -> int:
            driver.stdin.write(json.dumps(order, default=str) + "\n")
            driver.stdin.flush()
            return int(driver.stdout.readline())

        yield live
        driver.stdin.close()


@pytest.fixture(scope="module")
def start(live, settings_path, tiny_examples):
    """A function that gives a pre-training a life; returns its exit code."""

    def start(output_dir, *, num_replicas, death=None) -> int:
        return live(
            verb="pretrain",
            settings=settings_path,
            examples=[str(tiny_examples)] * 2,
            output_dir=output_dir,
            num_replicas=num_replicas,
            death=death,
        )

    return start


def checkpoints(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "checkpoints").iterdir()}


def assert_same_runs(found: Path, expected: Path) -> None:
    """All but times are alike: files, state, weights, results and curves."""
    ours, theirs = (
        test_resumed_tuning.scalars(found),
        test_resumed_tuning.scalars(expected),
    )
    assert ours.keys() == theirs.keys()
    assert [key for key in theirs if ours[key] != theirs[key]] == []
    ours, theirs = checkpoints(found), checkpoints(expected)
    assert ours.keys() == theirs.keys()
    for name in (name for name in theirs if name.endswith(".npz")):
        # Before the bytes: names of what differs.
        with (
            np.load(found / "checkpoints" / name) as a,
            np.load(expected / "checkpoints" / name) as b,
        ):
            assert set(a) == set(b)
            assert [key for key in a if a[key].tobytes() != b[key].tobytes()] == []
    assert ours == theirs
    assert results(found) == results(expected)


def results(run: Path) -> dict:
    """What a finished run says of itself, without times."""
    read = json.loads((run / "results.json").read_text())
    assert read.pop("seconds") > 0
    return read


def deaths(number: int, seed: int) -> list[tuple[str, dict]]:
    """Moments to die at, one in each save interval, some in the worst places."""
    choose = random.Random(seed)
    moments = []
    for index in range(number):
        step = INTERVAL * index + choose.randint(1, INTERVAL)
        seconds = choose.uniform(0, 0.1)
        moments.append(("after_step", {"step": step, "seconds": seconds}))
    worst = [
        ("writing", {"num_arrays": choose.randint(4, 40)}),
        ("renaming", {"is_renamed": False}),
        ("renaming", {"is_renamed": True}),
    ]
    for index, (kind, moment) in zip(
        choose.sample(range(number), len(worst)), worst, strict=True
    ):
        moments[index] = (kind, {"step": INTERVAL * (index + 1), **moment})
    return moments


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    """A run on one device that nobody disturbed."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    assert start(directory, num_replicas=1) == 0
    return directory


def kill_until_finished(start, directory, *, num_replicas, num_deaths):
    for death in deaths(num_deaths, seed=num_replicas):
        code = start(directory, num_replicas=num_replicas, death=death)
        assert code == -signal.SIGKILL, death
        assert not (directory / "results.json").exists()
    assert start(directory, num_replicas=num_replicas) == 0


def test_killed_ten_times(start, whole, tmp_path):
    kill_until_finished(start, tmp_path / "run", num_replicas=1, num_deaths=10)
    assert_same_runs(tmp_path / "run", whole)


def test_two_replicas_killed_ten_times(start, tmp_path):
    assert start(tmp_path / "whole", num_replicas=2) == 0
    kill_until_finished(start, tmp_path / "run", num_replicas=2, num_deaths=10)
    assert_same_runs(tmp_path / "run", tmp_path / "whole")


def test_stopped_by_sigterm(start, whole, settings_path, tiny_examples, tmp_path):
    command = [
        *(
            sys.executable,
            "-m",
            "bert_keras.commands.main",
            "pretrain",
            "--strategy",
            "cpu",
        ),
        *("--config", str(settings_path), "--output_dir", str(tmp_path / "run")),
        *("--examples", str(tiny_examples), str(tiny_examples)),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not process.stderr.readline().startswith("step 1/58 "):
            assert process.poll() is None
        time.sleep(random.Random(1).uniform(0, 0.1))
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read().splitlines()
    assert process.returncode == 143
    stopped = re.fullmatch(
        r"bert-keras pretrain: stopped by SIGTERM at step (\d+); give the same "
        "command again to resume",
        said[-1],
    )
    step = int(stopped[1])
    assert 1 <= step < NUM_STEPS
    assert f"step-{step:010}.npz" == max(checkpoints(tmp_path / "run"))
    assert not (tmp_path / "run" / "results.json").exists()
    assert start(tmp_path / "run", num_replicas=1) == 0
    assert_same_runs(tmp_path / "run", whole)


TUNING = finetuning.FinetuningConfig(
    max_seq_length=32,
    batch_size=8,
    num_train_epochs=6,
    learning_rate=1e-3,
    save_checkpoint_steps=3,
    save_checkpoint_minutes=None,
    span=finetuning.SpanConfig(doc_stride=8, max_query_length=4, max_answer_length=3),
)
NUM_TUNING_KILLS, NUM_KILLS_IN_WRITES = 20, 9
SECONDS_PER_ARRAY = 0.02


@pytest.mark.parametrize(
    ("task", "keep", "write"),
    [
        ("span", "best", test_finetune_tasks.questions_file),
        ("tagging", "last", test_finetune_tasks.tagged_file),
    ],
)
def test_a_finetuning_killed_twenty_times(live, task, keep, write, tmp_path):
    """Nine times while a checkpoint is written, which its unfinished file proves."""
    settings = TUNING.model_copy(update={"task": task, "keep": keep})
    loading.save(settings, tmp_path / "config.yaml")
    suffix = "json" if task == "span" else "txt"
    order = {
        "verb": "finetune",
        "settings": tmp_path / "config.yaml",
        "init": test_finetune.make_init(tmp_path / "init", test_finetune.BERT_CONFIG),
        "train": write(tmp_path / f"train.{suffix}", 80, seed=1),
        "dev": [str(write(tmp_path / f"dev.{suffix}", 20, seed=2))],
    }
    assert live(**order, output_dir=tmp_path / "whole", death=None) == 0
    choose, run = random.Random(task), tmp_path / "run"
    in_writes = choose.sample(range(NUM_TUNING_KILLS), NUM_KILLS_IN_WRITES)
    num_proven, unfinished = 0, set()
    for number in range(NUM_TUNING_KILLS):
        step = max([int(p.stem[-10:]) for p in run.glob("checkpoints/step-*")] or [0])
        if number in in_writes:
            moment = {
                "step": step + 1,
                "seconds": choose.uniform(0, 30 * SECONDS_PER_ARRAY),
                "seconds_per_array": SECONDS_PER_ARRAY,
            }
            death = ("writing_slowly", moment)
        else:
            moment = {
                "step": step + choose.randint(1, 4),
                "seconds": choose.uniform(0, 0.05),
            }
            death = ("after_step", moment)
        code = live(**order, output_dir=run, death=death)
        assert code == -signal.SIGKILL, death
        assert not (run / "results.json").exists()
        before, unfinished = unfinished, set(run.glob("checkpoints/.step-*.tmp"))
        num_proven += bool(unfinished - before)
        print(f"{task}: kill {number + 1}: {death}, {num_proven} in a write")
    assert num_proven >= NUM_KILLS_IN_WRITES
    assert live(**order, output_dir=run, death=None) == 0
    test_resumed_tuning.assert_same(run, tmp_path / "whole")
