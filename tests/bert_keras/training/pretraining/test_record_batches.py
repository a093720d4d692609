import itertools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_keras.core import manifest
from bert_keras.core.errors import InputError
from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import features, masking, seeded_hash, tokenization
from bert_keras.training.pretraining import record_batches, record_parsing
from tests import conftest

CONFIG = ExamplesConfig(max_seq_length=32, dupe_factor=2)


@pytest.fixture(scope="module")
def shards(tiny_examples):
    made = manifest.read_manifest(tiny_examples, kind="examples")
    return record_batches.read_shards(tiny_examples, made)


VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *conftest.WORDS))


def source(**changes):
    options = {"batch_size": 8, "shuffle_buffer_size": 50, "seed": 1, **changes}
    options = {"config": CONFIG, "vocabulary": VOCABULARY, **options}
    return record_batches.RecordBatches(**options)


def batches(shards, *, start_step=0, place=(), **changes):
    """Training batches of shards."""
    return source(**changes).to_train(shards, *place, start_step=start_step)


def evaluation(shards, *, place=(), **changes):
    """Evaluation batches of shards, and their number."""
    made = source(**{"batch_size": 50, **changes})
    return made.to_evaluate(shards, *place, num_batches=10_000)


def drawn(dataset, count):
    return list(dataset.take(count).as_numpy_iterator())


def joined(batches):
    return {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}


def put_together(parts, *, num_replicas):
    """Global batches of the elements of each worker."""
    steps = range(0, len(parts[0]), num_replicas)
    return [
        joined([each for part in parts for each in part[step : step + num_replicas]])
        for step in steps
    ]


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
    return record_batches.Shard(str(path), 0, len(examples))


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


@pytest.fixture
def data(request, shards, plain_shards):
    """Shards and their configuration: `static` ones are masked, `dynamic` ones not."""
    return {"static": (shards, CONFIG), "dynamic": (plain_shards, DYNAMIC)}[
        request.param
    ]


SLOW = pytest.mark.slow
IN_BOTH_WAYS = pytest.mark.parametrize(
    ("data", "attention"),
    [
        ("static", "bidirectional"),
        ("dynamic", "left_to_right"),
        pytest.param("static", "left_to_right", marks=SLOW),
        pytest.param("dynamic", "bidirectional", marks=SLOW),
    ],
    indirect=["data"],
)


def test_a_batch_holds_what_the_records_hold(shards):
    example, *_ = stored_examples(shards)
    dataset, _ = evaluation(shards, batch_size=1)
    (batch,) = drawn(dataset, 1)
    assert set(batch) == {f.name for f in features.pretraining_features(32, 5)}
    for name, values in batch.items():
        np.testing.assert_allclose(values[0], values_of(example, name))
        expected_type = "float32" if name == "masked_lm_weights" else "int32"
        assert values.dtype == expected_type


def test_shards_know_their_place(tiny_examples, shards):
    counts = [len(stored_examples([shard])) for shard in shards]
    assert [shard.num_records for shard in shards] == counts
    assert [s.first_record for s in shards] == [0, counts[0], counts[0] + counts[1]]
    made = manifest.read_manifest(tiny_examples, kind="examples")
    assert [shard.num_records for shard in made.shards] == counts


@IN_BOTH_WAYS
def test_an_evaluation_round_is_every_record_once(data, attention):
    shards, config = data
    num_records = sum(shard.num_records for shard in shards)
    dataset, num_batches = evaluation(shards, config=config, attention=attention)
    assert num_batches == -(-num_records // 50)
    two_rounds = drawn(dataset, 2 * num_batches)
    assert_equal(two_rounds[:num_batches], two_rounds[num_batches:])
    rows = joined(two_rounds[:num_batches])
    in_turn = itertools.zip_longest(*(stored_examples([shard]) for shard in shards))
    labels = [
        values_of(example, "next_sentence_labels")
        for example in filter(None, itertools.chain(*in_turn))
    ]
    assert rows["next_sentence_labels"][:num_records].tolist() == labels
    assert (rows["masked_lm_weights"][:num_records].sum(axis=1) > 0).all()
    # The last batch is filled up with what does not count.
    fill = {name: values[num_records:] for name, values in rows.items()}
    assert len(fill["input_ids"]) == num_batches * 50 - num_records > 0
    assert (fill["next_sentence_labels"] == -1).all()
    assert not fill["masked_lm_weights"].any()
    only_first = np.arange(32) == 0
    assert (fill["input_mask"] == only_first).all()
    assert (fill["input_ids"] == 2 * only_first).all()


@pytest.mark.parametrize("data", ["static", "dynamic"], indirect=True)
def test_newer_names_and_compressed_shards_are_read(data, tmp_path):
    shards, config = data
    examples = [
        {
            features.V2_NAMES.get(name, name): values_of(example, name)
            for name in example.features.feature
        }
        for example in stored_examples(shards[:1])
    ]
    assert "input_word_ids" in examples[0]
    renamed = write(tmp_path / "a", examples, compression="GZIP")
    changes = {"feature_names": "v2", "compression": "gzip"}
    found = batches([renamed], config=config.model_copy(update=changes))
    assert_equal(drawn(batches(shards[:1], config=config), 5), drawn(found, 5))


@pytest.mark.parametrize(
    ("data", "name", "first_values", "message"),
    [
        ("static", "input_ids", [49], "input_ids beyond the vocabulary of 49"),
        ("dynamic", "input_ids", [49], "input_ids beyond the vocabulary of 49"),
        ("static", "masked_lm_positions", [32], "_positions beyond the sequence of 32"),
        ("static", "masked_lm_positions", [-1], "_positions beyond the sequence of 32"),
        ("static", "segment_ids", [2], "segment_ids beyond the pair of 2"),
        ("dynamic", "input_ids", [2] * 33, "a record of more than 32 input_ids"),
        ("dynamic", "input_ids", [], "a record holds no input_ids"),
    ],
    indirect=["data"],
)
def test_records_that_do_not_fit(data, name, first_values, message, tmp_path):
    """They were those of the next example, or nothing, without a word."""
    shards, config = data
    examples = [
        {each: values_of(example, each) for each in example.features.feature}
        for example in stored_examples(shards[:1])[:8]
    ]
    values = examples[0].pop(name)
    if first_values:
        examples[0][name] = first_values + values[len(first_values) :]
    made = batches([write(tmp_path / "a.tfrecord", examples)], config=config)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        drawn(made, 1)


class TestDynamicMasking:
    def test_a_batch_is_what_masking_makes_of_the_records(self, plain_shards):
        # Each number is that in all shards together.
        shard = plain_shards[1]
        dataset, num_batches = evaluation([shard], config=DYNAMIC)
        found = joined(drawn(dataset, num_batches))
        for row, example in list(enumerate(stored_examples([shard])))[::3]:
            index = shard.first_record + row
            ids = values_of(example, "input_ids")
            seeds = seeded_hash.record_seeds(1, np.array([-1]), np.array([index]))
            # Not padded, and alone: neither may matter.
            masked = masking.mask_batch(
                np.array([ids], np.int32),
                np.array([len(ids)]),
                seeds,
                vocabulary=VOCABULARY,
                config=DYNAMIC,
            )
            first = ids.index(VOCABULARY.sep_id) + 1
            padding = [0] * (32 - len(ids))
            of_masks = {name: values[0].tolist() for name, values in masked.items()}
            expected = of_masks | {
                "input_ids": of_masks["input_ids"] + padding,
                "input_mask": [1] * len(ids) + padding,
                "segment_ids": [0] * first + [1] * (len(ids) - first) + padding,
                "next_sentence_labels": values_of(example, "next_sentence_labels"),
            }
            batch_row = {name: values[row].tolist() for name, values in found.items()}
            assert batch_row == expected

    def test_masks_change_with_the_epoch_and_nothing_else(self, plain_shards):
        one = plain_shards[:1]
        num_records = one[0].num_records

        def masks_by_record(**changes):
            """For each record, its masks in the order of epochs."""
            masks = {}
            arguments = {"config": DYNAMIC, "shuffle_buffer_size": 1, **changes}
            size = arguments.get("batch_size", 8)
            dataset = batches(one, **arguments)
            for batch in drawn(dataset, 2 * num_records // size):
                whole = record_parsing.unmasked_ids(batch).numpy()
                places = batch["masked_lm_positions"], batch["masked_lm_weights"] > 0
                for ids, positions, slots in zip(whole, *places, strict=True):
                    masks.setdefault(ids.tobytes(), []).append(tuple(positions[slots]))
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

    def test_a_share_of_masks_that_falls(self, plain_shards):
        """Batch N has its share, also after a resume; evaluation has the examples'."""
        config = DYNAMIC.model_copy(update={"masked_lm_prob": 0.3})
        steady = batches(plain_shards, config=config)
        falls = {
            "config": config,
            "mask_share": lambda step: 0.3 - tf.cast(step, tf.float64) / 50,
        }
        falling = drawn(batches(plain_shards, **falls), 10)
        for step, both in enumerate(zip(falling, drawn(steady, 10), strict=True)):
            lengths = both[0]["input_mask"].sum(axis=1)
            expected = np.maximum(np.rint(lengths * (0.3 - step / 50)), 1)
            for row, count in enumerate(expected):
                weights = [batch["masked_lm_weights"][row] for batch in both]
                hidden = [
                    {*batch["masked_lm_positions"][row][on > 0].tolist()}
                    for batch, on in zip(both, weights, strict=True)
                ]
                assert hidden[0] <= hidden[1]
                assert len(hidden[0]) == weights[0].sum() == count
        assert_equal(
            drawn(batches(plain_shards, start_step=4, **falls), 6), falling[4:]
        )
        rounds = [evaluation(plain_shards, **o)[0] for o in ({"config": config}, falls)]
        assert_equal(*(drawn(data, 2) for data in rounds))

    def test_full_sentences_have_one_segment_and_no_labels(
        self, plain_shards, tmp_path
    ):
        config = DYNAMIC.model_copy(update={"packing": "full_sentences"})
        examples = [
            {"input_ids": values_of(example, "input_ids")}
            for example in stored_examples(plain_shards[:1])
        ]
        shard = write(tmp_path / "a.tfrecord", examples)
        (batch,) = drawn(batches([shard], config=config), 1)
        names = {f.name for f in features.pretraining_features(32, 5)}
        names |= {"dropout_seeds"}
        assert set(batch) == names - {"next_sentence_labels"}
        assert not batch["segment_ids"].any()
        assert batch["input_mask"].any()


NUMBERED = ExamplesConfig(max_seq_length=8, masking="dynamic", packing="full_sentences")


def write_numbered(directory, sizes):
    """Shards of some sizes."""
    shards, first = [], 0
    for index, size in enumerate(sizes):
        examples = [
            {"input_ids": [2, 5 + n // 1600, 5 + n // 40 % 40, 5 + n % 40, 3]}
            for n in range(first, first + size)
        ]
        shard = write(directory / str(index), examples)
        shards.append(shard._replace(first_record=first))
        first += size
    return shards


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """103 records in shards of uneven sizes."""
    return write_numbered(tmp_path_factory.mktemp("few"), [40, 0, 3, 25, 35])


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """264 records in more shards than are read in one stretch."""
    return write_numbered(tmp_path_factory.mktemp("many"), [2] * 132)


IN_ORDER = {"config": NUMBERED, "attention": "left_to_right", "shuffle_buffer_size": 20}


def numbers_of(batch):
    return (batch["input_ids"][:, 1:4] - 5) @ [1600, 40, 1]


def numbers(shards, count, **changes):
    """Draws batches, and gives `(step, row)` record numbers."""
    found = drawn(batches(shards, **(IN_ORDER | changes)), count)
    return np.array([numbers_of(batch) for batch in found])


class TestOrder:
    """Which records a batch holds: records here are their own numbers."""

    @pytest.mark.parametrize(
        ("kind", "buffer_size"),
        [("few", 1), pytest.param("few", 1000, marks=SLOW), ("many", 20)],
    )
    def test_an_epoch_is_every_record_once(self, kind, buffer_size, request):
        shards = request.getfixturevalue(kind)
        count = sum(shard.num_records for shard in shards)
        found = numbers(
            shards, 2 * count, batch_size=1, shuffle_buffer_size=buffer_size
        )
        epochs = found.reshape(2, count)
        for epoch in epochs:
            assert sorted(epoch) == list(range(count))
        for first, second in itertools.combinations([*epochs, np.arange(count)], 2):
            assert (first == second).mean() < (0.6 if buffer_size == 1 else 0.2)

    @pytest.mark.parametrize("kind", ["few", pytest.param("many", marks=SLOW)])
    def test_step_and_seed_decide(self, kind, request):
        """Restarts, other steps' sizes and the process's own seed do not."""
        shards = request.getfixturevalue(kind)
        whole = numbers(shards, 120)
        count = sum(shard.num_records for shard in shards)
        # In and after an epoch, and where one ends within the batch or just before.
        for step in {80, count // 8, count // 8 + 1}:
            tf.random.set_seed(step)
            resumed = numbers(shards, 5, start_step=step)
            assert (resumed == whole[step : step + 5]).all(), step
        flat = whole.ravel()
        assert (numbers(shards, 70, batch_size=13).ravel() == flat[:910]).all()
        assert (numbers(shards, 10, seed=0) != whole[:10]).mean() > 0.9

    def test_neighbours_come_from_many_shards(self, tmp_path):
        shards = write_numbered(tmp_path, [200] * 8)
        found = numbers(shards, 40, shuffle_buffer_size=400, batch_size=8)
        shard_of = found // 200
        assert np.mean([len(set(row)) for row in shard_of]) > 4
        assert set(np.diff(found.ravel())).isdisjoint({0})
        assert (np.diff(found.ravel()) == 1).mean() < 0.05

    def test_a_resumed_run_reads_no_stretch_again(self, tmp_path):
        shards = write_numbered(tmp_path, [2] * 132)
        whole = numbers(shards, 33)
        last_stretch = set(whole.ravel()[-88:] // 2)
        assert len(last_stretch) == 44
        for index, shard in enumerate(shards):
            if index not in last_stretch:
                Path(shard.path).unlink()
        assert (numbers(shards, 3, start_step=30) == whole[30:]).all()

    def test_shards_of_steps(self, few):
        """Also where an epoch ends in between."""
        for step in (0, 11):
            records = numbers(few, 1, start_step=step, batch_size=9).ravel()
            expected = {
                Path(shard.path).name
                for shard in few
                for number in records
                if shard.first_record <= number < shard.first_record + shard.num_records
            }
            made = source(config=NUMBERED, batch_size=9, shuffle_buffer_size=20)
            found = made.shards_of_steps(few, start_step=step, num_steps=1)
            assert found == sorted(expected)

    @pytest.mark.parametrize(
        ("num_workers", "num_replicas"),
        [(2, 4), pytest.param(1, 2, marks=SLOW), pytest.param(4, 1, marks=SLOW)],
    )
    def test_workers_share_each_batch(self, num_workers, num_replicas, few):
        arguments = {"config": NUMBERED, "start_step": 9, "batch_size": 16}
        places = [(index, num_workers, num_replicas) for index in range(num_workers)]
        parts = [
            drawn(batches(few, place=place, **arguments), 8 * num_replicas)
            for place in places
        ]
        whole = drawn(batches(few, **arguments), 8)
        assert_equal(whole, put_together(parts, num_replicas=num_replicas))

    def test_dropout_seeds(self, few):
        """Of seed, epoch and record, by the documented formula."""
        found = drawn(batches(few, **IN_ORDER), 30)
        records = np.array([numbers_of(batch) for batch in found])
        epochs = np.arange(240).reshape(30, 8) // 103
        seeds = np.array([batch["dropout_seeds"] for batch in found])
        expected = record_parsing.dropout_seeds(1, epochs.ravel(), records.ravel())
        np.testing.assert_array_equal(seeds.ravel(), expected)
        assert len(np.unique(seeds)) == 240


def test_records_with_masks_are_read_without_python():
    """Any host can: a function of Python lives in one process."""
    parse = record_parsing.Parser(config=CONFIG, vocabulary=VOCABULARY, seed=1).parse
    types = tf.int64, tf.float64, tf.int64, tf.string
    specs = [tf.TensorSpec([8], each) for each in types]
    graph = tf.function(parse).get_concrete_function(*specs).graph
    assert not [op.type for op in graph.get_operations() if "PyFunc" in op.type]


def test_dropout_seeds_never_change():
    """Else a run that is resumed with a newer version drops other units."""
    found = record_parsing.dropout_seeds(12345, np.array([3, 3]), np.array([1000, 7]))
    assert found.dtype == np.int32
    assert found.numpy().tolist() == [-1533703909, -466554964]


@IN_BOTH_WAYS
def test_shapes_are_known_beforehand(data, attention):
    """A TPU compiles for one shape, and takes numbers only."""
    shards, config = data
    arguments = {
        "config": config,
        "attention": attention,
        "batch_size": 16,
        "place": (1, 2, 2),
    }
    lengths = {f.name: f.length for f in features.pretraining_features(32, 5)}
    if attention == "left_to_right":
        lengths |= {name: 31 for name in lengths if name.startswith("masked_lm")}
    expected = {
        name: tf.TensorSpec(
            [4, length], tf.float32 if name == "masked_lm_weights" else tf.int32
        )
        for name, length in lengths.items()
    }
    assert evaluation(shards, **arguments)[0].element_spec == expected
    expected["dropout_seeds"] = tf.TensorSpec([4], tf.int32)
    assert batches(shards, **arguments).element_spec == expected


class TestLeftToRight:
    def test_every_next_token_is_to_be_predicted(self, tmp_path):
        example = {"input_ids": [2, 10, 11, 3, 12, 3], "next_sentence_labels": [1]}
        config = ExamplesConfig(max_seq_length=8, masking="dynamic")
        shard = write(tmp_path / "a", [example])
        dataset, _ = evaluation(
            [shard], config=config, attention="left_to_right", batch_size=1
        )
        (batch,) = drawn(dataset, 1)
        assert {name: values[0].tolist() for name, values in batch.items()} == {
            "input_ids": [2, 10, 11, 3, 12, 3, 0, 0],
            "input_mask": [1, 1, 1, 1, 1, 1, 0, 0],
            "segment_ids": [0, 0, 0, 0, 1, 1, 0, 0],
            "masked_lm_positions": [0, 1, 2, 3, 4, 5, 6],
            "masked_lm_ids": [10, 11, 3, 12, 3, 0, 0],
            "masked_lm_weights": [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0],
            "next_sentence_labels": [1],
        }

    def test_masked_records_become_whole_again(self, shards, plain_shards):
        masked, count = evaluation(shards, attention="left_to_right")
        plain, _ = evaluation(plain_shards, config=DYNAMIC, attention="left_to_right")
        assert_equal(drawn(masked, count), drawn(plain, count))


def test_the_last_shards_are_for_evaluation():
    names = [f"s{index}" for index in range(120)]
    for count, asked, expected in (
        *((120, None, 2), (3, None, 1), (1, None, 0), (10, 4, 4), (10, 0, 0)),
    ):
        train, evaluate = record_batches.split_shards(names[:count], asked)
        assert len(evaluate) == expected
        assert train + evaluate == names[:count]
    with pytest.raises(
        InputError, match="`num_eval_shards` is 9, but the exa.* only 9"
    ):
        record_batches.split_shards(names[:9], 9)


def test_records_of_another_kind_than_promised(shards, plain_shards, tmp_path):
    with pytest.raises(InputError, match="from a disk or gs://, not from s3://: copy"):
        record_batches.check_lengths("s3://bucket/f", CONFIG)
    record_batches.check_lengths(shards[0].path, CONFIG)
    record_batches.check_lengths(plain_shards[0].path, DYNAMIC)
    message = "hold 5 masked_lm_positions, manifest.json says 4: make the examples"
    fewer = CONFIG.model_copy(update={"max_predictions_per_seq": 4})
    with pytest.raises(InputError, match=message):
        record_batches.check_lengths(shards[0].path, fewer)
    shorter = DYNAMIC.model_copy(update={"max_seq_length": 4})
    with pytest.raises(InputError, match=r"hold \d+ input_ids, .* says 4: make"):
        record_batches.check_lengths(plain_shards[0].path, shorter)
    other = write(tmp_path / "x.tfrecord", [{}]).path
    for config in (CONFIG, DYNAMIC):
        with pytest.raises(InputError, match="its records have no feature input_ids"):
            record_batches.check_lengths(other, config)
