"""Two worker processes whose examples and run directory are on a store that fails."""

import contextlib
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.engines import programs

OUTAGE_SECONDS = 20
"""TensorFlow alone would give up after one, for the tests shorten its pauses."""


def free_addresses() -> str:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return ",".join(f"127.0.0.1:{s.getsockname()[1]}" for s in sockets)


@contextlib.contextmanager
def workers(run, config, examples, environment, logs: Path):
    """Two workers that train, and end well; a function that checks that both go on."""
    # Else they would speak to each other by way of the store's proxy.
    environment = {**environment, "no_proxy": "localhost,127.0.0.1"}
    addresses, processes = free_addresses(), []

    def said() -> str:
        return "\n".join(path.read_text() for path in sorted(logs.glob("worker-*.log")))

    def check_running() -> None:
        assert all(process.poll() is None for process in processes), said()

    try:
        for index in range(2):
            command = [*programs.COMMAND, "pretrain", "--config", config]
            command += ["--set", "num_train_steps=400"]
            command += ["--set", "save_checkpoint_steps=100", "--examples", examples]
            command += ["--workers", addresses, "--worker_index", str(index)]
            command += ["--output_dir", run]
            with open(logs / f"worker-{index}.log", "wb") as log:
                process = subprocess.Popen(
                    command, env={**os.environ, **environment}, stderr=log
                )
            processes.append(process)
        yield check_running
        codes = [process.wait(timeout=400) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert codes == [0, 0], said()


@pytest.mark.slow
def test_an_outage_while_two_workers_train(
    store_front, cloud, tiny_examples, pretrained_run, tmp_path
):
    """Both go on, and end with the bits of two workers on a disk."""
    config = pretrained_run / "config.yaml"
    examples = cloud.upload(tiny_examples, "shared/examples")
    run, disk = cloud.bucket / "shared/run", tmp_path / "disk"
    store_front.fail(11, *programs.FAULTS)
    on_a_store = ("gs://bert-bucket/shared/run", config, examples, store_front.training)
    with workers(*on_a_store, tmp_path) as check_running:
        while not (run / "checkpoints/step-0000000100.safetensors").exists():
            check_running()
            time.sleep(0.01)
        store_front.fail(1, "down")
        time.sleep(OUTAGE_SECONDS)
        check_running()
        store_front.fail(0)
    with workers(disk, config, tiny_examples, {}, tmp_path):
        pass
    for step in (300, 400):
        name = f"checkpoints/step-{step:010}.safetensors"
        programs.assert_same_arrays(run / name, disk / name)
