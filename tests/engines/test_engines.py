"""The same bytes from every engine that can be had without a cluster."""

import base64
import bz2
import gzip
import os
import random
import shlex
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from apache_beam.internal import pickler
from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners import runner

from bert_keras.commands import main as cli
from bert_keras.core import files
from bert_keras.core.errors import NotRun
from bert_keras.pipelines import dataflow
from bert_keras.pipelines.sources import reading
from tests.engines import programs

LAUNCH = (
    "launch dataflow --project test-project --region test "
    "--temp_location gs://bert-bucket/tmp --"
)


def make_corpus(text: Path | str, output: Path | str) -> str:
    """The command that reads all of `text`."""
    books = " ".join(f"{text}/{name}.txt" for name in ("winter", "spring", "autumn"))
    return (
        f"corpus --wikipedia {text}/dump.xml.bz2 --books {books} "
        f"--jsonl {text}/lines.jsonl --output {output}"
    )


def line(text: Path | str, folder: Path | str) -> list[str]:
    """From raw text to examples: the commands, without options for Beam."""
    corpus, vocab = f"{folder}/corpus", f"{folder}/vocab.txt"
    return [
        make_corpus(text, corpus),
        f"vocab --corpus {corpus} --vocab_size 600 --output {vocab}",
        f"examples --corpus {corpus} --vocab {vocab} --max_seq_length 64 "
        f"--num_shards 3 --set dupe_factor=2 --output {folder}/examples",
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
        assert cli.main(command.split()) == 0
    return folder


@pytest.fixture(scope="session")
def expected(made) -> dict[str, str]:
    found = digests(made)
    kinds = [name.partition("-")[0] for name in found]
    assert kinds.count("corpus/documents") > 1 and kinds.count("examples/examples") > 1
    return found


def check_line(text, folder, expected, options: str) -> None:
    for command in line(text, folder):
        programs.check(f"{command} -- {options}")
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
        words = f"{command} -- --runner keeping.KeepGraph".split()
        assert cli.main(words) == 0
        assert capsys.readouterr().err.endswith(f"bert-keras {words[0]}: kept\n")
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


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_graphs_hold_nothing_of_this_process(stage, text, made, graph_of, tmp_path):
    """All that workers are to run is found by its name in a module."""
    command, _, _ = line(text, made)[stage].rpartition(" ")
    graph = graph_of(f"{command} {tmp_path}/output")
    own = 0
    for pickled, do in functions_of(graph):
        assert b"__main__" not in pickled
        # A class that is pickled by its name comes back as itself.
        assert getattr(sys.modules[type(do).__module__], type(do).__name__) is type(do)
        own += type(do).__module__.startswith("bert_keras.")
    assert own > 1
    assert graph.ByteSize() < 150_000


def test_the_graph_of_a_large_dump_is_small(graph_of, tmp_path, monkeypatch):
    """More than 70 parts, which hold a tenth of all of Wikipedia if they are whole."""
    monkeypatch.setitem(reading.split_input.__kwdefaults__, "max_bytes", 32 << 10)
    dump = tmp_path / "all.jsonl"
    dump.write_text('{"id": "1", "text": "One."}\n')
    os.truncate(dump, 2_500_000)
    graph = graph_of(f"corpus --jsonl {dump} --output {tmp_path}/corpus")
    (item,) = reading.find_inputs({"jsonl": [str(dump)]})
    assert len(reading.split_input(item)) > 70
    assert graph.ByteSize() < 130_000


# Engines.


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "--runner BundleBasedDirectRunner",
        *(
            "--runner FnApiRunner --direct_running_mode multi_processing "
            f"--direct_num_workers={num_workers}"
            for num_workers in (2, 4)
        ),
        "--runner PortableRunner --job_endpoint embed --environment_type=LOOPBACK",
    ],
)
def test_runners_of_this_machine(options, text, tmp_path, expected):
    check_line(text, tmp_path, expected, options)


@pytest.fixture(scope="session")
def elsewhere(job_server, start_worker_pool) -> str:
    """Options for workers that do not have this package."""
    return (
        f"--runner PortableRunner --job_endpoint {job_server} "
        f"--environment_type EXTERNAL --environment_config {start_worker_pool()}"
    )


@pytest.mark.slow
def test_workers_elsewhere_with_a_staged_wheel(text, tmp_path, expected, elsewhere):
    staged = dataflow.write_wheel(tmp_path / "dist")
    check_line(text, tmp_path, expected, f"{elsewhere} --extra_package {staged}")


@pytest.mark.slow
def test_workers_elsewhere_without_the_package(text, tmp_path, elsewhere):
    """What the test above would not notice if these workers saw this checkout."""
    done = programs.run(f"{line(text, tmp_path)[0]} -- {elsewhere}")
    assert done.returncode != 0
    assert "No module named 'bert_keras'" in done.stderr


@pytest.mark.slow
def test_dataflow(text, tmp_path, expected, cloud, monkeypatch):
    """The whole line on `gs://`, by Beam's own Dataflow runner."""
    monkeypatch.chdir(tmp_path)
    for command in line(cloud.upload(text, "text"), "gs://bert-bucket/made"):
        done = programs.run(
            f"{LAUNCH} {command} -- --dataflow_endpoint {cloud.dataflow_endpoint}",
            cloud.environment,
        )
        assert done.returncode == 0, done.stderr
        page = "runs as https://console.cloud.google.com/dataflow/jobs/test/job-"
        assert any(said.startswith(page) for said in done.stderr.splitlines())
        (printed,) = done.stdout.splitlines()
        assert printed.startswith(f"bert-keras {command.split()[0]} ")
    assert digests(cloud.bucket / "made") == expected
    for kind in ("corpus", "examples"):
        assert (cloud.bucket / "made" / kind / "manifest.json").is_file()


def corpus_digests(found: dict[str, str]) -> dict[str, str]:
    return {name: found[name] for name in found if name.startswith("corpus/")}


@pytest.mark.slow
def test_a_driver_that_is_gone(text, tmp_path, expected, cloud, monkeypatch):
    """Its job ends without it; the same command finds what it has made."""
    monkeypatch.chdir(tmp_path)
    corpus = make_corpus(cloud.upload(text, "text"), "gs://bert-bucket/gone/corpus")
    name = dataflow.job_name("corpus", corpus.split())
    command = f"{LAUNCH} {corpus} -- --dataflow_endpoint {cloud.dataflow_endpoint}"
    cloud.hold.touch()
    with programs.start(command, cloud.environment) as driver:
        programs.wait_until(lambda: cloud.jobs(name))
        driver.kill()
    done = programs.run(command, cloud.environment)
    assert done.returncode == 2
    assert f"already active job named {name}" in done.stderr
    assert "wait for its end, then run this command again\n" in done.stderr
    cloud.hold.unlink()
    programs.wait_until(lambda: cloud.is_done(name))
    programs.check(command, cloud.environment)
    assert len(cloud.jobs(name)) == 1
    found = digests(cloud.bucket / "gone", kinds=("corpus",))
    assert found == corpus_digests(expected)


@pytest.mark.slow
def test_a_template(text, tmp_path, expected, cloud):
    """A job that is started from a written template; then the manifest."""
    output = cloud.bucket / "template/corpus"
    command = make_corpus(
        cloud.upload(text, "text"), "gs://bert-bucket/template/corpus"
    )
    said = programs.check(
        f"{command} -- --runner DataflowRunner --project test-project --region test "
        "--temp_location gs://bert-bucket/tmp --job_name from-template "
        f"--dataflow_endpoint {cloud.dataflow_endpoint} "
        f"--extra_package {dataflow.write_wheel(tmp_path)} "
        "--template_location gs://bert-bucket/templates/corpus.json",
        cloud.environment,
    )
    assert "templates/corpus.json is written; when a job started" in said
    assert not cloud.jobs("from-template")
    cloud.send((cloud.bucket / "templates/corpus.json").read_bytes())
    programs.wait_until(lambda: cloud.is_done("from-template"))
    assert not (output / "manifest.json").exists()
    programs.check(f"{command} -- --runner FnApiRunner", cloud.environment)
    assert (output / "manifest.json").exists()
    found = digests(output.parent, kinds=("corpus",))
    assert found == corpus_digests(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "output", "message"),
    [
        (
            *("gs://none-there/*.jsonl", "bert-bucket"),
            "gs://none-there/*.jsonl: cannot be read: No such file or bucket",
        ),
        (
            *("gs://bert-bucket/x.jsonl", "bert-bucket"),
            "no file matches 'gs://bert-bucket/x.jsonl'",
        ),
        (
            *("gs://bert-bucket/text/lines.jsonl", "none-there"),
            "gs://none-there/a: cannot be written: No such file or bucket",
        ),
    ],
)
def test_mistakes_on_cloud_storage(source, output, message, text, cloud):
    cloud.upload(text, "text")
    command = f"corpus --jsonl '{source}' --output gs://{output}/a"
    done = programs.run(command, cloud.environment)
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
    done = programs.run(
        f"{LAUNCH} corpus --wikipedia {dump} --output gs://bert-bucket/bad/corpus "
        f"-- --dataflow_endpoint {cloud.dataflow_endpoint}",
        cloud.environment,
    )
    assert done.returncode == 2, done.stderr
    # Before it stands what Beam logs of the service's messages.
    error = done.stderr.splitlines()[-1]
    assert error.startswith("bert-keras launch: error: ") and dump in error


def test_dataflow_reads_no_local_file(text, tmp_path, monkeypatch, capsys):
    pytest.importorskip("google.cloud.dataflow")
    monkeypatch.chdir(tmp_path)
    for command, path in (
        (make_corpus(text, "gs://bucket/c"), text),
        (make_corpus("gs://bucket", "c"), "c"),
        ("vocab --corpus c --output gs://bucket/vocab.txt", "c"),
        ("vocab --corpus gs://bucket/c --output vocab.txt", "vocab.txt"),
        ("examples --corpus c --vocab v.txt --output gs://bucket/e", "c"),
    ):
        assert cli.main(shlex.split(f"{LAUNCH} {command}")) == 2
        error = capsys.readouterr().err
        assert f"expected a path gs://BUCKET/..., but '{path}" in error
    assert os.listdir(tmp_path) == ["dist"]
