import itertools

import keras
import numpy as np
import pytest

from bert_keras.core.settings.architecture import BertConfig
from bert_keras.kinds.text import network as text_network
from bert_keras.model import dropout, encoder
from tests import conftest

BASE = BertConfig()
LARGE = BertConfig(
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
)
CONFIG = conftest.TINY.model_copy(update={"num_hidden_layers": 2})
INPUTS = ("input_ids", "input_mask", "segment_ids")


@pytest.fixture(scope="module")
def model(randomize) -> encoder.BertEncoder:
    model = encoder.BertEncoder(CONFIG, seed=6)
    model.build()
    randomize(model)
    return model


@pytest.fixture
def batch(make_batch) -> dict[str, np.ndarray]:
    full = make_batch(CONFIG)
    return {name: full[name] for name in INPUTS}


@pytest.mark.parametrize(
    ("config", "num_parameters"), [(BASE, 109_482_240), (LARGE, 335_141_888)]
)
def test_has_as_many_parameters_as_the_paper_says(config, num_parameters):
    # Variables have shapes, but no values.
    with keras.StatelessScope(initialize_variables=False):
        model = encoder.BertEncoder(config)
        model.build()
    assert model.count_params() == num_parameters
    shapes = {v.path.partition("/")[2]: v.shape for v in model.trainable_variables}
    size = config.hidden_size
    assert shapes["embeddings/word_embeddings"] == (30522, size)
    assert shapes["layer_0/self_attention/query_key_value/kernel"] == (size, 3 * size)
    assert len(shapes) == 5 + 12 * config.num_hidden_layers + 2


def test_hugging_faces_names_are_taken(model, batch):
    names = ("input_ids", "attention_mask", "token_type_ids")
    theirs = dict(zip(names, batch.values(), strict=True))
    for network in (model, text_network.BertClassifier(CONFIG, 3)):
        pairs = (keras.tree.flatten(network(inputs)) for inputs in (batch, theirs))
        for first, second in zip(*pairs, strict=True):
            np.testing.assert_array_equal(first, second)
    with pytest.raises(ValueError, match="both 'attention_mask' and 'input_mask'"):
        model(theirs | batch)


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
def test_an_unknown_feature_is_not_ignored(model, batch, name, message):
    with pytest.raises(ValueError, match=message):
        model({**batch, name: batch["input_mask"]})


def test_inputs_that_are_missing_or_too_long_are_refused(model, batch):
    with pytest.raises(ValueError, match="expected 'input_ids', got input_mask"):
        model({"input_mask": batch["input_mask"]})
    message = "33 tokens is longer than .*max_position_embeddings.* 32"
    with pytest.raises(ValueError, match=message):
        model({name: np.pad(x, ((0, 0), (0, 17))) for name, x in batch.items()})


def test_all_layers_and_attention_maps_come_on_request(model, batch):
    assert set(model(batch)) == {"sequence_output", "pooled_output"}
    outputs = model(batch, return_all_layers=True, return_attention=True)
    embedded, first, last = outputs["encoder_outputs"]
    np.testing.assert_array_equal(last, outputs["sequence_output"])
    layer, mask = model.transformer_layers[0], batch["input_mask"]
    own = model.embeddings(batch["input_ids"], batch["segment_ids"])
    np.testing.assert_allclose(embedded, own, atol=1e-6)
    np.testing.assert_allclose(first, layer(embedded, mask), atol=1e-6)
    assert len(outputs["attention_probs"]) == CONFIG.num_hidden_layers
    attention = layer.self_attention(embedded, mask, return_attention=True)
    found = np.array(outputs["attention_probs"][0])
    np.testing.assert_allclose(found, attention[1], atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=-1), 1, rtol=1e-5)
    assert (found * (1 - mask[:, None, None, :])).max() == 0


def test_the_seed_alone_decides_weights_and_dropout(batch):
    def outputs(seed, global_seed, num_calls=2):
        keras.utils.set_random_seed(global_seed)
        model = encoder.BertEncoder(CONFIG, seed=seed)
        calls = [model(batch, training=True) for _ in range(num_calls)]
        return [np.array(found["sequence_output"]) for found in calls]

    first, second = outputs(6, 1)
    np.testing.assert_array_equal(outputs(6, 2), [first, second])
    assert np.abs(first - second).max() > 0.1  # another mask at each step
    assert np.abs(first - outputs(7, 1, 1)[0]).max() > 0.1


def test_all_masks_are_used(batch):
    """Each dropout, alone, changes the output in training."""
    model = encoder.BertEncoder(CONFIG, seed=6)
    batch = batch | {"dropout_seeds": np.arange(4)}
    quiet = np.array(model(batch)["sequence_output"])
    parts = [x for x in model._flatten_layers() if isinstance(x, dropout.Dropout)]
    assert [part.rate for part in parts] == [0.1] * 7
    for chosen in parts:
        for part in parts:
            part.rate = 0.5 if part is chosen else 0.0
        outputs = np.array(model(batch, training=True)["sequence_output"])
        assert np.abs(outputs - quiet).max() > 1e-4, chosen.path


def test_left_to_right_no_token_sees_a_later_one(batch, randomize):
    config = CONFIG.model_copy(update={"attention": "left_to_right"})
    model = encoder.BertEncoder(config)
    model.build()
    randomize(model)
    batch["input_mask"][0, 0] = 0  # hidden even from itself
    changed = batch | {"input_ids": batch["input_ids"].copy()}
    changed["input_ids"][:, 4:] = (changed["input_ids"][:, 4:] + 7) % 40
    states = (model(inputs)["sequence_output"] for inputs in (batch, changed))
    difference = np.abs(np.subtract(*states)).max(axis=(0, 2))
    assert difference[:4].max() == 0 and difference[4:].min() > 1e-3
    seen = np.tril(np.ones((16, 16), bool))
    seen[1:, 0] = False
    for probabilities in model(batch, return_attention=True)["attention_probs"]:
        np.testing.assert_array_equal(np.array(probabilities[0]) > 0, [seen] * 4)


def test_no_two_parts_share_a_seed():
    config = CONFIG.model_copy(update={"num_hidden_layers": 4})
    model = encoder.BertEncoder(config, seed=12345)
    model.build()
    layers = model._flatten_layers()
    salts = [layer.salt for layer in layers if isinstance(layer, dropout.Dropout)]
    assert len(set(salts)) == len(salts) == 1 + 3 * config.num_hidden_layers
    constant = ("bias", "gamma", "beta")
    matrices = [v.numpy() for v in model.trainable_variables if v.name not in constant]
    assert len(matrices) == 3 + 4 * config.num_hidden_layers + 1
    for one, another in itertools.combinations(matrices, 2):
        assert one.flat[0] != another.flat[0]
