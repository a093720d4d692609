"""The answers of a run that finds answers to questions in a text."""

# Records of a dev file have labels.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

import functools
import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from bert_keras.kinds.span import null_odds, pictures, squad_scores
from bert_keras.kinds.span.records import AnsweredQuestion
from bert_keras.pages import drawing, markdown, sections
from bert_keras.pages.sections import Column

NO_ANSWER = "no answer"

_MAX_PLACES = 50
"""Occurrences of a text in another to consider."""


def describe(
    records: Sequence[AnsweredQuestion], *, has_impossible: bool
) -> list[sections.Section]:
    """Returns the sections of the page; `records` are one or more. With
    `has_impossible`, a question may have no answer (SQuAD 2.0)."""
    scores = [
        squad_scores.score_answer(
            r.prediction, r.answers, has_impossible=has_impossible
        )
        for r in records
    ]
    lengths = [squad_scores.answer_length_group(r.answers) for r in records]
    words = [squad_scores.question_word_group(r.question) for r in records]
    by_length = sorted(
        squad_scores.scores_by(lengths, scores),
        key=lambda group: squad_scores.ANSWER_LENGTHS.index(group.group),
    )
    by_word = sorted(
        squad_scores.scores_by(words, scores),
        key=lambda group: (-group.num_questions, group.group),
    )
    parts = [
        _groups(by_length, title="By words of the answer", name="by_answer_length"),
        _groups(by_word, title="By question word", name="by_question_word"),
    ]
    if has_impossible and all(record.null_odds is not None for record in records):
        parts.append(_threshold(records))
    return [*parts, _mistakes(records, scores)]


def _groups(
    groups: Sequence[squad_scores.GroupScore], *, title: str, name: str
) -> sections.Section:
    rows = [
        [g.group, f"{g.num_questions:,}", f"{g.exact:.1f}", f"{g.f1:.1f}"]
        for g in groups
    ]
    return sections.Section(
        title,
        name,
        markdown.table(["group", "questions", "exact match", "F1"], rows),
        drawing.as_png(functools.partial(pictures.draw_groups, title, groups)),
    )


def _threshold(records: Sequence[AnsweredQuestion]) -> sections.Section:
    # Not by their ids, which are the data's own matter.
    by_number = {str(number): record for number, record in enumerate(records)}
    gold, texts, odds = (
        {number: getattr(record, name) for number, record in by_number.items()}
        for name in ("answers", "best_text", "null_odds")
    )
    curve = null_odds.threshold_curve(gold, texts, odds)
    best = squad_scores.best_thresholds(gold, texts, odds)
    header = ["", "best", "at the threshold"]
    rows = [
        [name, f"{best[f'best_{key}']:.2f}", f"{best[f'best_{key}_thresh']:.4f}"]
        for name, key in (("F1", "f1"), ("exact match", "exact"))
    ]
    text = (
        "A question is answered if its odds of having no answer do not exceed the "
        "threshold. Chosen on these very questions:\n\n"
    )
    draw = functools.partial(
        pictures.draw_null_odds, curve, best_threshold=best["best_f1_thresh"]
    )
    return sections.Section(
        "Threshold of no answer",
        "null_odds",
        text + markdown.table(header, rows),
        drawing.as_png(draw),
    )


class Mistake(NamedTuple):
    record: AnsweredQuestion
    f1: float


def worst(
    records: Sequence[AnsweredQuestion], scores: Sequence[squad_scores.Score]
) -> list[Mistake]:
    """Returns answers that are not exact: the lowest F1, then the most probable,
    first."""
    wrong = [
        Mistake(record, score.f1)
        for record, score in zip(records, scores, strict=True)
        if not score.exact
    ]
    return sorted(wrong, key=lambda m: (m.f1, -m.record.probability, m.record.id))


def _mistakes(
    records: Sequence[AnsweredQuestion], scores: Sequence[squad_scores.Score]
) -> sections.Section:
    wrong = worst(records, scores)
    section = sections.mistakes_section(
        _COLUMNS,
        wrong,
        summary=f"{len(wrong):,} of {len(records):,} answers are not exact",
        order="of the lowest F1, the most probable of them",
    )
    note = "In the context the right answer is bold, the answer that was given italic."
    return section._replace(text=f"{section.text}\n\n{note}") if wrong else section


_COLUMNS = (
    Column("question", lambda m: markdown.excerpt(m.record.question)),
    Column("right", lambda m: _listed(m.record.answers)),
    Column("answered", lambda m: _listed([*filter(None, [m.record.prediction])])),
    Column("F1", lambda m: f"{100 * m.f1:.1f}"),
    Column("probability", lambda m: markdown.percent(m.record.probability)),
    Column("context", lambda m: context_excerpt(m.record)),
)


def _listed(answers: Sequence[str]) -> str:
    """Returns answers, without those that differ only in ways that do not count."""
    by_meaning: dict[str, str] = {}
    for answer in answers:
        by_meaning.setdefault(squad_scores.normalize_answer(answer), answer)
    return " / ".join(map(markdown.excerpt, by_meaning.values())) or NO_ANSWER


def context_excerpt(record: AnsweredQuestion) -> str:
    """Returns the context around the right answer and around the predicted one. If an
    answer occurs more than once, the two nearest places are shown."""

    def distance(pair: tuple[tuple[int, int], tuple[int, int]]) -> int:
        (start, end), (other_start, other_end) = pair
        return max(start - other_end, other_start - end, 0)

    right = _places(record.context, "".join(record.answers[:1]))
    predicted = _places(record.context, record.prediction)
    if right and predicted:
        nearest = min(itertools.product(right, predicted), key=distance)
        right, predicted = nearest[:1], nearest[1:]
    places = [*((p, "strong") for p in right[:1]), *((p, "em") for p in predicted[:1])]
    marks = [markdown.Mark(*place, tag) for place, tag in places]
    return markdown.excerpt(record.context, marks)


def _places(context: str, text: str) -> Sequence[tuple[int, int]]:
    """Returns the places of a text in the context, as whole words if any."""
    pattern, places = re.escape(text), []
    for whole in (rf"(?<!\w){pattern}(?!\w)", pattern) if text else ():
        matches = itertools.islice(re.finditer(whole, context), _MAX_PLACES)
        places = places or [match.span() for match in matches]
    return places
