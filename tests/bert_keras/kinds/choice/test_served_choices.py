"""Exported choosers: against `swag`."""

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from bert_keras import export
from bert_keras.checkpoints import run_directory, run_weights, starting_point
from bert_keras.core.settings import config, finetuning
from bert_keras.data import features, tokenization
from bert_keras.export import loading
from bert_keras.graphs import graph_tokenizer
from bert_keras.inference import finetuned
from bert_keras.kinds import registry
from bert_keras.kinds.choice import served_choices, swag

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, *LETTERS, *".,!?'日本", "the")
    + tuple(f"##{char}" for char in LETTERS)
)
QUESTIONS = [
    swag.Question("The cat sat.", "It", ("slept.", "ran", "", "日本 é"), None, 0),
    swag.Question("", "the", ("a " * 30, "b", "c!", "\u200b"), None, 0),
    swag.Question("the cat sat, " * 9, "", ("", "a", "b c " * 9, " "), None, 0),
    swag.Question(" ", "\x00", ("", "", "x" * 300, "🙂"), None, 0),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("choice")


@pytest.fixture(scope="module")
def made(folder, randomize) -> run_directory.Run:
    """A finished run with random weights."""
    made = run_directory.Run(
        directory=folder / "run",
        task=config.Task(kind="choice"),
        bert_config=config.BertConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=40,
        ),
        vocabulary=VOCABULARY,
        do_lower_case=True,
    )
    made.directory.mkdir()
    settings = finetuning.FinetuningConfig(task="choice", max_seq_length=20)
    run_directory.describe_run(made, settings)
    network = registry.build_network(made.bert_config, made.task, seed=0)
    randomize(network, stddev=0.5)
    run_weights.finish_run(made, network, {"steps": 0})
    return made


@pytest.fixture(scope="module")
def network(made):
    network = registry.build_network(made.bert_config, made.task)
    run_weights.load_weights(made, network)
    return network


@pytest.fixture(scope="module")
def exported(made, folder):
    """Signatures."""
    export.export_model(made.directory, folder / "1")
    return tf.saved_model.load(str(folder / "1")).signatures


def as_strings(questions) -> dict[str, tf.Tensor]:
    return {
        "sentence": tf.constant([q.sentence for q in questions]),
        "beginning": tf.constant([q.beginning for q in questions]),
        "endings": tf.constant([q.endings for q in questions]),
    }


@pytest.mark.slow
def test_an_export_answers_as_the_network_does(made, network, exported):
    tokenized = swag.tokenize(QUESTIONS, made.tokenizer, max_seq_length=20)
    ids = tokenized.batch(np.arange(len(QUESTIONS)))
    wanted = scipy.special.softmax(network(ids, training=False)["logits"], axis=-1)
    assert wanted.shape == (4, 4)
    assert len(set(wanted.argmax(axis=-1))) > 1  # or this test would see little
    for found in (
        exported["serving_default"](**as_strings(QUESTIONS)),
        exported["ids"](**{name: tf.constant(value) for name, value in ids.items()}),
    ):
        np.testing.assert_allclose(found["probabilities"], wanted, atol=1e-5)
        assert found["best"].numpy().tolist() == wanted.argmax(axis=-1).tolist()


@pytest.mark.slow
def test_an_export_chooses_as_predict_does(made, exported, tmp_path):
    questions = QUESTIONS[:3]
    with (tmp_path / "dev.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["sent1", "sent2", *(f"ending{i}" for i in range(4))])
        rows.writerows([q.sentence, q.beginning, *q.endings] for q in questions)
    finetuned.predict(made.directory, tmp_path / "dev.csv", tmp_path / "answers.tsv")
    lines = (tmp_path / "answers.tsv").read_text().splitlines()[1:]
    best, *probabilities = zip(*(line.split("\t")[6:] for line in lines), strict=True)
    found = exported["serving_default"](**as_strings(questions))
    assert found["best"].numpy().tolist() == list(map(int, best))
    np.testing.assert_allclose(
        found["probabilities"], np.array(probabilities, float).T, atol=1e-5
    )


@pytest.mark.slow
def test_any_number_of_endings(exported):
    wanted = exported["serving_default"](**as_strings(QUESTIONS))["probabilities"]
    fewer = [q._replace(endings=q.endings[1:3]) for q in QUESTIONS]
    found = exported["serving_default"](**as_strings(fewer))["probabilities"].numpy()
    kept = wanted.numpy()[:, 1:3]
    np.testing.assert_allclose(found, kept / kept.sum(1, keepdims=True), atol=1e-5)
    none = {
        "sentence": tf.constant([], tf.string),
        "beginning": tf.constant([], tf.string),
        "endings": tf.zeros([0, 4], tf.string),
    }
    found = exported["serving_default"](**none)
    assert found["best"].shape == (0,)
    assert found["probabilities"].shape == (0, 4)


@pytest.mark.slow
def test_signatures_are_as_documented(exported):
    strings, ids = exported["serving_default"], exported["ids"]
    assert strings.structured_input_signature[1] == {
        "sentence": tf.TensorSpec([None], tf.string, "sentence"),
        "beginning": tf.TensorSpec([None], tf.string, "beginning"),
        "endings": tf.TensorSpec([None, None], tf.string, "endings"),
    }
    assert ids.structured_input_signature[1] == {
        name: tf.TensorSpec([None, None, None], tf.int32, name)
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    for signature in (strings, ids):
        outputs = signature.structured_outputs
        assert {n: (s.shape.rank, s.dtype) for n, s in outputs.items()} == {
            "best": (1, tf.int32),
            "probabilities": (2, tf.float32),
        }


def test_ids_are_those_of_a_dev_file(shared_data, made):
    path = shared_data / "vocab/uncased_L-12_H-768_A-12/vocab.txt"
    vocabulary = tokenization.Vocabulary.load(path)
    tokenizer = tokenization.Tokenizer(vocabulary, do_lower_case=True)
    checkpoint = starting_point.read_with_tokenizer(made.directory)
    model = served_choices.Choices(loading.load(checkpoint, path=made.directory))
    model.vocabulary = vocabulary
    model._tokenizer = graph_tokenizer.GraphTokenizer(vocabulary, do_lower_case=True)
    questions = swag.read(shared_data / "multiple_choice/codah_swag_format/val.csv")
    assert len(questions) == 556
    for max_seq_length in (128, 24):
        model.max_seq_length = max_seq_length
        wanted = swag.tokenize(questions, tokenizer, max_seq_length=max_seq_length)
        found = model.encode(*as_strings(questions).values())
        for name, values in wanted.batch(np.arange(556)).items():
            np.testing.assert_array_equal(found[name], values)


def test_files_that_take_ids(made, network, folder):
    pytest.importorskip("tf2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    interpreters = pytest.importorskip("ai_edge_litert.interpreter")
    export.export_model(made.directory, folder / "litert", to="litert")
    export.export_model(made.directory, folder / "onnx", to="onnx")
    session = onnxruntime.InferenceSession(folder / "onnx/model.onnx")
    lite = interpreters.Interpreter(str(folder / "litert/model.tflite"))
    axes = ["batch_size", "num_endings", "sequence_length"]
    assert [value.shape for value in session.get_inputs()] == [axes] * 3
    for num_endings in (4, 2):
        ids = swag.tokenize(QUESTIONS, made.tokenizer, max_seq_length=20).batch(
            np.arange(3)
        )
        ids = {name: values[:, :num_endings] for name, values in ids.items()}
        wanted = network(ids, training=False)["logits"]
        for found in (
            lite.get_signature_runner()(**ids)["logits"],
            session.run(["logits"], ids)[0],
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_settings_of_a_run_and_of_a_model_without(made, folder):
    checkpoint = starting_point.read_with_tokenizer(made.directory)
    model = served_choices.Choices(loading.load(checkpoint, path=made.directory))
    assert model.max_seq_length == 20
    # The checkpoint itself may say it, as those of other formats do.
    model = served_choices.Choices(loading.load(checkpoint, path=folder))
    assert model.max_seq_length == 20
    unknown = dataclasses.replace(checkpoint, max_seq_length=None)
    model = served_choices.Choices(loading.load(unknown, path=folder))
    assert model.max_seq_length == 40  # 128, or what positions there are
