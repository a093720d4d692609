"""Entities as spans of characters: from texts to tags of words, and back.

A line is `{"text": "...", "entities": [{"start": 0, "end": 5, "label": "PER"}]}`.
`start` is the first character of an entity and `end` the one after its last, counted
in Unicode code points from 0, as Python counts. No TensorFlow.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_keras.core.errors import InputError

FORM = '{"text": ..., "entities": [{"start": ..., "end": ..., "label": ...}]}'

Places = Sequence[tuple[int, int]]
"""Start and end of each word of a text."""

WIDENED = "do not begin and end where words do: widened to words"
DROPPED = "share their only words with the one before: left out"


class Entity(NamedTuple):
    """Characters `text[start:end]` that name something."""

    start: int
    end: int
    label: str


def read_entities(row: dict[str, Any], text: str, *, place: str) -> list[Entity]:
    """Returns the entities of a line, in the order of the text."""
    values = row.get("entities")
    if not isinstance(values, list):
        raise InputError(
            f"{place}: expected 'entities' with a list, [] if there are none, got "
            f"{values!r:.60}"
        )
    entities = sorted(
        _entity(value, text, place=f"{place}: entity {number}")
        for number, value in enumerate(values, start=1)
    )
    for pair in itertools.pairwise(entities):
        if pair[1].start < pair[0].end:
            one, other = (f"{text[s:e]!r:.40} ({s} to {e})" for s, e, _ in pair)
            raise InputError(
                f"{place}: the entities {one} and {other} overlap: a word has one tag, "
                "keep one of them"
            )
    return entities


def _entity(value: Any, text: str, *, place: str) -> Entity:
    value = value if isinstance(value, dict) else {}
    start, end, label = (value.get(name) for name in ("start", "end", "label"))
    is_span = type(start) is int and type(end) is int
    if not is_span or not isinstance(label, str):
        raise InputError(
            f'{place}: expected {{"start": 0, "end": 5, "label": "PER"}} with whole '
            "numbers of characters"
        )
    if not re.fullmatch("[^\\s\x00-\x1f\x7f\ud800-\udfff]+", label):
        raise InputError(
            f"{place}: expected a label without blanks, such as PER or Job_Title, got "
            f"{label!r}"
        )
    if not 0 <= start < end <= len(text):
        raise InputError(
            f"{place}: expected 0 <= start < end <= {len(text)} (characters of the "
            f"text), got {start} and {end}"
        )
    return Entity(start, end, label)


def to_tags(
    entities: Sequence[Entity], words: Places, *, place: str
) -> tuple[tuple[str, ...], list[str]]:
    """Tags each word that an entity has a character of.

    An entity that cuts a word has the whole word; a word that two entities share is
    that of the first. `words` are ascending; `place` is for errors. Returns IOB2 tags,
    and `WIDENED` or `DROPPED` for each entity that became another one.
    """
    tags = ["O"] * len(words)
    starts, ends = np.array(words, np.int64).reshape(-1, 2).T
    changes, free = [], 0
    for start, end, label in entities:
        first = int(np.searchsorted(ends, start, side="right"))
        stop = int(np.searchsorted(starts, end, side="left"))
        if first >= stop:
            raise InputError(
                f"{place}: the entity from {start} to {end} ({label}) has no "
                "character of a word"
            )
        if (words[first][0], words[stop - 1][1]) != (start, end):
            changes.append(WIDENED)
        first = max(first, free)
        if first >= stop:
            changes.append(DROPPED)
        for word in range(first, stop):
            tags[word] = f"{'I' if word > first else 'B'}-{label}"
        free = max(free, stop)
    return tuple(tags), changes
