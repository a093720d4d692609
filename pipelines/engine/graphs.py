"""A job as one Beam graph, for any runner."""

# Apache Beam re-exports names without saying so.
# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false, reportIndexIssue=false

import contextlib
import logging
import os
import queue
import re
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import apache_beam as beam
from apache_beam.options import pipeline_options

from bert_keras.core import files, progress
from bert_keras.core.errors import InputError, NotRun
from bert_keras.pipelines.engine import runner_options, steps

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BeamRunner:
    options: pipeline_options.PipelineOptions
    """The runner and its settings, from `runner_options.parse`."""

    def run(self, job: steps.Job) -> list[steps.Result]:
        """Runs a job, showing progress on stderr. A graph that ran to its end is not
        run again, even if the process that started it did not live to see that. Raises
        `NotRun` if only a template, or a dry run on Dataflow, was asked for."""
        path = files.join(job.work_dir, "results.json")
        if not files.exists(path):
            files.make_directory(job.work_dir)
            with tempfile.TemporaryDirectory(prefix="bert-keras-") as directory:
                pipeline = beam.Pipeline(options=self.options)
                _build(pipeline, job, steps.Heartbeat(directory), path)
                line = progress.Progress(
                    job.title,
                    total=sum(item.num_bytes for item in job.items),
                    unit="bytes",
                    read=lambda: steps.sum_of_heartbeats(directory),
                )
                standard = self.options.view_as(pipeline_options.StandardOptions)
                if standard.runner in runner_options.ELSEWHERE:
                    line = contextlib.nullcontext()
                with line, _input_errors_of_workers(), _local_workers(self.options):
                    _run_to_end(pipeline)
            if reason := runner_options.why_not_run(self.options):
                raise NotRun(reason)
        return files.read_json(path)["results"]


class _Run(beam.DoFn):
    """A step as a `DoFn`: results are its main output."""

    def __init__(self, step: steps.Step):
        self._step = step

    def process(self, element: Any) -> Iterator[Any]:
        for output in self._step.process(element):
            if isinstance(output, steps.Send):
                value = (output.key, output.value)
                yield beam.pvalue.TaggedOutput(output.shuffle, value)
                continue
            # For people who watch the job: a service shows them while it runs.
            for name, amount in output.get(steps.COUNTERS, {}).items():
                beam.metrics.Metrics.counter("bert_keras", name).inc(amount)
            yield output


def _build(
    pipeline: beam.Pipeline, job: steps.Job, heartbeat: steps.Heartbeat, path: str
) -> None:
    written: dict[str, list[beam.PCollection]] = defaultdict(list)
    results = []
    for step in job.make_steps(heartbeat):
        if step.reads:
            groups = {}
            for name in step.reads:
                flatten = beam.Flatten(pipeline=pipeline)
                groups[name] = written[name] | f"All{step.name}{name}" >> flatten
            group = beam.CoGroupByKey(pipeline=pipeline)
            elements = groups | f"Group{step.name}" >> group
        else:
            values = [item.value for item in job.items]
            create = beam.Create(values, reshuffle=False)
            # Without the reshuffle, one worker would get all of them.
            elements = (
                pipeline
                | f"Items{step.name}" >> create
                | f"Spread{step.name}" >> beam.Reshuffle()
            )
        run = beam.ParDo(_Run(step)).with_outputs(*step.writes, main="results")
        outputs = elements | step.name >> run
        for name in step.writes:
            written[name].append(outputs[name])
        results.append(outputs.results)
    # In the graph, as one element: Beam gives the driver no elements, and the driver
    # may die before the job does.
    _ = (
        results
        | "Results" >> beam.Flatten(pipeline=pipeline)
        | "ListResults" >> beam.combiners.ToList()
        | "SaveResults" >> beam.Map(_save_results, path)
    )


def _save_results(results: list[steps.Result], path: str) -> None:
    files.write_json(path, {"results": results}, indent=None)


def _run_to_end(pipeline: beam.Pipeline) -> None:
    """Runs a pipeline; fails when one of its local worker processes dies. Beam itself
    waits forever for the answer of a killed process, and reports it only in a thread of
    its own. The rest of the pipeline then ends with this process."""
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
    """Restores a worker's InputError from Beam's version of it. Beam appends the step's
    name to the message; across processes, it passes the whole traceback as the text of
    a RuntimeError."""
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
    """Keeps local worker processes off the user's terminal and current directory. They
    inherit this process's standard error and report each start and stop there; their
    errors are raised here anyway."""
    direct = options.view_as(pipeline_options.DirectOptions)
    if direct.direct_running_mode != "multi_processing":
        yield
        return
    duplicate = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        with (
            os.fdopen(os.dup(duplicate), "w", buffering=1) as terminal,
            contextlib.redirect_stderr(terminal),
            steps.without_current_directory(),
        ):
            yield
    finally:
        os.dup2(duplicate, 2)
        os.close(duplicate)
