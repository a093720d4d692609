"""Sections of a page about answers: classes, calibration, the worst mistakes."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bert_keras.pages import confusion, drawing, markdown, pictures

MISTAKES = "worst_mistakes"
"""Name of the section of the mistakes."""

NUM_MISTAKES = 20
"""Mistakes to show."""

NUM_FILTERED_MISTAKES = 500
"""Mistakes to show on a page on which they can be filtered."""

MAX_LISTED_CLASSES = 200
"""Classes to list in a table."""

NUM_CONFUSIONS = 20
"""Pairs of classes in the list of the commonest confusions."""


class Section(NamedTuple):
    title: str
    name: str
    """Stem of the picture's file name and of the tags for TensorBoard."""
    text: str
    """Markdown; may be empty."""
    picture: bytes | None = None
    """PNG."""
    long_text: str = ""
    """`text` with more rows, for a page with filters; empty: there are no more."""


def confusion_section(
    right: Sequence[str], answered: Sequence[str], names: Sequence[str], *, title: str
) -> Section:
    """Shows the confusion matrix of all classes, `names`; beyond two classes also the
    commonest confusions."""
    counts, short = (
        confusion.confusion(right, answered, names),
        drawing.short_names(names),
    )
    picture = drawing.as_png(pictures.draw_confusion, title, short, counts)
    texts = []
    if len(names) > pictures.MAX_MATRIX_CLASSES:
        texts.append(
            f"Of {len(names):,} classes the picture has those with most "
            "mistakes; the others are pooled, with mistakes among them on the diagonal."
        )
    commonest = confusion.commonest(names, counts, NUM_CONFUSIONS)
    if len(names) > 2 and commonest:
        rows = [
            [*map(markdown.literal, pair), f"{count:,}", markdown.percent(share)]
            for *pair, count, share in commonest
        ]
        header = ["right", "answered", "how often", "share of the row"]
        texts.append("The commonest confusions:\n\n" + markdown.table(header, rows))
    name = title.lower().replace(" ", "_")
    return Section(title, name, "\n\n".join(texts), picture)


def scores_section(scores: Sequence[confusion.ClassScore], word: str) -> Section:
    title = f"Precision, recall and F1 by {word}"
    short = drawing.short_names([score.name for score in scores])
    drawn = [s._replace(name=n) for s, n in zip(scores, short, strict=True)]
    picture = drawing.as_png(pictures.draw_class_scores, title, drawn)
    header = [word, "precision", "recall", "F1", "in the file", "answered"]
    rows = [
        [
            markdown.literal(score.name),
            *map(markdown.percent, (score.precision, score.recall, score.f1)),
            *(f"{score.num_right:,}", f"{score.num_answered:,}"),
        ]
        for score in scores[:MAX_LISTED_CLASSES]
    ]
    if any(re.fullmatch("#[0-9]+", name) for name in short):
        header = ["in pictures", *header]
        names = map(markdown.literal, short)
        rows = [[name, *cells] for name, cells in zip(names, rows, strict=False)]
    text = markdown.table(header, rows)
    if len(scores) > MAX_LISTED_CLASSES:
        text = f"The first {MAX_LISTED_CLASSES} of {len(scores):,}:\n\n{text}"
    return Section(title, f"scores_by_{word}", text, picture)


class Column(NamedTuple):
    title: str
    cell: Callable[[Any], str | None]
    """Markdown of a record; `None`: the record has no such thing."""


LINE = Column("line", lambda record: str(record.line))
LABEL = Column("right", lambda record: markdown.literal(record.label))
PREDICTION = Column("answered", lambda record: markdown.literal(record.prediction))
CONFIDENCE = Column("probability", lambda record: markdown.percent(record.confidence))
TEXT = Column("text", lambda record: markdown.excerpt(record.text))
TEXT_PAIR = Column(
    "second text",
    lambda record: (
        None if record.text_pair is None else markdown.excerpt(record.text_pair)
    ),
)


def mistakes_section(
    columns: Sequence[Column], wrong: Sequence[Any], *, summary: str, order: str
) -> Section:
    """Shows a table of the worst mistakes. `wrong` has all of them, the worst first;
    `summary` is a sentence about their number, `order` the property of the worst."""
    texts = [f"{summary}.", ""]
    for limit in (NUM_MISTAKES, NUM_FILTERED_MISTAKES) if wrong else ():
        worst = wrong[:limit]
        cells = {c.title: [c.cell(record) for record in worst] for c in columns}
        # Columns that are empty for all of them are left out.
        cells = {title: column for title, column in cells.items() if any(column)}
        rows = zip(*cells.values(), strict=True)
        table = markdown.table([*cells], ([cell or "" for cell in row] for row in rows))
        shown = "first those" if worst == wrong else f"the {len(worst)}"
        texts.append(f"{summary}; {shown} {order}:\n\n{table}")
    *_, short, long = texts
    return Section("Worst mistakes", MISTAKES, short, long_text=long)


def answer_sections(columns: Sequence[Column], records: Sequence[Any]) -> list[Section]:
    """Shows how right confident answers are, and the most confident mistakes."""
    # 1. Calibration: is the model as often right as it is confident?
    confidences = [record.confidence for record in records]
    is_right = [record.label == record.prediction for record in records]
    bins = pictures.reliability_bins(confidences, is_right)
    means = (sum(values) / len(values) for values in (confidences, is_right))
    mean, accuracy, error = map(
        markdown.percent, (*means, pictures.calibration_error(bins))
    )
    text = (
        f"The model gives its answers a probability of {mean} on average, and "
        f"{accuracy} of them are right. Expected calibration error, in "
        f"{pictures.NUM_BINS} bins: {error}."
    )
    picture = drawing.as_png(pictures.draw_reliability, confidences, is_right)
    # 2. The mistakes.
    wrong = [record for record in records if record.label != record.prediction]
    wrong.sort(key=lambda record: (-record.confidence, record.line))
    summary = f"{len(wrong):,} of {len(records):,} answers are wrong"
    return [
        Section("Calibration", "calibration", text, picture),
        mistakes_section(columns, wrong, summary=summary, order="most confident"),
    ]
