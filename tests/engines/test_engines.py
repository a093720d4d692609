"""The same bytes from every engine that can be had without a cluster."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bert_keras import cli, files
from tpu import wheel

SETTINGS = ["--max_seq_length", "64", "--num_shards", "3", "--set", "dupe_factor=2"]
TIMEOUT_SECONDS = 300


def sources(text: Path | str) -> list[str]:
    books = [files.join(text, f"{name}.txt") for name in ("winter", "spring", "autumn")]
    dump, lines = files.join(text, "dump.xml.bz2"), files.join(text, "lines.jsonl")
    return ["--wikipedia", dump, "--books", *books, "--jsonl", lines]


def line(text: Path | str, folder: Path | str) -> list[list[str]]:
    """From raw text to examples: the commands, without options for Beam."""
    corpus, vocab = files.join(folder, "corpus"), files.join(folder, "vocab.txt")
    return [
        ["corpus", *sources(text), "--output", corpus],
        ["vocab", "--corpus", corpus, "--vocab_size", "600", "--output", vocab],
        [
            *("examples", "--corpus", corpus, "--vocab", vocab, *SETTINGS),
            *("--output", files.join(folder, "examples")),
        ],
    ]


def digests(folder: Path | str) -> dict[str, str]:
    """sha256 of every file that stays: shards, vocabularies, rejects."""
    found = {"vocab.txt": files.sha256(files.join(folder, "vocab.txt"))}
    for kind in ("corpus", "examples"):
        directory = files.join(folder, kind)
        for name in files.list_directory(directory):
            if name != "manifest.json" and not name.startswith("."):
                found[f"{kind}/{name}"] = files.sha256(files.join(directory, name))
    return found


@pytest.fixture(scope="session")
def expected(text, tmp_path_factory) -> dict[str, str]:
    """What one process of this machine makes."""
    folder = tmp_path_factory.mktemp("expected")
    for command in line(text, folder):
        assert cli.main(command) == 0
    found = digests(folder)
    kinds = [name.partition("-")[0] for name in found]
    assert kinds.count("corpus/documents") >= 2 and kinds.count("examples/examples") > 1
    return found


def run(command: Sequence[str], **environment: str) -> subprocess.CompletedProcess:
    """Runs `bert-keras` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "bert_keras.cli", *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )


def check_line(text, folder, expected, *options: str) -> None:
    for command in line(text, folder):
        done = run([*command, "--", *options])
        assert done.returncode == 0, done.stderr
    assert digests(folder) == expected


def test_bundle_based_runner(text, tmp_path, expected):
    check_line(text, tmp_path, expected, "--runner", "BundleBasedDirectRunner")


@pytest.mark.slow
def test_portable_runner_with_loopback(text, tmp_path, expected):
    options = "--runner PortableRunner --job_endpoint embed"
    check_line(
        text, tmp_path, expected, *options.split(), "--environment_type=LOOPBACK"
    )


@pytest.fixture(scope="session")
def elsewhere(job_server, start_worker_pool) -> list[str]:
    """Options for workers that do not have this package."""
    return [
        *("--runner", "PortableRunner", "--job_endpoint", job_server),
        *("--environment_type", "EXTERNAL"),
        *("--environment_config", start_worker_pool()),
    ]


@pytest.mark.slow
def test_workers_elsewhere_with_a_staged_wheel(text, tmp_path, expected, elsewhere):
    staged = wheel.write_wheel(tmp_path / "dist")
    check_line(text, tmp_path, expected, *elsewhere, "--extra_package", staged)


@pytest.mark.slow
def test_workers_elsewhere_without_the_package(text, tmp_path, elsewhere):
    """What the test above would not notice if these workers saw this checkout."""
    done = run([*line(text, tmp_path)[0], "--", *elsewhere])
    assert done.returncode != 0
    assert "No module named 'pipelines'" in done.stderr


def launch(cloud) -> list[str]:
    return [
        *("launch", "dataflow", "--project", "test-project", "--region", "test"),
        *("--temp_location", "gs://bert-bucket/tmp", "--"),
    ]


@pytest.mark.slow
def test_dataflow(text, tmp_path, expected, cloud, monkeypatch):
    """The whole line on `gs://`, by Beam's own Dataflow runner."""
    monkeypatch.chdir(tmp_path)
    endpoint = ["--", "--dataflow_endpoint", cloud.dataflow_endpoint]
    uploaded = cloud.upload(text, "text")
    for command in line(uploaded, "gs://bert-bucket/made"):
        done = run([*launch(cloud), *command, *endpoint], **cloud.environment)
        assert done.returncode == 0, done.stderr
        (printed,) = done.stdout.splitlines()
        assert printed.startswith(f"bert-keras {command[0]} ")
    assert digests(cloud.bucket / "made") == expected
    for kind in ("corpus", "examples"):
        assert (cloud.bucket / "made" / kind / "manifest.json").is_file()
