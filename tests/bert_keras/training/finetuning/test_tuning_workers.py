"""Two worker processes that fine-tune together equal one device, and end together."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.checkpoints import conversion
from bert_keras.core.settings import finetuning, loading
from bert_keras.training import finetune
from tests.bert_keras.training.finetuning.test_finetune import (
    BERT_CONFIG,
    make_init,
    opinions,
    write_tsv,
)
from tests.bert_keras.training.finetuning.test_finetune_embedding import topical_pairs
from tests.bert_keras.training.test_workers import (
    COMMAND_LINE,
    finish,
    free_addresses,
    log_of,
    wait_for_step,
)

pytestmark = pytest.mark.slow

SETTINGS = finetuning.FinetuningConfig(
    max_seq_length=24, batch_size=16, num_train_epochs=2, learning_rate=3e-4
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Options of the command line: a pre-trained model, 90 texts and 21 for dev."""
    folder = tmp_path_factory.mktemp("files")
    return {
        "init": make_init(folder / "init", BERT_CONFIG),
        "train": write_tsv(folder / "train.tsv", opinions(90, seed=1)),
        "dev": write_tsv(folder / "dev.tsv", opinions(21, seed=2)),
    }


def start_workers(files, run, *, program=COMMAND_LINE, **changes):
    path = run.parent / "config.yaml"
    loading.save(SETTINGS.model_copy(update=changes), path)
    addresses = ",".join(free_addresses(2))
    processes = []
    for index in range(2):
        command = [sys.executable, *program, "finetune"]
        for name, value in files.items():
            command += [f"--{name}", str(value)]
        command += ["--config", str(path), "--output_dir", str(run)]
        command += ["--workers", addresses, "--worker_index", str(index)]
        with open(run.parent / f"worker-{index}.log", "wb") as log:
            processes.append(subprocess.Popen(command, stderr=log))
    return processes


def results(run):
    return json.loads((run / "results.json").read_text())


def assert_same_model(ours, theirs, atol):
    ours, theirs = (conversion.read(run).arrays for run in (ours, theirs))
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=atol)


def test_two_workers_equal_one_device(files, tmp_path):
    run = tmp_path / "run"
    options = {"keep": "best", "evaluate_steps": 4, "lengths": (16, 24)}
    assert finish(start_workers(files, run, **options)) == [0, 0], log_of(run, 0)
    finetune.finetune(
        SETTINGS.model_copy(update=options),
        train=files["train"],
        dev=[files["dev"]],
        init=files["init"],
        from_scratch=False,
        output_dir=tmp_path / "one",
        strategy=tf.distribute.OneDeviceStrategy("/cpu:0"),
    )
    assert_same_model(run, tmp_path / "one", atol=1e-6)
    for index in range(2):
        assert "2 devices add up right and train as one does" in log_of(run, index)
    two, one = results(run), results(tmp_path / "one")
    assert two["kept_step"] == one["kept_step"]
    for name in ("accuracy", "f1 of good", "matthews"):
        assert two["eval"][name] == one["eval"][name]
    assert two["eval"]["loss"] == pytest.approx(one["eval"]["loss"], abs=1e-5)
    assert two["train"].keys() == one["train"].keys()
    assert {p.name for p in run.iterdir()} == {
        p.name for p in (tmp_path / "one").iterdir()
    }


def test_two_workers_compare_the_texts_of_both(files, tmp_path):
    header = ("text", "text_pair")
    rows = [(one, f"so {other}") for (one, other) in topical_pairs(42, seed=1)]
    given = {
        "init": files["init"],
        "train": write_tsv(tmp_path / "train.tsv", rows, header),
        "dev": write_tsv(tmp_path / "dev.tsv", rows[:15], header),
    }
    run, options = tmp_path / "run", {"task": "embedding"}
    assert finish(start_workers(given, run, **options)) == [0, 0], log_of(run, 0)
    finetune.finetune(
        SETTINGS.model_copy(update=options),
        train=given["train"],
        dev=[given["dev"]],
        init=given["init"],
        from_scratch=False,
        output_dir=tmp_path / "one",
        strategy=tf.distribute.OneDeviceStrategy("/cpu:0"),
    )
    assert_same_model(run, tmp_path / "one", atol=1e-6)
    two, one = results(run), results(tmp_path / "one")
    assert two["eval"] == pytest.approx(one["eval"], abs=1e-5)


LONG = {"num_train_epochs": 40, "save_checkpoint_steps": 10}


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory):
    """A run of two workers that nothing happened to."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert finish(start_workers(files, run, **LONG)) == [0, 0], log_of(run, 0)
    return run


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_both_end_with_one_and_go_on(files, whole, tmp_path, sent):
    """With the bits of two workers that nothing happened to."""
    run = tmp_path / "run"
    processes = start_workers(files, run, **LONG)
    wait_for_step(run, 20, processes)
    os.kill(processes[1].pid, sent)
    codes, logs = finish(processes), [log_of(run, worker) for worker in range(2)]
    if sent == signal.SIGTERM:
        assert codes == [143, 143], logs[1]
        stops = [log.splitlines()[-1] for log in logs]
        assert stops[0] == stops[1]
        assert "stopped by SIGTERM at step" in stops[0]
    else:
        assert codes == [2, -signal.SIGKILL], logs[0]
        assert "task 1 no longer answers" in logs[0]
    assert not (run / "results.json").exists()
    assert finish(start_workers(files, run, **LONG)) == [0, 0], log_of(run, 0)
    assert "resuming after step" in log_of(run, 0)
    assert_same_model(run, whole, atol=0)


def test_workers_with_other_files(files, tmp_path):
    run = tmp_path / "run"
    second = write_tsv(tmp_path / "second.tsv", opinions(90, seed=3))
    (tmp_path / "train.tsv").write_bytes(files["train"].read_bytes())
    program = (
        "-c",
        "import sys\n"
        "from bert_keras.commands import main as cli\n"
        "if sys.argv[-1] == '1':\n"
        f"    sys.argv[sys.argv.index('--train') + 1] = {str(second)!r}\n"
        "cli.entry_point()\n",
    )
    assert finish(start_workers(files, run, program=program)) == [2, 2]
    for index in range(2):
        assert "the workers differ in 1 things: train_sha256 is" in log_of(run, index)
