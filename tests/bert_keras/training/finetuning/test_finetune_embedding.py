"""Vectors of texts: learnt from pairs, from plain text and from numbers, and used."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import bert_keras
from bert_keras import export
from bert_keras.checkpoints import conversion, run_directory
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.inference import finetuned
from bert_keras.kinds import vectors
from bert_keras.kinds.vectors import EmbeddedText
from bert_keras.labelled import answers
from bert_keras.report import task_summaries
from tests.bert_keras.training.finetuning.test_finetune import (
    FILLER,
    run_finetune,
    write_tsv,
)
from tests.bert_keras.training.step import test_learner

TOPICS = list("bcdefghij")
PAIRS = finetuning.EmbeddingConfig()


def topical_pairs(num_rows: int, *, seed: int) -> list[tuple[str, str]]:
    """Two texts that share three of nine words, among other words that mean nothing."""
    rng = random.Random(seed)
    rows = []
    for _ in range(num_rows):
        topics = rng.sample(TOPICS, 3)
        pair = []
        for _ in range(2):
            words = [*topics, *rng.choices(FILLER, k=rng.randint(2, 8))]
            rng.shuffle(words)
            pair.append(" ".join(words))
        rows.append(tuple(pair))
    return rows


def tune(init: Path, train: Path, dev: list, output_dir: Path, **changes) -> dict:
    embedding = PAIRS.model_copy(update=changes.pop("embedding", {}))
    defaults = {"task": "embedding", "batch_size": 32, "num_train_epochs": 3.0}
    changes = defaults | {"embedding": embedding} | changes
    return run_finetune(init, train, dev, output_dir, **changes)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> tuple[Path, Path]:
    folder, header = tmp_path_factory.mktemp("pairs"), ("text", "text_pair")
    return (
        write_tsv(folder / "train.tsv", topical_pairs(640, seed=1), header),
        write_tsv(folder / "dev.tsv", topical_pairs(80, seed=2), header),
    )


@pytest.fixture(scope="module")
def run(init, pairs, tmp_path_factory) -> tuple[Path, dict]:
    directory = tmp_path_factory.mktemp("vectors") / "run"
    return directory, tune(init, pairs[0], [pairs[1]], directory)


def test_pairs_are_learnt(run):
    """With its random weights, recall is 0.4."""
    directory, results = run
    assert results["eval"]["recall_at_10"] > 0.9
    assert run_directory.read_results(directory) == results
    task = run_directory.read_task(directory, kinds=["embedding"], verb="finetune")
    assert (task.pooling, task.normalize) == ("mean", True)


TEXTS = [" ".join(topics) for topics in topical_pairs(5, seed=9)]
# Longer than the run's inputs.
TEXTS.append(" ".join(TEXTS[:3]))


def test_predict_and_python_give_the_same_vectors(run, pairs, tmp_path):
    directory, _ = run
    source = write_tsv(tmp_path / "new.tsv", [(text,) for text in TEXTS], ("text",))
    finetuned.predict(directory, source, tmp_path / "vectors.jsonl")
    lines = (tmp_path / "vectors.jsonl").read_text().splitlines()
    vectors = np.array([json.loads(line)["embedding"] for line in lines])
    assert [json.loads(line)["text"] for line in lines] == TEXTS
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    loaded = bert_keras.load(directory)
    by_hand = loaded.network(loaded.encode(TEXTS, max_seq_length=24))["embedding"]
    np.testing.assert_allclose(by_hand, vectors, atol=1e-6)
    finetuned.predict(directory, pairs[1], tmp_path / "alike.tsv")
    lines = (tmp_path / "alike.tsv").read_text().splitlines()
    header, *rows = [line.split("\t") for line in lines]
    assert header == ["text", "text_pair", "similarity"]
    records = answers.read_answers(directory / "dev_answers.jsonl", EmbeddedText)
    expected = [record.prediction for record in records]
    assert [float(row[2]) for row in rows] == pytest.approx(expected, abs=2e-6)


@pytest.mark.slow
def test_an_export_may_pool_otherwise(run, tmp_path):
    """By itself it has the pooling and the length of the run."""
    export.export_model(run[0], tmp_path / "plain", embedding="mean")
    serve = tf.saved_model.load(str(tmp_path / "plain")).signatures["serving_default"]
    vectors = serve(text=tf.constant(TEXTS))["embedding"].numpy()
    assert np.linalg.norm(vectors, axis=1).min() > 1.5


def test_files_for_sentence_transformers(run, tmp_path):
    """`test_all_formats.py` reads them back."""
    written = tmp_path / "written"
    conversion.convert(run[0], written, to="sentence_transformers")
    names = {str(path.relative_to(written)) for path in written.rglob("*")}
    assert names == {
        *("config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"),
        *("modules.json", "sentence_bert_config.json", "1_Pooling", "2_Normalize"),
        *("1_Pooling/config.json", "config_sentence_transformers.json"),
        "tokenizer.json",
    }
    assert conversion.read(written).max_seq_length == 24


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_sentence_transformers_gives_the_same_vectors(
    pooling, run, init, pairs, tmp_path
):
    package = pytest.importorskip("sentence_transformers")
    directory, written = run[0], tmp_path / "written"
    if pooling == "cls":
        directory = tmp_path / "run"
        embedding = {"pooling": "cls", "normalize": False}
        tune(
            *(init, pairs[0], [pairs[1]], directory),
            embedding=embedding,
            num_train_epochs=0.2,
        )
    conversion.convert(directory, written, to="sentence_transformers")
    model = package.SentenceTransformer(str(written), device="cpu")
    assert model.max_seq_length == 24
    texts = ["great film b c", "the plot " * 20, "x", "B, c. dull!"]
    expected = [r.prediction for r in bert_keras.load(directory).predict(texts)]
    np.testing.assert_allclose(model.encode(texts), expected, rtol=0, atol=1e-5)
    # Theirs, written by them, is read like ours.
    model.save(str(tmp_path / "theirs"))
    found = [r.prediction for r in bert_keras.load(tmp_path / "theirs").predict(texts)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_plain_text_and_numbers_are_learnt(init, pairs, tmp_path):
    """A dev file of each kind; the second one is scored beside the first."""
    rng = random.Random(4)
    plain = [(text,) for pair in topical_pairs(160, seed=5) for text in pair]
    numbers = []
    for first, second in topical_pairs(160, seed=6):
        if is_like := rng.random() < 0.5:
            numbers.append((first, second, 5 * is_like))
        else:
            numbers.append((first, " ".join(rng.choices(FILLER, k=6)), 0))
    scored = write_tsv(tmp_path / "scored.tsv", numbers, ("text", "text_pair", "label"))
    alone = write_tsv(tmp_path / "plain.tsv", plain, ("text",))
    results = tune(
        *(init, alone, [pairs[1], scored], tmp_path / "plain"),
        embedding={"pairs": "dropout"},
        num_train_epochs=1.0,
    )
    assert results["num_train_examples"] == 320
    assert results["train"]["accuracy"] > 0.5
    assert {"recall_at_10", "scored_spearman"} < results["eval"].keys()
    results = tune(
        *(init, scored, [scored, pairs[1]], tmp_path / "numbers"),
        embedding={"metric": "spearman", "max_label": 5.0},
    )
    assert results["eval"]["spearman"] > 0.75
    assert "accuracy" not in results["train"]
    (section,) = task_summaries.read_sections(vectors.Embedding(), tmp_path / "numbers")
    assert "spearman correlation" in section.text


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [(), (16,)])
def test_two_replicas_give_what_one_device_gives(lengths, init, tmp_path):
    """With dropout, hard negatives, repeated texts and an uneven last batch."""
    header = ("text", "text_pair", "negative")
    rows = [(*pair, pair[0] + " film") for pair in topical_pairs(20, seed=3)]
    rows[7] = (rows[0][0], *rows[7][1:])
    train = write_tsv(tmp_path / "train.tsv", rows, header)
    dev = write_tsv(tmp_path / "dev.tsv", rows[:12], header)
    two, one = (
        tune(
            *(init, train, [dev], tmp_path / str(number)),
            strategy=strategy,
            batch_size=8,
            lengths=lengths,
            num_train_epochs=2.0,
        )
        for number, strategy in enumerate((test_learner.mirrored(2), test_learner.CPU))
    )
    assert two["eval"] == pytest.approx(one["eval"], abs=1e-5)
    for name in ("loss", "accuracy", "gradient_norm"):
        assert two["train"][name] == pytest.approx(one["train"][name], abs=1e-5)
    two, one = (conversion.read(tmp_path / name).arrays for name in ("0", "1"))
    for name in one:
        # The gradient of a key's bias is 0, so Adam scales up its rounding.
        atol = 5e-5 if name.endswith("key/bias") else 2e-6
        np.testing.assert_allclose(
            two[name], one[name], rtol=0, atol=atol, err_msg=name
        )


def test_what_is_refused_before_training(run, init, pairs, tmp_path):
    """Nothing is left behind."""
    two = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    for changes, message in (
        ({"dropout_prob": 0.2}, "`dropout_prob` 0.2 is not for --task embedding"),
        ({"batch_size": 700}, "640 pairs to learn from, fewer than a batch of 700"),
        ({"embedding": {"metric": "spearman"}}, "dev.tsv: has no labels"),
        (
            {"strategy": two, "jit_compile": True},
            "`jit_compile` is not for --task embedding on 2 replicas, which compare",
        ),
    ):
        with pytest.raises(InputError, match=message):
            tune(init, pairs[0], [pairs[1]], tmp_path / "run", **changes)
        assert not (tmp_path / "run" / "task.json").exists()


def test_the_page_shows_what_was_not_found(run):
    found, missed = task_summaries.read_sections(vectors.Embedding(), run[0])
    assert found.name == "search" and found.picture.startswith(b"\x89PNG")
    recall = 100 * run[1]["eval"]["recall_at_10"]
    assert f"it is among the ten nearest | {recall:.1f} %" in found.text
    assert "of 80 second texts are not found" in missed.text
