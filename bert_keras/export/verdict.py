"""A quantised export beside the float32 one, on all of a development file."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_keras import files, finetuning_config, run_directory
from bert_keras.checkpoints import native, starting_point
from bert_keras.errors import InputError
from bert_keras.export import answers
from bert_keras.tasks import catalogue, dataset, held_out

logger = logging.getLogger(__name__)

FILE_NAME = "quantization.json"
"""The verdict, next to the export."""

_BATCH_SIZE = 32
_REPETITIONS = 5

Run = Callable[[Mapping[str, np.ndarray]], dict]
"""From ids to numbers."""


class DevFile:
    """A labelled file that a tuned model answers in several exports.

    Args:
        path: of the file.
        model_dir: of the tuned run, or of a tuned model in another format, whose files
            have the columns that a form of one's own data has unless told otherwise.
        model: the same.

    Raises:
        InputError: the file is the one that the run was trained on, or cannot be read;
            or the model was not tuned on a task.
    """

    def __init__(self, path: Path, model_dir: Path, model: answers.Answers):
        settings = _read_settings(model_dir, model)
        if settings is None:
            raise InputError(
                f"{model_dir}: --quantize is for models that were tuned on a task, "
                "which have a score to lose"
            )
        inputs = model_dir / run_directory.INPUTS_NAME
        recorded = json.loads(files.read_text(inputs)) if inputs.is_file() else {}
        if held_out.digest(path) == recorded.get("train_sha256"):
            raise InputError(
                f"--dev {path}: the run was trained on this very file, which says "
                "nothing about what is lost on other texts: give a file of others"
            )
        self._settings = settings
        self._task = model.task
        self._threshold = run_directory.threshold_of(
            run_directory.read_results(model_dir) or {}
        )
        self._data = catalogue.read(
            path, settings, has_text_pair=self._task.has_text_pair
        )
        self._inputs = self._data.encode(self._task, model.tokenizer, settings)

    def answer(self, run: Run) -> dataset.Answers:
        """Answers to all examples."""
        inputs, outputs = self._inputs, np.zeros(0, np.float32)
        order = np.argsort(-inputs.lengths, kind="stable")
        for start in range(0, len(order), _BATCH_SIZE):
            rows = order[start : start + _BATCH_SIZE]
            found = _logits(run(_ids(inputs.batch(rows))))
            places = inputs.places(rows)
            if not start:
                width = found.shape[len(places.index) :]
                outputs = np.zeros((inputs.num_answers, *width), np.float32)
            outputs[places.ids] = found[places.index]
        return self._data.answer(outputs, inputs, self._task, self._settings)

    def compare(self, exact: Run, quantised: Run) -> dict[str, Any]:
        """Scores, changed answers and latencies of two exports, as JSON values."""
        runs = {"float32": exact, "quantised": quantised}
        given = {name: self.answer(run) for name, run in runs.items()}
        metric = catalogue.main_metric(self._settings, self._task.labels)
        scores = {
            name: a.scores(threshold=self._threshold) for name, a in given.items()
        }
        # The threshold is the run's, not one that is the best for each.
        plain = metric.removeprefix("best_")
        metric = plain if plain in scores["float32"] else metric
        # Those of questions are in percent, others are fractions.
        unit = 1 if self._task.kind == "span" else 100
        points = {name: unit * float(s[metric]) for name, s in scores.items()}
        first, second = (
            [
                record.model_dump()["prediction"]
                for record in a.records(threshold=self._threshold)
            ]
            for a in given.values()
        )
        return {
            "metric": metric,
            "examples": len(self._data),
            "score": points,
            "changed_answers": sum(a != b for a, b in zip(first, second, strict=True)),
            "latency_ms": {
                str(size): self._latency(
                    {"float32": exact, "quantised": quantised}, size
                )
                for size in (1, _BATCH_SIZE)
            },
        }

    def _latency(self, runs: Mapping[str, Run], size: int) -> dict[str, float]:
        """Median milliseconds of a batch of inputs from all over the file; in turns,
        for what else this machine does to weigh on both."""
        count = min(_BATCH_SIZE, len(self._inputs.lengths))
        rows = np.linspace(0, len(self._inputs.lengths) - 1, count).astype(int)
        batches = [rows] if size > 1 else [rows[i : i + 1] for i in range(count)]
        seconds = {name: [] for name in runs}
        for _ in range(_REPETITIONS):
            for batch in batches:
                ids = _ids(self._inputs.batch(batch))
                for name, run in runs.items():
                    started = time.perf_counter()
                    run(ids)
                    seconds[name].append(time.perf_counter() - started)
        return {name: 1000 * float(np.median(s)) for name, s in seconds.items()}


def _read_settings(
    model_dir: Path, model: answers.Answers
) -> finetuning_config.FinetuningConfig | None:
    """How a dev file is read; `None`: the model was not tuned on a task."""
    if model.task.kind in ("pretraining", "encoder"):
        return None
    found = answers.read_settings(model_dir)
    return found or native.tuning_settings(
        starting_point.read_with_tokenizer(model_dir)
    )


def _ids(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: batch[name].astype(np.int32) for name in answers.INPUT_NAMES}


def _logits(found: Mapping[str, np.ndarray]) -> np.ndarray:
    if "logits" in found:
        return found["logits"]
    return np.stack([found["start_logits"], found["end_logits"]], axis=-1)


def drop_of(verdict: Mapping[str, Any]) -> float:
    """Points that are lost; NaN if a score is none."""
    return verdict["score"]["float32"] - verdict["score"]["quantised"]


def check_drop(verdict: Mapping[str, Any], *, max_drop: float) -> None:
    """Refuses an export that loses too much.

    Raises:
        InputError: the score drops by more than `max_drop` points, or is no number.
    """
    drop = drop_of(verdict)
    if not drop <= max_drop:
        raise InputError(
            f"quantised, the model loses {drop:.2f} points of {verdict['metric']} on "
            f"the dev file, more than --max_drop {max_drop:g}: nothing was written; "
            "export it without --quantize, or allow more"
        )


def table(verdict: Mapping[str, Any]) -> str:
    """The verdict as lines of text."""
    return "".join(
        [
            f"{'':<22}{'float32':>12}{verdict['quantize']:>12}\n",
            _line(verdict, verdict["metric"], "score", "{:.2f}"),
            _line(verdict, "bytes", "bytes", "{:,}"),
            *(
                f"{f'ms, batch of {size}':<22}{row['float32']:>12.2f}"
                f"{row['quantised']:>12.2f}\n"
                for size, row in verdict["latency_ms"].items()
            ),
            f"answers changed: {verdict['changed_answers']:,} of "
            f"{verdict['examples']:,}\n",
        ]
    )


def _line(verdict: Mapping[str, Any], title: str, key: str, form: str) -> str:
    cells = (form.format(verdict[key][name]) for name in ("float32", "quantised"))
    return f"{title:<22}" + "".join(f"{cell:>12}" for cell in cells) + "\n"
