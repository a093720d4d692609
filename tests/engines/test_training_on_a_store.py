"""Training whose examples and run directory are on `gs://`."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.parse

import numpy as np
import pytest

COMMAND = [sys.executable, "-m", "bert_keras.commands.main"]


def run(*arguments, environment, returncode=0) -> str:
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == returncode, done.stderr
    return done.stderr


@pytest.mark.slow
def test_a_run_on_a_store(store_front, cloud, tiny_examples, pretrained_run, tmp_path):
    """The same bits as on disk, through faults; no shard is copied to the disk."""
    store_front.fail(6, "503", "429", "cut", "slow")
    run_dir = "gs://bert-bucket/runs/one"
    arguments = ["pretrain", "--strategy", "cpu"]
    arguments += ["--config", pretrained_run / "config.yaml"]
    arguments += ["--examples", cloud.upload(tiny_examples, "examples")]
    arguments += ["--output_dir", run_dir]
    said = run(*arguments, environment=store_front.training)
    assert "checking sizes of 3 shards of gs://bert-bucket/examples" in said
    written = cloud.bucket / "runs/one"
    found, wanted = (
        np.load(directory / "checkpoints/step-0000000012.npz")
        for directory in (written, pretrained_run)
    )
    assert found.files == wanted.files
    for name in wanted.files:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)
    assert names_below(written) == names_below(pretrained_run)
    shards = {p.name for p in tiny_examples.glob("*.tfrec*")}
    read = {
        urllib.parse.unquote(line.split()[1].split("?")[0]).rpartition("/")[2]
        for line in store_front.requests()
        if line.startswith("GET /bert-bucket/")
    }
    assert shards <= read
    assert not os.path.exists("gs:")
    said = run(*arguments, environment=store_front.training)
    assert f"{run_dir}: finished already, at step 12" in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["down", "silent"])
def test_sigterm_while_tensorflow_reads_from_a_store_that_does_not_answer(
    kind, store_front, cloud, tiny_examples, pretrained_run, tmp_path
):
    """Its retries go on for minutes, in which Python's handler is not called."""
    examples = cloud.upload(tiny_examples, "examples")
    command = [*COMMAND, "pretrain", "--strategy", "cpu", "--examples", examples]
    command += ["--config", pretrained_run / "config.yaml", "--output_dir", tmp_path]
    command += ["--set", "num_train_steps=100000"]
    environment = {**os.environ, **store_front.training}
    with subprocess.Popen(
        [*map(str, command)], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while not (tmp_path / "checkpoints/step-0000000020.npz").exists():
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.1)
            store_front.fail(1, kind)
            time.sleep(5)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=30)
        finally:
            store_front.fail(0)
            process.kill()
    assert process.returncode == 143, said
    *_, last = said.splitlines()
    assert re.match("bert-keras.*: stopped by SIGTERM.*; give the same command", last)


def names_below(directory) -> set[str]:
    """Names of files, those of events without time and process."""
    names = (p.relative_to(directory).as_posix() for p in directory.rglob("*"))
    return {
        name.partition(".tfevents.")[0]
        for name in names
        if "profile" not in name and (directory / name).is_file()
    }
