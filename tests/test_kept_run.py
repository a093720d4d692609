"""What version 0.1 wrote is read, continued and asked: see `tests/kept_run.py`."""

import json
import shutil

import numpy as np
import pytest

from tests import kept_run

KEPT = kept_run.KEPT


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_corpus_and_a_vocabulary_make_examples(tmp_path):
    kept_run.build_examples(KEPT / "corpus", KEPT / "vocab.txt", tmp_path / "examples")
    made, kept = (
        json.loads((folder / "manifest.json").read_text())["counters"]
        for folder in (tmp_path / "examples", KEPT / "examples")
    )
    assert made == kept


def test_a_killed_pretraining_ends_as_one_that_was_never_killed(tmp_path):
    run = shutil.copytree(KEPT / "killed", tmp_path / "run")
    kept_run.pretrain(KEPT / "examples", run)
    expected = json.loads((KEPT / "weights.json").read_text())
    found = kept_run.described(run)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5, err_msg=name)


def test_a_tuned_run_answers(tmp_path):
    kept_run.predict(KEPT / "tuned", KEPT / "dev.tsv", tmp_path / "dev.jsonl")
    kept = records(KEPT / "dev.jsonl")
    assert {record["prediction"] for record in kept} == {"good", "bad"}
    for found, expected in zip(records(tmp_path / "dev.jsonl"), kept, strict=True):
        assert found == expected | {
            f"p({label})": pytest.approx(expected[f"p({label})"], abs=1e-4)
            for label in ("good", "bad")
        }


def test_an_export_answers():
    import tensorflow as tf
    import tensorflow_text  # registers the operations of its tokenizer

    assert tensorflow_text.__version__
    kept = records(KEPT / "dev.jsonl")
    answer = tf.saved_model.load(str(KEPT / "exported/1")).signatures["serving_default"]
    found = answer(text=tf.constant([record["text"] for record in kept]))
    assert [label.decode() for label in found["label"].numpy()] == [
        record["prediction"] for record in kept
    ]
    expected = [[record["p(bad)"], record["p(good)"]] for record in kept]
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-4)
