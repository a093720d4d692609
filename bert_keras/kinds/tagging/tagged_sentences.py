"""The answers of a run that tags words: entities, or plain tags."""

# Records of a dev file have labels.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

import collections
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from bert_keras.kinds.tagging import tag_schemes
from bert_keras.kinds.tagging.records import TaggedSentence
from bert_keras.kinds.tagging.tag_schemes import Entity
from bert_keras.pages import confusion, markdown, sections
from bert_keras.pages.sections import Column

NO_ENTITY = "no entity"
"""Placeholder for an entity that was missed or invented."""

MAX_LISTED_MISTAKES = 8
"""Mistakes, or entities found, to list for one sentence."""


NUM_SAMPLES = 8
"""Sentences to show with the entities that were found in them."""


class Pair(NamedTuple):
    """A right entity and the one found in its place; `None`: none."""

    right: Entity | None
    found: Entity | None

    @property
    def types(self) -> list[str]:
        return [NO_ENTITY if entity is None else entity.type for entity in self]

    @property
    def kind(self) -> str:
        """Returns one of `KINDS`."""
        if self.found is None:
            return "missed"
        if self.right is None:
            return "invented"
        has_bounds = self.right[1:] == self.found[1:]
        if self.right.type == self.found.type:
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
    """Pairs right entities with the found ones that share most words with them. Each
    entity is in one pair; pairs are in the order of the sentence."""
    right = tag_schemes.entities(record.labels)
    found = tag_schemes.entities(record.prediction)
    place_of_word = {
        word: place
        for place, entity in enumerate(found)
        for word in range(entity.start, entity.end)
    }
    shared = collections.Counter(
        (place, place_of_word[word])
        for place, entity in enumerate(right)
        for word in range(entity.start, entity.end)
        if word in place_of_word
    )
    partner: dict[int, int] = {}
    taken: set[int] = set()
    for one, other in sorted(shared, key=lambda pair: (-shared[pair], pair)):
        if one not in partner and other not in taken:
            partner[one] = other
            taken.add(other)
    pairs = [
        Pair(entity, found[partner[place]] if place in partner else None)
        for place, entity in enumerate(right)
    ]
    pairs += [Pair(None, e) for place, e in enumerate(found) if place not in taken]
    return sorted(pairs, key=lambda pair: (pair.right or pair.found).start)


def describe(records: Sequence[TaggedSentence]) -> list[sections.Section]:
    right, found = (
        [tag for record in records for tag in getattr(record, name)]
        for name in ("labels", "prediction")
    )
    if tag_schemes.scheme_of([*right, *found]) == "plain":
        return _describe_plain(right, found)
    pairs = [pair_entities(record) for record in records]
    flat = [pair for of_sentence in pairs for pair in of_sentence]
    types = sorted({e.type for pair in flat for e in pair if e is not None})
    if not types:
        text = f"No entity in {len(records):,} sentences, and none was found."
        return [sections.Section("Entities", "entities", text)]
    return [
        sections.scores_section(
            type_scores(flat, types),
            title="Precision, recall and F1 by type",
            name="scores_by_type",
            class_word="type",
        ),
        _confusion(flat, types),
        _sample(records),
        _mistakes(records, pairs),
    ]


def _describe_plain(
    right: Sequence[str], found: Sequence[str]
) -> list[sections.Section]:
    """Returns the parts for tags that mark no entities, word by word."""
    tags = sorted({*right, *found})
    return [
        sections.confusion_section(
            confusion.confusion(right, found, tags),
            title="Confusion of tags",
            name="confusion_of_tags",
        ),
        sections.scores_section(
            confusion.class_scores(right, found, tags),
            title="Precision, recall and F1 by tag",
            name="scores_by_tag",
            class_word="tag",
        ),
    ]


def type_scores(
    pairs: Iterable[Pair], types: Sequence[str]
) -> list[confusion.ClassScore]:
    """Returns scores of each type by whole entities, as by `conlleval`."""
    rows: list[tuple[str, str]] = []
    for pair in pairs:
        right, found = pair.types
        # With other bounds, the right entity was missed and the other one invented.
        is_right = pair.kind == "right"
        rows += (
            [(right, found)] if is_right else [(right, NO_ENTITY), (NO_ENTITY, found)]
        )
    right, found = zip(*rows, strict=True)
    return confusion.class_scores(right, found, [*types, NO_ENTITY])[:-1]


def _confusion(pairs: Sequence[Pair], types: Sequence[str]) -> sections.Section:
    right, found = zip(*(pair.types for pair in pairs), strict=True)
    section = sections.confusion_section(
        confusion.confusion(right, found, [*types, NO_ENTITY]),
        title="Confusion of types",
        name="confusion_of_types",
    )
    counts = collections.Counter(pair.kind for pair in pairs)
    kinds = markdown.table(
        ["what became of entities", "how many"],
        [[kind, f"{counts[kind]:,}"] for kind in KINDS],
    )
    note = (
        "An entity is compared with the one found in its words, or in some of them: "
        "the bounds may differ."
    )
    texts = (note, kinds, section.text)
    return section._replace(text="\n\n".join(text for text in texts if text))


def _sample(records: Sequence[TaggedSentence]) -> sections.Section:
    """Returns the first sentences with entities, right or found."""
    rows = []
    for record in records:
        found = tag_schemes.entities(record.prediction)
        if found or tag_schemes.entities(record.labels):
            pairs = [Pair(None, entity) for entity in found]
            shown = found[:MAX_LISTED_MISTAKES]
            names = "; ".join(_name(record.words, entity) for entity in shown)
            text = _sentence(record.words, pairs)
            rows.append([str(record.line), text, names or NO_ENTITY])
        if len(rows) == NUM_SAMPLES:
            break
    text = f"The first {len(rows)} with entities:\n\n" + markdown.table(
        ["line", "sentence", "entities found"], rows
    )
    return sections.Section("Sample", "sample", text)


def _mistakes(
    records: Sequence[TaggedSentence], pairs: Sequence[Sequence[Pair]]
) -> sections.Section:
    mistakes = [[p for p in of_one if p.kind != "right"] for of_one in pairs]
    wrong = [both for both in zip(records, mistakes, strict=True) if both[1]]
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
        marks.append(markdown.Mark(starts[first], starts[last] - 1))
    return markdown.excerpt(" ".join(words), marks)


def _list(words: Sequence[str], mistakes: Sequence[Pair]) -> str:
    shown = "; ".join(_mistake(words, p) for p in mistakes[:MAX_LISTED_MISTAKES])
    rest = len(mistakes) - MAX_LISTED_MISTAKES
    return shown + (f"; and {rest} more" if rest > 0 else "")


def _mistake(words: Sequence[str], pair: Pair) -> str:
    """Returns `**Bank of China** ORG: **Bank** LOC`, for instance."""
    right, found = (
        NO_ENTITY if entity is None else _name(words, entity) for entity in pair
    )
    if pair.right is not None and pair.found is not None:
        if pair.right[1:] == pair.found[1:]:
            found = markdown.literal(pair.found.type)
    return f"{right} → {found}"


def _name(words: Sequence[str], entity: Entity) -> str:
    text = markdown.literal(" ".join(words[entity.start : entity.end]))
    return f"<em>{text}</em> {markdown.literal(entity.type)}"
