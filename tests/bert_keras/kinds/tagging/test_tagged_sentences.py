"""Named entities: which was taken for which."""

import random
from collections.abc import Sequence

from bert_keras.kinds.tagging import TaggedSentence, tag_schemes, tagged_sentences
from bert_keras.kinds.tagging.tagged_sentences import Entity, Pair

TAGS = ("O", "O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG")


def sentence(labels: str, prediction: str, *, words: str | None = None, line: int = 1):
    """A record of tags with blanks between them."""
    count = len(labels.split())
    return TaggedSentence(
        words=(words or " ".join(f"w{n}" for n in range(count))).split(),
        line=line,
        labels=labels.split(),
        prediction=prediction.split(),
    )


def entities_of(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    return {tuple(entity) for entity in tag_schemes.entities(tags)}


def random_records(count: int) -> list[TaggedSentence]:
    rng = random.Random(1)
    records = []
    for line in range(count):
        right = tag_schemes.to_iob2(rng.choices(TAGS, k=12))
        found = [t if rng.random() < 0.7 else rng.choice(TAGS) for t in right]
        found = " ".join(tag_schemes.to_iob2(found))
        records.append(sentence(" ".join(right), found, line=line))
    return records


def test_every_entity_is_in_one_pair_and_equal_ones_in_the_same():
    for record in random_records(100):
        pairs = tagged_sentences.pair_entities(record)
        right = [tuple(p.right) for p in pairs if p.right]
        found = [tuple(p.predicted) for p in pairs if p.predicted]
        assert sorted(right) == sorted(entities_of(record.labels))
        assert sorted(found) == sorted(entities_of(record.prediction))
        same = {tuple(p.right) for p in pairs if p.kind == "right"}
        assert same == set(right) & set(found)
        for pair in pairs:
            if pair.right and pair.predicted:
                assert pair.right.start < pair.predicted.end
                assert pair.predicted.start < pair.right.end


def test_what_becomes_of_an_entity():
    for labels, prediction, kinds in (
        ("B-PER I-PER O", "B-PER I-PER O", ["right"]),
        ("B-PER I-PER O", "B-LOC I-LOC O", ["other type"]),
        ("B-PER I-PER O", "B-PER O O", ["other bounds"]),
        ("B-PER I-PER O", "O B-LOC I-LOC", ["other type and bounds"]),
        ("B-PER I-PER O", "O O O", ["missed"]),
        ("O O O", "O B-PER O", ["invented"]),
        ("B-PER I-PER O", "O O B-PER", ["missed", "invented"]),
        # One was found in two halves: the second is too many.
        ("B-PER I-PER I-PER", "B-PER B-PER I-PER", ["other bounds", "invented"]),
        ("B-PER B-PER", "B-PER I-PER", ["other bounds", "missed"]),
    ):
        pairs = tagged_sentences.pair_entities(sentence(labels, prediction))
        assert sorted(pair.kind for pair in pairs) == sorted(kinds)


def test_the_pair_that_shares_most_words():
    record = sentence("B-PER I-PER I-PER B-LOC", "B-LOC B-PER I-PER I-PER")
    assert tagged_sentences.pair_entities(record) == [
        Pair(Entity("PER", 0, 3), Entity("PER", 1, 4)),
        Pair(None, Entity("LOC", 0, 1)),
        Pair(Entity("LOC", 3, 4), None),
    ]


def test_the_parts_of_the_page():
    records = [
        sentence("B-PER O", "B-PER O", words="Anna sat", line=1),
        sentence("B-LOC I-LOC O", "B-LOC O O", words="New *York* ended", line=3),
        sentence("B-ORG O B-LOC", "B-LOC B-PER O", words="Bank of China", line=7),
    ]
    scores, confusion, sample, mistakes = tagged_sentences.describe(records)
    expected = """\
| type | precision | recall | F1 | in the file | answered |
| --- | --- | --- | --- | --- | --- |
| LOC | 0.0 % | 0.0 % | 0.0 % | 2 | 2 |
| ORG | – | 0.0 % | 0.0 % | 1 | 0 |
| PER | 50.0 % | 100.0 % | 66.7 % | 1 | 2 |"""
    assert scores.text == expected
    expected = """\
An entity is compared with the one found in its words, or in some of them: the bounds \
may differ.

| what became of entities | how many |
| --- | --- |
| right | 1 |
| other type | 1 |
| other bounds | 1 |
| other type and bounds | 0 |
| missed | 1 |
| invented | 1 |

The commonest confusions:

| right | answered | how often | share of the row |
| --- | --- | --- | --- |
| LOC | no entity | 1 | 50.0 % |
| ORG | LOC | 1 | 100.0 % |
| no entity | PER | 1 | 100.0 % |"""
    assert confusion.text == expected
    expected = """\
The first 3 with entities:

| line | sentence | entities found |
| --- | --- | --- |
| 1 | <strong>Anna</strong> sat | <em>Anna</em> PER |
| 3 | <strong>New</strong> &#42;York&#42; ended | <em>New</em> LOC |
| 7 | <strong>Bank</strong> <strong>of</strong> China | <em>Bank</em> LOC; \
<em>of</em> PER |"""
    assert sample.text == expected
    expected = """\
2 of 3 sentences have mistakes; first those with most of them:

| line | sentence | mistakes |
| --- | --- | --- |
| 7 | <strong>Bank</strong> <strong>of</strong> <strong>China</strong> | \
<em>Bank</em> ORG → LOC; no entity → <em>of</em> PER; <em>China</em> LOC → no entity |
| 3 | <strong>New &#42;York&#42;</strong> ended | <em>New &#42;York&#42;</em> LOC → \
<em>New</em> LOC |"""
    assert mistakes.text == expected
    assert [part.name for part in (scores, confusion, sample, mistakes)] == [
        *("scores_by_type", "confusion_of_types", "sample", "worst_mistakes")
    ]
    assert scores.picture[:4] == confusion.picture[:4] == b"\x89PNG"
    assert mistakes.picture is None


def test_a_sentence_of_many_mistakes():
    count = 60
    record = sentence("O " * count, "B-PER " * count)
    pairs = tagged_sentences.pair_entities(record)
    mistakes = tagged_sentences.mistakes([record], [pairs]).text
    assert len(pairs) == count
    assert mistakes.endswith("no entity → <em>w7</em> PER; and 52 more |")
    assert "<strong>w7</strong>" in mistakes and "<strong>w8" not in mistakes


def test_no_entities_at_all():
    (part,) = tagged_sentences.describe([sentence("O O", "O O")])
    assert part.text == "No entity in 1 sentences, and none was found."
    record = sentence("B-X O", "B-X O")
    pairs = tagged_sentences.pair_entities(record)
    part = tagged_sentences.mistakes([record], [pairs])
    assert part.text == "0 of 1 sentences have mistakes."


def test_plain_tags_are_compared_word_by_word():
    records = [sentence("DT NN VB", "DT NN NN"), sentence("NN O", "NN O")]
    confusion, scores = tagged_sentences.describe(records)
    assert (confusion.name, scores.name) == ("confusion_of_tags", "scores_by_tag")
    assert confusion.picture is not None
    assert "NN" in scores.text and "VB" in scores.text
