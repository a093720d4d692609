"""Configurations, run directories and sweeps as inputs."""

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.hostile_inputs.reading import Kind
from bert_keras import (
    config,
    config_files,
    errors,
    finetuning_config,
    manifest,
    run_directory,
    settings_reference,
    sweep_config,
)
from bert_keras.data import tfrecords
from bert_keras.errors import InputError
from bert_keras.tpu import cluster


def _make_configurations(folder: Path, golden: Path) -> None:
    for name, model in settings_reference.CONFIGURATIONS.items():
        config_files.save(model(), folder / f"{name}.yaml")
    (folder / "pretrain.yaml").write_text(
        "global_batch_size: 8\nphases: [{fraction: 0.5}, {fraction: 0.5}]\n"
        "optimizer: &a {learning_rate: 1e-3}\nmodel:\n  hidden_size: 32\n"
        "  num_attention_heads: 2\n"
    )
    (folder / "sweep.yaml").write_text("grid:\n  learning_rate: [5e-5, 3e-5]\n")


def _read_configurations(folder: Path) -> object:
    for path in folder.iterdir():
        loaded = config_files.load(settings_reference.CONFIGURATIONS[path.stem], path)
        config_files.save(loaded, folder.parent / "saved.yaml")


def _make_settings(folder: Path, golden: Path) -> None:
    (folder / "set.yaml").write_text("phases=[{fraction: 1.0}]")
    (folder / "tf_config.json").write_text(
        '{"cluster": {"worker": ["a:1", "b:1"]}, '
        '"task": {"type": "worker", "index": 0}}'
    )
    shutil.copy(golden / "google/bert_config.json", folder)


def _read_settings(folder: Path) -> object:
    for path in folder.iterdir():
        text = path.read_bytes().decode(errors="surrogateescape")
        if path.name == "set.yaml":
            config_files.load(config.PretrainingConfig, None, [text])
        elif path.name == "tf_config.json":
            cluster.cluster_from_tf_config(text)
        else:
            config_files.read_bert_config(path)


def _make_run(folder: Path, golden: Path) -> None:
    shutil.copytree(
        golden / "run",
        folder,
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("checkpoints", "*.h5", "logs"),
    )
    curve = [["all/loss", 5, 0.5], ["all/loss", 10, 0.25]]
    _write_events(folder, {"train": curve, "eval": curve})


def _write_events(folder: Path, logs: dict[str, Any]) -> None:
    """Writes event files with values `[tag, step, number]`, less those they cannot
    hold."""
    from tensorboard.compat.proto import event_pb2, summary_pb2

    for part, values in logs.items():
        events = [event_pb2.Event(wall_time=1.0, file_version="brain.Event:2")]
        for tag, step, number in values:
            with contextlib.suppress(TypeError, ValueError):
                value = summary_pb2.Summary.Value(tag=tag, simple_value=number)
                summary = summary_pb2.Summary(value=[value])
                events.append(
                    event_pb2.Event(wall_time=2.0, step=step, summary=summary)
                )
        path = folder / "logs" / part / "events.out.tfevents.1.host.1.0.v2"
        path.parent.mkdir(parents=True, exist_ok=True)
        frames = [tfrecords.frame(event.SerializeToString()) for event in events]
        path.write_bytes(b"".join(frames))


def _read_run(folder: Path) -> object:
    from bert_keras.report import facts, page

    run_directory.read_run(folder, kinds=("pretraining",), verb="pretrain")
    run_directory.read_settings(folder, config.PretrainingConfig)
    run = facts.read_facts(folder)
    return page.render(run, [], None)


FORMS = ("text", "tagging", "span", "choice", "number")


def _make_tuned_run(form: str) -> Callable[[Path, Path], None]:
    def make(folder: Path, golden: Path) -> None:
        _make_run(folder, golden)
        source = golden / "tuned" / ("text" if form == "number" else form)
        for path in source.iterdir():
            if path.suffix != ".h5":
                shutil.copy(path, folder)
        if form == "number":
            _make_regression(folder)

    return make


def _make_regression(folder: Path) -> None:
    """Makes a run that classifies texts one that gives them numbers."""
    task = json.loads((folder / "task.json").read_text())
    task |= {"kind": "regression", "labels": None}
    (folder / "task.json").write_text(json.dumps(task))
    rows = [
        {"text": "ba be", "line": n, "label": n / 2, "prediction": n / 3}
        for n in range(2, 9)
    ]
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "dev_answers.jsonl").write_text("".join(lines))


def _read_tuned_run(folder: Path) -> object:
    """Reads all of a run and writes the page, without drawing its pictures."""
    from bert_keras.report import drawing, facts, page, task_summaries

    kinds = ("classification", "regression", "tagging", "span", "choice")
    run_directory.read_run(folder, kinds=kinds, verb="finetune")
    run_directory.read_settings(folder, finetuning_config.FinetuningConfig)
    with mock.patch.object(drawing, "as_png", lambda *_, **__: b""):
        sections = task_summaries.read_sections(folder)
    return page.render(facts.read_facts(folder), [], sections)


TAGS = (
    *("all/loss", "gradient_norm", "learning_rate", "sequences_per_second"),
    "tokens_per_second",
)


def _make_drawn_run(form: str) -> Callable[[Path, Path], None]:
    def make(folder: Path, golden: Path) -> None:
        _make_tuned_run(form)(folder, golden)
        curves = [[tag, step, 2.0**-step] for tag in TAGS for step in (1, 5, 10)]
        logs = {"train": curves, "eval": curves[:3], "panels": curves}
        (folder / "curves.json").write_text(json.dumps(logs))

    return make


def _read_drawn_run(folder: Path) -> object:
    """Writes the report with all pictures; curves are the values in `curves.json`."""
    from bert_keras.report import writing

    try:
        logs = json.loads((folder / "curves.json").read_bytes())
        _write_events(folder, logs)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(errors.one_line(error)) from None
    return writing.write_report(folder, folder.parent / "report")


METRICS = {
    "text": "accuracy",
    "tagging": "f1",
    "span": "f1",
    "choice": "accuracy",
    "number": "loss",
}
"""Metrics of sweeps over runs of each form."""


def _make_sweep(form: str) -> Callable[[Path, Path], None]:
    def make(folder: Path, golden: Path) -> None:
        from bert_keras.sweep import directory, planning

        task = "text" if form == "number" else form
        grid = ["grid.batch_size=[8,16]"]
        settings = config_files.load(sweep_config.SweepConfig, None, grid)
        command = planning.Command(
            task=task,
            train="a",
            dev=("b",),
            init="c",
            strategy="cpu",
            overrides=("regression=true",) if form == "number" else (),
        )
        runs = planning.plan_runs(settings, command)
        directory.write_plan(folder, ["batch_size"], runs)
        for run in runs:
            path = directory.run_path(folder, run.name)
            path.mkdir(parents=True)
            for name in RUN_FILES:
                shutil.copy(golden / "tuned" / task / name, path)
            if form == "number":
                _make_regression(path)

    return make


RUN_FILES = ("inputs.json", "task.json", "results.json", "dev_answers.jsonl")


def _read_sweep(form: str) -> Callable[[Path], str]:
    def read(folder: Path) -> str:
        from bert_keras.sweep import summary

        state = _sweep_state(folder, form)
        return summary.page(state) + summary.runs_tsv(state)

    return read


def _draw_sweep(folder: Path) -> object:
    from bert_keras.sweep import summary

    return summary.write_picture(_sweep_state(folder, "text"))


def _sweep_state(folder: Path, form: str) -> Any:
    from bert_keras.sweep import directory, scores, summary

    metric = METRICS[form]
    keys, runs = directory.read_plan(folder)
    outcomes = [directory.read_outcome(folder, run, metric=metric) for run in runs]
    directory.check_same_inputs(folder, runs)
    return summary.State(
        directory=folder,
        task=form,
        keys=tuple(keys),
        ruler=scores.Ruler(metric=metric, goal="max", choose="best"),
        outcomes=tuple(outcome for outcome in outcomes if outcome is not None),
        num_runs=len(runs),
    )


def _make_claimed(folder: Path, golden: Path) -> None:
    (folder / "inputs.json").write_text('{"seed": 1, "files": ["a", "b"]}')


def _claim(folder: Path) -> object:
    return manifest.claim_output_directory(folder, {"seed": 1, "files": ["a", "b"]})


def _make_vectors(folder: Path, golden: Path) -> None:
    shutil.copytree(golden / "answers/vectors_run", folder, dirs_exist_ok=True)


def _read_vectors(folder: Path) -> object:
    from bert_keras.feature_based import vector_files

    features = vector_files.read(folder)
    return [vectors.sum() for vectors in features.layers.values()]


KINDS = {
    "configurations": Kind(
        30_000, _make_configurations, _read_configurations, alone=True
    ),
    "--set, TF_CONFIG": Kind(35_000, _make_settings, _read_settings, alone=True),
    "pre-trained runs": Kind(5_000, _make_run, _read_run),
    **{
        f"tuned runs, {form}": Kind(2_500, _make_tuned_run(form), _read_tuned_run)
        for form in FORMS
    },
    **{
        f"drawn reports, {form}": Kind(
            115,
            _make_drawn_run(form),
            _read_drawn_run,
            "dev_answers.jsonl curves.json results.json",
        )
        for form in FORMS
    },
    **{
        f"sweeps, {form}": Kind(2_500, _make_sweep(form), _read_sweep(form))
        for form in METRICS
    },
    "drawn sweeps": Kind(300, _make_sweep("text"), _draw_sweep, "results.json"),
    "inputs.json": Kind(50_000, _make_claimed, _claim),
    "vectors": Kind(4_000, _make_vectors, _read_vectors),
}
