"""The answers of a run that chooses among endings."""

# Records of a dev file have labels.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from collections.abc import Sequence

from bert_keras.kinds.choice import ChosenEnding
from bert_keras.pages import confusion, markdown, sections
from bert_keras.pages.sections import Column, Section

_COLUMNS = (
    sections.LINE,
    sections.CONFIDENCE,
    Column(
        "text",
        lambda r: " ".join(
            map(markdown.excerpt, filter(str.strip, (r.text, r.beginning)))
        ),
    ),
    Column("right ending", lambda r: markdown.excerpt(r.endings[r.label])),
    Column("answered", lambda r: markdown.excerpt(r.endings[r.prediction])),
)


def describe(records: Sequence[ChosenEnding]) -> list[Section]:
    # 1. Answers by place: the model may prefer the first ending, say.
    count = max(len(record.endings) for record in records)
    names = [f"ending{place}" for place in range(count)]
    right = [names[record.label] for record in records]
    answered = [names[record.prediction] for record in records]
    rows = [
        [s.name, f"{s.num_right:,}", f"{s.num_answered:,}", markdown.percent(s.recall)]
        for s in confusion.class_scores(right, answered, names)
    ]
    header = ["place", "is right", "answered", "accuracy where it is right"]
    places = sections.confusion_section(
        right, answered, names, title="Places of the endings"
    )._replace(name="places", text=markdown.table(header, rows))
    # 2. Calibration, and the most confident mistakes.
    return [places, *sections.answer_sections(_COLUMNS, records)]
