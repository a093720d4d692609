"""The answers of a run that gives texts a number."""

# Records of a dev file have labels.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

import functools
import math
from collections.abc import Sequence

import numpy as np

from bert_keras.kinds import sections, task_pictures
from bert_keras.kinds.text import classified_texts
from bert_keras.kinds.text.records import RatedText
from bert_keras.pages import drawing, markdown


def describe(records: Sequence[RatedText]) -> list[sections.Section]:
    """The parts of the page."""
    return [_scatter(records), _mistakes(records)]


def errors(records: Sequence[RatedText]) -> dict[str, float]:
    """Distances of the answers from the right numbers, in their unit."""
    all_errors = np.array([record.error for record in records])
    # Sums of huge numbers are infinite.
    with np.errstate(over="ignore", invalid="ignore"):
        return {
            "mean error": float(np.mean(all_errors)),
            "mean absolute error": float(np.mean(np.abs(all_errors))),
            "root mean squared error": math.hypot(*all_errors) / len(records) ** 0.5,
        }


def worst(records: Sequence[RatedText]) -> list[RatedText]:
    """All answers, the farthest from the right number first."""
    return sorted(records, key=lambda record: (-abs(record.error), record.line))


def _scatter(records: Sequence[RatedText]) -> sections.Section:
    rows = [[name, f"{value:.4g}"] for name, value in errors(records).items()]
    draw = functools.partial(
        task_pictures.draw_scatter,
        [record.label for record in records],
        [record.prediction for record in records],
    )
    return sections.Section(
        "Answers and right numbers",
        "scatter",
        markdown.table(["", "all answers"], rows),
        drawing.as_png(draw),
    )


def _mistakes(records: Sequence[RatedText]) -> sections.Section:
    has_pair = any(record.text_pair is not None for record in records)
    header = ["line", "right", "answered", "error", "text"]
    rows = [
        [
            str(record.line),
            f"{record.label:.4g}",
            f"{record.prediction:.4g}",
            f"{record.error:+.4g}",
            *classified_texts.text_cells(
                record.text, record.text_pair, has_pair=has_pair
            ),
        ]
        for record in worst(records)[: sections.NUM_MISTAKES]
    ]
    return sections.mistakes_section(
        [*header, "second text"] if has_pair else header,
        rows,
        found=f"{len(records):,} answers",
        order="farthest from the right number",
    )
