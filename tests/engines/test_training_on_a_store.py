"""Training whose examples and run directory are on `gs://`."""

import re
import signal
import time
import urllib.parse
from pathlib import Path

import pytest

from tests.engines import programs


@pytest.mark.slow
def test_a_run_on_a_store(store_front, cloud, tiny_examples, pretrained_run):
    """The same bits as on disk, through faults; no shard is copied to the disk."""
    store_front.fail(6, *programs.FAULTS)
    run_dir = "gs://bert-bucket/runs/one"
    command = (
        f"pretrain --strategy cpu --config {pretrained_run}/config.yaml "
        f"--examples {cloud.upload(tiny_examples, 'examples')} --output_dir {run_dir}"
    )
    said = programs.check(command, store_front.training)
    assert "checking sizes of 3 shards of gs://bert-bucket/examples" in said
    written = cloud.bucket / "runs/one"
    name = "checkpoints/step-0000000012.safetensors"
    programs.assert_same_arrays(written / name, pretrained_run / name)
    assert programs.names_below(written) == programs.names_below(pretrained_run)
    shards = {p.name for p in tiny_examples.glob("*.tfrec*")}
    read = {
        urllib.parse.unquote(line.split()[1].split("?")[0]).rpartition("/")[2]
        for line in store_front.requests()
        if line.startswith("GET /bert-bucket/")
    }
    assert shards <= read
    assert not Path("gs:").exists()
    said = programs.check(command, store_front.training)
    assert f"{run_dir}: finished already, at step 12" in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["down", "silent"])
def test_sigterm_while_tensorflow_reads_from_a_store_that_does_not_answer(
    kind, store_front, cloud, tiny_examples, pretrained_run, tmp_path
):
    """Its retries go on for minutes, in which Python's handler is not called."""
    command = (
        f"pretrain --strategy cpu --config {pretrained_run}/config.yaml "
        f"--examples {cloud.upload(tiny_examples, 'examples')} "
        f"--set num_train_steps=100000 --output_dir {tmp_path}"
    )
    with programs.start(command, store_front.training) as process:
        try:
            programs.wait_for(
                process, tmp_path / "checkpoints/step-0000000020.safetensors"
            )
            store_front.fail(1, kind)
            time.sleep(5)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=30)
        finally:
            store_front.fail(0)
            process.kill()
    assert process.returncode == 143, said
    *_, last = said.splitlines()
    assert re.match("bert-keras.*: stopped by SIGTERM.*; run the same command", last)
