"""Runs a job: as one Beam graph on any runner, or in passes on this machine."""

import json
from collections import defaultdict
from typing import Any

import apache_beam as beam

from bert_keras import files
from pipelines.engine import passes, runners, steps

_RESULTS_NAME = "results.json"


def run(job: steps.Job, engine: runners.Engine) -> dict[str, list[dict[str, Any]]]:
    """Runs a job to its end, showing progress on stderr.

    A graph that was run to its end is not run again, not even if the process that had
    started it was gone by then.

    Returns:
        The results of each step by its name, in no particular order.

    Raises:
        InputError: one that was raised in a worker, as it was; a worker died; passes
            would take more memory than they may.
        NotRun: see `runners.run`.
    """
    if engine.options is None:
        return passes.run(
            job, num_workers=engine.num_workers, memory_limit=engine.memory_limit
        )
    path = files.join(job.work_dir, _RESULTS_NAME)
    if not files.exists(path):
        files.make_directory(job.work_dir)
        runners.run(
            lambda pipeline, heartbeat: _build(pipeline, job, heartbeat, path),
            options=engine.options,
            title=job.title,
            total=sum(item.num_bytes for item in job.items),
            unit="bytes",
        )
    return json.loads(files.read_bytes(path))


def _build(
    pipeline: beam.Pipeline, job: steps.Job, heartbeat: runners.Heartbeat, path: str
) -> None:
    """Adds the whole job to a pipeline; its results are written to `path`."""
    written: dict[str, list[beam.PCollection]] = defaultdict(list)
    results = []
    for step in job.steps(heartbeat):
        outputs = _elements(pipeline, job, step, written) | step.name >> beam.ParDo(
            step.do
        ).with_outputs(*step.writes, main="results")
        for name in step.writes:
            written[name].append(outputs[name])
        results.append(
            outputs.results | f"Name{step.name}" >> beam.Map(_name, step.name)
        )
    _ = (
        results
        | "Results" >> beam.Flatten(pipeline=pipeline)
        | "ListResults" >> beam.combiners.ToList()
        | "SaveResults" >> beam.Map(_save_results, path)
    )


def _elements(
    pipeline: beam.Pipeline,
    job: steps.Job,
    step: steps.Step,
    written: dict[str, list[beam.PCollection]],
) -> beam.PCollection:
    if not step.reads:
        values = [item.value for item in job.items]
        # Without reshuffling, all go to the one worker that created the list.
        items = pipeline | f"Items{step.name}" >> beam.Create(values, reshuffle=False)
        return items | f"Spread{step.name}" >> beam.Reshuffle()
    groups = {
        name: written[name] | f"All{step.name}{name}" >> beam.Flatten(pipeline=pipeline)
        for name in step.reads
    }
    return groups | f"Group{step.name}" >> beam.CoGroupByKey(pipeline=pipeline)


def _name(result: Any, step_name: str) -> tuple[str, Any]:
    return step_name, result


def _save_results(named: list[tuple[str, dict[str, Any]]], path: str) -> None:
    by_step: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for step_name, result in named:
        by_step[step_name].append(result)
    files.write_atomically(path, json.dumps(by_step).encode())
