"""Schemes of tags: the words of an entity, by the prefixes of their tags.

| scheme | first word | inside | last word | only word |
| --- | --- | --- | --- | --- |
| IOB | `B-` | `I-` | `I-` | `B-` |
| BIOES | `B-` | `I-` | `E-` | `S-` |
| BILOU | `B-` | `I-` | `L-` | `U-` |

Words outside any entity have `O`. Plain tags, such as parts of speech, have no prefix
and mark no entities. IOB is IOB2: in IOB1, `B-` only divides neighbours of one type.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from bert_keras.core.errors import InputError

OUTSIDE = "O"

PREFIXED = re.compile("[BIESLU]-.+")
"""Tag of a word in an entity."""

BEGINS, ENDS = ("B-", "S-", "U-"), ("E-", "S-", "L-", "U-")
"""Prefixes of an entity's first and last word."""

Scheme = Literal["IOB", "BIOES", "BILOU", "plain"]

_PREFIXES = {"IOB": "BI", "BIOES": "BIES", "BILOU": "BILU"}


def scheme_of(tags: Iterable[str]) -> Scheme:
    """Returns the scheme of tags, or of a model's labels."""
    tags = set(tags) - {OUTSIDE}
    if not all(PREFIXED.fullmatch(tag) for tag in tags):
        return "plain"
    prefixes = {tag[0] for tag in tags}
    if prefixes <= set("BI"):
        return "IOB"
    return "BIOES" if prefixes <= set("BIES") else "BILOU"


def labels_of(tags: Iterable[str], *, path: str | Path) -> tuple[str, ...]:
    """Returns the labels of a model of these tags: plain tags by the alphabet; else
    `O`, then the tags of each type of entity, by the alphabet, with all prefixes of the
    scheme."""
    tags = set(tags)
    scheme = scheme_of(tags)
    if tags == {OUTSIDE}:
        raise InputError(f"{path}: every word is tagged O: expected some entities")
    if scheme == "plain":
        if len(tags) == 1:
            raise InputError(f"{path}: every word is tagged {tags.pop()!r}")
        return tuple(sorted(tags))
    types = sorted({tag[2:] for tag in tags - {OUTSIDE}})
    return (OUTSIDE, *(f"{p}-{name}" for name in types for p in _PREFIXES[scheme]))


def begins_with_inside(previous: str, tag: str) -> bool:
    """Returns whether an entity begins with `I-`, as in IOB1 or by a fault."""
    is_over = previous[2:] != tag[2:] or previous.startswith(ENDS)
    return tag.startswith("I-") and is_over


def to_iob2(tags: Sequence[str]) -> tuple[str, ...]:
    """Makes every entity of a sentence begin with `B-`; entities are as `conlleval`
    reads IOB1, IOB2 or the tags of a model."""
    return tuple(
        f"B-{tag[2:]}" if begins_with_inside(previous, tag) else tag
        for previous, tag in itertools.pairwise([OUTSIDE, *tags])
    )


def in_bioes(tags: Iterable[str]) -> list[str]:
    """Returns the tags with the letters of BIOES for those of BILOU, as in seqeval."""
    letters = {"L-": "E-", "U-": "S-"}
    return [letters.get(tag[:2], tag[:2]) + tag[2:] for tag in tags]


class Entity(NamedTuple):
    type: str
    start: int
    """The first word."""
    end: int
    """After the last word."""


def as_entity_tag(tag: str) -> str:
    """Returns a tag with a prefix: a plain one but `O` is inside of an entity, so that
    equal plain tags in a row are one entity."""
    is_plain = tag != OUTSIDE and not PREFIXED.fullmatch(tag)
    return f"I-{tag}" if is_plain else tag


def entities(tags: Sequence[str]) -> list[Entity]:
    """Returns the entities of a sentence, as `conlleval` reads them; for plain tags see
    `as_entity_tag`."""
    # Only here, because it imports scikit-learn, and the kind of task this module.
    from seqeval.metrics import sequence_labeling

    tags = in_bioes(map(as_entity_tag, tags))
    # seqeval gives the last word, not the one after it.
    spans = sequence_labeling.get_entities(tags)
    return [Entity(name, start, last + 1) for name, start, last in spans]
