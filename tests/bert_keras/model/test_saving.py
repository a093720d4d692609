"""Networks as parts of stock Keras: functional models, `fit`, and `.keras` files."""

from pathlib import Path

import keras
import numpy as np
import pytest

import bert_keras
from bert_keras import keras_names
from tests import conftest

HERE = Path(__file__).parent
CONFIG = conftest.TINY
NETWORKS = {
    "encoder": lambda: bert_keras.BertEncoder(CONFIG),
    "classes": lambda: bert_keras.BertClassifier(CONFIG, 3),
    "number": lambda: bert_keras.BertClassifier(CONFIG, 1),
    "labels": lambda: bert_keras.BertMultiLabelClassifier(CONFIG, 3),
    "tags": lambda: bert_keras.BertTagger(CONFIG, 3),
    "span": lambda: bert_keras.BertSpanPredictor(CONFIG),
    "choice": lambda: bert_keras.BertChooser(CONFIG),
    "ranking": lambda: bert_keras.BertRanker(CONFIG),
    "embedding": lambda: bert_keras.BertEmbedder(CONFIG, pooling="cls"),
    "pretraining": lambda: bert_keras.BertPretrainer(CONFIG, next_sentence=False),
    "classes_bilstm": lambda: bert_keras.BertClassifier(CONFIG, 3, bilstm_units=5),
    "tags_bilstm": lambda: bert_keras.BertTagger(CONFIG, 3, bilstm_units=5),
    "span_bilstm": lambda: bert_keras.BertSpanPredictor(CONFIG, bilstm_units=5),
    "choice_bilstm": lambda: bert_keras.BertChooser(CONFIG, bilstm_units=5),
    "mixed": lambda: bert_keras.BertClassifier(CONFIG, 3, dtype="mixed_bfloat16"),
}

TRAINED = {
    # As Keras does it if it is not told, which is with XLA; that compiles for long.
    "encoder": "auto",
    **dict.fromkeys(
        ("classes", "number", "tags", "span", "choice", "pretraining"), False
    ),
}
"""Networks that are trained, with `jit_compile`, and saved alone too."""


def features_of(name):
    """Four examples, without what may be left out."""
    random = np.random.default_rng(5)
    shape = (4, 2, 8) if name.startswith("choice") else (4, 8)
    features = {"input_ids": random.integers(1, 40, shape, dtype="int32")}
    if name == "pretraining":
        features["masked_lm_positions"] = random.integers(8, size=(4, 2), dtype="int32")
    return features


def functional(network, features):
    """A stock model around a network, with a stock layer on an encoder."""
    inputs = {
        name: keras.Input(values.shape[1:-1] + (None,), dtype="int32", name=name)
        for name, values in features.items()
    }
    outputs = network(inputs)
    if "pooled_output" in outputs:
        outputs = {"logits": keras.layers.Dense(2)(outputs["pooled_output"])}
    return keras.Model(inputs, outputs)


def fit(model, features, *, jit_compile):
    """Some steps of stock training on random labels; returns the loss of each."""
    random = np.random.default_rng(6)
    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss, labels = {}, {}
    for key, values in model(features).items():
        is_number = values.shape[-1] == 1
        loss[key] = "mse" if is_number else cross_entropy
        shape = tuple(values.shape) if is_number else tuple(values.shape)[:-1]
        labels[key] = random.integers(2, size=shape)
    optimizer = keras.optimizers.Adam(0.02)
    model.compile(optimizer=optimizer, loss=loss, jit_compile=jit_compile)
    return model.fit(features, labels, epochs=8, verbose=0).history["loss"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory of `.keras` files, functional models, one of them compiled and
    trained, and networks alone; and the outputs of all."""
    directory = tmp_path_factory.mktemp("saved")
    features, outputs = {}, {}
    for name, make in NETWORKS.items():
        batch = features_of(name)
        kinds = {name: functional(make(), batch)}
        if name == "classes":
            fit(kinds[name], batch, jit_compile=False)
        if name in TRAINED:
            kinds[f"{name}_alone"] = make()
            kinds[f"{name}_alone"].build()
        for file_name, network in kinds.items():
            network.save(directory / f"{file_name}.keras")
            features |= {f"{file_name}/{key}": value for key, value in batch.items()}
            found = network(batch)
            outputs |= {f"{file_name}/{key}": value for key, value in found.items()}
    np.savez(directory / "features.npz", **features)
    outputs = {key: np.asarray(value, "float32") for key, value in outputs.items()}
    return directory, outputs


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.slow
def test_stock_training_lowers_the_loss(name):
    batch = features_of(name)
    model = functional(NETWORKS[name](), batch)
    losses = fit(model, batch, jit_compile=TRAINED[name])
    assert np.mean(losses[-2:]) < 0.95 * losses[0], losses


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_files_open_in_a_process_that_only_imported_bert_keras(saved, backend):
    pytest.importorskip(backend)
    directory, expected = saved
    environment = {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}
    script = HERE / "reload_networks.py"
    conftest.run_python(script, directory, environment=environment)
    found = dict(np.load(directory / "outputs.npz"))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.std(values.astype(float)) > 0, name
        atol = 0 if backend == "tensorflow" else 1e-4
        atol = 0.05 if atol and name.startswith("mixed") else atol
        np.testing.assert_allclose(found[name], values, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("name", ["choice", "pretraining"])
def test_mask_and_segments_may_be_left_out(name):
    network, features = NETWORKS[name](), features_of(name)
    ids = features["input_ids"]
    full = {"input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    expected = network({**features, **full})
    for names in ((), ("input_mask",), ("segment_ids",)):
        found = network({**features, **{key: full[key] for key in names}})
        for key, values in expected.items():
            np.testing.assert_array_equal(found[key], values)
    other = network({**features, "segment_ids": np.ones_like(ids)})
    for key, values in expected.items():
        assert np.abs(np.subtract(other[key], values)).max() > 1e-4


@pytest.mark.parametrize("is_part", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_files_remember_weights_and_what_is_frozen(is_part, tmp_path):
    network = bert_keras.BertEmbedder(CONFIG, seed=4, name="mine")
    network.build()
    network.encoder.pooler.trainable = True  # frozen by the network itself
    network.encoder.transformer_layers[0].trainable = False
    network.encoder.word_embeddings.trainable = False
    batch = features_of("embedding")
    model = functional(network, batch) if is_part else network
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for name, values in model(batch).items():
        np.testing.assert_array_equal(loaded(batch)[name], values)
    paths = [[v.path for v in m.trainable_variables] for m in (loaded, model)]
    assert paths[0] == paths[1] and len(paths[0]) < len(model.weights)
    found = loaded.get_layer("mine") if is_part else loaded
    assert (found.config, found.seed, found.name) == (CONFIG, 4, "mine")
    assert not found.encoder.transformer_layers[0].trainable
    assert not found.encoder.word_embeddings.trainable
    assert found.encoder.pooler.trainable


def test_every_class_that_keras_may_save_has_a_name():
    """The names are kept by hand: the decorators say the rest."""
    for module, names in keras_names.classes().items():
        loaded = __import__(module, fromlist=names)
        for name in names:
            found = getattr(loaded, name)
            assert keras.saving.get_registered_name(found) == f"bert_keras>{name}"
    registered = {
        name.removeprefix("bert_keras>")
        for name in keras.saving.get_custom_objects()
        if name.startswith("bert_keras>")
    }
    listed = [name for names in keras_names.classes().values() for name in names]
    assert sorted(registered) == sorted(listed)


def test_the_door_names_what_it_has():
    assert set(bert_keras.__all__) <= set(dir(bert_keras))
    for name in bert_keras.__all__:
        assert getattr(bert_keras, name) is not None
    with pytest.raises(AttributeError, match="'bert_keras' has no attribute 'Bert'"):
        _ = bert_keras.Bert
