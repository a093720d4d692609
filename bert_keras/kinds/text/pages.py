"""The answers of runs on texts: a class, any number of labels, or a number for each."""

# Records of a dev file have labels.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalIterable=false, reportOptionalMemberAccess=false, reportOperatorIssue=false

import math
from collections.abc import Iterable, Sequence

import numpy as np

from bert_keras.core.errors import InputError
from bert_keras.kinds.text import ClassifiedText, MultiLabelText, RatedText
from bert_keras.pages import confusion, drawing, markdown, pictures, sections
from bert_keras.pages.sections import Column

_TEXTS = (sections.TEXT, sections.TEXT_PAIR)


def describe_classes(
    records: Sequence[ClassifiedText], labels: Sequence[str]
) -> list[sections.Section]:
    right = [record.label for record in records]
    answered = [record.prediction for record in records]
    _check_labels({*right, *answered}, labels)
    columns = (sections.LINE, sections.LABEL, sections.PREDICTION, sections.CONFIDENCE)
    return [
        sections.confusion_section(right, answered, labels, title="Confusion matrix"),
        sections.scores_section(
            confusion.class_scores(right, answered, labels), "label"
        ),
        *sections.answer_sections([*columns, *_TEXTS], records),
    ]


def _check_labels(answers: Iterable[str], labels: Sequence[str]) -> None:
    if unknown := sorted({*answers} - {*labels}):
        raise InputError(
            "dev_answers.jsonl: expected labels of the run's task.json, got "
            f"{unknown[0]!r:.60}: the two are not of the same run"
        )


def describe_labels(
    records: Sequence[MultiLabelText], labels: Sequence[str]
) -> list[sections.Section]:
    answers = {label for r in records for label in (*r.labels, *r.prediction)}
    _check_labels(answers, labels)
    # 1. Each label against its absence.
    scores = []
    for label in labels:
        right = [label in record.labels for record in records]
        answered = [label in record.prediction for record in records]
        _, score = confusion.class_scores(right, answered, [False, True])
        scores.append(score._replace(name=label))
    # 2. Texts with a wrong label, the probability furthest off first.
    wrong = [r for r in records if set(r.labels) != set(r.prediction)]
    wrong.sort(key=lambda record: (-_worst(record)[1], record.line))
    mistakes = sections.mistakes_section(
        (
            sections.LINE,
            Column("right", lambda record: _listed(record.labels)),
            Column("answered", lambda record: _listed(record.prediction)),
            Column("worst label", lambda r: markdown.literal(_worst(r)[0])),
            Column(
                "probability", lambda r: markdown.percent(r.probabilities[_worst(r)[0]])
            ),
            *_TEXTS,
        ),
        wrong,
        summary=f"{len(wrong):,} of {len(records):,} texts have wrong labels",
        order="furthest from right",
    )
    return [sections.scores_section(scores, "label"), mistakes]


def _worst(record: MultiLabelText) -> tuple[str, float]:
    """Returns the label whose probability is furthest off, and how far."""
    wrong = set(record.labels) ^ set(record.prediction)
    gaps = (
        (label, abs(probability - (label in record.labels)))
        for label, probability in record.probabilities.items()
        if label in wrong
    )
    return max(gaps, key=lambda gap: gap[1])


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(map(markdown.literal, labels)) or "none"


def describe_numbers(
    records: Sequence[RatedText], labels: None
) -> list[sections.Section]:
    rows = [[name, f"{value:.4g}"] for name, value in errors(records).items()]
    pairs = zip(*((record.label, record.prediction) for record in records), strict=True)
    scatter = sections.Section(
        "Answers and right numbers",
        "scatter",
        markdown.table(["", "all answers"], rows),
        drawing.as_png(pictures.draw_scatter, *map(list, pairs)),
    )
    columns = (
        sections.LINE,
        Column("right", lambda record: f"{record.label:.4g}"),
        Column("answered", lambda record: f"{record.prediction:.4g}"),
        Column("error", lambda record: f"{record.error:+.4g}"),
        *_TEXTS,
    )
    mistakes = sections.mistakes_section(
        columns,
        sorted(records, key=lambda r: (-abs(r.error), r.line)),
        summary=f"{len(records):,} answers",
        order="farthest from the right number",
    )
    return [scatter, mistakes]


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


DESCRIBE = {
    ClassifiedText: describe_classes,
    MultiLabelText: describe_labels,
    RatedText: describe_numbers,
}
"""From records and the labels of the run to the sections of the page."""
