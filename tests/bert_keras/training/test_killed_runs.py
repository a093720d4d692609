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

from bert_keras.core.settings import finetuning, loading, pretraining, strict
from tests.bert_keras.training import test_resumed_runs
from tests.bert_keras.training.finetuning import test_finetune, test_finetune_tasks

pytestmark = pytest.mark.slow

INTERVAL = 5
# Two phases, the second with smaller batches in two parts, dropout and all.
PRETRAINING = strict.build_config(
    pretraining.PretrainingConfig,
    {
        "model": {
            "num_hidden_layers": 1,
            "hidden_size": 16,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": 32,
        },
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
        "num_train_steps": 58,
        "save_checkpoint_steps": INTERVAL,
        "num_eval_steps": 2,
        "shuffle_buffer_size": 100,
    },
)
TUNING = finetuning.FinetuningConfig(
    max_seq_length=32,
    batch_size=8,
    num_train_epochs=6,
    learning_rate=1e-3,
    save_checkpoint_steps=3,
    save_checkpoint_minutes=None,
    span=finetuning.SpanConfig(doc_stride=8, max_query_length=4, max_answer_length=3),
)
SECONDS_PER_ARRAY = 0.02


@pytest.fixture(scope="module")
def live():
    """A function that gives a run a life by its order; returns its exit code."""
    # As a module of this folder: packages may install a `tests` of their own.
    with subprocess.Popen(
        [sys.executable, "-m", "tests.bert_keras.training.killed_runs"],
        cwd=Path(__file__).parents[3],
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
def order_of(tiny_examples, tmp_path_factory):
    """A function from the name of a case to the order of its run, all but its place."""

    def order(case: str) -> dict:
        folder = tmp_path_factory.mktemp(case)
        if case in ("pretrain", "replicas"):
            loading.save(PRETRAINING, folder / "config.yaml")
            return {
                "verb": "pretrain",
                "settings": folder / "config.yaml",
                "examples": [str(tiny_examples)] * 2,
                "num_replicas": 1 if case == "pretrain" else 2,
            }
        keep, write, suffix = {
            "span": ("best", test_finetune_tasks.questions_file, "json"),
            "tagging": ("last", test_finetune_tasks.tagged_file, "txt"),
        }[case]
        settings = TUNING.model_copy(update={"task": case, "keep": keep})
        loading.save(settings, folder / "config.yaml")
        init = test_finetune.make_init(folder / "init", test_finetune.BERT_CONFIG)
        return {
            "verb": "finetune",
            "settings": folder / "config.yaml",
            "init": init,
            "train": write(folder / f"train.{suffix}", 80, seed=1),
            "dev": [str(write(folder / f"dev.{suffix}", 20, seed=2))],
        }

    return order


@pytest.fixture(scope="module")
def whole(live, order_of, tmp_path_factory):
    """A function from a case to its order and a run that nobody disturbed."""
    runs = {}

    def run(case: str) -> tuple[dict, Path]:
        if case not in runs:
            order, directory = order_of(case), tmp_path_factory.mktemp("whole") / "run"
            assert live(**order, output_dir=directory, death=None) == 0
            runs[case] = order, directory
        return runs[case]

    return run


def assert_same_runs(found: Path, expected: Path) -> None:
    """All but times are alike: files, state, weights, results, answers and curves."""
    # First, for it names the variables that differ.
    test_resumed_runs.assert_same(found, expected)
    ours, theirs = (
        {p.name: p.read_bytes() for p in run.glob("checkpoints/*")}
        for run in (found, expected)
    )
    assert ours == theirs


def newest_step(run: Path) -> int:
    return max([int(p.stem[-10:]) for p in run.glob("checkpoints/step-*.npz")] or [0])


@pytest.mark.parametrize(
    ("case", "num_kills"),
    [("pretrain", 10), ("replicas", 10), ("span", 20), ("tagging", 20)],
)
def test_killed_again_and_again(case, num_kills, live, whole, tmp_path):
    """Nearly half of the times while a checkpoint is written, which its unfinished file
    proves, and once just before and just after it gets its name."""
    order, expected = whole(case)
    choose, run = random.Random(case), tmp_path / "run"
    kinds = ["writing_slowly"] * (num_kills * 9 // 20) + ["named", "unnamed"]
    kinds += ["after_step"] * (num_kills - len(kinds))
    choose.shuffle(kinds)
    interval = INTERVAL if order["verb"] == "pretrain" else 3
    num_proven, unfinished = 0, set()
    for number, kind in enumerate(kinds, start=1):
        step = newest_step(run)
        due = (step // interval + 1) * interval
        death = {
            "writing_slowly": {
                "step": step + 1,
                "seconds": choose.uniform(0, 30 * SECONDS_PER_ARRAY),
                "seconds_per_array": SECONDS_PER_ARRAY,
            },
            "after_step": {
                "step": step + choose.randint(1, 4),
                "seconds": choose.uniform(0, 0.1),
            },
            "named": {"step": due, "is_renamed": True},
            "unnamed": {"step": due, "is_renamed": False},
        }[kind]
        name = "renaming" if "named" in kind else kind
        assert live(**order, output_dir=run, death=(name, death)) == -signal.SIGKILL, (
            kind,
            death,
        )
        assert not (run / "results.json").exists()
        before, unfinished = unfinished, set(run.glob("checkpoints/.step-*.tmp"))
        num_proven += bool(unfinished - before)
        print(f"{case}: kill {number}: {death}, {num_proven} in a write")
    assert num_proven >= kinds.count("writing_slowly")
    assert live(**order, output_dir=run, death=None) == 0
    assert_same_runs(run, expected)


@pytest.mark.parametrize("case", ["pretrain", "tagging"])
def test_stopped_by_sigterm(case, live, whole, tmp_path):
    order, expected = whole(case)
    command = [sys.executable, "-m", "bert_keras.commands.main", order["verb"]]
    command += ["--strategy", "cpu", "--output_dir", str(tmp_path / "run")]
    for name, values in order.items():
        if name not in ("verb", "num_replicas"):
            option = "config" if name == "settings" else name
            command += [f"--{option}", *map(str, np.ravel(values))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not process.stderr.readline().startswith("step 1/"):
            assert process.poll() is None
        time.sleep(random.Random(1).uniform(0, 0.1))
        process.send_signal(signal.SIGTERM)
        lines = process.stderr.read().splitlines()
    assert process.returncode == 143
    stopped = re.fullmatch(
        rf"bert-keras {order['verb']}: stopped by SIGTERM at step (\d+); give the same "
        "command again to resume",
        lines[-1],
    )
    assert int(stopped[1]) == newest_step(tmp_path / "run") >= 1
    assert not (tmp_path / "run" / "results.json").exists()
    assert live(**order, output_dir=tmp_path / "run", death=None) == 0
    assert_same_runs(tmp_path / "run", expected)
