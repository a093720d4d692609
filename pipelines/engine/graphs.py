"""A job as one Beam graph, for any runner."""

# Apache Beam re-exports names without saying so.
# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false, reportIndexIssue=false

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
from apache_beam.options import pipeline_options

from bert_keras.core import files
from bert_keras.pipelines.engine import dataflow_options, runners, steps


@dataclass(frozen=True)
class BeamRunner:
    options: pipeline_options.PipelineOptions
    """The runner and its settings, from `runner_options.parse`."""

    def run(self, job: steps.Job) -> list[steps.Result]:
        """Runs a job; raises `NotRun` as `runners.run` does.

        A graph that ran to its end is not run again, even if the process that started
        it did not live to see that.
        """
        path = files.join(job.work_dir, "results.json")
        if not files.exists(path):
            files.make_directory(job.work_dir)
            runners.run(
                lambda pipeline, heartbeat: _build(pipeline, job, heartbeat, path),
                options=self.options,
                title=job.title,
                num_bytes=sum(item.num_bytes for item in job.items),
            )
        return files.read_json(path)["results"]

    def check_paths(self, *paths: str | os.PathLike[str]) -> None:
        dataflow_options.check_paths(self.options, paths)


class _Run(beam.DoFn):
    """A step's worker as a `DoFn`: results are its main output."""

    def __init__(self, worker: steps.Worker):
        self._worker = worker

    def setup(self) -> None:
        self._worker.setup()

    def process(self, element: Any) -> Iterator[Any]:
        for output in self._worker.process(element):
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
    for step in job.steps(heartbeat):
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
        run = beam.ParDo(_Run(step.do)).with_outputs(*step.writes, main="results")
        outputs = elements | step.name >> run
        for name in step.writes:
            written[name].append(outputs[name])
        results.append(outputs.results)
    _ = (
        results
        | "Results" >> beam.Flatten(pipeline=pipeline)
        | "ListResults" >> beam.combiners.ToList()
        | "SaveResults" >> beam.Map(_save_results, path)
    )


def _save_results(results: list[steps.Result], path: str) -> None:
    files.write_json(path, {"results": results}, indent=None)
