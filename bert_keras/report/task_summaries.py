"""A tuned model's answers to its development file, for a page and for TensorBoard."""

import collections
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_keras.checkpoints import run_directory
from bert_keras.core import files
from bert_keras.core.settings import finetuning
from bert_keras.kinds.kind import Labelled
from bert_keras.labelled import answers, score_sums
from bert_keras.pages import drawing, markdown, sections


def read_sections(kind: Labelled, run_dir: Path) -> list[sections.Section]:
    """Reads a fine-tuned run's `task.json` and `dev_answers.jsonl`; returns the parts
    of a page about the answers, at least one. Refuses files of two different runs."""
    task = run_directory.read_task(run_dir)
    path = run_dir / run_directory.ANSWERS_NAME
    records = answers.read_answers(path, kind.record)
    if not answers.are_finite(records):
        text = (
            "The model computes numbers that are not finite, so its answers mean "
            "nothing: its training has failed."
        )
        return [sections.Section("Answers", "answers", text)]
    return kind.page(records, task)


def score_sentence(kind: Labelled, run_dir: Path, results: Mapping[str, Any]) -> str:
    """Returns how good the answers are, in Markdown: the main metric, with an interval
    and with the score of one answer for all where `kind.score` knows the metric. Empty:
    the results have no such score."""
    settings = run_directory.read_settings(run_dir, finetuning.FinetuningConfig)
    labels = run_directory.read_task(run_dir).labels or ()
    metric = kind.main_metric(settings or finetuning.FinetuningConfig(), labels)
    score = results.get("eval", {}).get(metric)
    if score is None:
        return ""
    records = answers.read_answers(run_dir / run_directory.ANSWERS_NAME, kind.record)
    digits, unit = (1, " %") if kind.metric(metric).unit == "%" else (3, "")
    text = f"**{metric} {score:.{digits}f}{unit}** on the development file, "
    text += f"{len(records):,} examples"
    rows = [record.model_dump() for record in records]
    if metric not in kind.resampled or not answers.are_finite(records):
        return f"{text}."
    # 1. How far the score would vary with other examples; resamples of few are alike.
    if len(rows) >= 20:
        sums = kind.score(rows, metric, labels=labels)
        drawn = score_sums.resample({metric: sums}, seed=12345)[metric]
        low, high = np.quantile(drawn, (0.025, 0.975))
        text += (
            f"; 95 % interval {low:.{digits}f} to {high:.{digits}f}, by resampling them"
        )
    # 2. The score of the commonest answer, where an example has one.
    if isinstance(rows[0].get("label"), str | int):
        commonest, _ = collections.Counter(r["label"] for r in rows).most_common(1)[0]
        same = [row | {"prediction": commonest} for row in rows]
        sums = kind.score(same, metric, labels=labels)
        floor = sums.score(sums.rows.sum(axis=0))
        name = markdown.literal(str(commonest))
        text += f". Always answering <em>{name}</em> scores {floor:.3f}"
    return f"{text}."


def write(kind: Labelled, run_dir: str | Path, *, step: int) -> None:
    """Shows the answers of a fine-tuned run, at its last `step`, in TensorBoard.
    Pictures go to `answers/*` in `logs/panels`, text to `answers/*/text`."""
    # Not at the top: a page is written without TensorFlow.
    import tensorflow as tf

    run_dir = files.path(run_dir)
    parts = read_sections(kind, run_dir)
    with (
        files.added_to(run_dir / run_directory.LOGS_NAME / "panels") as directory,
        contextlib.closing(tf.summary.create_file_writer(str(directory))) as writer,
        writer.as_default(step),
    ):
        for section in parts:
            tag = f"answers/{section.name}"
            if section.picture is not None:
                tf.summary.image(tag, drawing.pixels(section.picture)[None])
            if section.text:
                # TensorBoard shows one kind of thing of a tag.
                tf.summary.text(f"{tag}/text", f"## {section.title}\n\n{section.text}")
