"""Runs that are killed again and again end like one that never was: bit for bit, its
curves included."""

import json
import random
import re
import signal
import subprocess
import sys
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
    task="span",
    keep="best",
    max_seq_length=32,
    batch_size=8,
    num_train_epochs=12,
    learning_rate=1e-3,
    save_checkpoint_steps=3,
    save_checkpoint_minutes=None,
    span=finetuning.SpanConfig(doc_stride=8, max_query_length=4, max_answer_length=3),
)


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
def whole(live, tiny_examples, tmp_path_factory):
    """A function from a verb to its order and to a run that nobody disturbed."""

    def run(verb: str) -> tuple[dict, Path]:
        folder = tmp_path_factory.mktemp(verb)
        order = {"verb": verb, "settings": folder / "config.yaml"}
        if verb == "pretrain":
            loading.save(PRETRAINING, folder / "config.yaml")
            order["examples"] = [str(tiny_examples)] * 2
        else:
            loading.save(TUNING, folder / "config.yaml")
            write = test_finetune_tasks.questions_file
            order["init"] = test_finetune.make_init(
                folder / "init", test_finetune.BERT_CONFIG
            )
            order["train"] = write(folder / "train.json", 80, seed=1)
            order["dev"] = [str(write(folder / "dev.json", 20, seed=2))]
        assert live(**order, output_dir=folder / "run", death=None) == 0
        return order, folder / "run"

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
    return max([int(p.stem[-10:]) for p in run.glob("checkpoints/step-*")] or [0])


@pytest.mark.parametrize(("verb", "num_kills"), [("pretrain", 5), ("finetune", 6)])
def test_killed_again_and_again_and_stopped(verb, num_kills, live, whole, tmp_path):
    """`test_run.py` has kills everywhere else, with an engine of plain numbers."""
    order, expected = whole(verb)
    choose, run = random.Random(verb), tmp_path / "run"
    for number in range(num_kills):
        death = newest_step(run) + choose.randint(2, 8), choose.uniform(0, 0.05)
        code = live(**order, output_dir=run, death=death)
        assert code == -signal.SIGKILL, (number, death)
        assert not (run / "results.json").exists()
    command = [sys.executable, "-m", "bert_keras.commands.main", verb]
    command += ["--strategy", "cpu", "--output_dir", str(run)]
    for name, values in order.items():
        if name != "verb":
            option = "config" if name == "settings" else name
            command += [f"--{option}", *map(str, np.ravel(values))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not process.stderr.readline().startswith("step "):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        lines = process.stderr.read().splitlines()
    assert process.returncode == 143
    stopped = re.fullmatch(
        rf"bert-keras {verb}: stopped by SIGTERM at step (\d+); run the same command "
        "again to resume",
        lines[-1],
    )
    assert int(stopped[1]) == newest_step(run) >= 1
    assert live(**order, output_dir=run, death=None) == 0
    assert_same_runs(run, expected)
