"""What version 0.1 wrote is read, continued and asked.

`tests/data/version_0_1` has a corpus, a vocabulary, examples, a pre-training that was
killed at its eighth step, some weights of the same that was not (`weights.json`), and
the answers of a run that was tuned from the latter, with an export of the run. All were
written by the commands below and by `finetune` and `export`.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_keras.checkpoints import conversion
from bert_keras.commands import main

KEPT = Path(__file__).parent / "data" / "version_0_1"
SETTINGS = (
    *("model.num_hidden_layers=1", "model.hidden_size=16"),
    *("model.num_attention_heads=2", "model.intermediate_size=32"),
    *("model.max_position_embeddings=32", "global_batch_size=4", "num_train_steps=12"),
    *("optimizer.warmup_steps=4", "optimizer.learning_rate=1e-3", "num_eval_steps=2"),
    *("precision=float32", "save_checkpoint_steps=5", "num_eval_shards=1"),
    *("phases=[{fraction: 1}]", "num_checkpoints=1"),
)


def call(*arguments: str | Path) -> None:
    assert main.main([str(argument) for argument in arguments]) == 0


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_corpus_and_a_vocabulary_make_examples(tmp_path):
    call(
        *("examples", "--corpus", KEPT / "corpus", "--vocab", KEPT / "vocab.txt"),
        *("--output", tmp_path / "examples", "--max_seq_length", "32"),
        *("--num_shards", "3", "--set", "dupe_factor=3"),
    )
    made, kept = (
        json.loads((folder / "manifest.json").read_text())["counters"]
        for folder in (tmp_path / "examples", KEPT / "examples")
    )
    assert made == kept


def test_a_killed_pretraining_ends_as_one_that_was_never_killed(tmp_path):
    run = shutil.copytree(KEPT / "killed", tmp_path / "run")
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    call("pretrain", "--examples", KEPT / "examples", "--output_dir", run, *settings)
    # The first three values of each weight.
    expected = json.loads((KEPT / "weights.json").read_text())
    arrays = conversion.read(run).arrays
    assert arrays.keys() == expected.keys()
    for name, values in expected.items():
        found = arrays[name].ravel()[:3]
        np.testing.assert_allclose(found, values, atol=1e-5, err_msg=name)


def test_a_tuned_run_answers(tmp_path):
    files = ("--input", KEPT / "dev.tsv", "--output", tmp_path / "dev.jsonl")
    call("predict", "--model", KEPT / "tuned", *files)
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
