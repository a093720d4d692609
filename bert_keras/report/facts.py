"""Facts about a run from its directory, without loading TensorFlow."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bert_keras.checkpoints import run_directory
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, loading, pretraining, tasks
from bert_keras.kinds import registry
from bert_keras.kinds.kind import Labelled
from bert_keras.labelled import data_report
from bert_keras.pages import markdown
from bert_keras.report import diagnosis, scalar_log


@dataclass(frozen=True, kw_only=True)
class Facts:
    name: str
    """Name of its directory."""
    task: tasks.Task
    settings: dict[str, Any]
    """The whole configuration, by dotted key."""
    inputs: dict[str, Any]
    """Other facts that affect the result, such as hashes of the data."""
    bert_config: dict[str, Any]
    results: dict[str, Any] | None
    """`None` until the run is finished."""
    train: scalar_log.ScalarLog
    eval: scalar_log.ScalarLog
    panels: scalar_log.ScalarLog
    """Pictures of the model itself, and its guesses as text."""
    text_sample: diagnosis.TextSample | None
    """Figures of the text of a pre-training; `None`: the run has none."""

    @property
    def is_pretraining(self) -> bool:
        return self.task.kind == "pretraining"

    @property
    def is_tuned(self) -> bool:
        return isinstance(registry.find(self.task.kind), Labelled)

    @property
    def last_step(self) -> int:
        """The run's last step, or the last one logged so far."""
        if self.results is not None and "steps" in self.results:
            return self.results["steps"]
        logs = (*self.train.scalars.values(), *self.eval.scalars.values())
        return max(int(curve.steps[-1]) for curve in logs)

    @property
    def num_phases(self) -> int:
        hashes = self.inputs.get("examples_sha256")
        return len(hashes) if isinstance(hashes, list) else 1

    @property
    def phase_ends(self) -> tuple[int, ...]:
        """Steps after which another phase began, as far as the run got."""
        if self.num_phases == 1:
            return ()
        shares = itertools.accumulate(p["fraction"] for p in self.settings["phases"])
        ends = [round(share * self.settings["num_train_steps"]) for share in shares]
        return tuple(end for end in ends[:-1] if 0 < end < self.last_step)

    @property
    def num_tokens(self) -> int | None:
        """Tokens of all steps, padding included; `None`: unknown."""
        rates = find_curve(self.train, "sequences_per_second")
        tokens = find_curve(self.train, "tokens_per_second")
        if rates is None or tokens is None or not self.is_pretraining:
            return None
        # The two are logged together, and their ratio is the length of a phase's
        # examples.
        limits, total = [0, *self.phase_ends, self.last_step], 0
        for number, (first, last) in enumerate(itertools.pairwise(limits)):
            is_here = (rates.steps > first) & (rates.steps <= last)
            inside = is_here & (rates.values > 0)
            if not inside.any():
                return None
            ratios = tokens.values[inside] / rates.values[inside]
            length, batch_size = round(float(np.median(ratios))), None
            if self.num_phases == len(self.settings["phases"]):
                batch_size = self.settings["phases"][number].get("global_batch_size")
            batch_size = batch_size or self.settings["global_batch_size"]
            total += (last - first) * batch_size * length
        return total

    @property
    def baseline(self) -> dict[str, Any]:
        """Scores of guessing the commonest token, by metric; may be empty."""
        return (self.results or {}).get("eval_baseline") or {}


def read_facts(directory: Path) -> Facts:
    """Reads a run directory, which must have scalars already."""
    task = run_directory.read_task(directory)
    train, evaluation, panels = (
        scalar_log.read_log(directory / run_directory.LOGS_NAME / name)
        for name in ("train", "eval", "panels")
    )
    if not train.scalars and not evaluation.scalars:
        raise InputError(
            f"{directory}: expected scalars in logs/*/{scalar_log.NAME}, found none: "
            "wait until the run has made its first steps, or resume it"
        )
    configuration = loading.read_yaml(directory / run_directory.CONFIG_NAME)
    settings = run_directory.flat(configuration)
    inputs = files.read_json(directory / run_directory.INPUTS_NAME)
    return Facts(
        name=directory.resolve().name,
        task=task,
        settings=settings,
        inputs={key: inputs[key] for key in inputs if key not in settings},
        bert_config=files.read_json(directory / run_directory.BERT_CONFIG_NAME),
        results=run_directory.read_results(directory),
        train=train,
        eval=evaluation,
        panels=panels,
        text_sample=loading.read_json(
            diagnosis.TextSample, directory / run_directory.TEXT_SAMPLE_NAME
        ),
    )


def read_data_report(directory: Path) -> data_report.DataReport | None:
    """Reads a run's report on its labelled files; `None`: the run has none."""
    path = directory / run_directory.DATA_REPORT_NAME
    return loading.read_json(data_report.DataReport, path)


def problem_lines(
    report: data_report.DataReport, *, quotes: bool = True
) -> Iterator[str]:
    kind = registry.labelled(report.kind)
    for problem in data_report.problems(report, kind, quotes=quotes):
        yield f"- {markdown.literal(problem, max_length=markdown.MAX_TEXT_LENGTH)}"


def share_of(label: str, file: data_report.FileReport) -> float:
    total = sum(file.labels.values()) + file.num_other_labels
    return file.labels.get(label, 0) / max(total, 1)


def listed_labels(labels: Sequence[str], limit: int, more: str) -> str:
    """Lists some labels; `more` is the form of the list and of the number of others."""
    shown = ", ".join(map(markdown.literal, labels[:limit]))
    rest = len(labels) - limit
    return more.format(shown, rest) if rest > 0 else shown


def changed_settings(task: tasks.Task, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings that differ from the defaults, by dotted key."""
    settings_type = finetuning.FinetuningConfig
    if task.kind == "pretraining":
        settings_type = pretraining.PretrainingConfig
    defaults = run_directory.flat(settings_type().model_dump(mode="json"))
    return {k: v for k, v in settings.items() if k not in defaults or v != defaults[k]}


def find_curve(log: scalar_log.ScalarLog, name: str) -> scalar_log.Curve | None:
    """Returns the curve of the tag `name` or `SECTION/name`, if any."""
    return next((log.scalars[tag] for tag in log.scalars if name_of(tag) == name), None)


def name_of(tag: str) -> str:
    """Returns the metric of a tag, without its section."""
    return tag.partition("/")[2] or tag


def group_curves(log: scalar_log.ScalarLog) -> dict[str, scalar_log.Curve]:
    """Returns the curves of groups of examples, by group."""
    return {
        name_of(tag).partition("/")[2]: curve
        for tag, curve in log.scalars.items()
        if tag.startswith(pretraining.GROUPS)
    }


def of_last_phase(run: Facts, curve: scalar_log.Curve) -> scalar_log.Curve:
    """Returns the last phase's values: values for other lengths do not compare."""
    begin = max((end for end in run.phase_ends if end < curve.steps[-1]), default=-1)
    return scalar_log.Curve(*(part[curve.steps > begin] for part in curve))
