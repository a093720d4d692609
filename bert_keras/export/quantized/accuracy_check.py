"""Compares a quantised export with the float32 one on all of a development file."""

import operator
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_keras.checkpoints import run_directory
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.export import formats
from bert_keras.kinds import catalogue, registry, served, splits
from bert_keras.labelled import dataset

FILE_NAME = "quantization.json"
"""The verdict, next to the export."""

_BATCH_SIZE = 32

_ALONE = "one_at_a_time"
"""Key of a quantised export's answers to inputs that are not in a batch."""


class DevFile:
    """A labelled file that a tuned model answers in several exports. It has its form's
    default columns if the model is not one of our runs."""

    def __init__(self, path: Path, model: served.ServedModel):
        trained = model.trained
        if trained.settings is None:
            raise InputError(
                f"{trained.path}: --quantize is for models that were tuned on a task, "
                "which have a score to lose"
            )
        inputs = trained.path / run_directory.INPUTS_NAME
        recorded = files.read_json(inputs) if inputs.is_file() else {}
        if splits.file_hash(path) == recorded.get("train_sha256"):
            raise InputError(
                f"--dev {path}: the run was trained on this very file, which says "
                "nothing about what is lost on other texts: give a file of others"
            )
        self._id_specs = model.id_specs
        self._task, self._settings = trained.task, trained.settings
        self._decision = trained.decision
        self._data = catalogue.read(
            path, self._settings, has_text_pair=self._task.has_text_pair
        )
        self._inputs = self._data.encode(self._task, trained.tokenizer, self._settings)

    def answer(
        self, run: formats.Run, *, batch_size: int = _BATCH_SIZE
    ) -> dataset.Answers:
        inputs, outputs = self._inputs, np.zeros(0, np.float32)
        order = np.argsort(-inputs.lengths, kind="stable")
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch_outputs = self._run(run, inputs.batch(rows))
            places = inputs.places(rows)
            if not start:
                width = batch_outputs.shape[len(places.index) :]
                outputs = np.zeros((inputs.num_answers, *width), np.float32)
            outputs[places.ids] = batch_outputs[places.index]
        return self._data.answer(outputs, inputs, self._task, self._settings)

    def _run(self, run: formats.Run, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the outputs for a batch of inputs as the network gives them."""
        ids = {s.name: batch[s.name].astype(np.int32) for s in self._id_specs}
        rank, exported_rank = ids["input_ids"].ndim, self._id_specs[0].shape.rank
        if rank < exported_rank:
            # A passage and its question: a question with one passage.
            ids = {name: values[:, np.newaxis] for name, values in ids.items()}

        def outputs_of(ids: Mapping[str, np.ndarray]) -> np.ndarray:
            """Returns logits or vectors; logits of starts and ends as two columns."""
            outputs = run(ids)
            if "start_logits" in outputs:
                both = outputs["start_logits"], outputs["end_logits"]
                return np.stack(both, axis=-1)
            [numbers] = outputs.values()
            return numbers

        if rank <= exported_rank:
            return outputs_of(ids)
        # The texts of a row: one after the other, as vectors are asked for.
        outputs = []
        for text in range(ids["input_ids"].shape[1]):
            length = ids["input_mask"][:, text].sum(axis=-1).max()
            part = {name: values[:, text, :length] for name, values in ids.items()}
            outputs.append(outputs_of(part))
        return np.stack(outputs, axis=1)

    def compare(self, exact: formats.Run, quantised: formats.Run) -> dict[str, Any]:
        """Returns scores, changed answers and latencies of two exports, as JSON values.

        The quantised export answers twice, in batches and one input at a time: a scale
        that is computed from a batch depends on all of its inputs and on padding.
        """
        answers = {
            "float32": self.answer(exact),
            "quantised": self.answer(quantised),
            _ALONE: self.answer(quantised, batch_size=1),
        }
        kind = registry.labelled(self._task.kind)
        scores = {k: a.scores(decision=self._decision) for k, a in answers.items()}
        # The threshold is the run's, not one that is the best for each. Vectors that
        # learnt from numbers may have pairs without any here, or reversed.
        main = kind.main_metric(self._settings, self._task.labels)
        names = (main.removeprefix("best_"), main, *(m.name for m in kind.metrics))
        metric = next(name for name in names if name in scores["float32"])
        unit = kind.metric(metric).unit
        factor = 1 if unit == "%" else 100
        points = {name: factor * float(s[metric]) for name, s in scores.items()}
        predictions = {
            name: [
                record.model_dump()["prediction"]
                for record in a.records(decision=self._decision)
            ]
            for name, a in answers.items()
        }
        exactly = predictions.pop("float32")
        runs = {"float32": exact, "quantised": quantised}
        return {
            "metric": metric,
            "examples": len(self._data),
            "score": points,
            "changed_answers": {
                name: sum(map(operator.ne, exactly, predicted))
                for name, predicted in predictions.items()
            },
            "latency_ms": {
                str(size): self._latency(runs, size) for size in (1, _BATCH_SIZE)
            },
        }

    def _latency(self, runs: Mapping[str, formats.Run], size: int) -> dict[str, float]:
        """Returns the median milliseconds of a batch of inputs from all over the file.
        The exports take turns, so that other work of this machine slows both alike."""
        count = min(_BATCH_SIZE, len(self._inputs.lengths))
        rows = np.linspace(0, len(self._inputs.lengths) - 1, count).astype(int)
        batches = [rows] if size > 1 else [rows[i : i + 1] for i in range(count)]
        seconds = {name: [] for name in runs}
        # Five times each.
        for batch in 5 * batches:
            inputs = self._inputs.batch(batch)
            for name, run in runs.items():
                started = time.perf_counter()
                self._run(run, inputs)
                seconds[name].append(time.perf_counter() - started)
        return {name: 1000 * float(np.median(s)) for name, s in seconds.items()}


def check_drop(check: Mapping[str, Any], max_drop: float) -> None:
    scores = check["score"]
    for name, how in (("quantised", "in batches"), (_ALONE, "one at a time")):
        drop = scores["float32"] - scores[name]
        if not drop <= max_drop:
            raise InputError(
                f"quantised, the model loses {drop:.2f} points of {check['metric']} "
                f"on the dev file, read {how}, more than --max_drop {max_drop:g}: "
                "nothing was written; export it without --quantize, or allow more"
            )


def table(check: Mapping[str, Any]) -> str:
    score, sizes, changed = (check[k] for k in ("score", "bytes", "changed_answers"))
    rows = [
        ("", "float32", check["quantize"]),
        (check["metric"], f"{score['float32']:.2f}", f"{score['quantised']:.2f}"),
        ("  one at a time", "", f"{score[_ALONE]:.2f}"),
        ("bytes", f"{sizes['float32']:,}", f"{sizes['quantised']:,}"),
        *(
            (f"ms, batch of {size}", f"{ms['float32']:.2f}", f"{ms['quantised']:.2f}")
            for size, ms in check["latency_ms"].items()
        ),
    ]
    lines = [f"{title:<22}{exact:>12}{small:>12}" for title, exact, small in rows]
    lines.append(
        f"answers changed, of {check['examples']:,}: {changed['quantised']:,} in "
        f"batches of {_BATCH_SIZE}, {changed[_ALONE]:,} one at a time"
    )
    return "\n".join(lines) + "\n"
