"""The answers of a run that gives texts any number of labels."""

# Records of a dev file have labels.
# pyright: reportArgumentType=false, reportOptionalIterable=false, reportOperatorIssue=false

from collections.abc import Sequence

from bert_keras.kinds.text import classified_texts
from bert_keras.kinds.text.records import MultiLabelText
from bert_keras.pages import confusion, markdown, sections
from bert_keras.pages.sections import Column


def describe(
    records: Sequence[MultiLabelText], labels: Sequence[str]
) -> list[sections.Section]:
    """Returns the sections of the page; the labels are all of the run."""
    given = {label for r in records for label in (*r.labels, *r.prediction)}
    classified_texts.check_labels(given, labels)
    wrong = [r for r in records if set(r.labels) != set(r.prediction)]
    wrong.sort(key=lambda record: (-_worst(record)[1], record.line))
    return [
        sections.scores_section(
            [_score(label, records) for label in labels],
            title="Precision, recall and F1 by label",
            name="scores_by_label",
            class_word="label",
        ),
        sections.mistakes_section(
            _COLUMNS,
            wrong,
            summary=f"{len(wrong):,} of {len(records):,} texts have wrong labels",
            order="furthest from right",
        ),
    ]


def _score(label: str, records: Sequence[MultiLabelText]) -> confusion.ClassScore:
    right = [label in record.labels for record in records]
    answered = [label in record.prediction for record in records]
    _, score = confusion.class_scores(right, answered, [False, True])
    return score._replace(name=label)


def _worst(record: MultiLabelText) -> tuple[str, float]:
    """Returns the label whose probability is furthest off, and how far."""
    wrong = set(record.labels) ^ set(record.prediction)
    gaps = {
        label: abs(probability - (label in record.labels))
        for label, probability in record.probabilities.items()
        if label in wrong
    }
    return max(gaps.items(), key=lambda item: item[1])


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(map(markdown.literal, labels)) or "none"


_COLUMNS = (
    sections.LINE,
    Column("right", lambda record: _listed(record.labels)),
    Column("answered", lambda record: _listed(record.prediction)),
    Column("worst label", lambda record: markdown.literal(_worst(record)[0])),
    Column("probability", lambda r: markdown.percent(r.probabilities[_worst(r)[0]])),
    *classified_texts.TEXTS,
)
