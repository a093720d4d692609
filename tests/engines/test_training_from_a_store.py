"""Examples on `gs://` are trained on where they are."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_keras import run_directory

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def store(cloud, start, tmp_path_factory):
    """Environment of a process whose TensorFlow reads the bucket; its log."""
    folder = tmp_path_factory.mktemp("tls")
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    names = "subjectAltName=DNS:storage.googleapis.com,DNS:www.googleapis.com"
    if not shutil.which("openssl"):
        pytest.skip("needs openssl, which makes the store's certificate")
    subprocess.run(
        [
            *make,
            "-subj",
            "/CN=store",
            "-addext",
            names,
            "-keyout",
            "key",
            "-out",
            "crt",
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    command = [sys.executable, HERE / "tls_store.py", "PORT", cloud.bucket.parent]
    port = start([*command, folder / "crt", folder / "key", folder / "log"])
    environment = {
        **cloud.environment,
        "https_proxy": f"http://localhost:{port}",
        "no_proxy": "localhost",
        "CURL_CA_BUNDLE": str(folder / "crt"),
        "NO_GCE_CHECK": "true",
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
        "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "1000",
    }
    return environment, folder / "log"


@pytest.mark.slow
def test_examples_are_read_in_place(
    store, cloud, tiny_examples, pretrained_run, tmp_path
):
    """The same bits as from disk, through failures; no shard is copied to the disk."""
    environment, log = store
    command = [sys.executable, "-m", "bert_keras.cli", "pretrain", "--strategy", "cpu"]
    command += ["--config", pretrained_run / "config.yaml"]
    command += ["--examples", cloud.upload(tiny_examples, "examples")]
    done = subprocess.run(
        [*command, "--output_dir", tmp_path / "run"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "checking sizes of 3 shards of gs://bert-bucket/examples" in done.stderr
    found, wanted = (
        np.load(run / "checkpoints/step-0000000012.npz")
        for run in (tmp_path / "run", pretrained_run)
    )
    assert found.files == wanted.files
    for name in wanted.files:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)
    assert not run_directory.read_verified(tmp_path / "run")
    read = {line.split("?")[0].split()[0] for line in log.read_text().splitlines()}
    shards = {f"/bert-bucket/examples/{p.name}" for p in tiny_examples.glob("*.tfrec*")}
    assert {path.replace("%2F", "/") for path in read} == shards
