"""A tuned model's answers to its development file, for a page and for TensorBoard."""

import contextlib
from pathlib import Path

from bert_keras.checkpoints import run_directory
from bert_keras.core import files
from bert_keras.kinds.kind import Labelled
from bert_keras.labelled import answers
from bert_keras.pages import drawing, sections


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
