"""Dataflow: the options that it needs, the paths that its workers see, its jobs."""

import importlib
import os
import re
from collections.abc import Iterable, Iterator

from apache_beam.options import pipeline_options

from bert_keras.core import files
from bert_keras.core.errors import InputError

RUNNER = "DataflowRunner"
_BUCKET = re.compile(r"gs://[a-z0-9][-_.a-z0-9]{1,}[a-z0-9]/")
_PROJECT = re.compile(r"([a-z][-a-z0-9.]*:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")


def check(options: pipeline_options.PipelineOptions) -> None:
    """Refuses options that the service would refuse, or replace by a guess."""
    try:
        importlib.import_module("apache_beam.runners.dataflow.internal.apiclient")
    except ImportError as error:
        raise InputError(
            f"DataflowRunner needs Google Cloud's packages ({error}): "
            "pip install 'apache-beam[gcp]'"
        ) from None
    for problem in _problems(options):
        raise InputError(problem)
    # Either of the two places for files serves as the other if that is not given.
    cloud = options.view_as(pipeline_options.GoogleCloudOptions)
    cloud.temp_location = cloud.temp_location or cloud.staging_location
    cloud.staging_location = cloud.staging_location or cloud.temp_location


def _problems(options: pipeline_options.PipelineOptions) -> Iterator[str]:
    values = options.get_all_options()
    for name in ("project", "region"):
        if not values[name]:
            yield f"DataflowRunner needs --{name} after `--`"
    if not _PROJECT.fullmatch(values["project"]):
        yield (
            f"--project expects the id of a project, such as my-project-1, got "
            f"{values['project']!r} (not its number, not its title)"
        )
    locations = [n for n in ("temp_location", "staging_location") if values[n]]
    if not locations:
        yield "DataflowRunner needs --temp_location gs://BUCKET/... after `--`"
    for name in locations:
        # Beam would look for, and make, a default bucket instead.
        if not _BUCKET.match(values[name]):
            yield (
                f"--{name} expects gs://BUCKET/..., with a bucket's name of three "
                f"small letters or digits at least, got {values[name]!r}"
            )
    for name in ("num_workers", "max_num_workers", "number_of_worker_harness_threads"):
        if values[name] is not None and values[name] < 1:
            yield f"--{name} must be at least 1, got {values[name]}"
    packages = ("setup_file", "extra_packages")
    images = ("sdk_container_image", "worker_harness_container_image")
    if not any(values[name] for name in packages + images):
        yield (
            "DataflowRunner: its workers need this package; `bert-keras launch "
            "dataflow` builds and stages it, or give --extra_package WHEEL, "
            "--setup_file or --sdk_container_image after `--`"
        )


def _is_dataflow(options: pipeline_options.PipelineOptions) -> bool:
    return options.view_as(pipeline_options.StandardOptions).runner == RUNNER


def check_paths(
    options: pipeline_options.PipelineOptions, paths: Iterable[str | os.PathLike[str]]
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
                f"{RUNNER}: expected a path gs://BUCKET/..., but {path!r} {what}; copy "
                "inputs there first (gcloud storage cp --recursive), and write there"
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
