"""The answers of a run that finds answers to questions in a text."""

# Records of a dev file have labels; matplotlib's types are narrower than what it takes.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

import collections
import itertools
import re
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import figure

from bert_keras.kinds.span import AnsweredQuestion, squad_scores
from bert_keras.pages import drawing, markdown, pictures, sections
from bert_keras.pages.sections import Column

NO_ANSWER = "no answer"

_LENGTHS = {"none": 0, "1": 1, "2": 2, "3": 3, "4-5": 4, "6-10": 6, "11+": 11}
"""Groups of answers, and the fewest words of each."""

_ASKING = re.compile(
    r"\b(how\s+(many|much|long|old|often|far)"
    r"|what|which|whose|whom|who|when|where|why|how)\b"
)

_MAX_PLACES = 50
"""Occurrences of a text in another to consider."""

_YELLOW = "#E69F00"


def describe(
    records: Sequence[AnsweredQuestion], *, has_impossible: bool
) -> list[sections.Section]:
    """Returns the sections of the page; `records` are one or more. With
    `has_impossible`, a question may have no answer (SQuAD 2.0)."""
    options = {"has_impossible": has_impossible}
    pairs = ((r.prediction, r.answers) for r in records)
    scores = [squad_scores.score_answer(*pair, **options) for pair in pairs]
    # 1. Scores by the length of the first right answer, and by the first word that
    # asks, the commonest first.
    by_length, by_word = {name: [] for name in _LENGTHS}, collections.defaultdict(list)
    for record, score in zip(records, scores, strict=True):
        length = len("".join(record.answers[:1]).split())
        *_, group = (name for name, least in _LENGTHS.items() if length >= least)
        by_length[group].append(score)
        match = _ASKING.search(record.question.lower())
        by_word[" ".join(match[0].split()) if match else "other"].append(score)
    words = sorted(by_word, key=lambda word: (-len(by_word[word]), word))
    parts = []
    for title, name, by_name in (
        ("By words of the answer", "by_answer_length", by_length),
        ("By question word", "by_question_word", {w: by_word[w] for w in words}),
    ):
        groups = {k: squad_scores.mean_score(v) for k, v in by_name.items() if v}
        rows = [
            [group, f"{total:,}", f"{exact:.1f}", f"{f1:.1f}"]
            for group, (exact, f1, total) in groups.items()
        ]
        text = markdown.table(["group", "questions", "exact match", "F1"], rows)
        picture = drawing.as_png(draw_groups, title, groups)
        parts.append(sections.Section(title, name, text, picture))
    # 2. The threshold of "no answer".
    if has_impossible and all(record.null_odds is not None for record in records):
        parts.append(_threshold(records))
    # 3. Answers that are not exact: the lowest F1, then the most probable, first.
    wrong = [
        (record, score.f1)
        for record, score in zip(records, scores, strict=True)
        if not score.exact
    ]
    wrong.sort(key=lambda both: (both[1], -both[0].probability, both[0].id))
    mistakes = sections.mistakes_section(
        _COLUMNS,
        wrong,
        summary=f"{len(wrong):,} of {len(records):,} answers are not exact",
        order="of the lowest F1, the most probable of them",
    )
    if wrong:
        note = "In the context the right answer is bold, the given one italic."
        mistakes = mistakes._replace(
            text=f"{mistakes.text}\n\n{note}",
            long_text=f"{mistakes.long_text}\n\n{note}",
        )
    return [*parts, mistakes]


def draw_groups(
    title: str, groups: Mapping[str, tuple[float, float, int]]
) -> figure.Figure:
    """Draws exact match and F1 of groups of questions, each with the number of its
    questions, as bars."""
    picture, plot = drawing.new_plot(title, height=1.8 + 0.5 * len(groups))
    rows = np.arange(len(groups))
    exact, f1, totals = zip(*groups.values(), strict=True)
    bars = (("F1", f1, drawing.BLUE, -0.2), ("exact match", exact, _YELLOW, 0.2))
    for label, values, colour, offset in bars:
        drawn = plot.barh(rows + offset, values, height=0.4, color=colour, label=label)
        plot.bar_label(drawn, fmt="%.1f", padding=3, fontsize=10)
    names = zip(groups, totals, strict=True)
    pictures.name_rows(plot, [f"{name} ({total:,})" for name, total in names])
    plot.set(xlim=(0, 108), xticks=range(0, 101, 20))
    plot.set_xlabel("percent; in brackets: how many questions", fontsize=11)
    plot.grid(visible=False, axis="y")
    drawing.add_legend(picture)
    return picture


def _threshold(records: Sequence[AnsweredQuestion]) -> sections.Section:
    # Not by their ids, which are the data's own matter.
    answers = [
        {str(number): getattr(record, name) for number, record in enumerate(records)}
        for name in ("answers", "best_text", "null_odds")
    ]
    best = squad_scores.best_thresholds(*answers)
    rows = [
        [name, f"{best[f'best_{key}']:.2f}", f"{best[f'best_{key}_thresh']:.4f}"]
        for name, key in (("F1", "f1"), ("exact match", "exact"))
    ]
    table = markdown.table(["", "best", "at the threshold"], rows)
    curves, threshold = threshold_curves(*answers), best["best_f1_thresh"]
    return sections.Section(
        "Threshold of no answer",
        "null_odds",
        "A question is answered if its odds of having no answer do not exceed the "
        f"threshold. Chosen on these very questions:\n\n{table}",
        drawing.as_png(draw_null_odds, *curves, best_threshold=threshold),
    )


_CURVES = {
    "F1": ("f1", (True, False), (drawing.BLUE, "-", 2.5)),
    "exact match": ("exact", (True, False), (_YELLOW, "-", 1.5)),
    "F1 with an answer": ("f1", (True,), (drawing.GREEN, "--", 1.5)),
    "F1 without": ("f1", (False,), (drawing.VERMILION, ":", 2)),
}
"""By label: the score, whether its questions have an answer, and how it is drawn."""


def threshold_curves(
    gold: squad_scores.GoldAnswers,
    best_texts: Mapping[str, str],
    null_odds: Mapping[str, float],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns all thresholds, above whose odds a question gets no answer, and the
    scores of SQuAD 2.0 at each, in percent, by the labels of `_CURVES`.

    The thresholds rise, from one below all odds, where nothing is answered. Scores of
    no question are NaN. `best_texts` are the best answers that are not empty.
    """
    each = squad_scores.score_each(gold, best_texts, has_impossible=True)
    thresholds, curves = np.empty(0), {}
    for label, (name, groups, _) in _CURVES.items():
        chosen = {id for id, answers in gold.items() if bool(answers) in groups}
        # Silence is right where there is no answer.
        silent = {id for id in chosen if not gold[id]}
        gains = {
            id: getattr(each[id], name) - (id in silent) if id in chosen else 0.0
            for id in gold
        }
        thresholds, sums = squad_scores.sums_by_threshold(gains, null_odds)
        with np.errstate(invalid="ignore"):
            curves[label] = 100 * (sums + len(silent)) / np.int64(len(chosen))
    return thresholds, curves


def draw_null_odds(
    thresholds: np.ndarray, curves: Mapping[str, np.ndarray], *, best_threshold: float
) -> figure.Figure:
    """Draws scores against the threshold up to which a question is answered."""
    picture, plot = drawing.new_plot("Threshold of no answer")
    thresholds = drawing.placeable(thresholds)
    best_threshold = float(drawing.placeable(best_threshold))
    for label, values in curves.items():
        colour, style, width = _CURVES[label][-1]
        options = {"color": colour, "linewidth": width, "label": label}
        plot.step(thresholds, values, style, where="post", **options)
    plot.axvline(best_threshold, color=drawing.GREY, linewidth=1, label="best F1")
    # A few odds may be far from the others.
    low, high = np.quantile(thresholds, (0.01, 0.99))
    room = 0.05 * (high - low) or max(1.0, abs(high) / 1000)
    low, high = min(low, best_threshold) - room, max(high, best_threshold) + room
    plot.set(ylabel="percent", xlim=(low, high), ylim=(0, 102))
    plot.set_xlabel("odds of no answer up to which a question is answered")
    drawing.add_legend(picture)
    return picture


def _listed(answers: Sequence[str]) -> str:
    """Returns answers, without those that differ only in ways that do not count."""
    by_meaning: dict[str, str] = {}
    for answer in answers:
        by_meaning.setdefault(squad_scores.normalize_answer(answer), answer)
    return " / ".join(map(markdown.excerpt, by_meaning.values())) or NO_ANSWER


def context_excerpt(record: AnsweredQuestion) -> str:
    """Returns the context around the right answer and around the predicted one. If an
    answer occurs more than once, the two nearest places are shown."""

    def places(text: str) -> Sequence[tuple[int, int]]:
        """Returns the places of a text in the context, as whole words if any."""
        pattern, spans = re.escape(text), []
        for whole in (rf"(?<!\w){pattern}(?!\w)", pattern) if text else ():
            matches = re.finditer(whole, record.context)
            spans = spans or [m.span() for m in itertools.islice(matches, _MAX_PLACES)]
        return spans

    def distance(pair: tuple[tuple[int, int], tuple[int, int]]) -> int:
        (start, end), (other_start, other_end) = pair
        return max(start - other_end, other_start - end, 0)

    right, predicted = places("".join(record.answers[:1])), places(record.prediction)
    if right and predicted:
        nearest = min(itertools.product(right, predicted), key=distance)
        right, predicted = nearest[:1], nearest[1:]
    marks = [markdown.Mark(*place, "strong") for place in right[:1]]
    marks += [markdown.Mark(*place, "em") for place in predicted[:1]]
    return markdown.excerpt(record.context, marks)


_COLUMNS = (
    Column("question", lambda both: markdown.excerpt(both[0].question)),
    Column("right", lambda both: _listed(both[0].answers)),
    Column("answered", lambda both: _listed([*filter(None, [both[0].prediction])])),
    Column("F1", lambda both: f"{100 * both[1]:.1f}"),
    Column("probability", lambda both: markdown.percent(both[0].probability)),
    Column("context", lambda both: context_excerpt(both[0])),
)
"""Cells of a question's row in the table: of its record and its F1."""
