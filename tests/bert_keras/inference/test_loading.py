"""`bert_keras.load`: models of every format, their answers and encoders."""

import dataclasses
import functools

import keras
import numpy as np
import pytest

import bert_keras
from bert_keras.checkpoints import conversion, native, weights
from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.inference import finetuned
from bert_keras.kinds import registry
from tests.bert_keras.checkpoints.formats import making

pytestmark = pytest.mark.usefixtures("eagerly")

BERT_CONFIG = making.CONFIG.model_copy(
    update={"num_hidden_layers": 1, "max_position_embeddings": 256}
)
TASKS = making.TASKS | {"regression": tasks.Task(kind="regression", has_text_pair=True)}


def make_checkpoint(kind):
    task = TASKS[kind]
    return making.make_checkpoint(
        task=task, bert_config=BERT_CONFIG, vocabulary=making.WORDS
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A function from a kind of task to a run directory with random weights."""
    root = tmp_path_factory.mktemp("runs")

    @functools.cache
    def make(kind):
        (root / kind).mkdir()
        native.write(make_checkpoint(kind), root / kind)
        return root / kind

    return make


@pytest.fixture(scope="module")
def model(run):
    """A function from a kind of task to its loaded model."""
    return functools.cache(lambda kind: bert_keras.load(run(kind)))


TEXTS = {
    "classification": ["w1 w2 w3", "w9", "w4 w5 w30 w2"],
    "regression": [("w1 w2", "w3"), ["w9", "w8 w7"]],
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_run_answers_as_its_tuned_model(kind, run, model):
    """Which answers Python as it answers files: a law of all kinds."""
    loaded = model(kind)
    assert loaded.config == BERT_CONFIG
    assert loaded.task == TASKS[kind]
    assert loaded.tokenizer.encode("w1 W2") == [6, 7]
    tuned = finetuned.FinetunedModel.load(run(kind))
    assert loaded.predict(iter(TEXTS[kind])) == tuned.predict(TEXTS[kind])
    assert loaded.predict([]) == []


@pytest.mark.parametrize("to", ["google", "hugging_face", "keras_hub", "model_garden"])
def test_every_foreign_directory_gives_the_same_vectors(to, model, tmp_path):
    conversion.FORMATS[to].write(make_checkpoint("encoder"), tmp_path)
    expected, loaded = model("encoder"), bert_keras.load(tmp_path)
    texts = [("w1", "w2"), ("w4", "w5 w6")]
    batch = loaded.encode(texts)
    assert {name: values.tolist() for name, values in batch.items()} == {
        "input_ids": [[2, 6, 3, 7, 3, 0], [2, 9, 3, 10, 11, 3]],
        "input_mask": [[1, 1, 1, 1, 1, 0], [1] * 6],
        "segment_ids": [[0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1]],
    }
    np.testing.assert_array_equal(
        loaded.network(batch)["sequence_output"],
        expected.network(batch)["sequence_output"],
    )


def test_the_encoder_of_vectors_is_trained_whole(tmp_path):
    checkpoint = make_checkpoint("embedding")
    conversion.FORMATS["sentence_transformers"].write(checkpoint, tmp_path)
    loaded = bert_keras.load(tmp_path)
    encoder = loaded.encoder
    assert len(encoder.trainable_variables) == len(encoder.weights)
    pooler = loaded.network.encoder.pooler
    assert len(loaded.network.trainable_variables) == len(loaded.network.weights) - 2
    assert not pooler.trainable
    inputs = loaded.encode(["a b", "c"])
    expected = loaded.network.encoder(inputs)
    for name, values in encoder(inputs).items():
        np.testing.assert_array_equal(values, expected[name])
    encoder.pooler.trainable = False
    assert not loaded.encoder.pooler.trainable


@pytest.mark.parametrize("to", ["hugging_face", "keras_hub"])
def test_a_foreign_tuned_model_predicts(to, model, tmp_path):
    conversion.FORMATS[to].write(make_checkpoint("classification"), tmp_path)
    texts = TEXTS["classification"]
    loaded, expected = bert_keras.load(tmp_path), model("classification").predict(texts)
    assert loaded.predict(texts) == expected
    assert finetuned.FinetunedModel.load(tmp_path).predict(texts) == expected
    # Nothing there says whether it was tuned on pairs.
    (answer,) = loaded.predict([("w1 w2", "w3")])
    logits = loaded.network(loaded.encode([("w1 w2", "w3")]))["logits"]
    np.testing.assert_allclose(
        [*answer.probabilities.values()], keras.ops.softmax(logits)[0], rtol=1e-5
    )


NEW_TASKS = {
    "classification": (tasks.Task(kind="classification", labels=("a", "b")), "w1 w2"),
    "pairs": (
        tasks.Task(kind="classification", labels=("a", "b"), has_text_pair=True),
        ("w1", "w2"),
    ),
    "tagging": (tasks.Task(kind="tagging", labels=("O", "B-X")), ["w1", "w2", "w3"]),
    "span": (tasks.Task(kind="span"), ("w1", "w2 w3")),
    "choice": (tasks.Task(kind="choice"), ("w1", ["w2", "w3", "w4", "w5"])),
}


@pytest.mark.parametrize("name", NEW_TASKS)
def test_a_model_with_a_new_head_is_saved_as_a_run(name, run, tmp_path):
    task, example = NEW_TASKS[name]
    loaded = bert_keras.load(run("classification"), task=task)
    old, new = conversion.read(run("classification")), loaded.network
    making.assert_same_arrays(
        weights.part(weights.from_network(new), lambda n: n.startswith("encoder/")),
        weights.part(old.arrays, lambda n: n.startswith("encoder/")),
    )
    assert new.get_config().get("dropout_prob") in (0.1, None)
    for weight in new.weights:
        weight.assign_add(0.1 * keras.random.normal(weight.shape, seed=1))
    loaded.save(tmp_path / "saved")
    again = bert_keras.load(tmp_path / "saved")
    assert again.task == loaded.task
    assert again.task.has_text_pair == (name in ("pairs", "span", "choice"))
    making.assert_same_arrays(
        weights.from_network(again.network), weights.from_network(new)
    )
    assert again.predict([example]) == loaded.predict([example])
    # A tuned model is saved like one with a new head.
    again.save(tmp_path / "saved_again")
    kept = bert_keras.load(tmp_path / "saved_again")
    assert kept.predict([example]) == loaded.predict([example])
    conversion.convert(tmp_path / "saved", tmp_path / "theirs", to="hugging_face")
    needs = registry.find(task.kind).needs
    making.assert_same_arrays(
        weights.part(conversion.read(tmp_path / "theirs").arrays, needs),
        weights.part(weights.from_network(new), needs),
    )


def test_a_model_that_cannot_be_saved_or_get_a_head(run, model, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").touch()
    labels = ("a", "b")
    for act, message in (
        (
            lambda: model("pretraining").save(tmp_path / "x"),
            "`save` needs a model for a task, but this one is for pretraining: give "
            "`load` a `task`, or run `bert-keras pretrain --init`",
        ),
        (
            lambda: model("classification").save(tmp_path / "taken"),
            f"{tmp_path}/taken: exists already; choose another directory",
        ),
        (
            lambda: bert_keras.load(run("encoder"), task=tasks.Task(kind="tagging")),
            "a task of the kind tagging has `labels`",
        ),
        (
            lambda: bert_keras.load(
                run("encoder"), task=tasks.Task(kind="span", labels=labels)
            ),
            "a task of the kind span has no `labels`",
        ),
        (
            lambda: bert_keras.load(run("encoder"), task=tasks.Task(kind="encoder")),
            "expected a model for a task, got a model for encoder",
        ),
    ):
        with pytest.raises(InputError) as error:
            act()
        assert str(error.value) == message


def test_a_model_that_is_not_tuned_gives_vectors_only(model):
    loaded = model("pretraining")
    assert loaded.tuned is None
    message = (
        r"^`predict` needs a model that was tuned on a task, but this one is for "
        r"pretraining: call `encoder\(encode\(texts\)\)` for its vectors$"
    )
    with pytest.raises(InputError, match=message):
        loaded.predict(["w1"])
    vectors = loaded.encoder(loaded.encode(["w1", "w2 w3"]))["sequence_output"]
    assert vectors.shape[:2] == (2, 4)
    cut = loaded.encode(["w1 w2 w3 w4"], max_seq_length=4)
    assert cut["input_ids"].tolist() == [[2, 6, 7, 3]]
    assert loaded.encoder is loaded.network.encoder
    encoder = model("encoder")
    assert encoder.encoder is encoder.network
    with pytest.raises(InputError, match="expected at least one example, got none"):
        encoder.encode([])


def test_without_a_vocabulary_there_is_a_network(model, tmp_path):
    nameless = dataclasses.replace(make_checkpoint("encoder"), vocabulary=None)
    conversion.FORMATS["hugging_face"].write(nameless, tmp_path)
    loaded = bert_keras.load(tmp_path)
    assert loaded.tokenizer is None
    ids = np.array([[2, 6, 3]])
    np.testing.assert_array_equal(
        loaded.network({"input_ids": ids})["pooled_output"],
        model("encoder").network({"input_ids": ids})["pooled_output"],
    )
    with pytest.raises(InputError, match="has no vocabulary, or does not say"):
        loaded.encode(["w1"])


def test_precision_can_be_chosen(run):
    loaded = bert_keras.load(run("encoder"), precision="mixed_bfloat16")
    outputs = loaded.network(loaded.encode(["w1"]))["pooled_output"]
    assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"


def test_one_string_is_no_list_of_texts(model):
    message = "expected a list of texts, got one string: put it into a list"
    with pytest.raises(InputError, match=message):
        model("classification").predict("w1")


def test_answers_need_tensorflow(model, monkeypatch):
    loaded = model("classification")
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    message = r"needs TensorFlow, but Keras runs on jax: call `network\(encode\(texts"
    with pytest.raises(InputError, match=message):
        loaded.predict(["w1"])
