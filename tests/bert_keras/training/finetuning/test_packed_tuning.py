"""Fine-tuning on several examples a row: as on rows of one example each."""

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning
from bert_keras.kinds import registry
from bert_keras.labelled import packed_batches, shapes
from bert_keras.training.pretraining import record_parsing
from tests import make
from tests.bert_keras.model import test_packed_rows
from tests.bert_keras.training.finetuning import test_fixed_shapes

MAX_LENGTH = test_fixed_shapes.MAX_LENGTH


def tuned(kind, *, strategy=test_fixed_shapes.CPU, ladder=(), packed=True, **fit):
    """Seven steps with dropout; rows of the same length, whether packed or not."""
    if packed:
        rows = {"pack_examples": True, "ladder": ladder}
    else:
        rows = {"ladder": (MAX_LENGTH,)}
    return test_fixed_shapes.tuned(kind, strategy, dropout=0.2, **rows, **fit)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "num_replicas", "ladder"),
    [
        ("classification", 2, ()),
        ("classification", 1, (13, MAX_LENGTH)),
        ("regression", 1, ()),
        ("tagging", 1, ()),
        ("multi_label", 2, (13, MAX_LENGTH)),
        ("tagging", 2, (13, MAX_LENGTH)),
    ],
)
def test_packed_examples_train_the_weights_of_rows_of_one_example(
    kind, num_replicas, ladder
):
    """With dropout, in two parts, with a short last batch."""
    several = test_fixed_shapes.mirrored(2)
    alone = tuned(kind, packed=False)
    packed = tuned(
        kind,
        strategy=test_fixed_shapes.CPU if num_replicas == 1 else several,
        ladder=ladder,
        num_parts=2,
    )
    test_fixed_shapes.assert_alike(packed, alone, atol=1e-6)
    if ladder:
        specs = (
            packed[2].schedule_to(7).spec_of_step(n)["input_ids"].shape
            for n in range(7)
        )
        made = {tuple(shape) for shape in specs}
        assert {length for _, length in made} == {MAX_LENGTH}
        # Eight examples in fewer rows.
        assert min(rows for rows, _ in made) * num_replicas < 8


# A single batch.


def seeded(batch, numbers):
    seeds = record_parsing.dropout_seeds(4, 0 * numbers, numbers)
    return {**batch, "dropout_seeds": seeds.numpy()}


def batches(kind):
    """Ten examples packed, and each in a row of its own; of the same length."""
    inputs = test_fixed_shapes.inputs_of(kind)
    rows = np.arange(10)
    packer = packed_batches.Packer(lengths=(MAX_LENGTH,), num_replicas=3)
    packed = packer.batch(inputs.batch, rows, inputs.lengths[rows])
    packed = seeded(packed, packed.pop(packed_batches.ROW_NUMBERS))
    alone = shapes.padded(inputs.batch(rows), MAX_LENGTH)
    return packed, seeded(alone, rows)


@pytest.fixture
def model(request, randomize):
    kind = getattr(request, "param", "classification")
    bert = test_packed_rows.CONFIG.model_copy(update={"vocab_size": 50})
    made = registry.build_network(
        bert, test_fixed_shapes.TASKS[kind], dropout_prob=0.2, seed=5
    )
    randomize(made)
    made.kind = kind
    return made


@pytest.mark.parametrize(
    "model", ["classification", "multi_label", "regression", "tagging"], indirect=True
)
def test_losses_and_gradients_are_those_of_the_examples_alone(model):
    packed, alone = (
        test_packed_rows.losses_and_gradients(model, batch)
        for batch in batches(model.kind)
    )
    test_packed_rows.check_same(packed, alone)
    for batch in batches(model.kind):
        weight = model.loss_weights(batch)["loss"]
        assert float(weight) == alone["terms/loss"][1] > 0


@pytest.mark.parametrize("model", ["classification", "tagging"], indirect=True)
def test_answers_are_those_of_the_examples_alone(model):
    packed, alone = batches(model.kind)
    slots = packed["instance_ids"] if model.kind == "tagging" else packed["label_ids"]
    found = np.array(model(packed)["logits"])[slots >= (model.kind == "tagging")]
    wanted = np.array(model(alone)["logits"])
    order = np.lexsort(found.round(4).T)
    if model.kind == "tagging":
        wanted = wanted[alone["input_mask"] > 0]
    np.testing.assert_allclose(
        found[order], wanted[np.lexsort(wanted.round(4).T)], atol=1e-5
    )


FAULTS = {
    name: test_packed_rows.FAULTS[name]
    for name in (
        "attention crosses the border",
        "each [CLS] is the row's",
        "one seed for the row",
    )
} | {
    "empty slots count": (
        packed_batches.Packer,
        "batch",
        lambda *args: (
            (made := packer_batch(*args))
            | {"example_weights": np.ones_like(made["example_weights"])}
        ),
    ),
}
packer_batch = packed_batches.Packer.batch


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_border_shows(fault, model, monkeypatch):
    _, alone = batches(model.kind)
    expected = test_packed_rows.losses_and_gradients(model, alone)
    monkeypatch.setattr(*FAULTS[fault])
    packed, _ = batches(model.kind)
    found = test_packed_rows.losses_and_gradients(model, packed)
    with pytest.raises(AssertionError):
        test_packed_rows.check_same(found, expected, tolerance=1e-4)


# Which rows.


def batch_of(lengths, labels):
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    ids = np.where(mask, np.arange(1, len(lengths) + 1)[:, None], 0)
    return {
        "input_ids": ids.astype(np.int32),
        "input_mask": mask.astype(np.int32),
        "segment_ids": (ids * 0).astype(np.int32),
        "label_ids": np.array(labels, np.int32),
    }


def test_a_literal_batch():
    lengths, labels = np.array([3, 20, 11, 9]), np.array([0, 1, 2, 0])

    def make_batch(rows):
        return batch_of(lengths[rows - 40], labels[rows - 40])

    # 20 + 11 and 9 + 3 tokens, in two rows for each of two replicas.
    packer = packed_batches.Packer(lengths=(32,), num_replicas=2, row_multiple=2)
    batch = packer.batch(make_batch, np.arange(40, 44), lengths)
    none = [0] * 32
    assert batch["instance_ids"].tolist() == [
        [1] * 3 + [2] * 9 + [0] * 20,
        [1] * 20 + [2] * 11 + [0],
        none,
        none,
    ]
    empty = [-1] * 4
    assert batch["row_numbers"].tolist() == [
        [40, 43, -1, -1],
        [41, 42, -1, -1],
        empty,
        empty,
    ]
    assert batch["label_ids"].tolist() == [[0, 0, -1, -1], [1, 2, -1, -1], empty, empty]
    assert batch["example_weights"].sum(axis=1).tolist() == [2, 2, 0, 0]
    assert "input_mask" not in batch


def test_rows_are_as_long_as_makes_the_least_positions():
    packer = packed_batches.Packer(lengths=packed_batches.row_lengths(100))
    assert packer.lengths == (16, 32, 64, 100)
    for lengths, expected in (
        ([9, 7, 8, 8], (2, 16)),
        ([17, 15, 16, 16], (2, 32)),
        ([40, 30, 30], (1, 100)),
        ([100, 5], (2, 100)),
    ):
        plan = packer.plan(np.array(lengths))
        assert (plan.num_rows, plan.length) == expected
        assert np.bincount(plan.row_of, weights=lengths).max() <= plan.length


def test_what_cannot_be_packed_is_refused():
    bert = config.BertConfig(vocab_size=50)
    packed = finetuning.FinetuningConfig(pack_examples=True)
    with pytest.raises(InputError, match="got a task of kind span: leave it out"):
        make.check_settings(packed, config.Task(kind="span"), bert)
    one_way = bert.model_copy(update={"attention": "left_to_right"})
    task = config.Task(kind="tagging", labels=("a", "b"))
    with pytest.raises(InputError, match="whose attention is left_to_right"):
        make.check_settings(packed, task, one_way)
    for changes, message in (
        ({"bilstm_units": 3}, "no BiLSTM, got 128 and `bilstm_units` 3"),
        ({"max_seq_length": 12}, "at least 16 and no BiLSTM, got 12"),
        ({"length_multiple": 8}, "expected no `length_multiple`, got 8"),
    ):
        with pytest.raises(ValueError, match=message):
            finetuning.FinetuningConfig(pack_examples=True, **changes)
