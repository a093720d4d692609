"""Entities as spans of characters: from texts to tags of words, and back.

A line is `{"text": "...", "entities": [{"start": 0, "end": 5, "label": "PER"}]}`.
`start` is the first character of an entity and `end` the one after its last, counted
in Unicode code points from 0, as Python counts. No TensorFlow.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_keras.core.errors import InputError

logger = logging.getLogger(__name__)

FORM = '{"text": ..., "entities": [{"start": ..., "end": ..., "label": ...}]}'

Places = Sequence[tuple[int, int]]
"""Start and end of each word of a text."""


class Entity(NamedTuple):
    """Characters `text[start:end]` that name something."""

    start: int
    end: int
    label: str


class Tagged(NamedTuple):
    """The words of a text with their tags."""

    tags: tuple[str, ...]
    """IOB2."""
    changes: list[str]
    """`_WIDENED` or `_DROPPED` for each entity that became another one."""


_WIDENED = "do not begin and end where words do: widened to words"
_DROPPED = "share their only words with the one before: left out"


def warn_of_changes(
    path: Path, changes: Sequence[tuple[str, int]], num_entities: int
) -> None:
    """Logs how many entities of a file became other ones, if any did. `changes` have
    the line of each."""
    for kind in (_WIDENED, _DROPPED):
        if lines := [line for change, line in changes if change == kind]:
            counted = f"{len(lines)} of {num_entities} entities {kind}"
            logger.warning("%s: %s (the first in line %d)", path, counted, lines[0])


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
    for one, other in zip(entities, entities[1:], strict=False):
        if other.start < one.end:
            raise InputError(
                f"{place}: the entities {_quoted(one, text)} and "
                f"{_quoted(other, text)} overlap: a word has one tag, keep one of them"
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


def _quoted(entity: Entity, text: str) -> str:
    name = text[entity.start : entity.end]
    return f"{name!r:.40} ({entity.start} to {entity.end})"


def to_tags(entities: Sequence[Entity], words: Places, *, place: str) -> Tagged:
    """Tags each word that an entity has a character of.

    An entity that cuts a word has the whole word; a word that two entities share is
    that of the first. `words` are ascending; `place` is for errors.
    """
    tags = ["O"] * len(words)
    starts = np.array([start for start, _ in words], np.int64)
    ends = np.array([end for _, end in words], np.int64)
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
            changes.append(_WIDENED)
        first = max(first, free)
        if first >= stop:
            changes.append(_DROPPED)
        for word in range(first, stop):
            tags[word] = f"{'I' if word > first else 'B'}-{label}"
        free = max(free, stop)
    return Tagged(tuple(tags), changes)
