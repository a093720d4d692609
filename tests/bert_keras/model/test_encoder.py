import itertools

import keras
import numpy as np
import pytest

from bert_keras.core.settings.config import BertConfig
from bert_keras.kinds.text import network as text_network
from bert_keras.model import dropout, encoder

BASE = BertConfig()
LARGE = BertConfig(
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
)


def without_memory(config: BertConfig) -> encoder.BertEncoder:
    """An encoder whose variables have shapes, but no values."""
    with keras.StatelessScope(initialize_variables=False):
        model = encoder.BertEncoder(config)
        model.build()
    return model


@pytest.mark.parametrize(
    ("config", "num_parameters"), [(BASE, 109_482_240), (LARGE, 335_141_888)]
)
def test_has_as_many_parameters_as_the_paper_says(config, num_parameters):
    model = without_memory(config)
    assert model.count_params() == num_parameters
    shapes = {v.path.partition("/")[2]: v.shape for v in model.trainable_variables}
    size = config.hidden_size
    assert shapes["embeddings/word_embeddings"] == (30522, size)
    assert shapes["layer_0/self_attention/query_key_value/kernel"] == (size, 3 * size)
    assert len(shapes) == 5 + 12 * config.num_hidden_layers + 2


def test_padding_never_changes_an_output(tiny_config, make_batch, randomize):
    model = encoder.BertEncoder(tiny_config)
    batch = make_batch(tiny_config, lengths=(16, 11, 5))
    padded = {
        name: np.pad(batch[name], ((0, 0), (0, 8)))
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    model.build()
    randomize(model)
    short, long = model(batch), model(padded)
    real = batch["input_mask"] > 0
    np.testing.assert_allclose(
        np.array(long["sequence_output"])[:, :16][real],
        np.array(short["sequence_output"])[real],
        atol=1e-5,
    )
    np.testing.assert_allclose(long["pooled_output"], short["pooled_output"], atol=1e-5)


def test_sequences_of_a_batch_do_not_see_each_other(tiny_config, make_batch, randomize):
    model = encoder.BertEncoder(tiny_config)
    batch = make_batch(tiny_config)
    model.build()
    randomize(model)
    order = [2, 0, 3, 1]
    outputs = model(batch)
    reordered = model({name: values[order] for name, values in batch.items()})
    for name in outputs:
        np.testing.assert_allclose(
            reordered[name], np.array(outputs[name])[order], atol=1e-5
        )


def test_hugging_faces_names_are_taken(tiny_config, make_batch, randomize):
    batch = make_batch(tiny_config, lengths=(16, 11, 5))
    inputs = {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}
    theirs = {
        "input_ids": batch["input_ids"],
        "attention_mask": batch["input_mask"],
        "token_type_ids": batch["segment_ids"],
    }
    model = encoder.BertEncoder(tiny_config)
    classifier = text_network.BertClassifier(tiny_config, 3)
    for network in (model, classifier):
        network.build()
        randomize(network)
        ours = keras.tree.flatten(network(inputs))
        for first, second in zip(
            ours, keras.tree.flatten(network(theirs)), strict=True
        ):
            np.testing.assert_array_equal(first, second)
    with pytest.raises(ValueError, match="both 'attention_mask' and 'input_mask'"):
        model(theirs | inputs)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("padding_mask", "no feature 'padding_mask'; did you mean 'input_mask'"),
        ("token_ids", "no feature 'token_ids'; did you mean 'input_ids'"),
        ("input_type_ids", "no feature 'input_type_ids'; did you mean 'segment_ids'"),
        ("input_masks", "no feature 'input_masks'; did you mean 'input_mask'"),
        ("position_ids", "no feature 'position_ids'"),
    ],
)
def test_an_unknown_feature_is_not_ignored(tiny_config, make_batch, name, message):
    batch = make_batch(tiny_config, lengths=(16, 11, 5))
    with pytest.raises(ValueError, match=message):
        encoder.BertEncoder(tiny_config)({**batch, name: batch["input_mask"]})
    with pytest.raises(ValueError, match="expected 'input_ids', got input_mask"):
        encoder.BertEncoder(tiny_config)({"input_mask": batch["input_mask"]})


@pytest.mark.parametrize("name", ["input_ids", "input_mask", "segment_ids"])
def test_every_input_matters(name, tiny_config, make_batch, randomize):
    model = encoder.BertEncoder(tiny_config)
    batch = make_batch(tiny_config)
    model.build()
    randomize(model)
    changed = {**batch, name: batch[name].copy()}
    changed[name][0, -1] = (changed[name][0, -1] + 1) % 2
    difference = np.abs(
        np.array(model(batch)["pooled_output"])
        - np.array(model(changed)["pooled_output"])
    ).max(axis=1)
    # Of the first sequence only, and through attention: the first token is pooled.
    assert difference[0] > 1e-4
    assert difference[1:].max() < 1e-6


def test_a_sequence_that_is_too_long_is_refused(tiny_config, make_batch):
    model = encoder.BertEncoder(tiny_config)
    batch = make_batch(tiny_config, lengths=(33, 4))
    with pytest.raises(
        ValueError, match="33 tokens is longer than .*max_position_embeddings.* 32"
    ):
        model(batch)


def test_all_layers_come_on_request(tiny_config, make_batch):
    model = encoder.BertEncoder(tiny_config)
    batch = make_batch(tiny_config)
    assert set(model(batch)) == {"sequence_output", "pooled_output"}
    outputs = model(batch, return_all_layers=True)
    embedded, first, last = outputs["encoder_outputs"]
    np.testing.assert_array_equal(last, outputs["sequence_output"])
    own = model.embeddings(batch["input_ids"], batch["segment_ids"])
    np.testing.assert_allclose(embedded, own, atol=1e-6)
    layer = model.transformer_layers[0]
    np.testing.assert_allclose(first, layer(embedded, batch["input_mask"]), atol=1e-6)


def test_saved_and_loaded_it_is_the_same(tmp_path, tiny_config, make_batch, randomize):
    model = encoder.BertEncoder(tiny_config, seed=4, name="my_encoder")
    model.build()
    randomize(model)
    model.save(tmp_path / "encoder.keras")
    loaded = keras.models.load_model(tmp_path / "encoder.keras")
    assert loaded.config == tiny_config
    assert (loaded.name, loaded.seed) == ("my_encoder", 4)
    assert [v.path for v in loaded.weights] == [v.path for v in model.weights]
    batch = make_batch(tiny_config)
    for name, expected in model(batch).items():
        np.testing.assert_array_equal(loaded(batch)[name], expected)


def test_the_seed_alone_decides_weights_and_dropout(tiny_config, make_batch):
    batch = make_batch(tiny_config)
    keras.utils.set_random_seed(1)
    first = encoder.BertEncoder(tiny_config, seed=6)
    keras.utils.set_random_seed(2)
    same = encoder.BertEncoder(tiny_config, seed=6)
    other = encoder.BertEncoder(tiny_config, seed=7)
    outputs = [
        np.array(model(batch, training=True)["sequence_output"])
        for model in (first, first, same, same, other)
    ]
    np.testing.assert_array_equal(outputs[0], outputs[2])
    np.testing.assert_array_equal(outputs[1], outputs[3])
    assert np.abs(outputs[0] - outputs[1]).max() > 0.1  # another mask at each step
    assert np.abs(outputs[0] - outputs[4]).max() > 0.1
    quiet = [np.array(model(batch)["sequence_output"]) for model in (first, first)]
    np.testing.assert_array_equal(*quiet)


def test_dropout_follows_the_seeds_of_the_examples(tiny_config, make_batch):
    model = encoder.BertEncoder(tiny_config, seed=6)
    seeds = np.array([3, 1, 4, 1], "int32")
    batch = make_batch(tiny_config) | {"dropout_seeds": seeds}
    whole = model(batch, training=True)
    halves = [
        model({name: values[rows] for name, values in batch.items()}, training=True)
        for rows in (slice(0, 1), slice(1, 4))
    ]
    for name in whole:
        np.testing.assert_allclose(
            whole[name], np.concatenate([half[name] for half in halves]), atol=1e-6
        )
    other = model(batch | {"dropout_seeds": seeds[::-1]}, training=True)
    difference = np.abs(np.subtract(whole["pooled_output"], other["pooled_output"]))
    assert difference.max(axis=1).min() > 0.01
    alike = {name: np.repeat(v[:1], 4, axis=0) for name, v in batch.items()}
    rows = np.array(model(alike, training=True)["sequence_output"])
    np.testing.assert_allclose(rows, np.repeat(rows[:1], 4, axis=0), atol=1e-6)


def test_all_masks_are_used(tiny_config, make_batch):
    """Each dropout, alone, changes the output in training."""
    batch = make_batch(tiny_config) | {"dropout_seeds": np.arange(4)}
    model = encoder.BertEncoder(tiny_config, seed=6)
    quiet = np.array(model(batch)["sequence_output"])
    parts = [x for x in model._flatten_layers() if isinstance(x, dropout.Dropout)]
    rates = [part.rate for part in parts]
    assert rates == [0.1] * 7
    for chosen in parts:
        for part in parts:
            part.rate = 0.5 if part is chosen else 0.0
        outputs = np.array(model(batch, training=True)["sequence_output"])
        assert np.abs(outputs - quiet).max() > 1e-4, chosen.path


def test_attention_maps_come_on_request(tiny_config, make_batch, randomize):
    model = encoder.BertEncoder(tiny_config)
    model.build()
    randomize(model)
    batch = make_batch(tiny_config)
    outputs = model(batch, return_attention=True)
    assert len(outputs["attention_probs"]) == tiny_config.num_hidden_layers
    embedded = model.embeddings(batch["input_ids"], batch["segment_ids"])
    _, expected = model.transformer_layers[0].self_attention(
        embedded, batch["input_mask"], return_attention=True
    )
    first = np.array(outputs["attention_probs"][0])
    np.testing.assert_allclose(first, expected, atol=1e-6)
    np.testing.assert_allclose(first.sum(axis=-1), 1, rtol=1e-5)
    assert (first * (1 - batch["input_mask"][:, None, None, :])).max() == 0


def test_left_to_right_later_tokens_never_change_earlier_outputs(
    tiny_config, make_batch, randomize
):
    one_sided = tiny_config.model_copy(update={"attention": "left_to_right"})
    two_sided = tiny_config
    batch = make_batch(tiny_config)
    changed = batch | {"input_ids": batch["input_ids"].copy()}
    changed["input_ids"][:, 4:] = (changed["input_ids"][:, 4:] + 7) % 40
    for config, early_change in ((one_sided, False), (two_sided, True)):
        model = encoder.BertEncoder(config)
        model.build()
        randomize(model)
        difference = np.abs(
            np.array(model(batch)["sequence_output"])
            - np.array(model(changed)["sequence_output"])
        ).max(axis=(0, 2))
        assert (difference[:4].min() > 1e-3) == early_change
        assert (difference[:4].max() == 0) != early_change
        assert difference[4:].min() > 1e-3


def test_no_two_parts_share_a_seed():
    config = BASE.model_copy(update={"hidden_size": 12, "vocab_size": 40})
    model = encoder.BertEncoder(config, seed=12345)
    model.build()
    dropouts = [
        layer for layer in model._flatten_layers() if isinstance(layer, dropout.Dropout)
    ]
    assert len(dropouts) == 1 + 3 * config.num_hidden_layers
    assert len({layer.salt for layer in dropouts}) == len(dropouts)
    matrices = [
        v.numpy() for v in model.trainable_variables if v.name not in NOT_RANDOM
    ]
    assert len(matrices) == 3 + 4 * config.num_hidden_layers + 1
    for one, another in itertools.combinations(matrices, 2):
        assert one.flat[0] != another.flat[0]


NOT_RANDOM = ("bias", "gamma", "beta")


def test_mixed_precision_is_near_full_precision(tiny_config, make_batch, randomize):
    batch = make_batch(tiny_config)
    full = encoder.BertEncoder(tiny_config)
    mixed = encoder.BertEncoder(tiny_config, dtype="mixed_bfloat16")
    for model in (full, mixed):
        model.build()
        randomize(model, stddev=0.1)
    assert {v.dtype for v in mixed.trainable_variables} == {"float32"}
    expected = np.array(full(batch)["sequence_output"])
    outputs = mixed(batch)["sequence_output"]
    assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"
    difference = np.abs(np.float32(outputs) - expected)
    # bfloat16 has 8 bits: 0.004 for one rounding of a number around 1.
    assert 0 < difference.mean() < 0.01
    assert difference.max() < 0.1
