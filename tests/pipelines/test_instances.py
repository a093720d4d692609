"""Pairs and instances: true labels, nothing lost, chance from content alone."""

import dataclasses
import itertools
import random
from collections import Counter
from itertools import accumulate

import numpy as np
import pytest

from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.pipelines import instances


def make_document(name, sentence_lengths, *, source="books", first_id=10):
    """A document whose tokens are all different: `first_id`, `first_id + 1`, ..."""
    ends = list(accumulate(sentence_lengths))
    return instances.Document(
        id=name,
        source=source,
        token_ids=range(first_id, first_id + ends[-1]),
        sentence_ends=ends,
    )


def make_pairs(documents, *, seed=0, **settings):
    """The pairs of the first document, and what was counted."""
    settings = {"max_seq_length": 32, "short_seq_prob": 0.1} | settings
    counts = Counter()
    sources = [document.source for document in documents]
    pairs = instances.make_pairs(
        0,
        instances.sentence_borders(documents),
        sources=sources,
        peers=instances.peers_of(sources)[0],
        config=ExamplesConfig(**settings),
        rng=random.Random(seed),
        counts=counts,
    )
    return pairs, +counts


def random_documents(seed, number=5):
    rng = random.Random(seed)
    return [
        make_document(
            f"document {i}", [rng.randrange(1, 20) for _ in range(rng.randrange(1, 30))]
        )
        for i in range(number)
    ]


# Chance.


def test_chance_is_fixed_for_ever():
    assert instances.document_hash("wikipedia:12") == 0x8D88037B3F65B7EF
    assert instances.bucket_of("wikipedia:12", 1024) == 566  # 0x8d8 / 4
    assert instances.bucket_of("Überblick", 7) == 1
    rng = instances.document_rng(12345, "wikipedia:12", 0)
    assert rng.getrandbits(64) == 11958308966059921289
    order = instances.shuffled(6, seed=12345, bucket=17)
    assert order.tolist() == [3, 5, 2, 1, 4, 0]


def test_chance_differs_with_everything_that_it_comes_from():
    documents = [(1, "a", 0), (2, "a", 0), (1, "b", 0), (1, "a", 1), (1, "1:a", 0)]
    generators = [instances.document_rng(*c) for c in [*documents, (11, "a", 0)]]
    assert len({rng.getrandbits(64) for rng in generators}) == len(generators)


def test_lone_documents_join_a_neighbour():
    for counts, moves in (
        *(({3: 1}, {}), ({3: 2, 5: 9}, {}), ({3: 1, 5: 4}, {3: 5})),
        ({1: 1, 3: 1, 5: 1}, {1: 5, 3: 5}),
        ({1: 1, 2: 1, 3: 5, 5: 1, 7: 3}, {2: 5, 1: 5}),
        ({1: 1, 2: 1, 3: 5, 5: 1, 7: 2, 8: 1}, {5: 8, 1: 2}),
    ):
        assert instances.join_lone(counts) == moves
    # None is alone afterwards.
    rng = random.Random(0)
    for _ in range(500):
        counts = Counter(rng.randrange(20) for _ in range(rng.randrange(2, 60)))
        moves = instances.join_lone(counts)
        after = Counter()
        for bucket, number in counts.items():
            after[moves.get(bucket, bucket)] += number
        assert min(after.values()) > 1
        assert all(counts[bucket] == 1 for bucket in moves)


def test_parts_are_the_document():
    document = make_document("a", [3, 1, 4, 1, 5, 9, 2])
    parts = list(instances.parts_of(document, 3))
    assert [part.id for part in parts] == ["a#0", "a#1", "a#2"]
    assert [list(part.sentence_ends) for part in parts] == [[3, 4], [4, 5], [5, 14, 16]]
    assert [token for part in parts for token in part.token_ids] == list(range(10, 35))


def test_the_source_of_a_url_is_its_site():
    for source in ("books", "a/b: c", "", "://x"):
        assert instances.source_name(source) == source
    url = "https://En.Wikipedia.org/wiki/BERT?a=b"
    assert instances.source_name(url) == "en.wikipedia.org"
    assert instances.source_name("s3://bucket/text") == "bucket"
    assert instances.source_name("http://[broken") == "[broken"


# Partners.


@pytest.mark.parametrize(
    ("document", "others"), [(0, {2, 4}), (2, {0, 4}), (3, {1}), (5, {0, 1, 2, 3, 4})]
)
def test_partners_are_uniform_over_the_others(document, others):
    """Of the same source, or without any of these of all sources."""
    sources = ["books", "wiki", "books", "wiki", "books", "diary"]
    peers = instances.peers_of(sources)[document]
    rng = random.Random(0)
    counts = Counter(instances.draw_partner(document, peers, rng) for _ in range(1000))
    assert set(counts) == others
    assert min(counts.values()) > 860 / len(others)


def test_other_sources_are_counted():
    documents = [make_document(s, [5] * 20, source=s) for s in ("books", "wiki")]
    pairs, counts = make_pairs(documents)
    assert counts == {"other_source_partners": sum(p.is_random_next for p in pairs)}


# Pairs.


def test_whole_pairs():
    documents = [
        make_document("a", [4, 6, 5, 9, 3, 7, 30, 2]),
        make_document("b", [8, 8, 8]),
    ]
    pairs, _ = make_pairs(documents, seed=4, max_seq_length=23, short_seq_prob=0)
    assert [tuple(pair)[:-1] for pair in pairs] == [
        (0, 4, 66, 82, 1),  # one sentence; two of the other document, from 66 on
        (4, 15, 15, 24, 0),  # the sentences put back: two and one
        (24, 27, 36, 53, 0),  # 9 tokens cut off before B, 11 behind it
        (64, 66, 70, 88, 1),  # a single one is left: B is random, 6 cut off
    ]


@pytest.mark.parametrize("seed", range(100))
def test_labels_are_true(seed):
    documents = random_documents(seed)
    pairs, _ = make_pairs(documents, seed=seed)
    own, *others = instances.sentence_borders(documents)
    assert pairs
    for a_start, a_end, b_start, b_end, is_random, _ in pairs:
        length = a_end - a_start + b_end - b_start
        assert 0 <= a_start < a_end <= own[-1]
        assert b_start < b_end
        assert length <= 29
        if is_random:
            assert b_start >= own[-1]
        else:
            assert b_end <= own[-1]
            # B begins where A ends, unless tokens were cut off there.
            assert a_end <= b_start
            assert a_end == b_start or length == 29
        if length < 29:
            assert {a_start, a_end} <= {*own}
            sources = others if is_random else [own]
            assert any({b_start, b_end} <= {*borders} for borders in sources)


@pytest.mark.parametrize("seed", range(30))
def test_what_a_random_next_displaces_is_used_again(seed):
    # Sentences of one token reach the target exactly: nothing is cut.
    documents = [make_document("a", [1] * 200), make_document("b", [1] * 50)]
    pairs, _ = make_pairs(documents, seed=seed, max_seq_length=16)
    used = []
    for pair in pairs:
        used += range(pair.a_start, pair.a_end)
        if not pair.is_random_next:
            used += range(pair.b_start, pair.b_end)
    assert used == list(range(200))


def test_half_of_the_choices_are_random():
    documents = [make_document(str(i), [3] * 400) for i in range(2)]
    labels = Counter()
    for seed in range(200):
        pairs, _ = make_pairs(documents, seed=seed, short_seq_prob=0)
        labels.update(pair.is_random_next for pair in pairs[:-1])
    assert labels[1] / labels.total() == pytest.approx(0.5, abs=0.02)


def test_random_parts_start_at_every_sentence():
    documents = [make_document("a", [3] * 400), make_document("b", [5, 1, 9, 2])]
    starts = Counter()
    for seed in range(100):
        pairs, _ = make_pairs(documents, seed=seed, max_seq_length=512)
        starts.update(pair.b_start for pair in pairs if pair.is_random_next)
    assert sorted(starts) == [1200, 1205, 1206, 1215]


def test_both_ends_of_the_longer_segment_are_cut():
    documents = [make_document("a", [100]), make_document("b", [4])]
    from_front = []
    for seed in range(500):
        (pair,), _ = make_pairs(documents, seed=seed)
        assert (pair.a_end - pair.a_start, pair.b_start, pair.b_end) == (25, 100, 104)
        from_front.append(pair.a_start)
    # A sum of 75 fair coins: mean 37.5, standard deviation 4.33.
    mean = sum(from_front) / 500
    variance = sum((n - mean) ** 2 for n in from_front) / 499
    assert mean == pytest.approx(37.5, abs=1)
    assert variance == pytest.approx(18.75, rel=0.3)


@pytest.mark.parametrize("short_seq_prob", [0.3, 1])
def test_short_targets_come_as_often_as_asked_in_all_lengths(short_seq_prob):
    documents = [make_document(str(i), [1] * 300) for i in range(2)]
    longest = Counter()
    for seed in range(1000):
        pairs, _ = make_pairs(documents, seed=seed, short_seq_prob=short_seq_prob)
        lengths = [p.a_end - p.a_start + p.b_end - p.b_start for p in pairs[:-1]]
        longest[max(lengths)] += 1
    # One in 28 of the random targets is the full length.
    short = 1000 - longest[29]
    assert short / 1000 == pytest.approx(short_seq_prob * 27 / 28, abs=0.05)
    assert sorted(longest) == list(range(2, 30))
    assert min(longest.values()) > 12 * short_seq_prob  # 36 on average of all


@pytest.mark.parametrize("seed", range(20))
def test_a_document_alone_gives_only_what_is_true(seed):
    document = make_document("a", [12, 30, 40, 5, 6, 7, 8])
    pairs, counts = make_pairs([document], seed=seed)
    assert pairs
    for pair in pairs:
        assert not pair.is_random_next
        assert pair.a_end <= pair.b_start < pair.b_end <= 108
    dropped = counts.pop("dropped_single_sentences", 0)
    assert counts == {"pairs_without_partner": len(pairs)}
    assert (pairs[-1].b_end <= 100) == bool(dropped)


def test_a_single_sentence_needs_a_partner():
    documents = [make_document("a", [12]), make_document("b", [5])]
    assert make_pairs(documents[:1]) == ([], {"dropped_single_sentences": 1})
    pairs, _ = make_pairs(documents)
    assert [tuple(pair)[:-1] for pair in pairs] == [(0, 12, 12, 17, 1)]


# All pairs of a bucket.


def test_documents_are_ordered_by_id_and_unique():
    first = make_document("a", [3], first_id=10)
    second = make_document("a", [3], first_id=11)
    other = make_document("b", [2])
    for arrived in ([other, second, first], [first, other, second]):
        assert instances.unique_documents(arrived) == [first, other]


def make_spans(documents, counts=None, **settings):
    return instances.make_pair_spans(
        documents,
        dtype=np.dtype("H"),
        config=ExamplesConfig(max_seq_length=32, **settings),
        counts=Counter() if counts is None else counts,
    )


def test_partners_of_any_source():
    documents = [make_document("book", [5] * 200, source="books")] + [
        make_document(str(i), [5] * 20, source=source)
        for i, source in enumerate(["books"] * 3 + ["wiki"] * 6)
    ]
    offsets = np.cumsum([len(document.token_ids) for document in documents])
    shares = {}
    for partner in ("same_source", "any_source"):
        counts = Counter()
        _, spans = make_spans(documents, counts, dupe_factor=40, partner=partner)
        is_mine = (spans.a_starts < 1000) & spans.is_random_next
        partners = np.searchsorted(offsets, spans.b_starts[is_mine], side="right")
        shares[partner] = np.bincount(partners, minlength=10) / is_mine.sum()
        assert bool(counts["other_source_partners"]) == (partner == "any_source")
    assert is_mine.sum() > 700
    assert shares["same_source"] == pytest.approx([0, *[1 / 3] * 3, *[0] * 6], abs=0.08)
    assert shares["any_source"] == pytest.approx([0, *[1 / 9] * 9], abs=0.06)


def test_every_use_of_a_document_has_its_own_chance():
    documents = [make_document(str(i), [3] * 40, first_id=10 + 200 * i) for i in (0, 1)]

    def seeds(**settings):
        return set(make_spans(documents, **settings)[1].seeds.tolist())

    once, twice = seeds(dupe_factor=1), seeds(dupe_factor=2)
    assert once < twice
    assert not once & seeds(dupe_factor=1, random_seed=1)


def test_the_order_is_another_one_in_each_bucket():
    orders = [
        instances.shuffled(100, seed=seed, bucket=bucket).tolist()
        for seed, bucket in [(1, 0), (1, 1), (2, 0)]
    ]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]


# Full sentences.


def pack_full_sentences(documents, num_dropped=0, **settings):
    settings = {"max_seq_length": 12, "packing": "full_sentences"} | settings
    config, counts = ExamplesConfig(**settings), Counter()
    tokens, spans = instances.make_full_sentence_spans(
        documents, separator=3, dtype=np.dtype("H"), config=config, counts=counts
    )
    assert counts["dropped_long_sentences"] == num_dropped
    assert (spans.b_starts == spans.b_ends).all()
    assert not spans.is_random_next.any()
    places = zip(spans.a_starts, spans.a_ends, strict=True)
    return [tokens[start:end].tolist() for start, end in places], spans


def test_whole_full_sentences():
    documents = [
        make_document("a", [4, 5, 2, 6], first_id=100),
        make_document("b", [3, 23], first_id=200),
        make_document("c", [2, 2], first_id=300),
    ]
    texts, _ = pack_full_sentences(documents, dupe_factor=1, random_seed=3)
    assert texts == [
        [*range(300, 304), 3, *range(200, 203)],
        [*range(203, 213)],  # 23 tokens are more than an example holds
        [*range(213, 223)],
        [*range(223, 226), 3, *range(100, 104)],
        [*range(104, 111)],
        [*range(111, 117)],
    ]


@pytest.mark.parametrize("short_seq_prob", [None, 1.0])
@pytest.mark.parametrize("seed", range(20))
def test_full_sentences_leave_nothing_out(seed, short_seq_prob):
    documents = random_documents(seed)
    for index, document in enumerate(documents):
        ids = [1000 * (index + 1) + i for i in range(len(document.token_ids))]
        documents[index] = dataclasses.replace(document, token_ids=ids)
    texts, spans = pack_full_sentences(
        documents, dupe_factor=2, random_seed=seed, short_seq_prob=short_seq_prob
    )
    whole = Counter(token for text in texts for token in text if token != 3)
    tokens = [token for document in documents for token in document.token_ids]
    assert whole == Counter(tokens * 2)
    ends = {d.token_ids[e - 1] for d in documents for e in d.sentence_ends}
    for text, following in itertools.pairwise(texts):
        assert 0 < len(text) <= 10
        assert 3 not in (text[0], text[-1])
        # A sentence is cut only if it is longer than an example, which it then fills.
        assert text[-1] in ends or len(text) == 10
        for before, after in itertools.pairwise(text):
            if 3 not in (before, after):
                assert after == before + 1
        # What follows would not have fitted.
        if not short_seq_prob and text[-1] in ends and following[0] == text[-1] + 1:
            sentence = next((i for i, t in enumerate(following) if t in ends), 10)
            assert len(text) + sentence + 1 > 10
    assert len(set(spans.seeds.tolist())) == len(texts)


def test_short_full_sentences():
    """Whole sentences, of all lengths, as often as asked."""
    document = make_document("a", [3] * 4000, first_id=0)
    lengths = {}
    for short_seq_prob in (None, 0.3, 1.0):
        texts, _ = pack_full_sentences(
            [document], max_seq_length=32, short_seq_prob=short_seq_prob
        )
        assert all(text[0] % 3 == 0 and text[-1] % 3 == 2 for text in texts)
        lengths[short_seq_prob] = Counter(len(text) for text in texts[:-1])
    assert set(lengths[None]) == {30}
    assert set(lengths[1.0]) == {*range(3, 31, 3)}
    # Targets of 1 to 5 tokens give a sentence, of 6 to 8 two, and so on to 30.
    share = {n: count / lengths[1.0].total() for n, count in lengths[1.0].items()}
    expected = {3: 5 / 30, **{n: 3 / 30 for n in range(6, 30, 3)}, 30: 1 / 30}
    assert share == pytest.approx(expected, abs=0.04)
    of = lengths[0.3]
    assert 1 - of[30] / of.total() == pytest.approx(0.3 * 29 / 30, abs=0.05)


def test_single_sentences():
    documents = [
        make_document("a", [4, 1, 12, 2], first_id=100),
        make_document("b", [1, 10], first_id=200),
    ]
    texts, spans = pack_full_sentences(
        documents, packing="single_sentences", dupe_factor=1, random_seed=3
    )
    assert texts == [
        [200],
        [*range(201, 211)],
        [*range(100, 104)],
        [104],
        # 12 tokens are more than an example holds, and its rest stays alone.
        [*range(105, 115)],
        [115, 116],
        [117, 118],
    ]
    assert len(set(spans.seeds.tolist())) == len(texts)


def test_single_sentences_up_to_a_length():
    documents = [
        make_document("a", [4, 1, 12, 2], first_id=100),
        make_document("b", [5, 4, 30], first_id=200),
    ]
    settings = {"packing": "single_sentences", "max_sentence_length": 4}
    texts, _ = pack_full_sentences(
        documents, num_dropped=6, dupe_factor=2, random_seed=3, **settings
    )
    once = [[*range(205, 209)], [*range(100, 104)], [104], [117, 118]]
    assert sorted(texts) == sorted(2 * once)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"packing": "single_sentences", "short_seq_prob": 0.5},
            "`short_seq_prob` changes nothing with `packing=single_sentences`",
        ),
        (
            {"packing": "full_sentences", "max_sentence_length": 20},
            "`max_sentence_length` needs `packing=single_sentences`, got full_sen",
        ),
    ],
)
def test_settings_that_would_change_nothing(settings, message):
    with pytest.raises(ValueError, match=message):
        ExamplesConfig(**settings)


def test_full_sentences_come_in_another_order_each_time():
    documents = [make_document(str(i), [5], first_id=10 * (i + 1)) for i in range(9)]
    texts, _ = pack_full_sentences(documents, max_seq_length=8, dupe_factor=3)
    orders = [tuple(text[0] for text in texts[i : i + 9]) for i in (0, 9, 18)]
    assert len(set(orders)) == 3
    assert all(sorted(order) == list(range(10, 100, 10)) for order in orders)
