"""The answers of a run that ranks passages."""

# Records of a dev file have relevances.
# pyright: reportArgumentType=false, reportOptionalSubscript=false

import functools
from collections.abc import Sequence

import numpy as np

from bert_keras.kinds.ranking import scores
from bert_keras.kinds.ranking.records import RankedPassages
from bert_keras.pages import drawing, markdown, pictures, sections
from bert_keras.pages.sections import Column

_NAMES = {
    "mrr": "mean of 1 / rank of the first right passage",
    f"mrr_at_{scores.RANK}": f"the same, 0 below rank {scores.RANK}",
    f"ndcg_at_{scores.RANK}": f"nDCG of the first {scores.RANK} passages",
    "mrr_by_chance": "mean of 1 / rank in random order",
}


def describe(records: Sequence[RankedPassages]) -> list[sections.Section]:
    ranks = [_rank(record) or 0 for record in records]
    missed = [record for record, rank in zip(records, ranks, strict=True) if rank > 1]
    missed.sort(key=lambda record: (-(_rank(record) or 0), record.line))
    return [
        _search(records, np.array(ranks)),
        sections.mistakes_section(
            _COLUMNS,
            missed,
            summary=f"{len(missed):,} of {len(records):,} first passages are wrong, "
            "though another one is right",
            order="farthest from the first place",
        ),
    ]


def _rank(record: RankedPassages) -> int | None:
    return scores.first_right_rank(record.relevances, record.scores)


def _first(record: RankedPassages, *, is_right: bool) -> str:
    """Returns the first passage that is right, or wrong."""
    order = (n for n in record.prediction if (record.relevances[n] > 0) == is_right)
    return markdown.excerpt(record.passages[next(order)])


_COLUMNS = (
    sections.LINE,
    Column("rank", lambda record: f"{_rank(record):,}"),
    Column("question", lambda record: markdown.excerpt(record.question)),
    Column("first right passage", functools.partial(_first, is_right=True)),
    Column("first wrong passage", functools.partial(_first, is_right=False)),
)


def _search(records: Sequence[RankedPassages], ranks: np.ndarray) -> sections.Section:
    """Returns scores; ranks are 0 for questions without a right passage."""
    figures = scores.mean_scores((r.relevances, r.scores) for r in records)
    known = ranks[ranks > 0]
    rows = [[_NAMES[name], markdown.percent(value)] for name, value in figures.items()]
    rows += [
        [
            "passages of a question",
            f"{np.mean([len(r.passages) for r in records]):,.1f}",
        ],
        ["questions without a right passage", f"{len(ranks) - len(known):,}"],
    ]
    if len(known):
        rows.append(["median rank of the first right one", f"{np.median(known):,.0f}"])
    draw = functools.partial(
        pictures.draw_ranks,
        known,
        len(records),
        cutoff=scores.RANK,
        title="Right passages among the first ones",
        labels=("passages read", "share of questions"),
    )
    return sections.Section(
        "Ranks of the right passages",
        "ranks",
        markdown.table(["", f"{len(records):,} questions"], rows),
        drawing.as_png(draw) if len(known) else None,
    )
