import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings.pipelines import ExamplesConfig, instances_per_row
from bert_keras.data import packing

CONFIG = ExamplesConfig(max_seq_length=32, pack_instances=True)
"""4 slots, 6 predictions a row and 5 an instance."""


def make_instances(row_of, *, seed=3):
    """Instances of random lengths, and their features by plain lists."""
    random = np.random.default_rng(seed)
    share = 32 // np.bincount(row_of).max()
    lists = []
    for _ in row_of:
        length = int(random.integers(4, share + 1))
        positions = np.sort(random.choice(np.arange(1, length), 1 + length // 16))
        arrays = {
            "input_ids": random.integers(1, 90, length),
            "segment_ids": random.integers(0, 2, length),
            "masked_lm_positions": positions,
            "masked_lm_ids": random.integers(1, 90, len(positions)),
            "masked_lm_weights": np.ones(len(positions)),
            "next_sentence_labels": random.integers(0, 2, 1),
        }
        lists.append({name: values.tolist() for name, values in arrays.items()})
    return lists


def padded(lists, *, num_predictions=5):
    """As matrices, with a row for each instance."""
    sizes = {"input_ids": 32, "segment_ids": 32, "next_sentence_labels": 1}
    arrays = {
        name: np.array(
            [
                x[name] + [0] * (sizes.get(name, num_predictions) - len(x[name]))
                for x in lists
            ]
        )
        for name in lists[0]
    }
    lengths = np.array([len(x["input_ids"]) for x in lists])
    arrays["input_mask"] = (np.arange(32) < lengths[:, None]).astype(int)
    return arrays


def joined_by_hand(lists, row_of):
    rows = []
    for row in range(max(row_of) + 1):
        made = {name: [] for name in lists[0]} | {"instance_ids": []}
        members = [x for x, its in zip(lists, row_of, strict=True) if its == row]
        for number, instance in enumerate(members, start=1):
            start = len(made["input_ids"])
            for name, values in instance.items():
                if name == "masked_lm_positions":
                    values = [start + place for place in values]
                made[name] += values
            made["instance_ids"] += [number] * len(instance["input_ids"])
        sizes = {"input_ids": 32, "segment_ids": 32, "instance_ids": 32}
        for name, values in made.items():
            fill, size = 0, sizes.get(name, 6)
            if name == "next_sentence_labels":
                fill, size = -1, 4
            made[name] = values + [fill] * (size - len(values))
        rows.append(made)
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


ROWS = [0, 0, 0, 1, 2, 2]


def test_joined_as_by_hand():
    lists = make_instances(ROWS)
    joined = packing.join_rows(padded(lists), np.array(ROWS), CONFIG)
    expected = joined_by_hand(lists, ROWS)
    assert joined.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(joined[name], values, err_msg=name)


def test_split_gives_the_instances_back():
    given = padded(make_instances(ROWS))
    joined = packing.join_rows(given, np.array(ROWS), CONFIG)
    split, row_of, slots = packing.split_rows(joined, CONFIG)
    assert row_of.tolist() == ROWS
    assert slots.tolist() == [0, 1, 2, 0, 0, 1]
    assert split.keys() == given.keys()
    for name, values in given.items():
        np.testing.assert_array_equal(split[name], values, err_msg=name)


@pytest.mark.parametrize(
    ("position", "message"), [(31, "in the order"), (1, "expected 5 predictions")]
)
def test_predictions_that_belong_to_no_instance(position, message):
    joined = packing.join_rows(padded(make_instances(ROWS)), np.array(ROWS), CONFIG)
    joined["masked_lm_positions"][1] = position
    joined["masked_lm_weights"][1] = 1.0
    with pytest.raises(InputError, match=message):
        packing.split_rows(joined, CONFIG)


def test_best_fit_of_a_few_lengths():
    lengths = np.array([10, 32, 20, 12, 11, 9, 31])
    row_of = packing.plan_rows(lengths, np.ones(7, int), CONFIG)
    # 20 + 12; then 11, 10 and 9; rows are numbered by their first instances.
    assert row_of.tolist() == [0, 1, 2, 2, 0, 0, 3]


def test_a_row_holds_what_it_has_room_for():
    # No row has more instances than slots, nor more predictions than places for them.
    for length, num_masked, most in ((3, 1, 4), (8, 3, 2)):
        lengths, counts = np.full(50, length), np.full(50, num_masked)
        row_of = packing.plan_rows(lengths, counts, CONFIG)
        assert np.bincount(row_of).max() == most


@pytest.mark.parametrize("max_seq_length", [128, 512])
def test_random_lengths_fill_the_rows(max_seq_length):
    """A tenth of them any length, most as long as can be: as those of real text."""
    config = ExamplesConfig(max_seq_length=max_seq_length, pack_instances=True)
    random = np.random.default_rng(0)
    lengths = random.integers(5, max_seq_length + 1, 5000)
    is_full = random.random(5000) < 0.5
    lengths[is_full] = max_seq_length - random.integers(0, 3, is_full.sum())
    num_masked = np.maximum(1, np.rint(0.15 * lengths)).astype(int)
    row_of = packing.plan_rows(lengths, num_masked, config)
    tokens = np.bincount(row_of, lengths)
    assert tokens.max() <= max_seq_length
    assert np.bincount(row_of, num_masked).max() <= config.num_row_predictions
    assert np.bincount(row_of).max() <= instances_per_row(max_seq_length)
    assert tokens.mean() > 0.97 * max_seq_length
    firsts = [np.flatnonzero(row_of == row)[0] for row in range(20)]
    assert firsts == sorted(firsts)
