"""The answers of a run that chooses among endings."""

# Records of a dev file have labels.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from collections.abc import Sequence

from bert_keras.kinds import sections
from bert_keras.kinds.choice.records import ChosenEnding
from bert_keras.pages import confusion, markdown


def describe(records: Sequence[ChosenEnding]) -> list[sections.Section]:
    """The parts of the page."""
    return [
        _places(records),
        sections.calibration_section(records),
        _mistakes(records),
    ]


def _places(records: Sequence[ChosenEnding]) -> sections.Section:
    """Answers by place: the model may prefer the first ending, say."""
    count = max(len(record.endings) for record in records)
    names = [f"ending{place}" for place in range(count)]
    right = [names[record.label] for record in records]
    answered = [names[record.prediction] for record in records]
    scores = confusion.class_scores(right, answered, names)
    rows = [
        [s.name, f"{s.num_right:,}", f"{s.num_answered:,}", markdown.percent(s.recall)]
        for s in scores
    ]
    section = sections.confusion_section(
        confusion.confusion(right, answered, names),
        title="Places of the endings",
        name="places",
    )
    header = ["place", "is right", "answered", "accuracy where it is right"]
    return section._replace(text=markdown.table(header, rows))


def _mistakes(records: Sequence[ChosenEnding]) -> sections.Section:
    wrong = sections.most_confident_mistakes(records)
    rows = [
        [
            str(record.line),
            markdown.percent(record.confidence),
            " ".join(
                markdown.excerpt(text)
                for text in (record.text, record.beginning)
                if text.strip()
            ),
            markdown.excerpt(record.endings[record.label]),
            markdown.excerpt(record.endings[record.prediction]),
        ]
        for record in wrong[: sections.NUM_MISTAKES]
    ]
    return sections.mistakes_section(
        ["line", "probability", "text", "right ending", "answered"],
        rows,
        found=f"{len(wrong):,} of {len(records):,} answers are wrong",
        order="most confident",
    )
