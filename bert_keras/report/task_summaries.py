"""Sections on a tuned run: its files with labels, lengths and repeats, and its answers
to the development file, for a page and for TensorBoard."""

import contextlib
from pathlib import Path

import numpy as np
from matplotlib import figure

from bert_keras.checkpoints import run_directory
from bert_keras.core import files
from bert_keras.kinds import registry
from bert_keras.labelled import answers, data_report
from bert_keras.pages import drawing, markdown, sections
from bert_keras.report import facts

MAX_DRAWN_LABELS = 20
"""Labels in the picture, the commonest in the training file."""

_COLOURS = (drawing.BLUE, drawing.VERMILION, drawing.GREEN, drawing.GREY)


def describe_data(report: data_report.DataReport) -> sections.Section:
    problems = "\n".join(facts.problem_lines(report)) or "No problem was found."
    names = list(report.files[0].labels)[:MAX_DRAWN_LABELS]
    columns = []
    for file in report.files:
        lengths, count = file.lengths, file.num_examples
        cells = {
            "examples": f"{count:,}",
            "tokens: median": f"{lengths.median:,}",
            "tokens: 95 % have at most": f"{lengths.percentile_95:,}",
            "tokens: longest": f"{lengths.longest:,}",
            "longer than `max_seq_length`": _cell(lengths.num_long, count),
            "repeat an earlier text": _cell(file.num_repeated, count),
            "same text, another answer": _cell(file.num_contradicted, count),
            "lack a text": _cell(file.num_empty, count),
            "text is in the training file": _cell(file.num_in_training, count),
        }
        total = sum(file.labels.values()) + file.num_other_labels
        labels = {n: _cell(file.labels.get(n, 0), total) for n in names}
        cells |= {f"label {markdown.literal(n)}": cell for n, cell in labels.items()}
        columns.append(cells)
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    header = ["", *(markdown.literal(file.file) for file in report.files)]
    text = f"{problems}\n\n{markdown.table(header, rows)}"
    image = drawing.as_png(draw_data, report)
    return sections.Section("Data", "data", text, image)


def _cell(count: int | None, total: int) -> str:
    if not count:
        return "" if count is None else "0"
    return f"{count:,} ({markdown.percent(count / total)})"


def draw_data(report: data_report.DataReport) -> figure.Figure:
    """Draws shares of labels beside shares of lengths, a colour for each file."""
    names = list(report.files[0].labels)[:MAX_DRAWN_LABELS]
    shown = report.files[: len(_COLOURS)]
    height = max(4.0, 1.6 + 0.3 * len(names))
    picture, plot = drawing.new_plot("Lengths", height=height)
    # 1. Bars for the labels.
    if names:
        picture = figure.Figure(figsize=(11, height), layout="constrained")
        left, plot = picture.subplots(1, 2)
        thickness = 0.8 / len(shown)
        for number, file in enumerate(shown):
            left.barh(
                np.arange(len(names)) + (number - (len(shown) - 1) / 2) * thickness,
                [100 * facts.share_of(name, file) for name in names],
                height=thickness,
                color=_COLOURS[number],
            )
        left.set_yticks(range(len(names)), drawing.short_names(names))
        left.set_ylim(len(names) - 0.5, -0.5)
        num_labels = len(report.files[0].labels) + report.files[0].num_unlisted
        title = f"Labels, the commonest {len(names)} of {num_labels}"
        title = title if num_labels > len(names) else "Labels"
        left.set(title=title, xlabel="% of a file's labels")
    # 2. The distribution of the lengths.
    for file, colour in zip(shown, _COLOURS, strict=False):
        counts = file.lengths.counts
        plot.plot(
            np.arange(len(counts) + 1) * file.lengths.bin_width,
            100 * np.cumsum([0, *counts]) / file.num_examples,
            color=colour,
            linewidth=2,
            label=drawing.drawable([file.file])[0],
        )
    plot.axvline(report.max_seq_length, color="black", linestyle="--", linewidth=1.2)
    plot.annotate(
        f"max_seq_length {report.max_seq_length}",
        (report.max_seq_length, 2),
        xytext=(4, 0),
        textcoords="offset points",
        rotation=90,
        fontsize=10,
    )
    plot.set(title="Lengths", xlabel="tokens, uncut", ylabel="% of the examples, up to")
    plot.set(ylim=(0, 102), xlim=(0, None))
    drawing.add_legend(picture, num_columns=len(_COLOURS))
    return picture


def read_sections(run_dir: Path) -> list[sections.Section]:
    """Reads a fine-tuned run's `task.json` and `dev_answers.jsonl`; returns the parts
    of a page about the answers, at least one. Refuses files of two different runs."""
    task = run_directory.read_task(run_dir)
    kind, path = registry.labelled(task.kind), run_dir / run_directory.ANSWERS_NAME
    records = answers.read_answers(path, kind.record)
    if not answers.are_finite(records):
        text = (
            "The model computes numbers that are not finite, so its answers mean "
            "nothing: its training has failed."
        )
        return [sections.Section("Answers", "answers", text)]
    return kind.page(records, task)


def write(run_dir: str | Path, *, step: int) -> None:
    """Shows the answers of a fine-tuned run, at its last `step`, in TensorBoard.
    Pictures go to `answers/*` in `logs/panels`, text to `answers/*/text`."""
    # Not at the top: a page is written without TensorFlow.
    import tensorflow as tf

    run_dir = files.path(run_dir)
    parts = read_sections(run_dir)
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
