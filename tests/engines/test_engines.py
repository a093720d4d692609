"""The same bytes from every engine that can be had without a cluster."""

import base64
import bz2
import gzip
import os
import random
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from apache_beam.internal import pickler
from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners import runner

from bert_keras.commands import main as cli
from bert_keras.core import files
from bert_keras.core.errors import NotRun
from bert_keras.pipelines.dataflow import wheel
from bert_keras.pipelines.dataflow.launch import job_name
from bert_keras.pipelines.sources import reading

SETTINGS = ["--max_seq_length", "64", "--num_shards", "3", "--set", "dupe_factor=2"]
TIMEOUT_SECONDS = 200
RUNNING = "JOB_STATE_RUNNING"


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


def digests(
    folder: Path | str, kinds: Sequence[str] = ("corpus", "examples")
) -> dict[str, str]:
    """sha256 of every file that stays: shards, vocabularies, rejects.

    But for the corpus's `inputs.json`: the same input is known by its time on a disk,
    and by its checksum on `gs://`.
    """
    found = {}
    if "examples" in kinds:
        found["vocab.txt"] = files.sha256(files.join(folder, "vocab.txt"))
    for kind in kinds:
        directory = files.join(folder, kind)
        for name in files.list_directory(directory):
            is_of_place = (kind, name) == ("corpus", "inputs.json")
            if name != "manifest.json" and name[0] != "." and not is_of_place:
                found[f"{kind}/{name}"] = files.sha256(files.join(directory, name))
    return found


@pytest.fixture(scope="session")
def made(text, tmp_path_factory) -> Path:
    """What this machine makes, in passes."""
    folder = tmp_path_factory.mktemp("made")
    for command in line(text, folder):
        assert cli.main(command) == 0
    return folder


@pytest.fixture(scope="session")
def expected(made) -> dict[str, str]:
    found = digests(made)
    kinds = [name.partition("-")[0] for name in found]
    assert kinds.count("corpus/documents") > 1 and kinds.count("examples/examples") > 1
    return found


def run(command: Sequence[str], **environment: str) -> subprocess.CompletedProcess:
    """Runs `bert-keras` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "bert_keras.commands.main", *command],
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


# The graph that a runner is given.


class KeepGraph(runner.PipelineRunner):
    """Keeps a job's graph and does not run it."""

    kept: beam_runner_api_pb2.Pipeline

    def run_pipeline(self, pipeline, options):
        type(self).kept = pipeline.to_runner_api()
        raise NotRun("kept")


@pytest.fixture
def graph_of(monkeypatch, capsys):
    """A function: the graph of the job of a command line."""
    module = types.ModuleType("keeping")
    module.KeepGraph = KeepGraph
    monkeypatch.setitem(sys.modules, "keeping", module)

    def graph_of(command):
        assert cli.main([*command, "--", "--runner", "keeping.KeepGraph"]) == 0
        assert capsys.readouterr().err.endswith(f"bert-keras {command[0]}: kept\n")
        return KeepGraph.kept

    return graph_of


def functions_of(graph) -> Iterator[tuple[bytes, object]]:
    """What workers will unpickle: its bytes, and the `DoFn` that they make."""
    for transform in graph.components.transforms.values():
        if transform.spec.urn == common_urns.primitives.PAR_DO.urn:
            payload = beam_runner_api_pb2.ParDoPayload
            do = payload.FromString(transform.spec.payload).do_fn
            if do.urn == python_urns.PICKLED_DOFN_INFO:
                pickled = bz2.decompress(base64.b64decode(do.payload))
                yield pickled, pickler.loads(do.payload)[0]


def check_graph(graph) -> None:
    """All that workers are to run is found by its name in a module."""
    own = 0
    for pickled, do in functions_of(graph):
        assert b"__main__" not in pickled
        # A class that is pickled by its name comes back as itself.
        assert getattr(sys.modules[type(do).__module__], type(do).__name__) is type(do)
        own += type(do).__module__.startswith("bert_keras.")
    assert own > 1


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_graphs_hold_nothing_of_this_process(stage, text, made, graph_of, tmp_path):
    command = line(text, made)[stage]
    output = [*command[:-1], str(tmp_path / "output")]
    assert command[-2] == "--output"
    graph = graph_of(output)
    check_graph(graph)
    assert graph.ByteSize() < 150_000


def test_the_graph_of_a_large_dump_is_small(graph_of, tmp_path):
    """2.5 GB in more than 70 parts, a tenth of all of Wikipedia."""
    dump = tmp_path / "all.jsonl"
    dump.write_text('{"id": "1", "text": "One."}\n')
    os.truncate(dump, 2_500_000_000)
    graph = graph_of(
        ["corpus", "--jsonl", str(dump), "--output", str(tmp_path / "corpus")]
    )
    (item,) = reading.find_inputs({"jsonl": [str(dump)]})
    assert len(reading.split_input(item)) > 70
    assert graph.ByteSize() < 130_000


# Engines.


@pytest.mark.slow
def test_bundle_based_runner(text, tmp_path, expected):
    check_line(text, tmp_path, expected, "--runner", "BundleBasedDirectRunner")


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [2, 4])
def test_worker_processes(num_workers, text, tmp_path, expected):
    options = ["--runner", "FnApiRunner", "--direct_running_mode", "multi_processing"]
    workers = f"--direct_num_workers={num_workers}"
    check_line(text, tmp_path, expected, *options, workers)


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
    assert "No module named 'bert_keras'" in done.stderr


def launch() -> list[str]:
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
        done = run([*launch(), *command, *endpoint], **cloud.environment)
        assert done.returncode == 0, done.stderr
        assert "\nruns as https://console.cloud.google.com/dataflow/jobs/test/job-" in (
            f"\n{done.stderr}"
        )
        (printed,) = done.stdout.splitlines()
        assert printed.startswith(f"bert-keras {command[0]} ")
    assert digests(cloud.bucket / "made") == expected
    for kind in ("corpus", "examples"):
        assert (cloud.bucket / "made" / kind / "manifest.json").is_file()


def corpus_digests(found: dict[str, str]) -> dict[str, str]:
    return {name: found[name] for name in found if name.startswith("corpus/")}


def wait_for(condition: Callable[[], object]) -> None:
    for _ in range(TIMEOUT_SECONDS * 5):
        if condition():
            return
        time.sleep(0.2)
    raise TimeoutError


@pytest.mark.slow
def test_a_driver_that_is_gone(text, tmp_path, expected, cloud, monkeypatch):
    """Its job ends without it; the same command finds what it has made."""
    monkeypatch.chdir(tmp_path)
    output = "gs://bert-bucket/gone/corpus"
    command = ["corpus", *sources(cloud.upload(text, "text")), "--output", output]
    name = job_name("corpus", command)
    command = [*launch(), *command]
    command += ["--", "--dataflow_endpoint", cloud.dataflow_endpoint]
    cloud.hold.touch()
    with subprocess.Popen(
        [sys.executable, "-m", "bert_keras.commands.main", *command],
        env={**os.environ, **cloud.environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as driver:
        wait_for(lambda: cloud.jobs(name))
        driver.kill()
    done = run(command, **cloud.environment)
    assert done.returncode == 2
    assert f"already active job named {name}" in done.stderr
    assert "wait for its end, then run this command again\n" in done.stderr
    cloud.hold.unlink()
    wait_for(lambda: cloud.jobs(name)[0]["currentState"] != RUNNING)
    done = run(command, **cloud.environment)
    assert done.returncode == 0, done.stderr
    assert len(cloud.jobs(name)) == 1
    found = digests(cloud.bucket / "gone", kinds=("corpus",))
    assert found == corpus_digests(expected)


@pytest.mark.slow
def test_a_template(text, tmp_path, expected, cloud):
    """A job that is started from a written template; then the manifest."""
    output = cloud.bucket / "template/corpus"
    arguments = [*sources(cloud.upload(text, "text")), "--output"]
    arguments += ["gs://bert-bucket/template/corpus"]
    options = {
        **{"runner": "DataflowRunner", "project": "test-project", "region": "test"},
        **{"temp_location": "gs://bert-bucket/tmp", "job_name": "from-template"},
        "dataflow_endpoint": cloud.dataflow_endpoint,
        "extra_package": wheel.write_wheel(tmp_path),
        "template_location": "gs://bert-bucket/templates/corpus.json",
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    done = run(["corpus", *arguments, "--", *words], **cloud.environment)
    assert done.returncode == 0, done.stderr
    assert "templates/corpus.json is written; when a job started" in done.stderr
    assert not cloud.jobs("from-template")
    cloud.send((cloud.bucket / "templates/corpus.json").read_bytes())
    wait_for(lambda: cloud.jobs("from-template")[0]["currentState"] != RUNNING)
    assert not (output / "manifest.json").exists()
    command = ["corpus", *arguments, "--", "--runner", "FnApiRunner"]
    done = run(command, **cloud.environment)
    assert done.returncode == 0, done.stderr
    assert (output / "manifest.json").exists()
    found = digests(output.parent, kinds=("corpus",))
    assert found == corpus_digests(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "output", "message"),
    [
        (
            "gs://none-there/*.jsonl",
            "gs://bert-bucket/a",
            "no file matches 'gs://none-",
        ),
        (
            "gs://bert-bucket/x.jsonl",
            "gs://bert-bucket/a",
            "no file matches 'gs://bert",
        ),
        (
            "gs://bert-bucket/text/lines.jsonl",
            "gs://none-there/a",
            "gs://none-there/a: cannot be written: No such file or bucket",
        ),
    ],
)
def test_mistakes_on_cloud_storage(source, output, message, text, cloud):
    cloud.upload(text, "text")
    command = ["corpus", "--jsonl", source, "--output", output]
    done = run(command, **cloud.environment)
    assert (done.returncode, done.stdout) == (2, "")
    (error,) = done.stderr.splitlines()
    assert error.startswith("bert-keras corpus: error: ") and message in error


@pytest.mark.slow
def test_a_mistake_that_only_workers_see(text, tmp_path, cloud, monkeypatch):
    monkeypatch.chdir(tmp_path)
    articles = bz2.decompress((text / "dump.xml.bz2").read_bytes())
    noise = random.Random(0).randbytes(1_000_000).hex().encode()
    (tmp_path / "bad").mkdir()
    whole = gzip.compress(articles.replace(b"</mediawiki>", noise))
    (tmp_path / "bad/cut.xml.gz").write_bytes(whole[:-1000])
    dump = cloud.upload(tmp_path / "bad", "bad") + "/cut.xml.gz"
    command = ["corpus", "--wikipedia", dump, "--output", "gs://bert-bucket/bad/corpus"]
    command += ["--", "--dataflow_endpoint", cloud.dataflow_endpoint]
    done = run([*launch(), *command], **cloud.environment)
    assert done.returncode == 2, done.stderr
    # Before it stands what Beam logs of the service's messages.
    error = done.stderr.splitlines()[-1]
    assert error.startswith("bert-keras launch: error: ") and dump in error


def test_dataflow_reads_no_local_file(text, tmp_path, monkeypatch, capsys):
    pytest.importorskip("google.cloud.dataflow")
    monkeypatch.chdir(tmp_path)
    for command, path in (
        (["corpus", *sources(text), "--output", "gs://bucket/c"], text),
        (["corpus", *sources("gs://bucket"), "--output", "c"], "c"),
        (["vocab", "--corpus", "c", "--output", "gs://bucket/vocab.txt"], "c"),
        (["vocab", "--corpus", "gs://bucket/c", "--output", "vocab.txt"], "vocab.txt"),
        (
            [
                *("examples", "--corpus", "c", "--vocab", "v.txt"),
                *("--output", "gs://bucket/e"),
            ],
            "c",
        ),
    ):
        assert cli.main([*launch(), *command]) == 2
        error = capsys.readouterr().err
        assert f"expected a path gs://BUCKET/..., but '{path}" in error
    assert os.listdir(tmp_path) == ["dist"]
