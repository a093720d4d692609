"""The answers of a run that gives texts vectors."""

# Records of a dev file have pairs, and a rank or a label.
# pyright: reportArgumentType=false, reportOperatorIssue=false, reportOptionalOperand=false

from collections.abc import Sequence

import numpy as np
from matplotlib import figure

from bert_keras.kinds.vectors import EmbeddedText
from bert_keras.labelled import similarity
from bert_keras.pages import drawing, markdown, pictures, sections
from bert_keras.pages.sections import Column

_COLUMNS = (
    sections.LINE,
    Column("rank", lambda record: f"{record.rank:,}"),
    sections.TEXT,
    Column("its second text", lambda record: markdown.excerpt(record.text_pair)),
    Column("nearest wrong one", lambda record: markdown.excerpt(record.nearest)),
)


def describe(records: Sequence[EmbeddedText]) -> list[sections.Section]:
    if records[0].label is not None:
        # 1. Pairs with labels: their cosines beside these.
        labels = np.array([record.label for record in records], np.float32)
        found = np.array([record.prediction for record in records], np.float32)
        scores = similarity.label_scores(found, labels)
        rows = [[f"{name} correlation", f"{v:.3f}"] for name, v in scores.items()]
        table = markdown.table(["", "all pairs"], rows)
        picture = drawing.as_png(_draw_cosines, labels, found)
        return [sections.Section("Cosines and labels", "cosines", table, picture)]
    # 2. Pairs that belong together: how well a second text is found by its first.
    ranks = np.array([record.rank for record in records])
    names = {
        "recall_at_1": "second text is the nearest",
        "recall_at_10": "it is among the ten nearest",
        "mrr": "mean of 1 / rank",
    }
    scores = similarity.search_scores(ranks)
    rows = [[what, markdown.percent(scores[name])] for name, what in names.items()]
    rows.append(["median rank", f"{np.median(ranks):,.0f}"])
    picture = drawing.as_png(
        pictures.draw_ranks,
        *(ranks, len(ranks)),
        cutoff=similarity.RANK,
        title="Second texts among the nearest ones",
        labels=("texts shown", "share of pairs"),
    )
    title = "Second texts found among all of the file"
    table = markdown.table(["", f"{len(ranks):,} pairs"], rows)
    search = sections.Section(title, "search", table, picture)
    missed = [record for record in records if record.rank > similarity.RANK]
    missed.sort(key=lambda record: (-record.rank, record.line))
    misses = sections.mistakes_section(
        _COLUMNS,
        missed,
        summary=f"{len(missed):,} of {len(records):,} second texts are not found",
        order="farthest",
    )
    return [search, misses]


def _draw_cosines(labels: np.ndarray, found: np.ndarray) -> figure.Figure:
    picture, plot = drawing.new_plot("Cosines of pairs by their labels")
    plot.scatter(
        *(labels, found),
        s=14,
        alpha=float(np.clip(300 / len(labels), 0.03, 0.7)),
        color=drawing.BLUE,
        edgecolors="none",
    )
    plot.set(xlabel="label", ylabel="cosine")
    return picture
