import shutil

import numpy as np
import pytest
import tensorflow as tf

from bert_keras import features, inputs, manifest
from bert_keras.errors import InputError

FEATURES = features.pretraining_features(32, 5)


@pytest.fixture(scope="module")
def paths(tiny_examples):
    return sorted(tiny_examples.glob("*.tfrecord"))


def batches(paths, **changes):
    arguments = {
        "batch_size": 8,
        "vocab_size": 49,
        "shuffle_buffer_size": 50,
        "seed": 1,
        **changes,
    }
    return inputs.training_batches(paths, FEATURES, **arguments)


def drawn(dataset, count):
    return list(dataset.take(count).as_numpy_iterator())


def assert_equal(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_a_batch_holds_what_the_records_hold(paths):
    raw = next(iter(tf.data.TFRecordDataset(str(paths[0])))).numpy()
    example = tf.train.Example.FromString(raw)
    dataset, _ = inputs.evaluation_batches(
        paths, FEATURES, num_records=8, batch_size=1, vocab_size=49, num_batches=1
    )
    (batch,) = drawn(dataset, 1)
    assert set(batch) == {feature.name for feature in FEATURES}
    for name, values in batch.items():
        stored = example.features.feature[name]
        expected = stored.int64_list.value or stored.float_list.value
        np.testing.assert_allclose(values[0], expected)
        expected_type = "float32" if name == "masked_lm_weights" else "int32"
        assert values.dtype == expected_type


def test_the_same_seed_gives_the_same_batches(paths):
    assert_equal(drawn(batches(paths), 20), drawn(batches(paths), 20))


def test_another_seed_gives_others(paths):
    first, second = drawn(batches(paths), 1), drawn(batches(paths, seed=2), 1)
    assert (first[0]["input_ids"] != second[0]["input_ids"]).any()


def test_a_resumed_run_goes_on_with_the_next_batch(paths):
    whole = drawn(batches(paths), 300)
    assert_equal(whole[290:], drawn(batches(paths, start_step=290), 10))


def test_an_epoch_draws_every_record_about_once(paths):
    num_records = sum(1 for _ in tf.data.TFRecordDataset([str(p) for p in paths]))
    seen = [
        row.tobytes()
        for batch in drawn(batches(paths, shuffle_buffer_size=1), num_records // 8)
        for row in batch["input_ids"]
    ]
    assert len(set(seen)) >= 0.99 * len(seen)


def test_an_evaluation_round_is_every_record_once(paths):
    records = [r.numpy() for r in tf.data.TFRecordDataset([str(p) for p in paths])]
    dataset, num_batches = inputs.evaluation_batches(
        paths,
        FEATURES,
        num_records=len(records),
        batch_size=50,
        vocab_size=49,
        num_batches=10_000,
    )
    assert num_batches == -(-len(records) // 50)
    two_rounds = drawn(dataset, 2 * num_batches)
    assert sum(len(b["input_ids"]) for b in two_rounds) == 2 * len(records)
    assert_equal(two_rounds[:num_batches], two_rounds[num_batches:])


def test_compressed_shards_are_read(paths, tmp_path):
    compressed = tmp_path / "a.tfrecord.gz"
    options = tf.io.TFRecordOptions(compression_type="GZIP")
    with tf.io.TFRecordWriter(str(compressed), options) as writer:
        for record in tf.data.TFRecordDataset(str(paths[0])):
            writer.write(record.numpy())
    assert_equal(drawn(batches([paths[0]]), 5), drawn(batches([compressed]), 5))


def test_ids_beyond_the_vocabulary(paths):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="beyond the vocabulary of"
    ):
        drawn(batches(paths, vocab_size=20), 1)


NAMES = [f"s{index}" for index in range(120)]


@pytest.mark.parametrize(
    ("num_shards", "num_eval", "expected"),
    [(120, None, 2), (3, None, 1), (1, None, 0), (10, 4, 4), (10, 0, 0)],
)
def test_the_last_shards_are_for_evaluation(num_shards, num_eval, expected):
    train, evaluate = inputs.split_shards(NAMES[:num_shards], num_eval)
    assert len(evaluate) == expected
    assert train + evaluate == NAMES[:num_shards]


def test_one_shard_must_be_left_to_train_on():
    message = "`num_eval_shards` is 2, but the examples have only 2 shards"
    with pytest.raises(InputError, match=message):
        inputs.split_shards(NAMES[:2], 2)


def test_records_of_another_length_than_promised(paths):
    inputs.check_lengths(paths[0], FEATURES)
    message = "hold 5 masked_lm_positions, manifest.json says 4: make the examples"
    with pytest.raises(InputError, match=message):
        inputs.check_lengths(paths[0], features.pretraining_features(32, 4))


def test_records_of_something_else(tmp_path):
    path = tmp_path / "x.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        writer.write(tf.train.Example().SerializeToString())
    with pytest.raises(InputError, match="its records have no feature input_ids"):
        inputs.check_lengths(path, FEATURES)


def test_manifest_agrees_with_the_records(tiny_examples, paths, tmp_path):
    copy = tmp_path / "examples"
    shutil.copytree(tiny_examples, copy)
    made = manifest.read_manifest(copy, kind="examples", verb="bert-keras examples")
    manifest.verify_shards(copy, made)
    counts = [sum(1 for _ in tf.data.TFRecordDataset(str(path))) for path in paths]
    assert [shard.num_records for shard in made.shards] == counts
