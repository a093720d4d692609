"""Batches of packed records against those of the same instances, row by row.

`model/test_packed_rows.py` has the gradients of such rows.
"""

import functools

import numpy as np
import pytest

from bert_keras.core import manifest
from bert_keras.core.settings.pipelines import ExamplesConfig
from bert_keras.data import features, packing
from bert_keras.training.pretraining import record_batches
from tests import make
from tests.bert_keras.training.pretraining import test_record_batches as records

KINDS = {
    "static": {},
    "dynamic": {"masking": "dynamic"},
    "full sentences": {"packing": "full_sentences", "feature_names": "v2"},
    "dynamic full sentences": {"packing": "full_sentences", "masking": "dynamic"},
}
EVERY_KIND = [
    "dynamic",
    *(
        pytest.param(kind, marks=pytest.mark.slow)
        for kind in ("static", "full sentences", "dynamic full sentences")
    ),
]
VALUES = {"max_seq_length": 64, "dupe_factor": 2, "short_seq_prob": 0.8}
BATCH_SIZE = 8


@pytest.fixture(scope="module")
def source(examples_of):
    """A function that makes examples of one kind, packed or not, and their source."""

    @functools.cache
    def directory(kind, is_packed):
        return examples_of(pack_instances=is_packed, **VALUES, **KINDS[kind])

    @functools.cache
    def source(kind, is_packed=True, **changes):
        config = ExamplesConfig(pack_instances=is_packed, **VALUES, **KINDS[kind])
        return Source(directory(kind, is_packed), config, **changes)

    return source


class Source:
    """Batches of a directory, packed or not; its graphs are traced once."""

    def __init__(self, directory, config, **changes):
        made = manifest.read_manifest(directory, kind="examples")
        self.config = config
        self.shards = record_batches.read_shards(directory, made)
        self.batches = record_batches.RecordBatches(
            config=self.config,
            vocabulary=records.VOCABULARY,
            batch_size=BATCH_SIZE,
            seed=1,
            shuffle_buffer_size=50,
            **changes,
        )
        self.num_rows = sum(shard.num_records for shard in self.shards)
        self.num_batches = -(-self.num_rows // BATCH_SIZE)

    @functools.cached_property
    def training(self):
        return self.batches.to_train(self.shards)

    @functools.cached_property
    def trained(self):
        """The batches of an epoch, and three more."""
        return list(self.training.take(self.num_batches + 3).as_numpy_iterator())

    @functools.cached_property
    def evaluation(self):
        return self.batches.to_evaluate(self.shards, num_batches=10_000)

    def epoch(self):
        """All rows of an epoch, end to end."""
        rows = records.joined(self.trained)
        return {name: values[: self.num_rows] for name, values in rows.items()}


def as_tuples(arrays):
    names = sorted(arrays)
    count = len(arrays["input_ids"])
    rows = zip(
        *(np.reshape(arrays[n], (count, -1)).tolist() for n in names), strict=True
    )
    return sorted(map(repr, rows))


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_an_epoch_of_packed_records_has_each_instance(source, kind):
    """Of the same text; chance draws from another number of each instance."""
    alone, packed = source(kind, is_packed=False), source(kind)
    expected, found = alone.epoch(), packed.epoch()
    is_there = np.arange(8) < found["instance_ids"].max(axis=1, keepdims=True)
    seeds = found["dropout_seeds"][is_there]
    assert len(set(seeds.tolist())) == len(seeds) == alone.num_rows
    for arrays in (expected, found):
        del arrays["dropout_seeds"]
    if "dynamic" in kind:
        # Other masks: compare what they hide.
        for arrays in (expected, found):
            rows, slots = np.nonzero(arrays["masked_lm_weights"])
            places = rows, arrays["masked_lm_positions"][rows, slots]
            arrays["input_ids"][places] = arrays["masked_lm_ids"][rows, slots]
            for name in [name for name in arrays if name.startswith("masked_lm")]:
                del arrays[name]
    instances = packing.split_rows(found, packed.config)[0]
    assert as_tuples(instances) == as_tuples(expected)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_batch_is_a_function_of_its_step_however_it_is_shared(source, kind):
    packed = source(kind)
    start = packed.num_batches - 2
    shares = [
        packed.batches.to_train(packed.shards, index, 2, 2, start_step=start)
        for index in range(2)
    ]
    parts = [records.drawn(share, 2 * 5) for share in shares]
    found = records.put_together(parts, num_replicas=2)
    records.assert_equal(found, packed.trained[start:])


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_shapes_are_static_and_those_that_the_model_is_given(source, kind):
    packed = source(kind)
    batch_features = features.batch_features(packed.config)
    expected = {f.name: (BATCH_SIZE, f.length) for f in batch_features}
    evaluation, _ = packed.evaluation
    for batches, more in (
        (packed.training, {"dropout_seeds": (BATCH_SIZE, 8)}),
        (evaluation, {}),
    ):
        shapes = {k: tuple(v.shape) for k, v in batches.element_spec.items()}
        assert shapes == expected | more


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_an_evaluation_has_each_instance_once_and_padding_that_does_not_count(
    source, kind
):
    packed = source(kind)
    batches, count = packed.evaluation
    assert count == packed.num_batches
    found = records.joined(records.drawn(batches, count))
    real, filled = (
        {name: values[rows] for name, values in found.items()}
        for rows in (slice(packed.num_rows), slice(packed.num_rows, None))
    )
    instances = packing.split_rows(real, packed.config)[0]
    alone = source(kind, is_packed=False)
    assert len(instances["input_ids"]) == alone.num_rows
    assert not filled["masked_lm_weights"].any()
    assert (filled["instance_ids"].sum(axis=1) == 1).all()
    assert (filled.get("next_sentence_labels", np.array([-1])) == -1).all()


@pytest.mark.parametrize("kind", EVERY_KIND[:2])
def test_left_to_right_predicts_nothing_over_a_border(source, kind):
    training = source(kind, attention="left_to_right").training
    (rows,) = training.take(1).as_numpy_iterator()
    ids, weights = rows["instance_ids"], rows["masked_lm_weights"]
    is_within = (ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] > 0)
    np.testing.assert_array_equal(weights, is_within)
    np.testing.assert_array_equal(rows["masked_lm_ids"], rows["input_ids"][:, 1:])
    assert (rows["input_ids"] != 4).all(), "nothing is masked"


@pytest.mark.slow
def test_a_packed_evaluation_is_that_of_the_examples_row_by_row(
    examples_of, tiny_examples, tmp_path
):
    """All of the held-out shard, which has the same documents packed or not."""
    # The weights hardly move: they are those of the start.
    optimizer = {"learning_rate": 1e-12, "warmup_steps": 1}
    settings = make.pretraining_config(optimizer=optimizer, num_train_steps=2)
    packed = examples_of(max_seq_length=32, dupe_factor=2, pack_instances=True)
    of_packed, alone = (
        make.pretrain([directory], tmp_path / name, settings)["eval"]
        for name, directory in (("packed", packed), ("alone", tiny_examples))
    )
    assert of_packed == pytest.approx(alone, rel=1e-5)
