"""Runs a Beam pipeline to its end, with progress; knows nothing about BERT."""

import contextlib
import logging
import os
import queue
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import apache_beam as beam
from apache_beam.options import pipeline_options

from bert_keras.core import progress
from bert_keras.core.errors import InputError, NotRun
from bert_keras.pipelines.engine import dataflow_options, runner_options, steps

logger = logging.getLogger(__name__)


def run(
    build: Callable[[beam.Pipeline, steps.Heartbeat], object],
    *,
    options: pipeline_options.PipelineOptions,
    title: str,
    num_bytes: int,
) -> None:
    """Runs a pipeline to its end, showing progress on stderr.

    `build` adds the transforms, with the heartbeat for its DoFns; the progress line has
    `title`, the job's product, and `num_bytes`, its work. Raises `NotRun` if only a
    template, or a dry run on Dataflow, was asked for.
    """
    with tempfile.TemporaryDirectory(prefix="bert-keras-") as directory:
        pipeline = beam.Pipeline(options=options)
        build(pipeline, steps.Heartbeat(directory))
        line = progress.Progress(
            title,
            total=num_bytes,
            unit="bytes",
            read=lambda: steps.sum_of_heartbeats(directory),
        )
        standard = options.view_as(pipeline_options.StandardOptions)
        if standard.runner in runner_options.ELSEWHERE:
            line = contextlib.nullcontext()
        with line, _input_errors_of_workers(), _local_workers(options):
            _run_to_end(pipeline)
    if reason := dataflow_options.why_not_run(options):
        raise NotRun(reason)


def _run_to_end(pipeline: beam.Pipeline) -> None:
    """Runs a pipeline; fails when one of its local worker processes dies.

    Beam itself waits forever for the answer of a killed process, and reports it only in
    a thread of its own. The rest of the pipeline then ends with this process.
    """
    outcomes: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            result = pipeline.run()
            if getattr(result, "has_job", False):  # only Dataflow's
                cloud = pipeline.options.view_as(pipeline_options.GoogleCloudOptions)
                logger.info(
                    "runs as https://console.cloud.google.com/dataflow/jobs/%s/%s"
                    "?project=%s",
                    *(cloud.region, cast(Any, result).job_id(), cloud.project),
                )
            result.wait_until_finish()
            outcomes.put(None)
        except BaseException as error:  # raised below, whatever it is
            outcomes.put(error)

    def thread_failed(failure: threading.ExceptHookArgs) -> None:
        if failure.thread is not None and failure.thread.name == "run_worker":
            outcomes.put(
                InputError(
                    f"a worker process died ({failure.exc_value}), perhaps for want of "
                    "memory: use fewer --workers"
                )
            )
        else:
            previous(failure)

    previous, threading.excepthook = threading.excepthook, thread_failed
    try:
        threading.Thread(target=run, daemon=True).start()
        failure = outcomes.get()
    finally:
        threading.excepthook = previous
    if failure is not None:
        raise failure


@contextlib.contextmanager
def _input_errors_of_workers() -> Iterator[None]:
    """Restores a worker's InputError from Beam's version of it.

    Beam appends the step's name to the message; across processes, it passes the whole
    traceback as the text of a RuntimeError.
    """
    try:
        yield
    except Exception as error:  # each runner has its own class
        # Dataflow's can be imported only where Google's packages are.
        if type(error).__name__ == "DataflowJobAlreadyExistsError":
            reason = str(error).partition(". ")[0]
            raise InputError(
                f"{reason}; wait for its end, then run this command again"
            ) from None
        name = re.escape(f"{InputError.__module__}.{InputError.__qualname__}")
        pattern = r"^(.*)$" if isinstance(error, InputError) else rf"^{name}: (.*)$"
        lines = re.findall(pattern, str(error), flags=re.MULTILINE)
        if not lines:
            raise
        message = re.sub(r" \[while running '[^']*'\]$", "", lines[-1])
        raise InputError(message) from None


@contextlib.contextmanager
def _local_workers(options: pipeline_options.PipelineOptions) -> Iterator[None]:
    """Keeps local worker processes off the user's terminal and current directory.

    They inherit this process's standard error and report each start and stop there;
    their errors are raised here anyway.
    """
    direct = options.view_as(pipeline_options.DirectOptions)
    if direct.direct_running_mode != "multi_processing":
        yield
        return
    original, duplicate = sys.stderr, os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        with (
            os.fdopen(os.dup(duplicate), "w", buffering=1) as sys.stderr,
            steps.without_current_directory(),
        ):
            yield
    finally:
        sys.stderr = original
        os.dup2(duplicate, 2)
        os.close(duplicate)
