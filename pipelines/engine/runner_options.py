"""Beam's own options, those after `--`, checked before anything runs.

Beam ignores an option that it does not know, and notices most of what a runner lacks
only after the job has been built, or never. Here it is refused first, in one line.
"""

import argparse
import importlib
import os
import re
from collections.abc import Iterable, Sequence

from apache_beam.options import pipeline_options

from bert_keras.core import files
from bert_keras.core.errors import InputError, nearest

DEFAULT_RUNNER = "FnApiRunner"

RUNNERS = (
    "FnApiRunner",
    "BundleBasedDirectRunner",
    "PortableRunner",
    "DataflowRunner",
    "FlinkRunner",
    "SparkRunner",
)
"""Names; any other runner can be given by the dotted path of its class."""

ELSEWHERE = ("DataflowRunner", "FlinkRunner", "SparkRunner")
"""Runners whose workers are on other machines, where progress cannot be seen."""

_SWITCHES = ("DirectRunner", "SwitchingDirectRunner")
_BUCKET = re.compile(r"gs://[a-z0-9][-_.a-z0-9]{1,}[a-z0-9]/")
_PROJECT = re.compile(r"([a-z][-a-z0-9.]*:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")
_NO_DASK = (
    "DaskRunner is refused: it runs only one end of a pipeline's graph and drops what "
    "goes to the others, without an error, so files would be missing; use one of "
    + ", ".join(RUNNERS)
)


def parse(
    arguments: Sequence[str] = (), *, num_workers: int = 1
) -> pipeline_options.PipelineOptions:
    """Parses the options after `--`.

    The default runner is `FnApiRunner`, and `DirectRunner` means the same: since Beam
    2.68 it is a switch that first tries to download another runner.

    Args:
        arguments: Beam's own options.
        num_workers: local worker processes; 1 = inside this process.

    Raises:
        InputError: an option or runner that Beam does not know, a runner that lacks
            something, no worker.
    """
    if num_workers < 1:
        raise InputError(f"--workers must be at least 1, got {num_workers}")
    _check_known(arguments)
    options = pipeline_options.PipelineOptions(list(arguments))
    standard = options.view_as(pipeline_options.StandardOptions)
    standard.runner = _runner_name(standard.runner)
    setup = options.view_as(pipeline_options.SetupOptions)
    if setup.save_main_session is None:
        # On Dataflow, Beam would otherwise pickle all of `__main__`; our functions can
        # all be imported.
        setup.save_main_session = False
    _check_packages(setup)
    if num_workers > 1:
        if standard.runner != DEFAULT_RUNNER:
            raise InputError(
                f"--workers is for {DEFAULT_RUNNER}, which runs on this machine; with "
                f"{standard.runner} leave it out and give that runner's own options "
                "after `--`"
            )
        direct = options.view_as(pipeline_options.DirectOptions)
        direct.direct_num_workers = num_workers
        direct.direct_running_mode = "multi_processing"
    if check := _CHECKS.get(standard.runner):
        check(options)
    return options


def check_paths(
    options: pipeline_options.PipelineOptions, paths: Iterable[str | os.PathLike[str]]
) -> None:
    """Checks that a runner's workers can see these paths.

    Args:
        options: from `parse`.
        paths: everything that a job reads and writes.

    Raises:
        InputError: a path of this machine, for Dataflow.
    """
    runner = options.view_as(pipeline_options.StandardOptions).runner
    if runner != "DataflowRunner":
        return
    for path in map(str, paths):
        if not _BUCKET.match(path + "/"):
            what = (
                "is not on Google Cloud Storage"
                if files.is_remote(path)
                else "is on this machine, which its workers do not see"
            )
            raise InputError(
                f"{runner}: expected a path gs://BUCKET/..., but {path!r} {what}; copy "
                "inputs there first (gcloud storage cp --recursive), and write there"
            )


def is_elsewhere(options: pipeline_options.PipelineOptions) -> bool:
    """Whether the workers run on other machines."""
    return options.view_as(pipeline_options.StandardOptions).runner in ELSEWHERE


def job_page(options: pipeline_options.PipelineOptions, job_id: str) -> str:
    """URL of a Dataflow job in Google's console."""
    cloud = options.view_as(pipeline_options.GoogleCloudOptions)
    return (
        f"https://console.cloud.google.com/dataflow/jobs/{cloud.region}/{job_id}"
        f"?project={cloud.project}"
    )


def why_not_run(options: pipeline_options.PipelineOptions) -> str | None:
    """Why Beam does not run the job with these options; `None`: it does."""
    runner = options.view_as(pipeline_options.StandardOptions).runner
    template = options.view_as(pipeline_options.GoogleCloudOptions).template_location
    if runner == "DataflowRunner" and template:
        return (
            f"{template} is written; when a job started from it is done, run this "
            "command again without --template_location for the manifest"
        )
    if runner == "DataflowRunner" and (
        options.view_as(pipeline_options.TestOptions).dry_run
    ):
        return "the job can be built; nothing was sent because of --dry_run"
    return None


class _Parser(pipeline_options._BeamArgumentParser):
    def error(self, message: str) -> None:
        raise InputError(f"{message} (options after `--` go to Beam)")


def _check_known(arguments: Sequence[str]) -> None:
    # A few subclasses (test options) exist only once imported; those that are loaded
    # are those that a pipeline can use.
    parser = _Parser(allow_abbrev=False, add_help=False)
    for options_type in pipeline_options.PipelineOptions.__subclasses__():
        options_type._add_argparse_args(parser)
    known = {name for action in parser._actions for name in action.option_strings}
    for argument in arguments:
        name = argument.split("=")[0]
        if argument.startswith("--") and name not in known:
            raise InputError(
                f"Beam has no option {name!r}{nearest(name, known)} "
                "(options after `--` go to Beam)"
            )
    _, left = parser.parse_known_args(list(arguments), argparse.Namespace())
    if left:
        raise InputError(
            f"{left[0]!r} belongs to no option of Beam (options after `--` go to Beam)"
        )


def _runner_name(given: str | None) -> str:
    if given is None:
        return DEFAULT_RUNNER
    last = given.rpartition(".")[2].lower()
    if last in ("dask", "daskrunner"):
        raise InputError(_NO_DASK)
    for name in (*RUNNERS, *_SWITCHES):
        if last in (name.lower(), name.lower().removesuffix("runner")):
            return DEFAULT_RUNNER if name in _SWITCHES else name
    if "." in given:
        module, _, name = given.rpartition(".")
        try:
            getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise InputError(f"--runner {given}: {error}") from None
        return given
    raise InputError(
        f"--runner is one of {', '.join(RUNNERS)}, or the dotted path of a class, got "
        f"{given!r}{nearest(given, RUNNERS)}"
    )


def _check_packages(setup: pipeline_options.SetupOptions) -> None:
    paths = [setup.setup_file, setup.requirements_file, *(setup.extra_packages or ())]
    for path in filter(None, paths):
        if not files.exists(path):
            raise InputError(f"{path}: no such file, to be staged for the workers")
    if setup.setup_file:
        # Beam changes into its directory before it opens the file.
        setup.setup_file = os.path.abspath(setup.setup_file)


# Requirements of single runners.


def _check_dataflow(options: pipeline_options.PipelineOptions) -> None:
    try:
        importlib.import_module("apache_beam.runners.dataflow.internal.apiclient")
    except ImportError as error:
        raise InputError(
            f"DataflowRunner needs Google Cloud's packages ({error}): "
            "pip install 'apache-beam[gcp]'"
        ) from None
    cloud = options.view_as(pipeline_options.GoogleCloudOptions)
    for name in ("project", "region"):
        if not getattr(cloud, name):
            raise InputError(f"DataflowRunner needs --{name} after `--`")
    if not _PROJECT.fullmatch(cloud.project):
        raise InputError(
            f"--project expects the id of a project, such as my-project-1, got "
            f"{cloud.project!r} (not its number, not its title)"
        )
    _check_locations(cloud)
    setup = options.view_as(pipeline_options.SetupOptions)
    worker = options.view_as(pipeline_options.WorkerOptions)
    values = options.get_all_options()
    for name in ("num_workers", "max_num_workers", "number_of_worker_harness_threads"):
        number = values[name]
        if number is not None and number < 1:
            raise InputError(f"--{name} must be at least 1, got {number}")
    image = worker.sdk_container_image or worker.worker_harness_container_image
    if not (setup.setup_file or setup.extra_packages or image):
        raise InputError(
            "DataflowRunner: its workers need this package; `bert-keras launch "
            "dataflow` builds and stages it, or give --extra_package WHEEL, "
            "--setup_file or --sdk_container_image after `--`"
        )


def _check_locations(cloud: pipeline_options.GoogleCloudOptions) -> None:
    given = {
        name: getattr(cloud, name)
        for name in ("temp_location", "staging_location")
        if getattr(cloud, name)
    }
    if not given:
        raise InputError(
            "DataflowRunner needs --temp_location gs://BUCKET/... after `--`"
        )
    for name, path in given.items():
        # Beam would look for, and make, a default bucket instead.
        if not _BUCKET.match(path):
            raise InputError(
                f"--{name} expects gs://BUCKET/..., with a bucket's name of three "
                f"small letters or digits at least, got {path!r}"
            )
    path = next(iter(given.values()))
    cloud.temp_location = given.get("temp_location", path)
    cloud.staging_location = given.get("staging_location", path)


def _check_job_server(options: pipeline_options.PipelineOptions) -> None:
    if not options.view_as(pipeline_options.PortableOptions).job_endpoint:
        runner = options.view_as(pipeline_options.StandardOptions).runner
        raise InputError(
            f"{runner} needs --job_endpoint HOST:PORT of a running job server after "
            "`--`; PortableRunner also takes `--job_endpoint embed`, for one inside "
            "this process"
        )


_CHECKS = {
    "DataflowRunner": _check_dataflow,
    "PortableRunner": _check_job_server,
    "FlinkRunner": _check_job_server,
    "SparkRunner": _check_job_server,
}
