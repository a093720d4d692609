"""Records of ours in other systems' readers, and theirs in ours."""

import random

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.core import manifest
from bert_keras.core.settings import pipelines, pretraining, strict
from bert_keras.data import features, tokenization
from bert_keras.pipelines import examples
from bert_keras.pipelines.engine import engines
from bert_keras.pipelines.inspection import adoption, description
from bert_keras.training import pretrain
from bert_keras.training.pretraining import record_batches
from tests import conftest

LENGTH, PREDICTIONS = 32, 5
NAMES = [f.name for f in features.pretraining_features(LENGTH, PREDICTIONS)]


@pytest.fixture(scope="module")
def make_ours(tiny_examples, tiny_vocab, tmp_path_factory):
    """A function that makes examples by the pipeline, with some settings."""

    def make(**settings):
        directory = tmp_path_factory.mktemp("ours") / "examples"
        examples.build_examples(
            tiny_examples.parent / "corpus",
            tiny_vocab,
            directory,
            config=pipelines.ExamplesConfig(
                max_seq_length=LENGTH, dupe_factor=2, **settings
            ),
            do_lower_case=True,
            num_shards=2,
            engine=engines.make_engine([]),
        )
        return directory

    return make


def read_by_us(directory):
    """All examples of a directory, in order, by `inputs.py`."""
    made = manifest.read_manifest(directory, kind="examples")
    vocabulary = tokenization.Vocabulary.load(directory / "vocab.txt")
    parts = []
    for shard in record_batches.read_shards(directory, made):
        batches, count = record_batches.RecordBatches(
            config=features.examples_config(made.config, origin=directory),
            vocabulary=vocabulary,
            batch_size=64,
            seed=1,
            shuffle_buffer_size=1,
        ).to_evaluate([shard], num_batches=10_000)
        # The last batch is filled up.
        filled = joined(batches.take(count))
        parts.append({name: rows[: shard.num_records] for name, rows in filled.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def joined(batches):
    batches = list(batches.as_numpy_iterator())
    return {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}


def as_rows(arrays):
    """Examples as tuples, sorted: readers may take files in any order."""
    return sorted(
        tuple(value for name in NAMES for value in arrays[name][row].tolist())
        for row in range(len(arrays["input_ids"]))
    )


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.parametrize("names", ["v1", "v2"])
def test_tf_models_loads_our_records(names, make_ours):
    loader = pytest.importorskip(
        "official.nlp.data.pretrain_dataloader", reason="needs tf-models-official"
    )
    directory = make_ours(feature_names=names)
    settings = loader.BertPretrainDataConfig(
        input_path=str(directory / "*.tfrecord"),
        global_batch_size=64,
        is_training=False,
        drop_remainder=False,
        seq_length=LENGTH,
        max_predictions_per_seq=PREDICTIONS,
        use_v2_feature_names=names == "v2",
    )
    loaded = joined(loader.BertPretrainDataLoader(settings).load())
    loaded["input_ids"] = loaded.pop("input_word_ids")
    loaded["segment_ids"] = loaded.pop("input_type_ids")
    ours = read_by_us(directory)
    assert set(loaded) == set(ours) == set(NAMES)
    assert len(loaded["input_ids"]) > 400
    assert as_rows(loaded) == as_rows(ours)


def google_decode(record):
    """As run_pretraining.py of google-research/bert does it."""
    lengths = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), LENGTH)
    for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
        lengths[name] = PREDICTIONS
    lengths["next_sentence_labels"] = 1
    spec = {n: tf.io.FixedLenFeature([size], tf.int64) for n, size in lengths.items()}
    spec["masked_lm_weights"] = tf.io.FixedLenFeature([PREDICTIONS], tf.float32)
    return tf.io.parse_single_example(record, spec)


@pytest.mark.parametrize(
    "packing",
    [pytest.param("sentence_pairs", marks=pytest.mark.slow), "full_sentences"],
)
def test_google_reads_our_records(packing, make_ours):
    directory = make_ours(packing=packing)
    paths = sorted(str(path) for path in directory.glob("*.tfrecord"))
    read = joined(tf.data.TFRecordDataset(paths).map(google_decode).batch(64))
    ours = read_by_us(directory)
    if packing == "full_sentences":
        assert not read["next_sentence_labels"].any()
        assert "next_sentence_labels" not in ours
        ours["next_sentence_labels"] = read["next_sentence_labels"]
    assert set(read) == set(ours)
    for name, values in read.items():
        np.testing.assert_array_equal(ours[name], values, err_msg=name)


@pytest.fixture(scope="module")
def make_theirs(tiny_vocab, tmp_path_factory):
    """A function that makes examples by tf-models-official, in three files."""
    data = pytest.importorskip(
        "official.nlp.data.create_pretraining_data", reason="needs tf-models-official"
    )
    tools = pytest.importorskip("official.nlp.tools.tokenization")
    words = tiny_vocab.read_text().split()[5:]
    choose = random.Random(0)
    documents = [
        [" ".join(choose.choices(words, k=choose.randint(4, 9))) for _ in range(9)]
        for _ in range(30)
    ]
    text = tmp_path_factory.mktemp("text") / "documents.txt"
    text.write_text("\n\n".join("\n".join(lines) for lines in documents))
    tokenizer = tools.FullTokenizer(str(tiny_vocab), do_lower_case=True)
    instances = data.create_training_instances(
        [str(text)],
        tokenizer,
        lambda line: line,
        LENGTH,
        dupe_factor=2,
        short_seq_prob=0.1,
        masked_lm_prob=0.15,
        max_predictions_per_seq=PREDICTIONS,
        rng=random.Random(1),
    )

    def make(*, gzip, v2, names=("a.tfrecord", "b.tfrecord-00000", "c.tfrecord.z")):
        directory = tmp_path_factory.mktemp("theirs")
        paths = [str(directory / name) for name in names]
        data.write_instance_to_example_files(
            instances, tokenizer, LENGTH, PREDICTIONS, paths, gzip, v2
        )
        return directory

    return make


@pytest.mark.reference
@pytest.mark.parametrize(
    ("gzip", "v2"), [(True, True), pytest.param(False, False, marks=pytest.mark.slow)]
)
def test_we_read_what_tf_models_made(gzip, v2, make_theirs, tiny_vocab):
    directory = make_theirs(gzip=gzip, v2=v2)
    made = adoption.adopt_examples(directory, tiny_vocab, do_lower_case=True)
    ours = read_by_us(directory)
    spec = {
        (features.V2_NAMES.get(f.name, f.name) if v2 else f.name): (
            tf.io.FixedLenFeature([f.length], f.dtype)
        )
        for f in features.pretraining_features(LENGTH, PREDICTIONS)
    }
    paths = [str(directory / shard.name) for shard in made.shards]
    records = tf.data.TFRecordDataset(paths, "GZIP" if gzip else "")
    theirs = tf.io.parse_example(list(records.as_numpy_iterator()), spec)
    assert len(ours["input_ids"]) == made.num_records > 100
    for stored, values in theirs.items():
        name = {"input_word_ids": "input_ids", "input_type_ids": "segment_ids"}
        name = name.get(stored, stored)
        np.testing.assert_array_equal(ours[name], values, err_msg=name)
    random_next = int(ours["next_sentence_labels"].sum())
    assert made.counters["random_next_examples"] == random_next
    assert made.counters["example_tokens"] == int(ours["input_mask"].sum())


@pytest.mark.slow
@pytest.mark.reference
def test_adopted_records_are_trained_on_and_shown(make_theirs, tiny_vocab, tmp_path):
    directory = make_theirs(gzip=True, v2=True)
    adoption.adopt_examples(directory, tiny_vocab, do_lower_case=True)
    settings = strict.build_config(
        pretraining.PretrainingConfig, conftest.PRETRAINING | {"num_train_steps": 3}
    )
    results = pretrain.pretrain(
        settings,
        [directory],
        tmp_path / "run",
        strategy=tf.distribute.OneDeviceStrategy("/cpu:0"),
    )
    assert results["steps"] == 3 and "next_sentence_loss" in results["eval"]
    lines = list(description.describe_examples(directory, vocab_path=None, limit=1))
    assert lines[2] == "made by another program: how is not known"
    assert lines[4].startswith("── a.tfrecord, record 0: B ")
