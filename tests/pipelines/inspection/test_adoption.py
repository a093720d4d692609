"""Adoption: what other programs wrote is checked and described, and never changed."""

import gzip
import json

import numpy as np
import pytest

from bert_keras.core import files, manifest
from bert_keras.core.errors import InputError
from bert_keras.data import features, tfrecords, tokenization
from bert_keras.pipelines import records
from bert_keras.pipelines.inspection import adoption
from tests.pipelines import example_messages

TOKENS = (*features.SPECIAL_TOKENS, *"the capital of france is paris .".split())
NAN = float("nan")
VALUES = {
    "input_ids": [2, 5, 4, 7, 3, 9, 4, 3, 0, 0],
    "input_mask": [1] * 8 + [0] * 2,
    "segment_ids": [0] * 5 + [1] * 3 + [0] * 2,
    "masked_lm_positions": [2, 6, 0],
    "masked_lm_ids": [6, 11, 0],
    "masked_lm_weights": [1.0, 1.0, 0.0],
    "next_sentence_labels": [1],
}


def message(*, v2=False, without=(), **changed):
    values = {k: v for k, v in (VALUES | changed).items() if k not in without}
    names = features.V2_NAMES if v2 else {}
    return example_messages.encode({names.get(k, k): v for k, v in values.items()})


def write(path, messages, *, compressed=False):
    data = b"".join(map(tfrecords.frame, messages))
    path.write_bytes(gzip.compress(data) if compressed else data)


@pytest.fixture
def vocab(tmp_path):
    path = tmp_path / "vocabulary.txt"
    tokenization.Vocabulary(TOKENS).save(path)
    return path


@pytest.fixture
def directory(tmp_path):
    directory = tmp_path / "theirs"
    directory.mkdir()
    return directory


def adopt(directory, vocab):
    return adoption.adopt_examples(directory, vocab, do_lower_case=True)


@pytest.mark.parametrize(("v2", "compressed"), [(False, True), (True, False)])
def test_a_whole_adoption(v2, compressed, directory, vocab):
    other = message(v2=v2, next_sentence_labels=[0])
    paths = [directory / "x.tfrecord-00001-of-2", directory / "x.tfrecord-00002-of-2"]
    write(paths[0], [message(v2=v2), other, other], compressed=compressed)
    write(paths[1], [message(v2=v2)] * 2, compressed=compressed)
    (directory / "README").write_text("not theirs")
    before = [path.read_bytes() for path in paths]
    adopted = adopt(directory, vocab)
    assert [path.read_bytes() for path in paths] == before
    assert manifest.read_manifest(directory, kind="examples") == adopted
    manifest.verify_shards(directory, adopted)
    assert (directory / "vocab.txt").read_bytes() == vocab.read_bytes()
    values = json.loads((directory / "manifest.json").read_text())
    sha256 = tokenization.Vocabulary(TOKENS).sha256
    assert values | {"code_version": ""} == {
        "kind": "examples",
        "shards": [
            {
                "name": path.name,
                "num_records": count,
                "num_bytes": path.stat().st_size,
                "sha256": files.sha256(path),
            }
            for path, count in zip(paths, (3, 2), strict=True)
        ],
        "config": {
            **{"max_seq_length": 10, "max_predictions_per_seq": 3, "masking": "static"},
            **{"packing": "sentence_pairs", "feature_names": "v2" if v2 else "v1"},
            **{"compression": "gzip" if compressed else "none", "do_lower_case": True},
            "vocab_sha256": sha256,
        },
        "vocab_sha256": sha256,
        "vocab_size": 12,
        "counters": {
            **{"examples": 5, "example_tokens": 40, "masked_tokens": 10},
            "random_next_examples": 3,
        },
        "code_version": "",
    }


@pytest.mark.parametrize(
    "messages",
    [
        [message(without=("next_sentence_labels",))],
        [message(next_sentence_labels=[0], segment_ids=[0] * 10)] * 2,
    ],
)
def test_examples_of_one_segment(messages, directory, vocab):
    write(directory / "x.tfrecord", messages)
    assert adopt(directory, vocab).config["packing"] == "full_sentences"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"input_ids": [2, 12] + [5] * 8}, "input_ids from 0 to 11, found 2 to 12"),
        ({"input_ids": [5] * 10}, "[CLS] first, found other values"),
        ({"input_ids": [2] * 9}, "10 values of input_ids, found 9"),
        ({"input_mask": [1, 0] * 5}, "an input_mask of ones, then zeros, found other"),
        ({"segment_ids": [2] * 10}, "segment_ids from 0 to 1, found 2 to 2"),
        ({"masked_lm_positions": [0, 1, 10]}, "masked_lm_positions from 0 to 9, found"),
        ({"masked_lm_ids": [-1, 0, 0]}, "masked_lm_ids from 0 to 11, found -1 to 0"),
        ({"masked_lm_weights": [0.5, 0, 0]}, "masked_lm_weights of 0 or 1, found"),
        ({"masked_lm_weights": [NAN, 0, 0]}, "masked_lm_weights from 0 to 1, found n"),
        ({"next_sentence_labels": [2]}, "next_sentence_labels from 0 to 1, found 2"),
        ({"without": ["input_mask"]}, "10 values of input_mask, found 0"),
        ({"v2": True}, "10 values of input_ids, found 0"),
    ],
)
def test_the_first_violation_is_named(changed, expected, directory, vocab):
    good, worse = message(), message(input_ids=[11] * 10, segment_ids=[7] * 10)
    write(directory / "a.tfrecord", [good])
    write(directory / "b.tfrecord", [good] * 600 + [message(**changed), good, worse])
    with pytest.raises(InputError) as raised:
        adopt(directory, vocab)
    origin = f"{directory / 'b.tfrecord'}, record 600: "
    assert str(raised.value).startswith(f"{origin}expected {expected}")
    assert not (directory / "manifest.json").exists()
    assert not (directory / "vocab.txt").exists()


OTHER = example_messages.encode({"label": [1]})
AS_INTEGERS = {name: np.array([v], int) for name, v in VALUES.items()}
(INTEGERS,) = records.encode_examples(AS_INTEGERS)
NONE = r"files named \*\.tfrecord\*, found none"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (
            {"a.tfrecord": [OTHER]},
            r"a\.tfrecord, record 0: expected the features of masked examples "
            r"\(input_ids or input_word_ids, .*, next_sentence_labels\), found label",
        ),
        ({"a.tfrecord": [message(), INTEGERS]}, "record 1: expected float32 .*, found"),
        (
            {"a.tfrecord": [message()], "b.tfrecord.gz": [message()]},
            r"b\.tfrecord\.gz: expected compression none, .* found gzip",
        ),
        ({}, NONE),
        ({".hidden.tfrecord": [message()], "examples.txt": [message()]}, NONE),
        ({"a.tfrecord": [], "b.tfrecord": []}, "expected examples, found no record"),
    ],
)
def test_files_that_cannot_be_adopted(messages, expected, directory, vocab):
    for name, contents in messages.items():
        write(directory / name, contents, compressed=name.endswith(".gz"))
    with pytest.raises(InputError, match=expected):
        adopt(directory, vocab)


def test_a_cut_file_another_vocabulary_and_a_finished_directory(directory, vocab):
    write(directory / "a.tfrecord", [])
    path = directory / "b.tfrecord"
    write(path, [message()] * 3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(InputError, match="the file ends within the record"):
        adopt(directory, vocab)
    path.write_bytes(whole)
    tokenization.Vocabulary((*TOKENS, "more")).save(directory / "vocab.txt")
    with pytest.raises(InputError, match=r"vocab\.txt: differs from "):
        adopt(directory, vocab)
    (directory / "vocab.txt").unlink()
    adopted = adopt(directory, vocab)
    assert [shard.num_records for shard in adopted.shards] == [0, 3]
    with pytest.raises(InputError, match=r"has a manifest\.json already, so there is"):
        adopt(directory, vocab)


def test_a_vocabulary_of_the_other_casing(directory, tmp_path):
    write(directory / "a.tfrecord", [message()])
    cased = tmp_path / "cased.txt"
    tokenization.Vocabulary((*TOKENS, "P")).save(cased)
    with pytest.raises(InputError, match=r"cased\.txt: the vocabulary is cased .*'P'"):
        adopt(directory, cased)
    adopted = adoption.adopt_examples(directory, cased, do_lower_case=False)
    assert adopted.config["do_lower_case"] is False
