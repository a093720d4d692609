"""The answers of a run that classifies texts."""

# Records of a dev file have labels.
# pyright: reportArgumentType=false

from collections.abc import Iterable, Sequence

from bert_keras.core.errors import InputError
from bert_keras.kinds.text.records import ClassifiedText
from bert_keras.pages import confusion, sections

TEXTS = (sections.TEXT, sections.TEXT_PAIR)
_COLUMNS = (
    *(sections.LINE, sections.LABEL, sections.PREDICTION, sections.CONFIDENCE),
    *TEXTS,
)


def describe(
    records: Sequence[ClassifiedText], labels: Sequence[str]
) -> list[sections.Section]:
    """Returns the sections of the page; the labels are all of the run."""
    right = [record.label for record in records]
    answered = [record.prediction for record in records]
    check_labels({*right, *answered}, labels)
    return [
        sections.confusion_section(
            confusion.confusion(right, answered, labels),
            title="Confusion matrix",
            name="confusion_matrix",
        ),
        sections.scores_section(
            confusion.class_scores(right, answered, labels),
            title="Precision, recall and F1 by label",
            name="scores_by_label",
            class_word="label",
        ),
        *sections.answer_sections(_COLUMNS, records),
    ]


def check_labels(given: Iterable[str], labels: Sequence[str]) -> None:
    if unknown := sorted({*given} - {*labels}):
        raise InputError(
            "dev_answers.jsonl: expected labels of the run's task.json, got "
            f"{unknown[0]!r:.60}: the two are not of the same run"
        )
