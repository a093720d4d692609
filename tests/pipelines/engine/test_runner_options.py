"""Options after `--`."""

import re
import sys

import pytest
from apache_beam.options import pipeline_options

from bert_keras.core.errors import InputError
from bert_keras.pipelines.engine import runner_options

DATAFLOW = {
    **{"--runner": "DataflowRunner", "--project": "my-project-1"},
    **{"--region": "europe-west4", "--temp_location": "gs://bucket/tmp"},
    "--sdk_container_image": "image:1",
}


DOTTED = "apache_beam.runners.render.RenderRunner"


def dataflow(**changes):
    """Arguments for Dataflow, some of them changed or (None) left out."""
    changed = {**DATAFLOW, **{f"--{name}": value for name, value in changes.items()}}
    return [f"{name}={value}" for name, value in changed.items() if value is not None]


@pytest.mark.parametrize(
    ("given", "runner"),
    [
        ([], "FnApiRunner"),
        # Both try to download another runner.
        (["--runner", "DirectRunner"], "FnApiRunner"),
        (["--runner=SwitchingDirectRunner"], "FnApiRunner"),
        (["--runner", "direct"], "FnApiRunner"),
        (["--runner", "bundlebaseddirectrunner"], "BundleBasedDirectRunner"),
        (["--runner", "portable", "--job_endpoint", "embed"], "PortableRunner"),
        (["--runner", "FlinkRunner", "--job_endpoint", "host:8099"], "FlinkRunner"),
        (["--runner", DOTTED], DOTTED),
    ],
)
def test_runners_by_name(given, runner):
    options = runner_options.parse(given)
    assert options.view_as(pipeline_options.StandardOptions).runner == runner


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--runner", "FnApiRuner"], "--runner is one of FnApiRunner, .*did you mea"),
        (["--runner", "DataflwRunner"], "did you mean 'DataflowRunner'"),
        (["--runner", "nowhere.Runner"], "--runner nowhere.Runner: No module named"),
        (["--runner", "apache_beam.Runner"], "has no attribute 'Runner'"),
        (["--runner", "DaskRunner"], "DaskRunner is refused: .* drops .* use one of"),
        (["--runner", "apache_beam.runners.dask.DaskRunner"], "DaskRunner is refused"),
        (["--runer", "x"], "Beam has no option '--runer'; did you mean '--runner'"),
        (["--max_num_workers", "many"], "--max_num_workers: invalid int .*'many'"),
        (["gs://bucket"], "'gs://bucket' belongs to no option of Beam"),
        (["--extra_package", "none.whl"], "none.whl: no such file, to be staged"),
        (["--runner", "PrismRunner"], "--runner is one of FnApiRunner, .*'PrismRun"),
        (["--runner", "PortableRunner"], "PortableRunner needs --job_endpoint HOST"),
        (["--runner", "FlinkRunner"], "FlinkRunner needs --job_endpoint HOST:PORT of"),
        (["--runner", "spark"], "SparkRunner needs --job_endpoint HOST:PORT of a run"),
    ],
)
def test_mistakes(given, message):
    with pytest.raises(InputError, match=message) as raised:
        runner_options.parse(given)
    assert "\n" not in str(raised.value)


def test_workers_are_those_of_this_machine():
    options = runner_options.parse([], num_workers=3)
    direct = options.view_as(pipeline_options.DirectOptions)
    assert direct.direct_num_workers == 3
    assert direct.direct_running_mode == "multi_processing"
    with pytest.raises(InputError, match="--workers must be at least 1, got 0"):
        runner_options.parse([], num_workers=0)
    with pytest.raises(InputError, match="--workers is for FnApiRunner, .* with Bun"):
        runner_options.parse(["--runner", "BundleBasedDirectRunner"], num_workers=2)


def test_main_is_not_pickled_unless_asked_for():
    for argument in ("--no_save_main_session", "--save_main_session", None):
        options = runner_options.parse([argument] if argument else [])
        setup = options.view_as(pipeline_options.SetupOptions)
        assert setup.save_main_session is (argument == "--save_main_session")


def test_the_setup_file_is_absolute(tmp_path, monkeypatch):
    """Beam changes the directory before it opens it."""
    (tmp_path / "setup.py").touch()
    monkeypatch.chdir(tmp_path)
    options = runner_options.parse(["--setup_file", "./setup.py"])
    setup = options.view_as(pipeline_options.SetupOptions)
    assert setup.setup_file == str(tmp_path / "setup.py")


# Dataflow.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"project": None}, "DataflowRunner needs --project after `--`"),
        ({"region": None}, "DataflowRunner needs --region after `--`"),
        ({"project": "123456789"}, "--project expects the id .* got '123456789'"),
        ({"project": "My project"}, "--project expects the id .* got 'My project'"),
        ({"temp_location": None}, "DataflowRunner needs --temp_location gs://BUCKET"),
        ({"temp_location": "/tmp"}, "--temp_location expects gs://.* got '/tmp'"),
        ({"temp_location": "gs://b/tmp"}, "three small letters .* got 'gs://b/tmp'"),
        ({"temp_location": "gs://bucket"}, "--temp_location expects gs://BUCKET/"),
        ({"staging_location": "here"}, "--staging_location expects .* got 'here'"),
        ({"num_workers": 0}, "--num_workers must be at least 1, got 0"),
        ({"number_of_worker_harness_threads": -1}, "_threads must be at least 1, got"),
        ({"sdk_container_image": None}, "need this package; `bert-keras launch data"),
    ],
)
def test_what_dataflow_needs(changes, message):
    pytest.importorskip("google.cloud.dataflow")
    with pytest.raises(InputError, match=message):
        runner_options.parse(dataflow(**changes))


def test_one_location_stands_for_both():
    pytest.importorskip("google.cloud.dataflow")

    t, s = "gs://bucket/t", "gs://bucket/s"
    for temp, staging, used in ((t, None, (t, t)), (None, s, (s, s)), (t, s, (t, s))):
        arguments = dataflow(temp_location=temp, staging_location=staging)
        options = runner_options.parse(arguments)
        cloud = options.view_as(pipeline_options.GoogleCloudOptions)
        assert (cloud.temp_location, cloud.staging_location) == used


def test_google_packages_are_asked_for(monkeypatch):
    """As it is where only the package itself is installed."""
    name = "apache_beam.runners.dataflow.internal.apiclient"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"pip install 'apache-beam\[gcp\]'"):
        runner_options.parse(dataflow())


def test_paths_that_workers_see():
    pytest.importorskip("google.cloud.dataflow")
    options = runner_options.parse(dataflow())
    runner_options.check_paths(options, ["gs://bucket", "gs://bucket/a/*.bz2"])
    for path, what in (
        ("/data/dump.xml", "'/data/dump.xml' is on this machine"),
        ("s3://bucket/x", "'s3://bucket/x' is not on Google Cloud Storage"),
    ):
        with pytest.raises(InputError, match=re.escape(what)):
            runner_options.check_paths(options, ["gs://bucket/a", path])
    runner_options.check_paths(runner_options.parse(), ["/data/dump.xml"])
