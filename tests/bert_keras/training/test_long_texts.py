"""Texts that are longer than an input: the same in training, answers and exports."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

import bert_keras
from bert_keras import export
from bert_keras.errors import InputError
from bert_keras.inference import tuned
from tests.bert_keras.training.test_finetune import (
    BAD,
    BERT_CONFIG,
    FILLER,
    GOOD,
    VOCABULARY,
    make_init,
    run_finetune,
    write_tsv,
)

LENGTH = 16
HEAD, TAIL = 3, 11
"""Of the 14 tokens beside [CLS] and [SEP]: 14 * 128 / 510 is 3.5."""


def texts_that_tell_late(num_rows: int, *, seed: int) -> list[tuple[str, str]]:
    """Texts of 3 to 60 words, the label's word among the last ones."""
    rng = random.Random(seed)
    rows = []
    for index in range(num_rows):
        words = rng.choices(FILLER, k=rng.randint(2, 59))
        label, telling = (("good", GOOD), ("bad", BAD))[index % 2]
        words.insert(len(words) - rng.randrange(2), rng.choice(telling))
        rows.append((" ".join(words), label))
    return rows


@pytest.fixture(scope="module")
def init(tmp_path_factory) -> Path:
    # With 0.02, attention in so small a model takes long to become anything.
    bert_config = BERT_CONFIG.model_copy(update={"initializer_range": 0.15})
    return make_init(tmp_path_factory.mktemp("init") / "run", bert_config)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("texts")
    return (
        write_tsv(folder / "train.tsv", texts_that_tell_late(400, seed=1)),
        write_tsv(folder / "dev.tsv", texts_that_tell_late(40, seed=2)),
    )


def dev_texts(files) -> list[str]:
    lines = files[1].read_text().splitlines()[1:]
    return [line.split("\t")[0] for line in lines]


def tokens_of(text: str) -> list[int]:
    """All words of these texts are pieces."""
    return [VOCABULARY.tokens.index(word) for word in text.split()]


def head_and_tail(text: str) -> list[list[int]]:
    tokens = tokens_of(text)
    if len(tokens) > HEAD + TAIL:
        tokens = tokens[:HEAD] + tokens[-TAIL:]
    return [tokens]


def inputs_of(parts: list[list[int]]) -> dict[str, np.ndarray]:
    """A row of ids for each part of a text, written out by hand."""
    ids, mask = np.zeros((2, len(parts), LENGTH), np.int32)
    for row, tokens in enumerate(parts):
        given = [VOCABULARY.cls_id, *tokens, VOCABULARY.sep_id]
        ids[row, : len(given)] = given
        mask[row, : len(given)] = 1
    return {"input_ids": ids, "input_mask": mask, "segment_ids": np.zeros_like(ids)}


def run_with(files, init, directory: Path, **changes) -> dict:
    return run_finetune(
        *(init, *files, directory), max_seq_length=LENGTH, num_train_epochs=4, **changes
    )


@pytest.fixture(scope="module")
def run(init, files, tmp_path_factory) -> tuple[Path, dict]:
    directory = tmp_path_factory.mktemp("head_tail") / "run"
    return directory, run_with(
        *(files, init, directory), long_texts="head_tail", pack_examples=True
    )


def logits_by_hand(run: Path, files) -> np.ndarray:
    network = bert_keras.load(run).network
    parts = map(head_and_tail, dev_texts(files))
    rows = [network(inputs_of(p), training=False)["logits"] for p in parts]
    return np.concatenate(rows)


def test_what_is_late_in_a_text_is_learnt(run, init, files, tmp_path):
    assert run[1]["eval"]["accuracy"] > 0.95
    # The same with beginnings alone is guessing for most texts.
    results = run_with(files, init, tmp_path / "run")
    assert results["eval"]["accuracy"] < 0.8


def test_predict_evaluate_and_the_saved_model_agree(run, files, tmp_path):
    directory, results = run
    texts = dev_texts(files)
    assert {len(text.split()) > 14 for text in texts} == {True, False}
    logits = logits_by_hand(directory, files)
    wanted = scipy.special.softmax(logits, axis=-1)
    records = bert_keras.load(directory).predict(texts)
    found = [[record.probabilities[k] for k in ("bad", "good")] for record in records]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    scores = tuned.evaluate(directory, files[1])
    assert scores["loss"] == pytest.approx(results["eval"]["loss"], abs=1e-5)
    right = [
        ["bad", "good"].index(label) for _, label in texts_that_tell_late(40, seed=2)
    ]
    by_hand = -np.log(wanted[range(40), right]).mean()
    assert scores["loss"] == pytest.approx(by_hand, abs=1e-5)
    export.export_model(directory, tmp_path / "exported")
    serve = tf.saved_model.load(str(tmp_path / "exported")).signatures
    served = serve["serving_default"](text=tf.constant(texts))
    np.testing.assert_allclose(served["probabilities"], wanted, atol=1e-5)


def test_files_that_take_ids_say_what_ids_they_want(run, tmp_path):
    export.export_model(run[0], tmp_path / "litert", to="litert")
    said = json.loads((tmp_path / "litert/tokenizer_config.json").read_text())
    assert said["long_texts"] == "head_tail"
    assert said["model_max_length"] == LENGTH


def test_vectors_of_long_texts(run, tmp_path):
    """An encoder of 64 positions: 62 tokens, of which 15 are the head."""
    words = [random.Random(3).choice(FILLER) for _ in range(100)]
    long, short = " ".join(words), " ".join(words[:5])
    export.export_model(
        run[0], tmp_path / "mean", embedding="mean", long_texts="head_tail"
    )
    serve = tf.saved_model.load(str(tmp_path / "mean")).signatures["serving_default"]
    found = serve(text=tf.constant([long, short, " ".join(words[:15] + words[-47:])]))
    vectors = found["embedding"].numpy()
    np.testing.assert_allclose(vectors[0], vectors[2], atol=1e-5)
    model = bert_keras.load(run[0])
    for text, vector in zip((long, short), vectors, strict=False):
        ids = model.encode([text], long_texts="head_tail")
        assert ids["input_ids"].shape[1] == min(64, len(text.split()) + 2)
        outputs = model.encoder(ids)["sequence_output"][0].numpy()
        np.testing.assert_allclose(vector, outputs.mean(axis=0), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"long_texts": "head_tail"}, "--long_texts is for --embedding: a tuned model"),
        (
            {"long_texts": "tail", "embedding": "cls"},
            "--long_texts is one of cut, head",
        ),
    ],
)
def test_what_cannot_be_exported(run, options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        export.export_model(run[0], tmp_path / "new", **options)


def test_long_texts_are_for_texts(init, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("the O\nfilm B-X\n\n")
    with pytest.raises(InputError, match="`long_texts` is for texts, got a task of k"):
        run_with(
            (names, names),
            init,
            tmp_path / "run",
            task="tagging",
            long_texts="head_tail",
        )
