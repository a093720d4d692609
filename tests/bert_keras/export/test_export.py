"""SavedModels that answer as the run they were made from."""

import gc
import re

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import func_graph

from bert_keras import export
from bert_keras.core.errors import InputError
from bert_keras.graphs import graph_tokenizer
from bert_keras.inference import finetuned
from tests.bert_keras.export.conftest import IDS, VOCABULARY, signatures_of

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
PAIRS = ["", "a dog", "the cat sat, " * 20, "", "日", "b", "", "и"]
COLUMNS = {"text": TEXTS, "text_pair": PAIRS}


@pytest.fixture(scope="module")
def signatures(saved_model):
    return tf.saved_model.load(str(saved_model)).signatures


def test_strings_are_answered_as_in_python(classifier, saved_model, signatures):
    """Also where this project is not installed: test_served.py."""
    columns = {name: tf.constant(texts) for name, texts in COLUMNS.items()}
    answers = signatures["serving_default"](**columns)
    labels = [label.decode() for label in answers["label"].numpy()]
    # The weights of an export are float32, whatever the run was trained in.
    tuned = finetuned.FinetunedModel.load(classifier, precision="float32")
    records = tuned.predict(zip(TEXTS, PAIRS, strict=True))
    assert labels == [record.prediction for record in records]
    assert len(set(labels)) > 1  # or this test would see little
    expected = np.array([[*record.probabilities.values()] for record in records])
    np.testing.assert_allclose(answers["probabilities"], expected, atol=2e-6)
    assert np.ptp(expected, axis=0).min() > 0.01
    listed = (saved_model / "assets.extra" / "labels.txt").read_text(encoding="utf-8")
    assert listed == "übel\ngood\n"


def test_signatures_are_as_documented(signatures):
    outputs = {"probabilities": (2, tf.float32), "label": (1, tf.string)}
    assert signatures_of(signatures) == {
        "serving_default": (dict.fromkeys(COLUMNS, (1, tf.string)), outputs),
        "ids": (dict.fromkeys(IDS, (2, tf.int32)), outputs),
    }


def test_ids_are_answered_and_padding_changes_nothing(signatures):
    texts = {"text": tf.constant(["the cat"]), "text_pair": tf.constant(["a"])}
    from_text = signatures["serving_default"](**texts)
    pieces = ("[CLS]", "the", "c", "##a", "##t", "[SEP]", "a", "[SEP]")
    ids = [VOCABULARY.ids[piece] for piece in pieces]
    for padding in (0, 7):
        answers = signatures["ids"](
            input_ids=tf.constant([ids + [0] * padding]),
            input_mask=tf.constant([[1] * 8 + [0] * padding]),
            segment_ids=tf.constant([[0] * 6 + [1] * 2 + [0] * padding]),
        )
        np.testing.assert_allclose(
            answers["probabilities"], from_text["probabilities"], atol=1e-6
        )


def test_every_weight_is_stored_once(classifier, saved_model):
    network = finetuned.FinetunedModel.load(classifier).network
    stored = tf.train.list_variables(str(saved_model / "variables" / "variables"))
    sizes = [np.prod(shape, dtype=int) for name, shape in stored if shape]
    assert sum(sizes) == network.count_params()


def test_only_a_free_place_is_written_to(classifier, saved_model, tmp_path):
    (tmp_path / "file").write_text("x")
    for run, output, message in (
        (classifier, saved_model, "1: exists already; choose another directory"),
        (classifier, tmp_path / "file", "file: exists already"),
        (saved_model, tmp_path / "new", "1: an export for serving"),
    ):
        with pytest.raises(InputError, match=message):
            export.export_model(run, output)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert [path.name for path in saved_model.parent.iterdir()] == ["1"]


def test_the_code_of_the_card_calls_it(onnx_model, capsys):
    """Other forms, of all kinds: test_card_code.py."""
    card = (onnx_model / "README.md").read_text(encoding="utf-8")
    assert "\n# run\n" in card
    code = re.search("```python\n(.*?)```", card, re.DOTALL)[1]
    exec(code.replace("DIRECTORY", str(onnx_model)), {})
    assert capsys.readouterr().out


def num_graphs() -> int:
    gc.collect()
    return sum(isinstance(x, func_graph.FuncGraph) for x in gc.get_objects())


@pytest.mark.slow
def test_no_graph_of_an_export_stays(classifier, tmp_path):
    """TensorFlow's list of custom gradients kept them all, written and loaded."""
    export.export_model(classifier, tmp_path / "first")
    before = num_graphs()
    export.export_model(classifier, tmp_path / "again")
    assert num_graphs() == before


@pytest.mark.slow
def test_what_answers_otherwise_is_not_kept(classifier, tmp_path, monkeypatch):
    def shifted(ids_a, ids_b, **options):
        packed = pack_pairs(ids_a, ids_b, **options)
        packed["input_ids"] = tf.maximum(packed["input_ids"] - 1, 0)
        return packed

    pack_pairs = graph_tokenizer.pack_pairs
    monkeypatch.setattr(graph_tokenizer, "pack_pairs", shifted)
    with pytest.raises(RuntimeError, match="the exported model answers differently"):
        export.export_model(classifier, tmp_path / "1")
    assert list(tmp_path.iterdir()) == []
