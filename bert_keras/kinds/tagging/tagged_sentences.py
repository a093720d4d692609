"""The answers of a run that tags words: entities, or plain tags."""

# Records of a dev file have labels.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

import collections
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_keras.kinds.tagging import TaggedSentence, tag_schemes
from bert_keras.kinds.tagging.tag_schemes import Entity
from bert_keras.pages import confusion, markdown, sections
from bert_keras.pages.sections import Column

NO_ENTITY = "no entity"
"""Placeholder for an entity that was missed or invented."""

MAX_LISTED_MISTAKES = 8
"""Mistakes, or predicted entities, to list for one sentence."""

NUM_SAMPLES = 8
"""Sentences to show with the entities that were predicted in them."""


class Pair(NamedTuple):
    """A right entity and the one predicted in its place; `None`: there is none."""

    right: Entity | None
    predicted: Entity | None

    @property
    def types(self) -> list[str]:
        return [NO_ENTITY if entity is None else entity.type for entity in self]

    @property
    def kind(self) -> str:
        """Returns one of `KINDS`."""
        if self.predicted is None:
            return "missed"
        if self.right is None:
            return "invented"
        has_bounds = self.right[1:] == self.predicted[1:]
        if self.right.type == self.predicted.type:
            return "right" if has_bounds else "other bounds"
        return "other type" if has_bounds else "other type and bounds"


KINDS = (
    "right",
    "other type",
    "other bounds",
    "other type and bounds",
    "missed",
    "invented",
)


def pair_entities(record: TaggedSentence) -> list[Pair]:
    """Pairs right entities with the predicted ones that share most words with them.
    Each entity is in one pair; pairs are in the order of the sentence."""
    right = tag_schemes.entities(record.labels)
    predicted = tag_schemes.entities(record.prediction)
    # How many words each right entity shares with each predicted one.
    shared = {
        (one, other): min(one.end, other.end) - max(one.start, other.start)
        for one, other in itertools.product(right, predicted)
        if one.start < other.end and other.start < one.end
    }
    # Of pairs that share as many words the first one counts: the sort is stable.
    partners: dict[Entity, Entity] = {}
    for one, other in sorted(shared, key=shared.__getitem__, reverse=True):
        if one not in partners and other not in partners.values():
            partners[one] = other
    pairs = [Pair(entity, partners.get(entity)) for entity in right]
    alone = (entity for entity in predicted if entity not in partners.values())
    pairs += [Pair(None, entity) for entity in alone]
    return sorted(pairs, key=lambda pair: (pair.right or pair.predicted).start)


def describe(records: Sequence[TaggedSentence]) -> list[sections.Section]:
    right, predicted = (
        [tag for record in records for tag in getattr(record, name)]
        for name in ("labels", "prediction")
    )
    tags = {*right, *predicted}
    if tag_schemes.scheme_of(tags) == "plain":
        # Tags that mark no entities are compared word by word.
        each = right, predicted, sorted(tags)
        return [
            sections.confusion_section(*each, title="Confusion of tags"),
            sections.scores_section(confusion.class_scores(*each), "tag"),
        ]
    pairs = [pair_entities(record) for record in records]
    flat = [pair for of_sentence in pairs for pair in of_sentence]
    types = sorted({e.type for pair in flat for e in pair if e is not None})
    if not types:
        text = f"No entity in {len(records):,} sentences, and none was found."
        return [sections.Section("Entities", "entities", text)]
    # 1. Scores of each type by whole entities, as by `conlleval`: with other bounds,
    # one was missed and the other one invented.
    names, rows = [*types, NO_ENTITY], []
    for pair in flat:
        one, other = pair.types
        is_right = pair.kind == "right"
        rows += [(one, other)] if is_right else [(one, NO_ENTITY), (NO_ENTITY, other)]
    # The last score, of `NO_ENTITY`, is of no type.
    scores = confusion.class_scores(*zip(*rows, strict=True), names)[:-1]
    # 2. Types that were taken for others, and what became of entities.
    both = zip(*(pair.types for pair in flat), strict=True)
    confused = sections.confusion_section(*both, names, title="Confusion of types")
    counts = collections.Counter(pair.kind for pair in flat)
    note = (
        "An entity is compared with the one found in its words, or in some of them: "
        "the bounds may differ."
    )
    kinds = markdown.table(
        ["what became of entities", "how many"],
        [[kind, f"{counts[kind]:,}"] for kind in KINDS],
    )
    texts = filter(None, (note, kinds, confused.text))
    return [
        sections.scores_section(scores, "type"),
        confused._replace(text="\n\n".join(texts)),
        _sample(records),
        mistakes(records, pairs),
    ]


def _sample(records: Sequence[TaggedSentence]) -> sections.Section:
    """Returns the first sentences with entities, right or predicted."""
    rows = []
    for record in records:
        predicted = tag_schemes.entities(record.prediction)
        if predicted or tag_schemes.entities(record.labels):
            text = _sentence(record.words, [Pair(None, entity) for entity in predicted])
            shown = predicted[:MAX_LISTED_MISTAKES]
            names = "; ".join(_name(record.words, entity) for entity in shown)
            rows.append([str(record.line), text, names or NO_ENTITY])
        if len(rows) == NUM_SAMPLES:
            break
    table = markdown.table(["line", "sentence", "entities found"], rows)
    text = f"The first {len(rows)} with entities:\n\n{table}"
    return sections.Section("Sample", "sample", text)


def mistakes(
    records: Sequence[TaggedSentence], pairs: Sequence[Sequence[Pair]]
) -> sections.Section:
    """Returns the sentences with most mistakes; `pairs` are those of each record."""
    of_records = [[p for p in of_one if p.kind != "right"] for of_one in pairs]
    wrong = [both for both in zip(records, of_records, strict=True) if both[1]]
    wrong.sort(key=lambda both: (-len(both[1]), both[0].line))
    return sections.mistakes_section(
        [
            Column("line", lambda both: str(both[0].line)),
            Column("sentence", lambda both: _sentence(both[0].words, both[1])),
            Column("mistakes", lambda both: _list(both[0].words, both[1])),
        ],
        wrong,
        summary=f"{len(wrong):,} of {len(records):,} sentences have mistakes",
        order="with most of them",
    )


def _sentence(words: Sequence[str], mistakes: Sequence[Pair]) -> str:
    starts = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()
    marks = []
    for pair in mistakes[:MAX_LISTED_MISTAKES]:
        there = [entity for entity in pair if entity is not None]
        first, last = min(e.start for e in there), max(e.end for e in there)
        # `starts[last]` is behind the blank that follows the last word.
        marks.append(markdown.Mark(starts[first], starts[last] - 1))
    return markdown.excerpt(" ".join(words), marks)


def _list(words: Sequence[str], mistakes: Sequence[Pair]) -> str:
    """Returns the names of right and predicted entities, with an arrow between them."""
    lines = []
    for pair in mistakes[:MAX_LISTED_MISTAKES]:
        right, predicted = (
            NO_ENTITY if entity is None else _name(words, entity) for entity in pair
        )
        if pair.kind == "other type":
            predicted = markdown.literal(pair.predicted.type)
        lines.append(f"{right} → {predicted}")
    if len(mistakes) > MAX_LISTED_MISTAKES:
        lines.append(f"and {len(mistakes) - MAX_LISTED_MISTAKES} more")
    return "; ".join(lines)


def _name(words: Sequence[str], entity: Entity) -> str:
    text = markdown.literal(" ".join(words[entity.start : entity.end]))
    return f"<em>{text}</em> {markdown.literal(entity.type)}"
