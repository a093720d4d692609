"""Inspection: what a person sees of an example, and what is refused."""

import numpy as np
import pytest

from bert_keras import features, manifest, tokenization
from bert_keras.errors import InputError
from pipelines import inspection, records

TOKENS = (
    *features.SPECIAL_TOKENS,
    *"the capital of france is paris play ##ing ##ed harbour .".split(),
)
SETTINGS = {
    "max_seq_length": 16,
    "max_predictions_per_seq": 4,
    "masked_lm_prob": 0.15,
    "dupe_factor": 10,
    "do_whole_word_mask": False,
    "do_lower_case": True,
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


def encode(example, **changed):
    ids = [TOKENS.index(token) for token in example["input_ids"].split()]
    positions = list(example["masked"])
    labels = [TOKENS.index(token) for token in example["masked"].values()]
    values = {
        "input_ids": ids,
        "input_mask": [1] * len(ids),
        "segment_ids": example["segment_ids"],
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": [1.0] * len(labels),
        "next_sentence_labels": example["next_sentence_labels"],
    }
    for feature in features.pretraining_features(16, 4):
        padding = feature.length - len(values[feature.name])
        values[feature.name] = [*values[feature.name], *[0] * padding]
    values |= changed
    (message,) = records.encode_examples(
        {
            name: np.array(
                [numbers], np.float32 if name == "masked_lm_weights" else np.int64
            )
            for name, numbers in values.items()
        }
    )
    return message


def write_examples(directory, shards, **settings):
    directory.mkdir()
    vocabulary = tokenization.Vocabulary(TOKENS)
    vocabulary.save(directory / "vocab.txt")
    written = [
        records.write_shard(
            directory / f"examples-{number:05d}-of-00002.tfrecord", encoded
        )
        for number, encoded in enumerate(shards)
    ]
    made = manifest.Manifest(
        kind="examples",
        shards=tuple(written),
        config=SETTINGS | settings,
        vocab_sha256=vocabulary.sha256,
        vocab_size=len(vocabulary),
        counters={"documents": 1234},
    )
    manifest.write_manifest(directory, made)
    return directory


@pytest.fixture
def examples_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    shards = [[encode(FIRST)], [encode(SECOND), encode(FIRST)]]
    return write_examples(tmp_path / "examples", shards)


def describe(examples_dir, *, vocab_path=None, limit=10):
    return list(
        inspection.describe_examples(examples_dir, vocab_path=vocab_path, limit=limit)
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


def test_the_limit_ends_the_lines(examples_dir):
    titles = [line for line in describe(examples_dir, limit=10) if line[0:1] == "─"]
    assert [title.split(":")[0] for title in titles] == [
        "── examples-00000-of-00002.tfrecord, record 0",
        "── examples-00001-of-00002.tfrecord, record 0",
        "── examples-00001-of-00002.tfrecord, record 1",
    ]
    assert len([line for line in describe(examples_dir, limit=1) if "──" in line]) == 1


def test_cased_and_whole_words(tmp_path):
    directory = write_examples(
        tmp_path / "examples",
        [[encode(FIRST)]],
        do_lower_case=False,
        do_whole_word_mask=True,
    )
    _, second, third, *_ = describe(directory)
    assert second.startswith("cased vocabulary of 16;")
    assert third.startswith("15% hidden as whole words;")


def test_lines_fit_the_terminal(examples_dir):
    lines = describe(examples_dir)
    segments = [line for line in lines if line.startswith(("A  ", "B  "))]
    assert 40 < max(map(len, segments)) <= 60


def test_the_vocabulary_may_be_given(examples_dir, tmp_path):
    copy = tmp_path / "copy.txt"
    copy.write_bytes((examples_dir / "vocab.txt").read_bytes())
    assert describe(examples_dir, vocab_path=copy) == describe(examples_dir)


def test_another_vocabulary(examples_dir, tmp_path):
    other = tmp_path / "other.txt"
    tokenization.Vocabulary((*TOKENS, "more")).save(other)
    with pytest.raises(
        InputError,
        match=r"other\.txt: expected the vocabulary that the examples were made with",
    ):
        describe(examples_dir, vocab_path=other)


def test_no_manifest(examples_dir):
    (examples_dir / manifest.MANIFEST_NAME).unlink()
    with pytest.raises(InputError, match="not a finished output of `bert-keras examp"):
        describe(examples_dir)


def test_a_changed_shard(examples_dir):
    path = examples_dir / "examples-00000-of-00002.tfrecord"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"examples-00000.*sha256 .* was changed"):
        describe(examples_dir)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one(examples_dir, limit):
    with pytest.raises(InputError, match=f"--limit must be at least 1, got {limit}"):
        describe(examples_dir, limit=limit)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"input_ids": [16] * 16}, "expected input_ids from 0 to 15, found 16 to 16"),
        (
            {"masked_lm_positions": [2, 4, 6, 16]},
            "expected masked_lm_positions from 0 to 15, found 2 to 16",
        ),
        (
            {"next_sentence_labels": [-1]},
            "expected next_sentence_labels from 0 to 1, found -1 to -1",
        ),
        ({"segment_ids": [0] * 8}, "expected 16 values of segment_ids, found 8"),
        ({"input_mask": []}, "expected 16 values of input_mask, found 0"),
    ],
)
def test_a_record_that_cannot_be_shown(tmp_path, changed, message):
    directory = write_examples(tmp_path / "examples", [[encode(FIRST, **changed)]])
    with pytest.raises(
        InputError, match=rf"00002\.tfrecord, record 0: {message}: make the examples"
    ):
        describe(directory)
