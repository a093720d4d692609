"""SavedModels that answer as the run they were made from."""

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import func_graph

from bert_keras import export
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.data import features, tokenization
from bert_keras.graphs import graph_tokenizer
from bert_keras.inference import finetuned
from tests import make

VOCABULARY = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, *"abcdefghijklmnopqrstuvwxyz", *"0123456789.,!?'")
    + tuple(f"##{char}" for char in "abcdefghijklmnopqrstuvwxyz")
    + ("日", "the", "σας", "и", "##ии")
)
TEXTS = [
    "the cat",
    "",
    " \t ",
    "The CAT! sat?",
    "Café ΣΑΣ日本 иии \u200d\ufffd",
    "a" * 300,
    "the cat sat, " * 20,
    "🙂 '' \u2028",
]
BFLOAT16 = "mixed_bfloat16"
PAIRS = ["", "a dog", "the cat sat, " * 20, "", "日", "b", "", "и"]


def make_run(directory: Path, randomize, **task) -> Path:
    """A finished fine-tuning run with random weights."""

    def change(network):
        randomize(network, stddev=0.6)
        network.head.classifier.bias.assign([0.0] * network.num_labels)

    settings = finetuning.FinetuningConfig(max_seq_length=20, precision=BFLOAT16)
    return make.make_run(
        directory, VOCABULARY, settings=settings, change=change, **task
    )


@pytest.fixture(scope="module")
def classifier(tmp_path_factory, randomize) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("classifier")
    labels = ("übel", "so so", "good")
    run = make_run(folder / "run", randomize, kind="classification", labels=labels)
    export.export_model(run, folder / "exported" / "1")
    return run, folder / "exported" / "1"


@pytest.fixture(scope="module")
def pair_regressor(tmp_path_factory, randomize) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("regressor")
    run = make_run(folder / "run", randomize, kind="regression", has_text_pair=True)
    export.export_model(run, folder / "1")
    return run, folder / "1"


def num_graphs() -> int:
    gc.collect()
    return sum(isinstance(x, func_graph.FuncGraph) for x in gc.get_objects())


@pytest.mark.slow
def test_no_graph_of_an_export_stays(pair_regressor, tmp_path):
    """TensorFlow's list of custom gradients kept them all, written and loaded."""
    before = num_graphs()
    export.export_model(pair_regressor[0], tmp_path / "again")
    assert num_graphs() == before


def ask(path: str, inputs: dict[str, list[str]]) -> dict[str, Any]:
    serve = tf.saved_model.load(path).signatures["serving_default"]
    found = serve(**{name: tf.constant(value) for name, value in inputs.items()})
    return {
        name: [text.decode() for text in value.numpy()]
        if value.dtype == tf.string
        else value.numpy().tolist()
        for name, value in found.items()
    }


# Prints the answers of each model as JSON; knows nothing of this project.
LOADER = """
import json, sys
import tensorflow as tf
import tensorflow_text
decode = lambda v: [t.decode() for t in v] if v.dtype == object else v.tolist()
answers = []
for path, inputs in json.loads(sys.argv[1]):
    serve = tf.saved_model.load(path).signatures["serving_default"]
    inputs = {name: tf.constant(value) for name, value in inputs.items()}
    answers.append({k: decode(v.numpy()) for k, v in serve(**inputs).items()})
project = [name for name in sys.modules if name.startswith("bert_keras")]
print(json.dumps([answers, project]))
"""


@pytest.fixture(
    scope="module", params=["here", pytest.param("elsewhere", marks=pytest.mark.slow)]
)
def served_answers(
    request, classifier, pair_regressor, tmp_path_factory
) -> list[dict[str, Any]]:
    """What the models answer, also in a process without this project."""
    questions = [
        (str(classifier[1]), {"text": TEXTS}),
        (str(pair_regressor[1]), {"text": TEXTS, "text_pair": PAIRS}),
    ]
    if request.param == "here":
        return [ask(path, inputs) for path, inputs in questions]
    done = subprocess.run(
        [sys.executable, "-I", "-c", LOADER, json.dumps(questions)],
        cwd=tmp_path_factory.mktemp("elsewhere"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers, project_modules = json.loads(done.stdout)
    assert project_modules == []
    return answers


def predictions(run: Path, folder: Path, texts, pairs=None) -> tuple[list, list]:
    """What `predict` writes, header and lines; weights of these runs are float32."""
    rows = [{"text": t} for t in texts]
    if pairs is not None:
        rows = [{"text": t, "text_pair": p} for t, p in zip(texts, pairs, strict=True)]
    source = folder / "texts.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = run / "config.yaml"
    settings.write_text(settings.read_text().replace("mixed_bfloat16", "float32"))
    finetuned.predict(run, source, folder / "answers.tsv")
    rows = (folder / "answers.tsv").read_text().removesuffix("\n").split("\n")
    header, *lines = (row.split("\t") for row in rows)
    first = header.index("prediction")
    return header[first:], [line[first:] for line in lines]


def test_strings_are_answered_as_predict_does(classifier, served_answers, tmp_path):
    run, model = classifier
    outputs = served_answers[0]
    header, lines = predictions(run, tmp_path, TEXTS)
    assert header == ["prediction", "p(übel)", "p(so so)", "p(good)"]
    assert outputs["label"] == [line[0] for line in lines]
    assert len(set(outputs["label"])) > 1  # or this test would see little
    wanted = np.array([line[1:] for line in lines], float)
    np.testing.assert_allclose(outputs["probabilities"], wanted, atol=2e-6)
    assert np.ptp(wanted, axis=0).min() > 0.01
    labels = (model / "assets.extra" / "labels.txt").read_text(encoding="utf-8")
    assert labels == "übel\nso so\ngood\n"


def test_pairs_give_scores(pair_regressor, served_answers, tmp_path):
    run, model = pair_regressor
    outputs = served_answers[1]
    header, lines = predictions(run, tmp_path, TEXTS, PAIRS)
    assert header == ["prediction"]
    wanted = np.array([line[0] for line in lines], float)
    np.testing.assert_allclose(outputs["score"], wanted, rtol=1e-5, atol=1e-6)
    assert np.ptp(wanted) > 0.1
    assert not (model / "assets.extra").exists()


def test_signatures_are_as_documented(classifier, pair_regressor):
    loaded = tf.saved_model.load(str(classifier[1]))
    strings = loaded.signatures["serving_default"]
    assert strings.structured_input_signature[1] == {
        "text": tf.TensorSpec([None], tf.string, "text")
    }
    outputs = {
        n: (s.shape.rank, s.dtype) for n, s in strings.structured_outputs.items()
    }
    assert outputs == {"probabilities": (2, tf.float32), "label": (1, tf.string)}
    ids = loaded.signatures["ids"]
    assert ids.structured_input_signature[1] == {
        name: tf.TensorSpec([None, None], tf.int32, name)
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    loaded = tf.saved_model.load(str(pair_regressor[1]))
    strings = loaded.signatures["serving_default"]
    assert sorted(strings.structured_input_signature[1]) == ["text", "text_pair"]
    outputs = {
        n: (s.shape.rank, s.dtype) for n, s in strings.structured_outputs.items()
    }
    assert outputs == {"score": (1, tf.float32)}


def test_ids_are_answered_and_padding_changes_nothing(classifier):
    signatures = tf.saved_model.load(str(classifier[1])).signatures
    from_text = signatures["serving_default"](text=tf.constant(["the cat"]))
    ids = [VOCABULARY.ids[t] for t in ("[CLS]", "the", "c", "##a", "##t", "[SEP]")]
    for padding in (0, 7):
        answers = signatures["ids"](
            input_ids=tf.constant([ids + [0] * padding]),
            input_mask=tf.constant([[1] * 6 + [0] * padding]),
            segment_ids=tf.zeros([1, 6 + padding], tf.int32),
        )
        np.testing.assert_allclose(
            answers["probabilities"], from_text["probabilities"], atol=1e-6
        )


@pytest.mark.parametrize(
    ("input_ids", "message"),
    [
        ([[1] * 65], r"expected 24 ids in a row at most, got\] \[1 65\]"),
        ([[1, 99]], r"expected ids from 0 to \d+, got\] \[99\]"),
        ([[-1, 1]], r"expected ids from 0 to \d+, got\] \[-1\]"),
    ],
)
def test_ids_that_the_model_cannot_take_are_refused(classifier, input_ids, message):
    ask = tf.saved_model.load(str(classifier[1])).signatures["ids"]
    ids = tf.constant(input_ids)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ask(input_ids=ids, input_mask=ids * 0 + 1, segment_ids=ids * 0)


def test_every_weight_is_stored_once(classifier):
    run, model = classifier
    network = finetuned.FinetunedModel.load(run).network
    stored = tf.train.list_variables(str(model / "variables" / "variables"))
    sizes = [np.prod(shape, dtype=int) for name, shape in stored if shape]
    assert sum(sizes) == network.count_params()


def test_an_empty_batch_has_no_answers(classifier):
    signatures = tf.saved_model.load(str(classifier[1])).signatures
    answers = signatures["serving_default"](text=tf.constant([], tf.string))
    assert answers["probabilities"].shape == (0, 3)
    assert answers["label"].shape == (0,)


def test_only_a_free_place_is_written_to(classifier, tmp_path):
    run, model = classifier
    before = sorted(path.name for path in model.rglob("*"))
    with pytest.raises(InputError, match="1: exists already; choose another directory"):
        export.export_model(run, model)
    assert sorted(path.name for path in model.rglob("*")) == before
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="file: exists already"):
        export.export_model(run, tmp_path / "file")
    with pytest.raises(InputError, match="1: an export for serving"):
        export.export_model(model, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert not [path for path in model.parent.iterdir() if path != model]


@pytest.mark.slow
def test_what_answers_otherwise_is_not_kept(classifier, tmp_path, monkeypatch):
    def shifted(ids_a, ids_b, **options):
        packed = pack_pairs(ids_a, ids_b, **options)
        packed["input_ids"] = tf.maximum(packed["input_ids"] - 1, 0)
        return packed

    pack_pairs = graph_tokenizer.pack_pairs
    monkeypatch.setattr(graph_tokenizer, "pack_pairs", shifted)
    with pytest.raises(RuntimeError, match="the exported model answers differently"):
        export.export_model(classifier[0], tmp_path / "1")
    assert list(tmp_path.iterdir()) == []
