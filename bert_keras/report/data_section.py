"""The section on a run's training and dev files: labels, lengths, repeats."""

from pathlib import Path

import numpy as np
from matplotlib import axes, figure

from bert_keras.labelled import data_report
from bert_keras.pages import drawing, markdown, sections
from bert_keras.report import facts

MAX_DRAWN_LABELS = 20
"""Labels in the picture, the commonest in the training file."""

_COLOURS = (drawing.BLUE, drawing.VERMILION, drawing.GREEN, drawing.GREY)


def read_section(run_dir: Path) -> sections.Section | None:
    """Reads the section on the data; `None`: the run has no report on it."""
    report = facts.read_data_report(run_dir)
    return None if report is None else describe(report)


def describe(report: data_report.DataReport) -> sections.Section:
    problems = "\n".join(facts.problem_lines(report)) or "No problem was found."
    names = list(report.files[0].labels)[:MAX_DRAWN_LABELS]
    columns = [_cells(file, names) for file in report.files]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    header = ["", *(markdown.literal(file.file) for file in report.files)]
    text = f"{problems}\n\n{markdown.table(header, rows)}"
    image = drawing.as_png(lambda: draw(report))
    return sections.Section("Data", "data", text, image)


def _cells(file: data_report.FileReport, names: list[str]) -> dict[str, str]:
    lengths = file.lengths
    total = sum(file.labels.values()) + file.num_other_labels
    counts = {
        "longer than `max_seq_length`": lengths.num_long,
        "repeat an earlier text": file.num_repeated,
        "same text, another answer": file.num_contradicted,
        "lack a text": file.num_empty,
        "text is in the training file": file.num_in_training,
    }
    return {
        "examples": f"{file.num_examples:,}",
        "tokens: median": f"{lengths.median:,}",
        "tokens: 95 % have at most": f"{lengths.percentile_95:,}",
        "tokens: longest": f"{lengths.longest:,}",
        **{what: _cell(count, file.num_examples) for what, count in counts.items()},
        **{
            f"label {markdown.literal(name)}": _cell(file.labels.get(name, 0), total)
            for name in names
        },
    }


def _cell(count: int | None, total: int) -> str:
    if not count:
        return "" if count is None else "0"
    return f"{count:,} ({markdown.percent(count / total)})"


def draw(report: data_report.DataReport) -> figure.Figure:
    """Draws shares of labels beside shares of lengths, a colour for each file."""
    names = list(report.files[0].labels)[:MAX_DRAWN_LABELS]
    height = max(4.0, 1.6 + 0.3 * len(names))
    picture, plot = drawing.new_plot("Lengths", height=height)
    if names:
        picture = figure.Figure(figsize=(11, height), layout="constrained")
        left, plot = picture.subplots(1, 2)
        _draw_labels(left, report, names)
    _draw_lengths(plot, report)
    drawing.add_legend(picture, num_columns=len(_COLOURS))
    return picture


def _draw_labels(
    plot: axes.Axes, report: data_report.DataReport, names: list[str]
) -> None:
    shown = report.files[: len(_COLOURS)]
    thickness = 0.8 / len(shown)
    for number, file in enumerate(shown):
        plot.barh(
            np.arange(len(names)) + (number - (len(shown) - 1) / 2) * thickness,
            [100 * facts.share_of(name, file) for name in names],
            height=thickness,
            color=_COLOURS[number],
        )
    plot.set_yticks(range(len(names)), drawing.short_names(names))
    plot.set_ylim(len(names) - 0.5, -0.5)
    first = report.files[0]
    rest = len(first.labels) + first.num_unlisted - len(names)
    title = f"Labels, the commonest {len(names)} of {len(names) + rest}"
    plot.set(title=title if rest else "Labels", xlabel="% of a file's labels")


def _draw_lengths(plot: axes.Axes, report: data_report.DataReport) -> None:
    for file, colour in zip(report.files, _COLOURS, strict=False):
        lengths = file.lengths
        places = np.arange(len(lengths.counts) + 1) * lengths.bin_width
        plot.plot(
            places,
            100 * np.cumsum([0, *lengths.counts]) / file.num_examples,
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
    plot.set(
        title="Lengths",
        xlabel="tokens, uncut",
        ylabel="% of the examples, up to",
        ylim=(0, 102),
        xlim=(0, None),
    )
