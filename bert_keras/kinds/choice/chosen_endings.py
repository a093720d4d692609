"""The answers of a run that chooses among endings."""

# Records of a dev file have labels.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from collections.abc import Sequence

from bert_keras.kinds.choice.records import ChosenEnding
from bert_keras.pages import confusion, markdown, sections
from bert_keras.pages.sections import Column, Section


def describe(records: Sequence[ChosenEnding]) -> list[Section]:
    return [_places(records), *sections.answer_sections(_COLUMNS, records)]


def _beginnings(record: ChosenEnding) -> str:
    texts = (record.text, record.beginning)
    return " ".join(markdown.excerpt(text) for text in texts if text.strip())


_COLUMNS = (
    sections.LINE,
    sections.CONFIDENCE,
    Column("text", _beginnings),
    Column("right ending", lambda r: markdown.excerpt(r.endings[r.label])),
    Column("answered", lambda r: markdown.excerpt(r.endings[r.prediction])),
)


def _places(records: Sequence[ChosenEnding]) -> Section:
    """Returns answers by place: the model may prefer the first ending, say."""
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
