"""Inspection: what a person sees of an example, and what is refused."""

import json
import re

import numpy as np
import pytest

from bert_keras.core import manifest
from bert_keras.core.errors import InputError
from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import features, masking, seeded_hash, tokenization
from bert_keras.pipelines import records
from bert_keras.pipelines.inspection import data_card, description
from tests.pipelines import example_messages

WORDS = "the capital of france is paris play ##ing ##ed harbour ."
TOKENS = (*features.SPECIAL_TOKENS, *WORDS.split())
SETTINGS = {
    **{"max_seq_length": 16, "max_predictions_per_seq": 4, "masked_lm_prob": 0.15},
    **{"dupe_factor": 10, "do_whole_word_mask": False, "do_lower_case": True},
    "random_seed": 12345,
}
FIRST = {
    # The second hidden token was kept, the others but the first are random.
    "input_ids": "[CLS] the [MASK] of france is harbour . [SEP] "
    "paris play ##ed . [SEP]",
    "segment_ids": [0] * 9 + [1] * 5,
    "masked": {2: "capital", 4: "france", 6: "paris", 11: "##ing"},
    "next_sentence_labels": [1],
}
SECOND = {
    "input_ids": "[CLS] play [MASK] [SEP] . [SEP]",
    "segment_ids": [0] * 4 + [1] * 2,
    "masked": {2: "##ing"},
    "next_sentence_labels": [0],
}


def ids_of(text):
    return [TOKENS.index(token) for token in text.split()]


def encode(example, **changed):
    ids = ids_of(example["input_ids"])
    labels = [TOKENS.index(token) for token in example["masked"].values()]
    values = {
        "input_ids": ids,
        "input_mask": [1] * len(ids),
        "segment_ids": example["segment_ids"],
        "masked_lm_positions": list(example["masked"]),
        "masked_lm_ids": labels,
        "masked_lm_weights": [1.0] * len(labels),
        "next_sentence_labels": example["next_sentence_labels"],
    }
    for feature in features.pretraining_features(16, 4):
        padding = feature.length - len(values[feature.name])
        values[feature.name] = [*values[feature.name], *[0] * padding]
    return example_messages.encode(values | changed)


def write_examples(directory, shards, *, counters=None, **settings):
    directory.mkdir()
    vocabulary = tokenization.Vocabulary(TOKENS)
    vocabulary.save(directory / "vocab.txt")
    compression = settings.get("compression", "none")
    written = [
        records.write_shard(
            directory / f"examples-{number:05d}-of-00002.tfrecord",
            encoded,
            compression=compression,
        )
        for number, encoded in enumerate(shards)
    ]
    summary = manifest.Manifest(
        kind="examples",
        shards=tuple(written),
        config=SETTINGS | settings,
        vocab_sha256=vocabulary.sha256,
        vocab_size=len(vocabulary),
        counters={"documents": 1234} if counters is None else counters,
    )
    manifest.write_manifest(directory, summary)
    return directory


@pytest.fixture
def examples_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    shards = [[encode(FIRST)], [encode(SECOND), encode(FIRST)]]
    return write_examples(tmp_path / "examples", shards)


def describe(examples_dir, *, vocab_path=None, limit=10):
    return list(
        description.describe_examples(examples_dir, vocab_path=vocab_path, limit=limit)
    )


def test_a_whole_description(examples_dir):
    assert describe(examples_dir, limit=2) == [
        f"{examples_dir}: 3 examples from 1,234 documents, in 2 files",
        "uncased vocabulary of 16; at most 16 tokens and 4 predictions",
        "15% hidden as single pieces; dupe_factor 10, seed 12345",
        "",
        "── examples-00000-of-00002.tfrecord, record 0: B is random",
        "A  [CLS] the [MASK→capital] of france→france is",
        "   harbour→paris . [SEP]",
        "B  paris play##ed→##ing . [SEP]",
        "   14 tokens, 2 padding; 4 hidden: 1 [MASK], 1 kept, 2 random",
        "",
        "── examples-00001-of-00002.tfrecord, record 0: B follows A",
        "A  [CLS] play[MASK→##ing] [SEP]",
        "B  . [SEP]",
        "   6 tokens, 10 padding; 1 hidden: 1 [MASK], 0 kept, 0 random",
    ]


def test_the_limit_ends_the_lines(examples_dir, tmp_path):
    copy = tmp_path / "copy.txt"
    copy.write_bytes((examples_dir / "vocab.txt").read_bytes())
    for limit in (1, 10):
        lines = describe(examples_dir, vocab_path=copy, limit=limit)
        titles = [line.split(":")[0] for line in lines if line[0:1] == "─"]
        records_shown = [(0, 0), (1, 0), (1, 1)][:limit]
        assert titles == [
            f"── examples-{shard:05d}-of-00002.tfrecord, record {record}"
            for shard, record in records_shown
        ]


def test_directories_that_cannot_be_described(examples_dir, tmp_path):
    other = tmp_path / "other.txt"
    tokenization.Vocabulary((*TOKENS, "more")).save(other)
    with pytest.raises(InputError, match=r"other\.txt: expected the vocabulary that"):
        describe(examples_dir, vocab_path=other)
    with pytest.raises(InputError, match="--limit must be at least 1, got 0"):
        describe(examples_dir, limit=0)
    path = examples_dir / "examples-00000-of-00002.tfrecord"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"examples-00000.*sha256 .* was changed"):
        describe(examples_dir)
    (examples_dir / manifest.MANIFEST_NAME).unlink()
    with pytest.raises(InputError, match="not a finished output of `bert-keras examp"):
        describe(examples_dir)
    bad = encode(FIRST, segment_ids=[0] * 8)
    with pytest.raises(InputError, match=r"00002\.tfrecord, record 0: expected 16 v"):
        describe(write_examples(tmp_path / "bad", [[bad]]))


# === Kinds of records ===


def test_plain_examples_are_shown_as_in_a_first_epoch(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    ids = ids_of("[CLS] the capital of france is paris . [SEP] play ##ing . [SEP]")
    plain = example_messages.encode({"input_ids": ids, "next_sentence_labels": [1]})
    directory = write_examples(tmp_path / "e", [[plain], [plain]], masking="dynamic")
    lines = describe(directory)
    assert lines[3] == (
        "masked when loaded; shown as in the first epoch of a run with seed 12345"
    )
    # Which two of thirteen tokens are hidden follows from (seed, epoch, record).
    masked = masking.mask_batch(
        np.array([ids, ids], np.int32),
        np.array([13, 13]),
        seeded_hash.record_seeds(12345, np.zeros(2, int), np.arange(2)),
        vocabulary=tokenization.Vocabulary(TOKENS),
        config=ExamplesConfig(max_seq_length=16, max_predictions_per_seq=4),
    )
    first, second = masked["masked_lm_positions"].tolist()
    assert first != second
    parts = "\n".join(lines).split("── ")[1:]
    for shown, labels in zip(parts, masked["masked_lm_ids"], strict=True):
        assert "record 0: B is random\nA  [CLS]" in shown
        expected = [TOKENS[label] for label in labels[:2]]
        assert re.findall(r"→([^\s\]]+)", shown) == expected


@pytest.mark.parametrize(
    ("packing", "line"),
    [
        ("full_sentences", "full sentences across documents"),
        ("single_sentences", "each sentence alone"),
    ],
)
def test_cased_whole_words_without_pairs(tmp_path, packing, line):
    whole = dict(FIRST, segment_ids=[0] * 14)
    settings = {"do_lower_case": False, "do_whole_word_mask": True}
    settings["packing"] = packing
    directory = write_examples(tmp_path / "examples", [[encode(whole)]], **settings)
    lines = describe(directory)
    assert lines[1].startswith("cased vocabulary of 16;")
    assert lines[2].startswith("15% hidden as whole words;")
    assert lines[3] == f"{line}, no next-sentence prediction"
    assert lines[5].endswith("record 0: no pair")
    assert not any(line.startswith("B ") for line in lines)


# === The card ===

CORPUS = {
    "counters": {
        **{"documents": 1234, "words": 99_000, "documents/wikipedia": 1000},
        **{"words/wikipedia": 40_000, "documents/books": 234, "words/books": 59_000},
        **{"dropped/redirect": 70, "dropped/list": 900, "dropped/short": 0},
        **{"rejected/not UTF-8": 2, "dropped_paragraphs/repeated": 8},
        **{"cleaned/headings": 40, "cleaned/tables": 41, "cleaned/fragments": 0},
        "encoding/cp1252": 3,
    }
}
COUNTERS = {
    **{"documents": 1234, "sentences": 5000, "tokens": 1000, "unknown_tokens": 5},
    **{"dropped_single_sentences": 30, "examples": 3},
}


def card_lines(directory, json_path=None):
    lines = description.describe_all(directory, vocab_path=None, json_path=json_path)
    return list(lines)


@pytest.fixture
def carded(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    shards = [[encode(FIRST)], [encode(SECOND), encode(FIRST)]]
    settings = {"corpus": CORPUS, "counters": COUNTERS}
    return write_examples(tmp_path / "examples", shards, **settings)


def test_a_whole_card(carded, tmp_path):
    num_bytes = sum(path.stat().st_size for path in carded.glob("*.tfrecord"))
    first, *lines = card_lines(carded, json_path=tmp_path / "card.json")
    assert first == f"{carded}: every example of 2 files was read"
    assert "\n".join(lines) == CARD.format(num_bytes=num_bytes)
    # The same as JSON, in more digits, with the histograms and the settings.
    card = json.loads((tmp_path / "card.json").read_text())
    assert [*data_card.card_text(card, width=60)] == lines[1:]
    assert card["masking"]["random_share"] == round(4 / 9, 6)
    assert card["length"]["histogram"] == [0] * 6 + [1] + [0] * 7 + [2] + [0] * 2
    assert card["config"]["corpus"] == CORPUS


CARD = """
Corpus
  documents                      1,234
  words                          99,000
  sentences                      5,000
  tokens                         1,000
  unknown tokens                 5
  sources
    books                        234 documents, 59,000 words
    wikipedia                    1,000 documents, 40,000 words
  left out
    dropped/list                 900
    dropped/redirect             70
    dropped/single sentences     30
    dropped_paragraphs/repeated  8
    rejected/not UTF-8           2
  cleaned
    tables                       41
    headings                     40

Examples
  files          2
  bytes          {num_bytes}
  examples       3
  tokens         34
  padding share  29.17%
  unknown share  0.00%

Length
  mean    11.333
  min     6
  p5      6
  median  14
  p95     14
  max     14
        0-1             0
        2-3             0
        4-5             0
        6-7             1  ███████████████
        8-9             0
      10-11             0
      12-13             0
      14-15             2  ██████████████████████████████
         16             0

Masking
  kind          static
  hidden share  26.47%
  mask share    33.33%
  random share  44.44%
  kept share    22.22%

Predictions
  mean    3.0
  min     1
  p5      1
  median  4
  p95     4
  max     4
          0             0
          1             1  ███████████████
          2             0
          3             0
          4             2  ██████████████████████████████

Vocabulary
  size       16
  seen       11
  commonest
    .        5
    paris    4
    play     3
    ##ing    3
    the      2
    capital  2
    of       2
    france   2
    is       2

Next sentence
  random share  66.67%
  next share    33.33%
"""


def test_a_card_of_plain_full_sentences(tmp_path):
    ids = np.array([[2, 5, 6, 7, 8, 9, 3]])
    messages = records.encode_examples({"input_ids": np.repeat(ids, 600, axis=0)})
    settings = {"masking": "dynamic", "packing": "full_sentences", "counters": {}}
    directory = write_examples(tmp_path / "examples", [messages], **settings)
    _, _, first, *lines = card_lines(directory)
    assert first == "Examples"  # Without counters, there is no section on the corpus.
    assert "Next sentence" not in lines
    assert "  kind          dynamic" in lines
    (masked,) = [line for line in lines if line.startswith("  mask share")]
    assert float(masked.split()[2].rstrip("%")) == pytest.approx(80, abs=5)


def test_more_or_fewer_records_than_the_manifest_says(carded):
    path = carded / manifest.MANIFEST_NAME
    values = json.loads(path.read_text())
    values["shards"][1]["num_records"] = 3
    path.write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"00001-of-00002\.tfrecord: 2 records, .* 3"):
        card_lines(carded)
