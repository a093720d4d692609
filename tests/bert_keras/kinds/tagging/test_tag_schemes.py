"""Schemes of tags: which words are an entity."""

import itertools
import random

import pytest

from bert_keras.core.errors import InputError
from bert_keras.kinds.tagging import tag_schemes


def conlleval_entities(tags: list[str]) -> list[tuple[str, int, int]]:
    """Type, first word and end of entities, by the rules of the official script."""
    entities, begin = [], None
    for place, (last, now) in enumerate(itertools.pairwise(["O", *tags, "O"])):
        is_other = last[2:] != now[2:]
        if begin is not None and (now[0] in "BO" or is_other):
            entities.append((last[2:], begin, place))
            begin = None
        if now[0] == "B" or (now[0] == "I" and (last == "O" or is_other)):
            begin = place
    return entities


def test_entities_are_those_of_conlleval():
    """Also of IOB1 and of what models predict; IOB2 of the tags has the same ones."""
    rng = random.Random(6)
    kinds = ["O", "O", "B-A", "I-A", "I-A", "B-B", "I-B", "B-B-2", "I-B-2"]
    for _ in range(500):
        tags = rng.choices(kinds, k=rng.randint(1, 8))
        entities = conlleval_entities(tags)
        iob2 = tag_schemes.to_iob2(tags)
        assert tag_schemes.entities(tags) == tag_schemes.entities(iob2) == entities
        assert sum(tag.startswith("B-") for tag in iob2) == len(entities)


def test_iob1_and_faults_become_iob2():
    for tags, iob2 in (
        ("I-A I-A B-A I-A O I-A", "B-A I-A B-A I-A O B-A"),
        ("I-A I-B I-B B-B I-A", "B-A B-B I-B B-B B-A"),
        ("B-A I-A O B-B B-B I-B", "B-A I-A O B-B B-B I-B"),
        # After an end.
        ("S-a I-a I-a E-a", "S-a B-a I-a E-a"),
    ):
        assert tag_schemes.to_iob2(tags.split()) == tuple(iob2.split())


ENTITIES = [("a", 0, 3), ("b", 3, 4), ("a", 5, 6), ("b", 6, 7)]


@pytest.mark.parametrize(
    ("tags", "scheme", "labels", "entities"),
    [
        (
            "DT NN NN O -LRB-",
            *("plain", "-LRB- DT NN O"),
            [("DT", 0, 1), ("NN", 1, 3), ("-LRB-", 4, 5)],
        ),
        (
            "B-a I-a E-a S-b O S-a S-b",
            *("BIOES", "O B-a I-a E-a S-a B-b I-b E-b S-b"),
            ENTITIES,
        ),
        (
            "B-a I-a L-a U-b O U-a U-b",
            *("BILOU", "O B-a I-a L-a U-a B-b I-b L-b U-b"),
            ENTITIES,
        ),
        ("B-a I-a I-a B-b O B-a B-b", "IOB", "O B-a I-a B-b I-b", ENTITIES),
        ("O I-A B-b", "IOB", "O B-A I-A B-b I-b", [("A", 1, 2), ("b", 2, 3)]),
    ],
)
def test_schemes_and_labels(tags, scheme, labels, entities):
    tags = tags.split()
    assert tag_schemes.scheme_of(tags) == scheme
    assert tag_schemes.labels_of(tags, path="f") == tuple(labels.split())
    # A model has nothing but its labels to know it by.
    assert tag_schemes.scheme_of(labels.split()) == scheme
    assert tag_schemes.entities(tags) == entities


def test_tags_that_are_all_the_same():
    for tags, message in (
        ("O O", "f: every word is tagged O: expected some entities"),
        ("NN NN", "f: every word is tagged 'NN'"),
    ):
        with pytest.raises(InputError, match=message):
            tag_schemes.labels_of(tags.split(), path="f")
