"""The answers of a run that gives texts any number of labels."""

# Records of a dev file have labels.
# pyright: reportArgumentType=false, reportOptionalIterable=false, reportOperatorIssue=false

import math
from collections.abc import Sequence

from bert_keras.core.errors import InputError
from bert_keras.kinds import sections
from bert_keras.kinds.text import classified_texts
from bert_keras.kinds.text.records import MultiLabelText
from bert_keras.pages import confusion, markdown


def describe(
    records: Sequence[MultiLabelText], labels: Sequence[str]
) -> list[sections.Section]:
    """The parts of the page.

    Args:
        records: at least one.
        labels: all of the run.
    """
    found = {label for r in records for label in (*r.labels, *r.prediction)}
    if unknown := sorted(found - set(labels)):
        raise InputError(
            "dev_answers.jsonl: expected labels of the run's task.json, got "
            f"{unknown[0]!r:.60}: the two are not of the same run"
        )
    return [
        sections.scores_section(
            [_score(label, records) for label in labels],
            title="Precision, recall and F1 by label",
            name="scores_by_label",
            class_word="label",
        ),
        _mistakes(records),
    ]


def _score(label: str, records: Sequence[MultiLabelText]) -> confusion.ClassScore:
    pairs = [(label in r.labels, label in r.prediction) for r in records]
    num_right = sum(is_right for is_right, _ in pairs)
    num_answered = sum(is_answered for _, is_answered in pairs)
    num_both = sum(map(all, pairs))
    return confusion.ClassScore(
        label,
        precision=num_both / num_answered if num_answered else math.nan,
        recall=num_both / num_right if num_right else math.nan,
        f1=2 * num_both / (num_right + num_answered)
        if num_right + num_answered
        else math.nan,
        num_right=num_right,
        num_answered=num_answered,
    )


def _mistakes(records: Sequence[MultiLabelText]) -> sections.Section:
    wrong = [r for r in records if set(r.labels) != set(r.prediction)]
    wrong.sort(key=lambda record: (-_worst(record)[1], record.line))
    has_pair = any(record.text_pair is not None for record in records)
    header = ["line", "right", "answered", "worst label", "probability", "text"]
    rows = []
    for record in wrong[: sections.NUM_MISTAKES]:
        label, _ = _worst(record)
        cells = classified_texts.text_cells(
            record.text, record.text_pair, has_pair=has_pair
        )
        rows.append(
            [
                str(record.line),
                _listed(record.labels),
                _listed(record.prediction),
                markdown.literal(label),
                markdown.percent(record.probabilities[label]),
                *cells,
            ]
        )
    return sections.mistakes_section(
        [*header, "second text"] if has_pair else header,
        rows,
        found=f"{len(wrong):,} of {len(records):,} texts have wrong labels",
        order="furthest from right",
    )


def _worst(record: MultiLabelText) -> tuple[str, float]:
    """The label whose probability is furthest from the truth, and how far."""
    wrong = set(record.labels) ^ set(record.prediction)
    gaps = {
        label: abs(probability - (label in record.labels))
        for label, probability in record.probabilities.items()
        if label in wrong
    }
    return max(gaps.items(), key=lambda item: item[1])


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(map(markdown.literal, labels)) or "none"
