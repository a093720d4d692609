"""Beam's own options, those after `--`, checked before anything runs; the options
that Dataflow needs, and the paths that its workers see.

Beam ignores an option that it does not know, and notices most of what a runner lacks
only after the job has been built, or never. Here it is refused first, in one line.
"""

import argparse
import importlib
import itertools
import os
import re
from collections.abc import Iterable, Sequence

from apache_beam.options import pipeline_options

from bert_keras.core import files
from bert_keras.core.errors import InputError, nearest

DEFAULT_RUNNER = "FnApiRunner"

RUNNERS = (
    *("FnApiRunner", "BundleBasedDirectRunner", "PortableRunner"),
    *("DataflowRunner", "FlinkRunner", "SparkRunner"),
)
"""Names; any other runner can be given by the dotted path of its class."""

ELSEWHERE = ("DataflowRunner", "FlinkRunner", "SparkRunner")
"""Runners whose workers are on other machines, where progress cannot be seen."""
_SWITCHES = ("DirectRunner", "SwitchingDirectRunner")
"""Since Beam 2.68 these first try to download another runner."""

_BUCKET = re.compile(r"gs://[a-z0-9][-_.a-z0-9]{1,}[a-z0-9]/")
_PROJECT = re.compile(r"([a-z][-a-z0-9.]*:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")


def parse(
    arguments: Sequence[str] = (), *, num_workers: int = 1
) -> pipeline_options.PipelineOptions:
    """Parses and checks Beam's options; 1 worker runs inside this process."""
    if num_workers < 1:
        raise InputError(f"--workers must be at least 1, got {num_workers}")
    _check_known(arguments)
    options = pipeline_options.PipelineOptions(list(arguments))
    standard = options.view_as(pipeline_options.StandardOptions)
    runner = standard.runner = _runner_name(standard.runner)
    setup = options.view_as(pipeline_options.SetupOptions)
    if setup.save_main_session is None:
        # On Dataflow, Beam would otherwise pickle all of `__main__`; our functions can
        # all be imported.
        setup.save_main_session = False
    packages = [setup.setup_file, setup.requirements_file]
    for path in filter(None, [*packages, *(setup.extra_packages or ())]):
        if not files.exists(path):
            raise InputError(f"{path}: no such file, to be staged for the workers")
    if setup.setup_file:
        # Beam changes into its directory before it opens the file.
        setup.setup_file = os.path.abspath(setup.setup_file)
    if num_workers > 1:
        if runner != DEFAULT_RUNNER:
            raise InputError(
                f"--workers is for {DEFAULT_RUNNER}, which runs on this machine; with "
                f"{runner} leave it out and give that runner's own options after `--`"
            )
        direct = options.view_as(pipeline_options.DirectOptions)
        # As processes: threads would compute in turn, holding Python's lock.
        direct.direct_num_workers = num_workers
        direct.direct_running_mode = "multi_processing"
    if _is_dataflow(options):
        _check_dataflow(options)
    portable = options.view_as(pipeline_options.PortableOptions)
    needs_server = runner in ("PortableRunner", "FlinkRunner", "SparkRunner")
    if needs_server and not portable.job_endpoint:
        raise InputError(
            f"{runner} needs --job_endpoint HOST:PORT of a running job server after "
            "`--`; PortableRunner also takes `--job_endpoint embed`, for one inside "
            "this process"
        )
    return options


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
            parser.error(f"Beam has no option {name!r}{nearest(name, known)}")
    _, rest = parser.parse_known_args(list(arguments), argparse.Namespace())
    if rest:
        parser.error(f"{rest[0]!r} belongs to no option of Beam")


def _runner_name(requested: str | None) -> str:
    if requested is None:
        return DEFAULT_RUNNER
    module, _, name = requested.rpartition(".")
    short = name.lower().removesuffix("runner")
    if short == "dask":
        raise InputError(
            "DaskRunner is refused: it runs only one end of a pipeline's graph and "
            "drops what goes to the others, without an error, so files would be "
            f"missing; use one of {', '.join(RUNNERS)}"
        )
    for known in (*RUNNERS, *_SWITCHES):
        if short == known.lower().removesuffix("runner"):
            return DEFAULT_RUNNER if known in _SWITCHES else known
    if not module:
        raise InputError(
            f"--runner is one of {', '.join(RUNNERS)}, or the dotted path of a class, "
            f"got {requested!r}{nearest(requested, RUNNERS)}"
        )
    try:
        getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"--runner {requested}: {error}") from None
    return requested


def _check_dataflow(options: pipeline_options.PipelineOptions) -> None:
    """Refuses options that the service would refuse, or replace by a guess."""
    try:
        importlib.import_module("apache_beam.runners.dataflow.internal.apiclient")
    except ImportError as error:
        raise InputError(
            f"DataflowRunner needs Google Cloud's packages ({error}): "
            "pip install 'apache-beam[gcp]'"
        ) from None
    values = options.get_all_options()
    for name in itertools.filterfalse(values.get, ("project", "region")):
        raise InputError(f"DataflowRunner needs --{name} after `--`")
    if not _PROJECT.fullmatch(values["project"]):
        raise InputError(
            f"--project expects the id of a project, such as my-project-1, got "
            f"{values['project']!r} (not its number, not its title)"
        )
    locations = ("temp_location", "staging_location")
    if not any(map(values.get, locations)):
        raise InputError("DataflowRunner needs --temp_location gs://BUCKET after `--`")
    for name in filter(values.get, locations):
        # Beam would look for, and make, a default bucket instead.
        if not _BUCKET.match(values[name]):
            raise InputError(
                f"--{name} expects gs://BUCKET/..., with a bucket's name of three "
                f"small letters or digits at least, got {values[name]!r}"
            )
    for name in ("num_workers", "max_num_workers", "number_of_worker_harness_threads"):
        if values[name] is not None and values[name] < 1:
            raise InputError(f"--{name} must be at least 1, got {values[name]}")
    packages = ("setup_file", "extra_packages")
    images = ("sdk_container_image", "worker_harness_container_image")
    if not any(map(values.get, packages + images)):
        raise InputError(
            "DataflowRunner: its workers need this package; `bert-keras launch "
            "dataflow` builds and stages it, or give --extra_package WHEEL, "
            "--setup_file or --sdk_container_image after `--`"
        )
    # Either of the two places for files serves as the other if that is not given.
    cloud = options.view_as(pipeline_options.GoogleCloudOptions)
    cloud.temp_location = cloud.temp_location or cloud.staging_location
    cloud.staging_location = cloud.staging_location or cloud.temp_location


def _is_dataflow(options: pipeline_options.PipelineOptions) -> bool:
    return options.view_as(pipeline_options.StandardOptions).runner == "DataflowRunner"


def check_paths(
    options: pipeline_options.PipelineOptions, paths: Iterable[files.Path]
) -> None:
    """Checks that workers see all paths; only Dataflow's are known to miss some."""
    for path in map(str, paths if _is_dataflow(options) else ()):
        if not _BUCKET.match(path + "/"):
            what = (
                "is not on Google Cloud Storage"
                if files.is_remote(path)
                else "is on this machine, which its workers do not see"
            )
            raise InputError(
                f"DataflowRunner: expected a path gs://BUCKET/..., but {path!r} "
                f"{what}; copy inputs there first (gcloud storage cp --recursive), and "
                "write there"
            )


def why_not_run(options: pipeline_options.PipelineOptions) -> str | None:
    """Returns why Beam runs no job with these options; `None`: it does."""
    if not _is_dataflow(options):
        return None
    cloud = options.view_as(pipeline_options.GoogleCloudOptions)
    if cloud.template_location:
        return (
            f"{cloud.template_location} is written; when a job started from it is "
            "done, run this command again without --template_location for the manifest"
        )
    if options.view_as(pipeline_options.TestOptions).dry_run:
        return "the job can be built; nothing was sent because of --dry_run"
    return None
