"""Two worker processes whose examples and run directory are on a store that fails."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

COMMAND = [sys.executable, "-m", "bert_keras.commands.main", "pretrain"]
LONG = ["--set", "num_train_steps=400", "--set", "save_checkpoint_steps=100"]
OUTAGE_SECONDS = 20
"""TensorFlow alone would give up after one, for the tests shorten its pauses."""


def free_addresses() -> str:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return ",".join(f"127.0.0.1:{s.getsockname()[1]}" for s in sockets)


def start_workers(run, config, examples, environment, logs: Path):
    # Else they would speak to each other by way of the store's proxy.
    environment = {**environment, "no_proxy": "localhost,127.0.0.1"}
    addresses, processes = free_addresses(), []
    for index in range(2):
        command = [*COMMAND, *LONG, "--config", config, "--examples", examples]
        command += ["--workers", addresses, "--worker_index", str(index)]
        command += ["--output_dir", run]
        with open(logs / f"worker-{index}.log", "wb") as log:
            process = subprocess.Popen(
                command, env={**os.environ, **environment}, stderr=log
            )
        processes.append(process)
    return processes


def finish(processes, logs):
    try:
        codes = [process.wait(timeout=400) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert codes == [0, 0], "\n".join(said(logs))


def said(logs: Path) -> list[str]:
    return [(logs / f"worker-{index}.log").read_text() for index in range(2)]


def check_running(processes, logs: Path) -> None:
    """That both go on; else what they said."""
    if any(process.poll() is not None for process in processes):
        for process in processes:
            process.kill()
            process.wait()
        pytest.fail("\n".join(said(logs)))


@pytest.mark.slow
def test_an_outage_while_two_workers_train(
    store_front, cloud, tiny_examples, pretrained_run, tmp_path
):
    """Both go on, and end with the bits of two workers on a disk."""
    config = pretrained_run / "config.yaml"
    examples = cloud.upload(tiny_examples, "shared/examples")
    run = cloud.bucket / "shared/run"
    store_front.fail(11, "503", "429", "cut", "slow")
    processes = start_workers(
        "gs://bert-bucket/shared/run", config, examples, store_front.training, tmp_path
    )
    while not (run / "checkpoints/step-0000000100.npz").exists():
        check_running(processes, tmp_path)
        time.sleep(0.01)
    store_front.fail(1, "down")
    time.sleep(OUTAGE_SECONDS)
    check_running(processes, tmp_path)
    store_front.fail(0)
    finish(processes, tmp_path)
    disk = tmp_path / "disk"
    finish(start_workers(disk, config, tiny_examples, {}, tmp_path), tmp_path)
    for step in (300, 400):
        name = f"checkpoints/step-{step:010}.npz"
        found, wanted = (np.load(root / name) for root in (run, disk))
        assert found.files == wanted.files
        for array in found.files:
            np.testing.assert_array_equal(found[array], wanted[array], err_msg=array)
