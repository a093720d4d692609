"""The answers of a run that gives texts a number."""

# Records of a dev file have labels.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

import functools
import math
from collections.abc import Sequence

import numpy as np

from bert_keras.kinds.text import classified_texts
from bert_keras.kinds.text.records import RatedText
from bert_keras.pages import drawing, markdown, pictures, sections
from bert_keras.pages.sections import Column

_COLUMNS = (
    sections.LINE,
    Column("right", lambda record: f"{record.label:.4g}"),
    Column("answered", lambda record: f"{record.prediction:.4g}"),
    Column("error", lambda record: f"{record.error:+.4g}"),
    *classified_texts.TEXTS,
)


def describe(records: Sequence[RatedText]) -> list[sections.Section]:
    farthest_first = sorted(records, key=lambda r: (-abs(r.error), r.line))
    mistakes = sections.mistakes_section(
        _COLUMNS,
        farthest_first,
        summary=f"{len(records):,} answers",
        order="farthest from the right number",
    )
    return [_scatter(records), mistakes]


def errors(records: Sequence[RatedText]) -> dict[str, float]:
    """Returns distances of the answers from the right numbers, in their unit."""
    all_errors = np.array([record.error for record in records])
    # Sums of huge numbers are infinite.
    with np.errstate(over="ignore", invalid="ignore"):
        return {
            "mean error": float(np.mean(all_errors)),
            "mean absolute error": float(np.mean(np.abs(all_errors))),
            "root mean squared error": math.hypot(*all_errors) / len(records) ** 0.5,
        }


def _scatter(records: Sequence[RatedText]) -> sections.Section:
    rows = [[name, f"{value:.4g}"] for name, value in errors(records).items()]
    draw = functools.partial(
        pictures.draw_scatter,
        [record.label for record in records],
        [record.prediction for record in records],
    )
    return sections.Section(
        "Answers and right numbers",
        "scatter",
        markdown.table(["", "all answers"], rows),
        drawing.as_png(draw),
    )
