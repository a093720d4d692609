import dataclasses
import shutil

import numpy as np
import pytest
import tensorflow as tf

from bert_keras import (
    dynamic_masking,
    features,
    inputs,
    manifest,
    masking,
    tokenization,
)
from bert_keras.config import ExamplesConfig
from bert_keras.errors import InputError

CONFIG = ExamplesConfig(max_seq_length=32, dupe_factor=2)


@pytest.fixture(scope="module")
def shards(tiny_examples):
    made = manifest.read_manifest(tiny_examples, kind="examples", verb="examples")
    return inputs.read_shards(tiny_examples, made)


@pytest.fixture(scope="module")
def vocabulary(tiny_vocab):
    return masking.masking_vocabulary(tokenization.Vocabulary.load(tiny_vocab))


@pytest.fixture(scope="module")
def batches(vocabulary):
    """A function that makes training batches of shards."""

    def batches(shards, **changes):
        arguments = {
            "config": CONFIG,
            "vocabulary": vocabulary,
            "batch_size": 8,
            "shuffle_buffer_size": 50,
            "seed": 1,
            **changes,
        }
        return inputs.training_batches(shards, **arguments)

    return batches


@pytest.fixture(scope="module")
def evaluation(vocabulary):
    """A function that makes evaluation batches of shards."""

    def evaluation(shards, **changes):
        arguments = {
            "config": CONFIG,
            "vocabulary": vocabulary,
            "batch_size": 50,
            "num_batches": 10_000,
            "seed": 1,
            **changes,
        }
        return inputs.evaluation_batches(shards, **arguments)

    return evaluation


def drawn(dataset, count):
    return list(dataset.take(count).as_numpy_iterator())


def assert_equal(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def stored_examples(shards):
    """All examples of some shards, by TensorFlow's own reader."""
    paths = [shard.path for shard in shards]
    return [
        tf.train.Example.FromString(record.numpy())
        for record in tf.data.TFRecordDataset(paths)
    ]


def values_of(example, name):
    stored = example.features.feature[name]
    return list(stored.int64_list.value or stored.float_list.value)


def write(path, examples, *, compression=""):
    """A shard of `{name: values}`, by TensorFlow's own writer."""
    options = tf.io.TFRecordOptions(compression_type=compression)
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for example in examples:
            message = tf.train.Example()
            for name, values in example.items():
                stored = message.features.feature[name]
                is_float = isinstance(values[0], float)
                numbers = stored.float_list if is_float else stored.int64_list
                numbers.value.extend(values)
            writer.write(message.SerializeToString())
    return inputs.Shard(str(path), 0, len(examples))


def plain(example):
    """What a record for dynamic masking holds of a masked one."""
    ids = np.array(values_of(example, "input_ids"))
    weights = np.array(values_of(example, "masked_lm_weights")) > 0
    positions = np.array(values_of(example, "masked_lm_positions"))[weights]
    ids[positions] = np.array(values_of(example, "masked_lm_ids"))[weights]
    length = sum(values_of(example, "input_mask"))
    labels = values_of(example, "next_sentence_labels")
    return {"input_ids": ids[:length].tolist(), "next_sentence_labels": labels}


DYNAMIC = CONFIG.model_copy(update={"masking": "dynamic"})


@pytest.fixture(scope="module")
def plain_shards(shards, tmp_path_factory):
    """The examples of `shards`, not masked and not padded."""
    directory = tmp_path_factory.mktemp("plain")
    return [
        write(
            directory / f"{shard.first_record}.tfrecord",
            [plain(example) for example in stored_examples([shard])],
        )._replace(first_record=shard.first_record)
        for shard in shards
    ]


def test_a_batch_holds_what_the_records_hold(shards, evaluation):
    example, *_ = stored_examples(shards)
    dataset, _ = evaluation(shards, batch_size=1, num_batches=1)
    (batch,) = drawn(dataset, 1)
    assert set(batch) == {f.name for f in features.pretraining_features(32, 5)}
    for name, values in batch.items():
        np.testing.assert_allclose(values[0], values_of(example, name))
        expected_type = "float32" if name == "masked_lm_weights" else "int32"
        assert values.dtype == expected_type


def test_shards_know_their_place(shards):
    counts = [len(stored_examples([shard])) for shard in shards]
    assert [shard.num_records for shard in shards] == counts
    assert [s.first_record for s in shards] == [0, counts[0], counts[0] + counts[1]]


def test_the_same_seed_gives_the_same_batches(shards, batches):
    assert_equal(drawn(batches(shards), 20), drawn(batches(shards), 20))


def test_another_seed_gives_others(shards, batches):
    first, second = drawn(batches(shards), 1), drawn(batches(shards, seed=2), 1)
    assert (first[0]["input_ids"] != second[0]["input_ids"]).any()


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_a_resumed_run_goes_on_with_the_next_batch(kind, batches, request):
    shards = request.getfixturevalue("shards" if kind == "static" else "plain_shards")
    config = CONFIG if kind == "static" else DYNAMIC
    whole = drawn(batches(shards, config=config), 300)
    resumed = drawn(batches(shards, config=config, start_step=290), 10)
    assert_equal(whole[290:], resumed)


def test_an_epoch_draws_every_record_about_once(shards, batches):
    num_records = sum(shard.num_records for shard in shards)
    seen = [
        row.tobytes()
        for batch in drawn(batches(shards, shuffle_buffer_size=1), num_records // 8)
        for row in batch["input_ids"]
    ]
    assert len(set(seen)) >= 0.99 * len(seen)


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_an_evaluation_round_is_every_record_once(kind, evaluation, request):
    shards = request.getfixturevalue("shards" if kind == "static" else "plain_shards")
    num_records = sum(shard.num_records for shard in shards)
    dataset, num_batches = evaluation(
        shards, config=CONFIG if kind == "static" else DYNAMIC
    )
    assert num_batches == -(-num_records // 50)
    two_rounds = drawn(dataset, 2 * num_batches)
    assert sum(len(b["input_ids"]) for b in two_rounds) == 2 * num_records
    assert_equal(two_rounds[:num_batches], two_rounds[num_batches:])


def test_compressed_shards_are_read(shards, batches, tmp_path):
    compressed = tmp_path / "a.tfrecord.gz"
    options = tf.io.TFRecordOptions(compression_type="GZIP")
    with tf.io.TFRecordWriter(str(compressed), options) as writer:
        for record in tf.data.TFRecordDataset(shards[0].path):
            writer.write(record.numpy())
    config = CONFIG.model_copy(update={"compression": "gzip"})
    found = batches([shards[0]._replace(path=str(compressed))], config=config)
    assert_equal(drawn(batches(shards[:1]), 5), drawn(found, 5))


def test_newer_names_are_read(shards, batches, tmp_path):
    examples = stored_examples(shards[:1])
    names = [feature.name for feature in features.pretraining_features(32, 5)]
    renamed = [
        {features.V2_NAMES.get(n, n): values_of(example, n) for n in names}
        for example in examples
    ]
    assert "input_word_ids" in renamed[0]
    config = CONFIG.model_copy(update={"feature_names": "v2"})
    found = batches([write(tmp_path / "a.tfrecord", renamed)], config=config)
    assert_equal(drawn(batches(shards[:1]), 5), drawn(found, 5))


def test_ids_beyond_the_vocabulary(shards, plain_shards, vocabulary, batches):
    smaller = dataclasses.replace(
        vocabulary, size=20, is_continuation=vocabulary.is_continuation[:20]
    )
    for kind, config in ((shards, CONFIG), (plain_shards, DYNAMIC)):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="beyond the vocabulary of 20"
        ):
            drawn(batches(kind, config=config, vocabulary=smaller), 1)


class TestDynamicMasking:
    def test_a_batch_is_what_masking_makes_of_the_records(
        self, plain_shards, vocabulary, evaluation
    ):
        dataset, num_batches = evaluation(plain_shards, config=DYNAMIC)
        found = drawn(dataset, num_batches)
        found = {name: np.concatenate([b[name] for b in found]) for name in found[0]}
        examples = stored_examples(plain_shards)
        for index, example in enumerate(examples[::7]):
            index *= 7
            ids = values_of(example, "input_ids")
            seeds = dynamic_masking.record_seeds(1, np.array([-1]), np.array([index]))
            # Not padded, and alone: neither may matter.
            masked = masking.mask_batch(
                np.array([ids], np.int32),
                np.array([len(ids)]),
                seeds,
                vocabulary=vocabulary,
                config=DYNAMIC,
            )
            first = ids.index(vocabulary.sep_id) + 1
            padding, count = [0] * (32 - len(ids)), int(masked.num_masked[0])
            expected = {
                "input_ids": masked.input_ids[0].tolist() + padding,
                "input_mask": [1] * len(ids) + padding,
                "segment_ids": [0] * first + [1] * (len(ids) - first) + padding,
                "masked_lm_positions": masked.positions[0].tolist(),
                "masked_lm_ids": masked.labels[0].tolist(),
                "masked_lm_weights": [1.0] * count + [0.0] * (5 - count),
                "next_sentence_labels": values_of(example, "next_sentence_labels"),
            }
            row = {name: values[index].tolist() for name, values in found.items()}
            assert row == expected

    def test_shapes_are_known_beforehand(self, plain_shards, batches):
        """A TPU compiles for one shape."""
        spec = batches(plain_shards, config=DYNAMIC).element_spec
        for feature in features.pretraining_features(32, 5):
            assert spec[feature.name].shape == [8, feature.length], feature.name

    def test_masks_change_with_the_epoch_and_nothing_else(self, plain_shards, batches):
        one = plain_shards[:1]
        num_records = one[0].num_records

        def masks_by_record(**changes):
            """For each record, its masks in the order of epochs."""
            masks = {}
            arguments = {"config": DYNAMIC, "shuffle_buffer_size": 1, **changes}
            size = arguments.get("batch_size", 8)
            dataset = batches(one, **arguments)
            for batch in drawn(dataset, 2 * num_records // size):
                for row, ids in enumerate(batch["input_ids"]):
                    ids = ids.copy()
                    slots = batch["masked_lm_weights"][row] > 0
                    positions = batch["masked_lm_positions"][row][slots]
                    ids[positions] = batch["masked_lm_ids"][row][slots]
                    masks.setdefault(ids.tobytes(), []).append(tuple(positions))
            return masks

        first = masks_by_record()
        pairs = [pair for pair in first.values() if len(pair) == 2]
        assert len(pairs) > 0.9 * num_records
        assert sum(a != b for a, b in pairs) > 0.9 * len(pairs)
        # Of the last epoch, large batches leave out a few records.
        larger = masks_by_record(batch_size=32)
        pairs = [
            pair
            for ids in larger
            for pair in zip(first[ids], larger[ids], strict=False)
        ]
        assert len(pairs) > 1.5 * num_records
        assert all(a == b for a, b in pairs)
        other = masks_by_record(seed=2)
        assert sum(other.get(ids) != first[ids] for ids in first) > 0.9 * num_records

    def test_full_sentences_have_one_segment_and_no_labels(
        self, plain_shards, evaluation, batches, tmp_path
    ):
        config = DYNAMIC.model_copy(update={"packing": "full_sentences"})
        examples = [
            {"input_ids": values_of(example, "input_ids")}
            for example in stored_examples(plain_shards[:1])
        ]
        shard = write(tmp_path / "a.tfrecord", examples)
        (batch,) = drawn(batches([shard], config=config), 1)
        assert set(batch) == {f.name for f in features.pretraining_features(32, 5)} - {
            "next_sentence_labels"
        }
        assert not batch["segment_ids"].any()
        assert batch["input_mask"].any()

    @pytest.mark.parametrize(
        ("ids", "message"),
        [
            ([2] * 33, "a record of more than 32 input_ids"),
            (None, "holds no input_ids"),
        ],
    )
    def test_records_that_do_not_fit(self, ids, message, batches, tmp_path):
        example = {"next_sentence_labels": [0]}
        if ids:
            example["input_ids"] = ids
        shard = write(tmp_path / "a.tfrecord", [example] * 8)
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            drawn(batches([shard], config=DYNAMIC), 1)

    def test_names_and_compression_of_plain_records(
        self, plain_shards, batches, tmp_path
    ):
        examples = [
            {
                "input_word_ids": values_of(example, "input_ids"),
                "next_sentence_labels": values_of(example, "next_sentence_labels"),
            }
            for example in stored_examples(plain_shards[:1])
        ]
        shard = write(tmp_path / "a", examples, compression="GZIP")
        changes = {"feature_names": "v2", "compression": "gzip"}
        config = DYNAMIC.model_copy(update=changes)
        expected = drawn(batches(plain_shards[:1], config=DYNAMIC), 5)
        assert_equal(expected, drawn(batches([shard], config=config), 5))


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


def test_records_of_another_length_than_promised(shards, plain_shards):
    inputs.check_lengths(shards[0].path, CONFIG)
    inputs.check_lengths(plain_shards[0].path, DYNAMIC)
    message = "hold 5 masked_lm_positions, manifest.json says 4: make the examples"
    fewer = CONFIG.model_copy(update={"max_predictions_per_seq": 4})
    with pytest.raises(InputError, match=message):
        inputs.check_lengths(shards[0].path, fewer)
    shorter = DYNAMIC.model_copy(update={"max_seq_length": 4})
    with pytest.raises(InputError, match=r"hold \d+ input_ids, .* says 4: make"):
        inputs.check_lengths(plain_shards[0].path, shorter)


def test_records_of_something_else(tmp_path):
    path = write(tmp_path / "x.tfrecord", [{}]).path
    for config in (CONFIG, DYNAMIC):
        with pytest.raises(InputError, match="its records have no feature input_ids"):
            inputs.check_lengths(path, config)


def test_manifest_agrees_with_the_records(tiny_examples, shards, tmp_path):
    copy = tmp_path / "examples"
    shutil.copytree(tiny_examples, copy)
    made = manifest.read_manifest(copy, kind="examples", verb="bert-keras examples")
    manifest.verify_shards(copy, made)
    counts = [len(stored_examples([shard])) for shard in shards]
    assert [shard.num_records for shard in made.shards] == counts
