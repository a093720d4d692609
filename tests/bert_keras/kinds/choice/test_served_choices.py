"""Exported choosers: against `swag`."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from bert_keras import export
from bert_keras.checkpoints import conversion
from bert_keras.core.settings import finetuning
from bert_keras.data import features, tokenization
from bert_keras.export import writing
from bert_keras.kinds.choice import dataset, served_choices
from tests import make

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, *LETTERS, *".,!?'日本", "the")
    + tuple(f"##{char}" for char in LETTERS)
)
QUESTIONS = [
    dataset.Question("The cat sat.", "It", ("slept.", "ran", "", "日本 é"), None, 0),
    dataset.Question("", "the", ("a " * 30, "b", "c!", "\u200b"), None, 0),
    dataset.Question("the cat sat, " * 9, "", ("", "a", "b c " * 9, " "), None, 0),
    dataset.Question(" ", "\x00", ("", "", "x" * 300, "🙂"), None, 0),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory, randomize) -> Path:
    """A finished run with random weights."""
    return make.make_run(
        tmp_path_factory.mktemp("choice") / "run",
        VOCABULARY,
        settings=finetuning.FinetuningConfig(task="choice", max_seq_length=20),
        change=lambda network: randomize(network, stddev=0.5),
        kind="choice",
    )


@pytest.fixture
def model(directory) -> served_choices.Choices:
    return make.served(directory)


def ids_of(questions, model) -> dict[str, np.ndarray]:
    data = dataset.ChoiceDataset(path="x", rows=questions, has_labels=False)
    inputs = data.encode(data.describe(), model.tokenizer, model.trained.settings)
    return inputs.batch(np.arange(len(questions)))


def as_strings(questions) -> dict[str, tf.Tensor]:
    return {
        "sentence": tf.constant([q.text for q in questions], tf.string),
        "beginning": tf.constant([q.beginning for q in questions], tf.string),
        "endings": tf.constant([q.endings for q in questions], tf.string),
    }


def test_a_graph_answers_as_the_network_does(model):
    ids = ids_of(QUESTIONS, model)
    wanted = scipy.special.softmax(model.network(ids)["logits"], axis=-1)
    assert wanted.shape == (4, 4)
    assert len(set(wanted.argmax(axis=-1))) > 1  # or this test would see little
    signatures, strings = model.signatures(), as_strings(QUESTIONS)
    for name, inputs in (("serving_default", strings), ("ids", ids)):
        found = signatures[name].answer(*map(tf.constant, inputs.values()))
        np.testing.assert_allclose(found["probabilities"], wanted, atol=1e-5)
        assert found["best"].numpy().tolist() == wanted.argmax(axis=-1).tolist()
    fewer = strings | {"endings": strings["endings"][:, 1:3]}
    found = signatures["serving_default"].answer(*fewer.values())["probabilities"]
    kept = wanted[:, 1:3]
    np.testing.assert_allclose(found, kept / kept.sum(1, keepdims=True), atol=1e-5)
    none = {name: values[:0] for name, values in strings.items()}
    found = signatures["serving_default"].answer(*none.values())
    assert (found["best"].shape, found["probabilities"].shape) == ((0,), (0, 4))


@pytest.mark.slow
def test_a_file_takes_any_number_of_endings(directory, model):
    pytest.importorskip("tf2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    export.export_model(directory, directory.parent / "onnx", to="onnx")
    session = onnxruntime.InferenceSession(directory.parent / "onnx/model.onnx")
    axes = ["batch_size", "num_endings", "sequence_length"]
    assert [value.shape for value in session.get_inputs()] == [axes] * 3
    ids = {name: v[:, :2] for name, v in ids_of(QUESTIONS[:3], model).items()}
    [logits] = session.run(["logits"], ids)
    np.testing.assert_allclose(
        logits, model.network(ids)["logits"], rtol=1e-4, atol=1e-5
    )


def test_settings_of_a_run_and_of_a_model_without(directory, monkeypatch):
    # The checkpoint itself may say it, as those of other formats do.
    checkpoint = conversion.read_with_tokenizer(directory)
    checkpoint = dataclasses.replace(checkpoint, settings=None)
    unknown = dataclasses.replace(checkpoint, max_seq_length=None)
    for source, expected in ((checkpoint, 20), (unknown, 24)):
        read = {directory: source}.get
        monkeypatch.setattr(conversion, "read_with_tokenizer", read)
        # 128, or what positions there are
        assert writing.load(directory).max_seq_length == expected
