"""`bert_keras.load`: the same answers as the command line, for every kind of model."""

import json
import re

import keras
import numpy as np
import pytest

import bert_keras
from bert_keras.checkpoints import conversion, native, weights
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config
from bert_keras.data import features, tokenization
from bert_keras.inference import finetuned
from bert_keras.kinds import registry

VOCABULARY = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, *(f"w{i}" for i in range(35)))
)
BERT_CONFIG = config.BertConfig(
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=256,
)
TASKS = {
    "encoder": config.Task(kind="encoder"),
    "pretraining": config.Task(kind="pretraining"),
    "classification": config.Task(kind="classification", labels=("no", "yes")),
    "regression": config.Task(kind="regression", has_text_pair=True),
    "tagging": config.Task(kind="tagging", labels=("O", "B-X", "I-X")),
    "span": config.Task(kind="span", has_text_pair=True),
    "choice": config.Task(kind="choice", has_text_pair=True),
    "embedding": config.Task(kind="embedding", pooling="mean", normalize=True),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory, randomize):
    """A function from a kind of task to a run directory with random weights."""
    root, made = tmp_path_factory.mktemp("runs"), {}

    def make(kind):
        if kind not in made:
            network = registry.build_network(BERT_CONFIG, TASKS[kind])
            randomize(network)
            checkpoint = weights.Checkpoint(
                bert_config=BERT_CONFIG,
                task=TASKS[kind],
                arrays=weights.from_network(network),
                vocabulary=VOCABULARY,
                do_lower_case=True,
            )
            made[kind] = root / kind
            made[kind].mkdir()
            native.write(checkpoint, made[kind])
        return made[kind]

    return make


def squad(*pairs):
    paragraphs = [
        {"context": context, "qas": [{"id": str(i), "question": question}]}
        for i, (question, context) in enumerate(pairs)
    ]
    return json.dumps({"version": "1.1", "data": [{"paragraphs": paragraphs}]})


QUESTIONS = [("w1 w2", "w3 w4 w5 w6 w7"), ("w9", "w8 w30 w2")]
CASES = {
    "classification": (
        ["w1 w2 w3", "w9", "w4 w5 w30 w2"],
        "in.tsv",
        "text\nw1 w2 w3\nw9\nw4 w5 w30 w2\n",
    ),
    "regression": (
        [("w1 w2", "w3"), ["w9", "w8 w7"]],
        "in.tsv",
        "text\ttext_pair\nw1 w2\tw3\nw9\tw8 w7\n",
    ),
    "tagging": (
        ["w1 w2 w3", ["w4", "unknown"]],
        "in.jsonl",
        '{"words": ["w1", "w2", "w3"]}\n{"words": ["w4", "unknown"]}\n',
    ),
    "span": (QUESTIONS, "in.json", squad(*QUESTIONS)),
    "choice": (
        [("w1", ["w2", "w3 w4", "w5", "w6"]), ("w7 w8", ("w9", "w1", "w2", "w3"))],
        "in.csv",
        "sent1,sent2,ending0,ending1,ending2,ending3\n"
        "w1,,w2,w3 w4,w5,w6\nw7 w8,,w9,w1,w2,w3\n",
    ),
}


def answers_of_the_command_line(kind, directory, path, output):
    """Those of `bert-keras predict`, in the form in which Python gives them."""
    finetuned.predict(directory, path, output)
    if kind == "span":
        best = json.loads((output / "nbest_predictions.json").read_text())
        return [
            {"prediction": text, "probability": best[key][0]["probability"]}
            for key, text in json.loads(
                (output / "predictions.json").read_text()
            ).items()
        ]
    text = output.read_text()
    if kind == "tagging":
        blocks = text.strip().split("\n\n")
        return [
            {"prediction": tuple(line.split()[-1] for line in block.splitlines())}
            for block in blocks
        ]
    header, *rows = [line.split("\t") for line in text.splitlines()]
    first = header.index("prediction")
    header, rows = header[first:], [row[first:] for row in rows]
    if kind == "regression":
        return [{"prediction": float(value)} for (value,) in rows]
    names = [re.fullmatch(r"p\((.*)\)", name)[1] for name in header[1:]]
    answers = []
    for prediction, *values in rows:
        probabilities = dict(zip(names, map(float, values), strict=True))
        if kind == "choice":
            prediction, probabilities = int(prediction), (*probabilities.values(),)
        answers.append({"prediction": prediction, "probabilities": probabilities})
    return answers


@pytest.mark.parametrize("kind", CASES)
def test_predicts_as_the_command_line_does(kind, run, tmp_path):
    texts, name, content = CASES[kind]
    (tmp_path / name).write_text(content)
    expected = answers_of_the_command_line(
        kind, run(kind), tmp_path / name, tmp_path / "out"
    )
    model = bert_keras.load(run(kind))
    assert model.config == BERT_CONFIG
    assert model.task == TASKS[kind]
    assert model.tokenizer.encode("w1 W2") == [6, 7]
    assert len(expected) == len(texts)
    for answer, theirs in zip(model.predict(texts), expected, strict=True):
        answer = answer.model_dump()
        for key, value in theirs.items():
            # Files have six digits.
            is_label = key == "prediction" and kind != "regression"
            expected_value = value if is_label else pytest.approx(value, abs=2e-6)
            assert answer[key] == expected_value
    assert model.predict([]) == []


@pytest.mark.parametrize("to", ["google", "hugging_face", "keras_hub", "model_garden"])
def test_every_foreign_directory_gives_the_same_vectors(to, run, tmp_path):
    expected = bert_keras.load(run("encoder"))
    conversion.convert(run("encoder"), tmp_path / "out", to=to, approximate_gelu=True)
    model = bert_keras.load(tmp_path / "out")
    texts = [("w1", "w2"), ("w4", "w5 w6")]
    batch = expected.encode(texts)
    assert {name: values.tolist() for name, values in batch.items()} == {
        "input_ids": [[2, 6, 3, 7, 3, 0], [2, 9, 3, 10, 11, 3]],
        "input_mask": [[1, 1, 1, 1, 1, 0], [1] * 6],
        "segment_ids": [[0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1]],
    }
    for name, values in model.encode(texts).items():
        np.testing.assert_array_equal(values, batch[name])
    # GELU's tanh form is all that some formats have.
    np.testing.assert_allclose(
        model.network(batch)["sequence_output"],
        expected.network(batch)["sequence_output"],
        atol=0.01,
    )


def test_the_encoder_of_vectors_is_trained_whole(run, tmp_path):
    path = tmp_path / "vectors"
    conversion.convert(run("embedding"), path, to="sentence_transformers")
    model = bert_keras.load(path)
    encoder = model.encoder
    assert len(encoder.trainable_variables) == len(encoder.weights)
    pooler = model.network.encoder.pooler
    assert len(model.network.trainable_variables) == len(model.network.weights) - 2
    assert not pooler.trainable
    inputs = model.encode(["a b", "c"])
    expected = model.network.encoder(inputs)
    for name, values in encoder(inputs).items():
        np.testing.assert_array_equal(values, expected[name])
    encoder.pooler.trainable = False
    assert not model.encoder.pooler.trainable


def test_a_foreign_tuned_model_predicts(run, tmp_path):
    conversion.convert(run("classification"), tmp_path / "hf", to="hugging_face")
    texts = CASES["classification"][0]
    model = bert_keras.load(tmp_path / "hf")
    assert model.predict(texts) == bert_keras.load(run("classification")).predict(texts)
    # Nothing there says whether it was tuned on pairs.
    (answer,) = model.predict([("w1 w2", "w3")])
    logits = model.network(model.encode([("w1 w2", "w3")]))["logits"]
    np.testing.assert_allclose(
        [*answer.probabilities.values()], keras.ops.softmax(logits)[0], rtol=1e-5
    )


def test_a_model_that_is_not_tuned_gives_vectors_only(run):
    model = bert_keras.load(run("pretraining"))
    assert model.tuned is None
    with pytest.raises(InputError) as caught:
        model.predict(["w1"])
    assert str(caught.value) == (
        "`predict` needs a model that was tuned on a task, but this one is for "
        "pretraining: call `network(encode(texts))` for its outputs"
    )
    cut = model.encode(["w1 w2 w3 w4"], max_seq_length=4)
    assert cut["input_ids"].tolist() == [[2, 6, 7, 3]]
    assert model.encoder is model.network.encoder
    encoder = bert_keras.load(run("encoder"))
    assert encoder.encoder is encoder.network


def test_without_a_vocabulary_there_is_a_network(run, tmp_path):
    conversion.convert(run("encoder"), tmp_path / "hf", to="hugging_face")
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "hf" / name).unlink(missing_ok=True)
    model = bert_keras.load(tmp_path / "hf")
    assert model.tokenizer is None
    ids = np.array([[2, 6, 3]])
    np.testing.assert_array_equal(
        model.network({"input_ids": ids})["pooled_output"],
        bert_keras.load(run("encoder")).network({"input_ids": ids})["pooled_output"],
    )
    with pytest.raises(InputError, match="has no vocabulary, or does not say"):
        model.encode(["w1"])


def test_precision_can_be_chosen(run):
    model = bert_keras.load(run("encoder"), precision="mixed_bfloat16")
    outputs = model.network(model.encode(["w1"]))["pooled_output"]
    assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"


@pytest.mark.parametrize(
    ("kind", "texts", "message"),
    [
        ("classification", "w1", "expected a list of texts, got one string: put it"),
        ("classification", [3], "example 1: expected a string, got 3"),
        ("classification", [("w1", "w2")], "example 1: expected a string, got ("),
        ("regression", [("w1", "w2"), "w3"], "example 2: expected a pair of strings"),
        ("tagging", ["w1", " "], "example 2: expected a string, or a list of words"),
        ("span", ["w1"], "example 1: expected a question and its context, got 'w1'"),
        ("choice", [("w1", ["w2"])], "example 1: expected a text, the beginning of"),
    ],
)
def test_texts_of_another_form_are_refused(kind, texts, message, run):
    with pytest.raises(InputError, match=re.escape(message)):
        bert_keras.load(run(kind)).predict(texts)


def test_answers_need_tensorflow(run, monkeypatch):
    model = bert_keras.load(run("classification"))
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(InputError) as caught:
        model.predict(["w1"])
    assert str(caught.value) == (
        "`predict` needs TensorFlow, but Keras runs on jax: call "
        "`network(encode(texts))` instead"
    )


def test_no_texts_have_no_features(run):
    with pytest.raises(InputError, match="expected at least one example, got none"):
        bert_keras.load(run("encoder")).encode([])
