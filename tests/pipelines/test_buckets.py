"""Buckets: documents in, records out: what they hold, their bytes, their order."""

from array import array
from collections import Counter

import numpy as np
import pytest

from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import batch_tokenizer, features, masking, tokenization
from bert_keras.pipelines import buckets, instances
from tests.pipelines import example_messages

CLS, SEP = 2, 3
WORDS = (f"{'##' if token % 5 == 0 else ''}{token}" for token in range(5, 400))
VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *WORDS))


def make_documents(number=12, *, seed=0):
    rng = np.random.default_rng(seed)
    made = []
    for index in range(number):
        ends = np.cumsum(rng.integers(1, 25, rng.integers(2, 30)))
        made.append(
            instances.Document(
                id=f"document {index}",
                source="books" if index % 3 == 0 else "wiki",
                token_ids=array("H", rng.integers(5, 400, ends[-1]).tolist()),
                sentence_ends=array("I", ends.tolist()),
            )
        )
    return made


def config_of(settings):
    return ExamplesConfig(**{"max_seq_length": 32, "dupe_factor": 2} | settings)


def encode(documents, *, bucket=0, **settings):
    config, counts = config_of(settings), Counter()
    encoded = buckets.encode_bucket(
        documents, bucket=bucket, config=config, vocabulary=VOCABULARY, counts=counts
    )
    return list(encoded), +counts


def batch_of(documents, config):
    """The whole bucket as one batch, in its order."""
    kept = instances.unique_documents(documents)
    make, more = instances.make_pair_spans, {}
    if config.packing != "sentence_pairs":
        make, more = instances.make_full_sentence_spans, {"separator": SEP}
    options = {"dtype": np.uint16, "config": config, "counts": Counter()}
    tokens, spans = make(kept, **options, **more)
    order = instances.shuffled(len(spans.seeds), seed=config.random_seed, bucket=0)
    return buckets.make_batch(
        tokens, spans.take(order), vocabulary=VOCABULARY, config=config
    )


def tokenizer_of(*words, do_lower_case=True):
    vocabulary = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *words))
    return batch_tokenizer.BatchTokenizer(
        tokenization.Tokenizer(vocabulary, do_lower_case=do_lower_case)
    )


# Documents.


def test_a_document_becomes_ids():
    tokenizer = tokenizer_of("a", "b", "##b", "c", ".")
    record = {
        "id": "x",
        "source": "books",
        "title": "not used",
        "paragraphs": [["A bb.", " ", "c unheard"], [], ["\u200b", "b"]],
    }
    counts = Counter()
    (document,) = buckets.tokenize_documents([record], tokenizer, counts)
    assert (document.id, document.source) == ("x", "books")
    assert list(document.token_ids) == [5, 6, 7, 9, 8, 1, 6]
    assert list(document.sentence_ends) == [4, 6, 7]
    assert counts == {
        **{"documents": 1, "sentences": 3, "tokens": 7, "unknown_tokens": 1},
        "empty_documents": 0,
    }
    empty = {"id": "y", "source": "books", "paragraphs": [[""]]}
    (document,) = buckets.tokenize_documents([empty], tokenizer, counts)
    assert not document.sentence_ends
    assert (counts["documents"], counts["empty_documents"]) == (2, 1)


def test_documents_are_the_same_alone_and_among_others(monkeypatch):
    tokenizer = tokenizer_of(*"abc", "##b")
    documents = [
        {"id": str(n), "source": "s", "paragraphs": [["ab" * (n % 3), "c a"] * n, [""]]}
        for n in range(40)
    ]
    found = []
    for limit in (1, 100, 1 << 18):
        monkeypatch.setattr(buckets, "_CHARACTERS_AT_ONCE", limit)
        counts = Counter()
        tokenized = buckets.tokenize_documents(iter(documents), tokenizer, counts)
        found.append(([buckets.pack(document) for document in tokenized], counts))
    assert found[0] == found[1] == found[2]
    assert found[0][1]["documents"] == 40
    last = buckets.unpack(found[0][0][-1], vocab_size=8)
    assert last.id == "39"
    assert len(last.sentence_ends) == 39  # "ab" * 0 has no token


@pytest.mark.parametrize(("vocab_size", "num_bytes"), [(65_536, 2), (65_537, 4)])
def test_packed_documents_are_those_that_were_packed(vocab_size, num_bytes):
    words = [f"w{i}" for i in range(vocab_size - 5)]
    tokenizer = tokenizer_of(*words, do_lower_case=False)
    record = {"id": "x\n\u00fc", "source": "s", "paragraphs": [[words[-1], "w0 w1"]]}
    (document,) = buckets.tokenize_documents([record], tokenizer, Counter())
    packed = buckets.pack(document)
    assert type(packed) is bytes
    assert len(packed) - packed.index(b"\n") == 1 + 3 * num_bytes + 2 * 4
    again = buckets.unpack(packed, vocab_size=vocab_size)
    assert (again.id, again.source) == ("x\n\u00fc", "s")
    assert list(again.token_ids) == [vocab_size - 1, 5, 6]
    assert list(again.sentence_ends) == [1, 3]


# Records.


SETTINGS = [
    *({}, {"feature_names": "v2"}, {"do_whole_word_mask": True}),
    {"max_ngram_size": 3, "max_predictions_per_seq": 7},
    *({"packing": "full_sentences"}, {"packing": "single_sentences"}),
    {"masking": "dynamic"},
    {"masking": "dynamic", "feature_names": "v2"},
    *({"masking": "dynamic", "packing": "full_sentences"}, {"max_seq_length": 200}),
]


def lists_of(batch, row, config):
    """The features of one example, made without the code that writes them."""
    length, first = int(batch.lengths[row]), int(batch.first_lengths[row])
    true_ids = batch.true_ids[row, :length].tolist()
    label = [int(batch.is_random_next[row])]
    ids, segments = {"v1": ("input_ids", "segment_ids")}.get(
        config.feature_names, ("input_word_ids", "input_type_ids")
    )
    if config.masking == "dynamic":
        if config.packing != "sentence_pairs":
            return {ids: true_ids}
        return {ids: true_ids, "next_sentence_labels": label}
    padding = [0] * (config.max_seq_length - length)
    masked = {name: values[row].tolist() for name, values in batch.masked.items()}
    number = int(sum(masked["masked_lm_weights"]))
    no_predictions = [0] * (config.num_predictions - number)
    positions = masked["masked_lm_positions"][:number]
    return {
        ids: masked["input_ids"][:length] + padding,
        "input_mask": [1] * length + padding,
        segments: [0] * first + [1] * (length - first) + padding,
        "masked_lm_positions": positions + no_predictions,
        "masked_lm_ids": [true_ids[p] for p in positions] + no_predictions,
        "masked_lm_weights": [1.0] * number + [0.0] * len(no_predictions),
        "next_sentence_labels": label,
    }


def check_instance(batch, row, config):
    """Checks what holds for all instances, whatever the settings."""
    length, first = int(batch.lengths[row]), int(batch.first_lengths[row])
    ids, padding = np.split(batch.true_ids[row], [length])
    assert ids.min() > 0 and ids.max() < len(VOCABULARY) and not padding.any()
    assert np.flatnonzero(ids == CLS).tolist() == [0]
    ends = np.flatnonzero(ids == SEP).tolist()
    if config.packing == "sentence_pairs":
        assert ends == [first - 1, length - 1]
        assert 2 < first < length - 1
    else:
        # Texts, none of them empty, that each end in [SEP].
        assert first == length == ends[-1] + 1
        assert np.diff([0, *ends]).min() > 1
    if config.masking == "dynamic":
        return
    shown, positions, labels, weights = (v[row] for v in batch.masked.values())
    number = int(weights.sum())
    hidden = positions[:number]
    assert (np.diff(hidden) > 0).all()
    assert not {0, *ends}.intersection(hidden.tolist())
    expected = masking.num_predictions(batch.lengths, config)[row]
    expected = min(expected, length - 1 - len(ends))
    is_exact = not config.do_whole_word_mask and config.max_ngram_size == 1
    assert number == expected if is_exact else number <= expected
    assert not positions[number:].any() and not labels[number:].any()
    assert 0 <= shown.min() <= shown.max() < len(VOCABULARY)
    shown[hidden] = labels[:number]
    assert (shown == batch.true_ids[row]).all()


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_records_literally(settings):
    documents = make_documents()
    encoded, _ = encode(documents, **settings)
    batch = batch_of(documents, config := config_of(settings))
    assert len(encoded) == len(batch.lengths) > 30
    for row, record in enumerate(encoded):
        assert example_messages.decode(record) == lists_of(batch, row, config)
        check_instance(batch, row, config)


@pytest.mark.parametrize("settings", [SETTINGS[3], SETTINGS[7]], ids=str)
def test_neither_arrival_nor_batches_change_anything(monkeypatch, settings):
    documents = make_documents()
    made = encode(documents, bucket=3, **settings)
    monkeypatch.setattr(buckets, "TOKENS_PER_BATCH", 100)
    assert encode(reversed(documents), bucket=3, **settings) == made
    again = [*documents[3:], *documents[:5]]
    records_of_more, counts = encode(again, bucket=3, **settings)
    assert counts.pop("duplicate_documents") == 2
    assert (records_of_more, counts) == made
    other = encode(documents, bucket=4, **settings)
    assert sorted(other[0]) == sorted(made[0])
    assert other[0] != made[0]


@pytest.mark.parametrize("packed", [{}, {"masking": "dynamic", "dupe_factor": 1}])
def test_balanced_pairs_are_drawn_among_those_of_the_original(packed):
    documents = make_documents(40)
    original, before = encode(documents, **packed)
    made, counts = encode(documents, next_sentence="balanced", **packed)
    assert 2 * before["random_next_examples"] != before["examples"]
    assert 2 * counts["random_next_examples"] == counts["examples"] == len(made)
    num_random = before["random_next_examples"]
    rarer = min(num_random, before["examples"] - num_random)
    assert counts["random_next_examples"] == rarer
    assert counts["dropped_unbalanced_pairs"] == len(original) - len(made)
    # Masks too are those of the original, and no pair comes twice.
    assert not Counter(made) - Counter(original)
    assert encode(documents[::-1], next_sentence="balanced", **packed)[0] == made
    other, _ = encode(documents, bucket=1, next_sentence="balanced", **packed)
    assert set(other) != set(made)


def test_a_bucket_with_one_document_or_none():
    one = make_documents(1)
    made, counts = encode(one)
    labels = {example_messages.decode(r)["next_sentence_labels"][0] for r in made}
    assert labels == {0}
    assert counts["pairs_without_partner"] == counts["examples"] == len(made) > 0
    # Without one kind of pair there is no balance.
    balanced, balanced_counts = encode(one, next_sentence="balanced")
    assert balanced == []
    assert balanced_counts["dropped_unbalanced_pairs"] == counts["examples"]
    for settings in SETTINGS:
        assert encode([], **settings) == ([], {})


def test_dynamic_records_take_less_than_a_tenth():
    """Of those of the default duplicates, as each pair is written once, unpadded."""
    documents, options = make_documents(30), {"max_seq_length": 128}
    static, _ = encode(documents, dupe_factor=None, **options)
    dynamic, _ = encode(documents, dupe_factor=None, masking="dynamic", **options)
    assert sum(map(len, dynamic)) * 10 < sum(map(len, static))
