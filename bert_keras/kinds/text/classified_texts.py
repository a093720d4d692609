"""The answers of a run that classifies texts."""

# Records of a dev file have labels.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from collections.abc import Sequence

from bert_keras.core.errors import InputError
from bert_keras.kinds import sections
from bert_keras.kinds.text.records import ClassifiedText
from bert_keras.pages import confusion, markdown


def describe(
    records: Sequence[ClassifiedText], labels: Sequence[str]
) -> list[sections.Section]:
    """The parts of the page.

    Args:
        records: at least one.
        labels: all of the run.
    """
    right = [record.label for record in records]
    answered = [record.prediction for record in records]
    if unknown := sorted({*right, *answered} - set(labels)):
        raise InputError(
            "dev_answers.jsonl: expected labels of the run's task.json, got "
            f"{unknown[0]!r:.60}: the two are not of the same run"
        )
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
        sections.calibration_section(records),
        _mistakes(records),
    ]


def _mistakes(records: Sequence[ClassifiedText]) -> sections.Section:
    wrong = sections.most_confident_mistakes(records)
    has_pair = any(record.text_pair is not None for record in records)
    header = ["line", "right", "answered", "probability", "text"]
    rows = [
        [
            str(record.line),
            markdown.literal(record.label),
            markdown.literal(record.prediction),
            markdown.percent(record.confidence),
            *text_cells(record.text, record.text_pair, has_pair=has_pair),
        ]
        for record in wrong[: sections.NUM_MISTAKES]
    ]
    return sections.mistakes_section(
        [*header, "second text"] if has_pair else header,
        rows,
        found=f"{len(wrong):,} of {len(records):,} answers are wrong",
        order="most confident",
    )


def text_cells(text: str, text_pair: str | None, *, has_pair: bool) -> list[str]:
    """Cells of a table for one text or two."""
    texts = [text, text_pair] if has_pair else [text]
    return ["" if text is None else markdown.excerpt(text) for text in texts]
