"""Duplicate paragraphs: equal to a naive search, whatever the order and the shares."""

import random

import numpy as np
import pytest

from bert_keras.pipelines import duplicates, instances

MIN_WORDS = 3


def hashes_of(paragraphs, min_words):
    return [duplicates.words_and_hash(one, min_words)[1] for one in paragraphs]


def drop(paragraphs, marks, *, min_words):
    places = duplicates.kept_places(hashes_of(paragraphs, min_words), marks)
    return [paragraphs[place] for place in places]


def long(name):
    return f"paragraph {name} is long"


def naive(documents, min_words):
    """(document, paragraph text) to be dropped, by the definition."""
    owners = {}
    for document, paragraphs in documents:
        for text in paragraphs:
            if len(text.split()) >= min_words:
                owners.setdefault(text, set()).add(document)
    return {
        (document, duplicates.paragraph_hash(text))
        for text, holders in owners.items()
        for document in holders - {min(holders)}
    }


def find_all(documents, *, num_partitions=7):
    """All three steps over (document hash, paragraphs), shared out at random."""
    blocks = {}
    for document, paragraphs in documents:
        rows = duplicates.rows_of(document, hashes_of(paragraphs, MIN_WORDS))
        for number, block in duplicates.partition(rows, num_partitions).items():
            blocks.setdefault(number, []).append(block)
    marks = []
    for parts in blocks.values():
        random.Random(0).shuffle(parts)
        marks.extend(duplicates.partition(duplicates.find(parts)[0], 4).values())
    return duplicates.marks_by_document(marks)


def random_documents(seed, num_documents=300):
    rng = random.Random(seed)
    texts = [long(i) for i in range(200)] + ["too short", "short"]
    return [
        # Few hashes, so that some documents come in several versions.
        (rng.randrange(200) << 56 | 5, rng.choices(texts, k=rng.randrange(6)))
        for _ in range(num_documents)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_finds_what_a_naive_search_finds_in_any_order(seed):
    documents = random_documents(seed)
    expected = naive(documents, MIN_WORDS)
    assert len(expected) > 100
    found = find_all(documents)
    assert {(d, p) for d, marks in found.items() for p in marks} == expected
    reordered = random.Random(seed).sample(documents, len(documents))
    for num_partitions in (1, 64):
        assert find_all(reordered, num_partitions=num_partitions) == found


def test_marks_are_whole_rows_in_order():
    rows = [(9, 4), (9, 2), (9, 4), (1, 8), (1, 2), (6, 6)]
    block = np.array(rows, np.uint64).tobytes()
    marked, keeping = duplicates.find([block])
    assert marked.tolist() == [[8, 1], [4, 9]]
    assert keeping.tolist() == [[2, 1], [2, 9]]
    assert [rows.tolist() for rows in duplicates.find([])] == [[], []]


def test_the_partition_is_the_bucket_of_a_document():
    names = [f"document {number}" for number in range(200)]
    hashes = [instances.document_hash(name) for name in names]
    rows = [(value, n) for n, value in enumerate(hashes)]
    for num_partitions in (1, 7, 1000):
        found = {}
        for number, block in duplicates.partition(rows, num_partitions).items():
            for _, place in np.frombuffer(block, "<u8").reshape(-1, 2).tolist():
                found[names[place]] = number
        assert found == {n: instances.bucket_of(n, num_partitions) for n in names}


def test_drops_marked_paragraphs_and_later_repeats():
    a, b, c, d = (long(name) for name in "abcd")
    paragraphs = [a, "x y", b, c, b, "x y", d, "paragraph  b is\nlong"]
    marks = {duplicates.paragraph_hash(c)}
    assert drop(paragraphs, marks, min_words=4) == [a, "x y", b, "x y", d]
    assert drop(paragraphs, marks, min_words=5) == paragraphs


def test_sentences_have_the_hash_of_their_paragraph():
    for text, sentences in (
        ("It is so. Is it?  Yes.", ["It is so.", "Is it?", "Yes."]),
        ("吾輩は猫である。名前はまだ無い。", ["吾輩は猫である。", "名前はまだ無い。"]),
    ):
        value = duplicates.paragraph_hash(text)
        assert duplicates.paragraph_hash(sentences) == value
        assert drop([sentences, text], (), min_words=6) == [sentences]
        assert drop([sentences], {value}, min_words=6) == []
        for min_words in range(1, 20):
            first, second = hashes_of([text, sentences], min_words)
            assert first == second


def test_white_space_of_any_kind_does_not_matter():
    value = duplicates.paragraph_hash("a b c")
    for text in ("a\u00a0b\u2003c", " a\tb\nc ", "a\u2028b\x1cc", "abc"):
        assert duplicates.paragraph_hash(text) == value
    # No white space, though not seen either.
    assert duplicates.paragraph_hash("a\u200bb c") != value


def test_the_hash_is_the_same_on_every_machine():
    # Of a run before: buckets of unfinished work rest on it.
    assert duplicates.paragraph_hash("a b") == 0x8810DE87F1B5520E
    assert duplicates.paragraph_hash(["吾輩は", "猫\ud800"]) == 0x1A109DE5D6499DBB
