"""The answers of a run that ranks passages."""

# Records of a dev file have relevances.
# pyright: reportArgumentType=false, reportOptionalSubscript=false

import functools
from collections.abc import Sequence

import numpy as np

from bert_keras.kinds.ranking import RankedPassages, scores
from bert_keras.pages import drawing, markdown, pictures, sections
from bert_keras.pages.sections import Column

_NAMES = {
    "mrr": "mean of 1 / rank of the first right passage",
    f"mrr_at_{scores.RANK}": f"the same, 0 below rank {scores.RANK}",
    f"ndcg_at_{scores.RANK}": f"nDCG of the first {scores.RANK} passages",
    "mrr_by_chance": "mean of 1 / rank in random order",
}


def _rank(record: RankedPassages) -> int:
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


def describe(records: Sequence[RankedPassages]) -> list[sections.Section]:
    # 1. Scores, and the share of questions by passages read.
    ranks = np.array([_rank(record) for record in records])
    known = ranks[ranks > 0]
    figures = scores.mean_scores((r.relevances, r.scores) for r in records)
    rows = [[_NAMES[name], markdown.percent(value)] for name, value in figures.items()]
    mean_count = np.mean([len(record.passages) for record in records])
    rows.append(["passages of a question", f"{mean_count:,.1f}"])
    num_unknown = len(records) - len(known)
    rows.append(["questions without a right passage", f"{num_unknown:,}"])
    picture = None
    if len(known):
        rows.append(["median rank of the first right one", f"{np.median(known):,.0f}"])
        picture = drawing.as_png(
            pictures.draw_ranks,
            *(known, len(records)),
            cutoff=scores.RANK,
            title="Right passages among the first ones",
            labels=("passages read", "share of questions"),
        )
    text = markdown.table(["", f"{len(records):,} questions"], rows)
    search = sections.Section("Ranks of the right passages", "ranks", text, picture)
    # 2. Questions whose first passage is wrong, the lowest right ones first.
    missed = [record for record in records if _rank(record) > 1]
    missed.sort(key=lambda record: (-_rank(record), record.line))
    mistakes = sections.mistakes_section(
        _COLUMNS,
        missed,
        summary=f"{len(missed):,} of {len(records):,} first passages are wrong, "
        "though another one is right",
        order="farthest from the first place",
    )
    return [search, mistakes]
