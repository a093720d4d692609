"""Texts that are longer than an input: the same in training, answers and exports."""

import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

import bert_keras
from bert_keras import export
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, loading, tasks
from bert_keras.data import tokenization
from bert_keras.export import formats
from bert_keras.kinds import registry
from bert_keras.labelled import tokenized
from tests import make
from tests.bert_keras.export.test_formats import make_run
from tests.bert_keras.training.finetuning.test_finetune import (
    BERT_CONFIG,
    FILLER,
    GOOD,
    SETTINGS,
    VOCABULARY,
    opinions,
    run_finetune,
    write_tsv,
)

LENGTH = 16
HEAD, TAIL = 3, 11
"""Of the 14 tokens beside [CLS] and [SEP]: 14 * 128 / 510 is 3.5."""


def texts_that_tell_late(num_rows: int, *, seed: int) -> list[tuple[str, str]]:
    """Texts of 3 to 60 words, the label's word among the last ones."""
    return opinions(num_rows, seed=seed, longest=59, is_late=True)


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


def windows(text: str) -> list[list[int]]:
    """Half of each is in the next."""
    tokens = tokens_of(text)
    parts = [tokens[:14]]
    for start in range(7, len(tokens) - 7, 7):
        parts.append(tokens[start : start + 14])
    return parts


PARTS = {"head_tail": head_and_tail, "windows_mean": windows, "windows_max": windows}


def pooled(rows: np.ndarray, long_texts: str) -> np.ndarray:
    """One row of numbers for the parts of a text."""
    return (
        np.max(rows, axis=0) if long_texts == "windows_max" else np.mean(rows, axis=0)
    )


def inputs_of(parts: list[list[int]]) -> dict[str, np.ndarray]:
    """A row of ids for each part of a text, written out by hand."""
    ids, mask = np.zeros((2, len(parts), LENGTH), np.int32)
    for row, tokens in enumerate(parts):
        given = [VOCABULARY.cls_id, *tokens, VOCABULARY.sep_id]
        ids[row, : len(given)] = given
        mask[row, : len(given)] = 1
    return {"input_ids": ids, "input_mask": mask, "segment_ids": np.zeros_like(ids)}


def run_with(files, init, directory: Path, **changes) -> dict:
    changes = {"max_seq_length": LENGTH, "num_train_epochs": 4} | changes
    return run_finetune(init, *files, directory, **changes)


SLOW = pytest.mark.slow
HOW = [
    "windows_mean",
    *(pytest.param(how, marks=SLOW) for how in ("head_tail", "windows_max")),
]


@pytest.fixture(scope="module", params=HOW)
def long_texts(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def run(long_texts, tmp_path_factory) -> Path:
    """Random weights for texts that are longer than an input."""
    settings = SETTINGS.model_copy(
        update={"max_seq_length": LENGTH, "long_texts": long_texts}
    )
    return make.make_run(
        tmp_path_factory.mktemp(long_texts) / "run",
        VOCABULARY,
        settings=settings,
        kind="classification",
        labels=("bad", "good"),
    )


def logits_by_hand(run: Path, texts: list[str], long_texts: str) -> np.ndarray:
    """The network, asked for one text after the other."""
    network = bert_keras.load(run).network
    found = [
        network(inputs_of(PARTS[long_texts](text)), training=False)["logits"]
        for text in texts
    ]
    return np.stack([pooled(rows.numpy(), long_texts) for rows in found])


def probabilities_by_hand(*arguments) -> np.ndarray:
    return scipy.special.softmax(logits_by_hand(*arguments), axis=-1)


@pytest.mark.slow
def test_what_is_late_in_a_text_is_learnt(init, files, long_texts, tmp_path):
    directory = tmp_path / "run"
    results = run_with(files, init, directory, long_texts=long_texts)
    assert results["eval"]["accuracy"] > 0.9
    assert (results["num_train_examples"], results["num_eval_examples"]) == (400, 40)
    right = [
        ["bad", "good"].index(label) for _, label in texts_that_tell_late(40, seed=2)
    ]
    by_hand = probabilities_by_hand(directory, dev_texts(files), long_texts)
    by_hand = -np.log(by_hand[range(40), right]).mean()
    assert results["eval"]["loss"] == pytest.approx(by_hand, abs=1e-5)
    if long_texts == "head_tail":
        # The same with beginnings alone is guessing for most texts.
        results = run_with(files, init, tmp_path / "cut")
        assert results["eval"]["accuracy"] < 0.8


def test_predict_and_a_saved_model_answer_as_the_network(run, long_texts, tmp_path):
    words = random.Random(4).choices(FILLER + GOOD, k=64)
    # Lengths around those at which one window more is needed.
    texts = [" ".join(words[:n]) for n in (0, 1, 13, 14, 15, 20, 21, 22, 28, 29, 64)]
    expected = probabilities_by_hand(run, texts, long_texts)
    model = bert_keras.load(run)

    def answers_of(*texts):
        records = model.predict(texts)
        return [
            [record.probabilities[k] for k in ("bad", "good")] for record in records
        ]

    np.testing.assert_allclose(answers_of(*texts), expected, atol=1e-5)
    export.export_model(run, tmp_path / "exported")
    signatures = tf.saved_model.load(str(tmp_path / "exported")).signatures
    serve = signatures["serving_default"]
    served = serve(text=tf.constant(texts))["probabilities"]
    np.testing.assert_allclose(served, expected, atol=1e-5)
    nothing = serve(text=tf.constant([], tf.string))
    assert nothing["probabilities"].shape == (0, 2)
    if long_texts != "head_tail":
        # Some windows at a time, however many a text has.
        text = " ".join(500 * words)
        served = serve(text=tf.constant([text]))["probabilities"]
        np.testing.assert_allclose(served, answers_of(text), atol=1e-5)
        library = serve.graph.as_graph_def().library
        operations = {node.op for f in library.function for node in f.node_def}
        assert operations & {"While", "StatelessWhile"}


@pytest.mark.slow
def test_files_that_take_ids_say_what_ids_they_want(run, files, long_texts, tmp_path):
    export.export_model(run, tmp_path / "litert", to="litert")
    said = json.loads((tmp_path / "litert/tokenizer_config.json").read_text())
    assert (said["long_texts"], said["model_max_length"]) == (long_texts, LENGTH)
    is_windowed = long_texts != "head_tail"
    assert said.get("window_stride") == (7 if is_windowed else None)
    model = formats.load_litert(tmp_path / "litert/model.tflite")
    texts = dev_texts(files)[:8]
    found = [model(inputs_of(PARTS[long_texts](text)))["logits"] for text in texts]
    found = np.stack([pooled(rows, long_texts) for rows in found])
    expected = logits_by_hand(run, texts, long_texts)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.slow
def test_vectors_of_long_texts(init, tmp_path, long_texts):
    """An encoder of 64 positions: 62 tokens, of which 15 are the head, or windows that
    share 31 with the next."""
    words = random.Random(3).choices(FILLER, k=140)
    short, long = " ".join(words[:3]), " ".join(words)
    parts = [" ".join(words[start : start + 62]) for start in (0, 31, 62, 93)]
    model = bert_keras.load(init)
    if long_texts == "head_tail":
        parts = [" ".join(words[:15] + words[-47:])]
        assert model.encode([long], long_texts=long_texts)["input_ids"].shape[1] == 64
        with pytest.raises(InputError, match="`long_texts` is one of cut, head_tail,"):
            model.encode([long], long_texts="windows_mean")
    export.export_model(
        init, tmp_path / long_texts, embedding="mean", long_texts=long_texts
    )
    serve = tf.saved_model.load(str(tmp_path / long_texts)).signatures[
        "serving_default"
    ]
    found = serve(text=tf.constant([short, long]))["embedding"].numpy()
    alone, *vectors = (
        model.encoder(model.encode([text]))["sequence_output"][0].numpy().mean(axis=0)
        for text in (short, *parts)
    )
    expected = np.stack([alone, pooled(np.stack(vectors), long_texts)])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def cut_films(stride: int | None = None) -> tokenized.WindowedInputs:
    """Texts of 3, 40, 0 and 15 words."""
    tokenizer = tokenization.Tokenizer(VOCABULARY, do_lower_case=True)
    texts = [" ".join(["film"] * n) for n in (3, 40, 0, 15)]
    return tokenized.cut(texts, tokenizer, max_seq_length=LENGTH, stride=stride)


def test_a_text_weighs_the_same_in_any_number_of_windows():
    windows = cut_films()
    assert windows.counts.tolist() == [1, 5, 1, 2]
    assert windows.whole_lengths.tolist() == [5, 42, 2, 17]
    labels = {"label_ids": np.arange(4), "example_weights": np.float32([1, 3, 1, 1])}
    inputs = dataclasses.replace(windows, labels=labels)
    batch = inputs.batch(np.arange(9))
    assert batch["label_ids"].tolist() == [0, 1, 1, 1, 1, 1, 2, 3, 3]
    assert batch["example_weights"].tolist() == [1, 3, 3, 3, 3, 3, 1, 1, 1]
    of_texts = np.bincount(batch["label_ids"], batch["loss_scales"])
    np.testing.assert_allclose(of_texts, [9 / 4] * 4, rtol=1e-6)
    # A teacher's answers are learnt without labels, too.
    found = windows.batch(np.arange(9))["loss_scales"]
    assert found.tolist() == batch["loss_scales"].tolist()
    strided = cut_films(stride=100)
    # Without a gap, whatever the stride.
    assert strided.counts.tolist() == [1, 3, 1, 2]
    assert strided.inputs.lengths.tolist() == [5, 16, 16, 14, 2, 16, 3]


@pytest.mark.parametrize("kind", ["classification", "multi_label", "regression"])
def test_a_batch_of_one_long_text_counts_for_less_than_others(kind):
    """Batches by length have the windows of long texts among themselves."""
    windows = cut_films()
    labels = {"label_ids": np.ones(4, np.float32 if kind == "regression" else np.int32)}
    if kind == "multi_label":
        labels = {"label_targets": np.ones((4, 1, 2), np.float32)}
    inputs = dataclasses.replace(windows, labels=labels)
    task = tasks.Task(kind=kind, labels=None if kind == "regression" else ("a", "b"))
    network = registry.build_network(BERT_CONFIG, task)
    totals = []
    for rows in ([1, 2, 3, 4, 5], [7, 8], [0], [6]):
        batch = inputs.batch(np.array(rows))
        outputs = {"logits": np.zeros((len(rows), network.num_labels), np.float32)}
        total, weight = map(float, network.loss_terms(batch, outputs)["loss"])
        assert weight == float(network.loss_weights(batch)["loss"]) == len(rows)
        totals.append(total)
    np.testing.assert_allclose(totals, [totals[0]] * 4, rtol=1e-6)


def test_what_cannot_be_exported(init, tmp_path):
    for options, message in (
        ({"long_texts": "head_tail"}, "--long_texts is for --embedding: a tuned model"),
        (
            {"long_texts": "windows_max", "embedding": "tokens"},
            "windows_max give a text one vector: for --embedding tokens take cut or",
        ),
    ):
        with pytest.raises(InputError, match=message):
            export.export_model(init, tmp_path / "new", **options)


def test_what_is_no_long_text(init, tmp_path):
    rows = [("the film", "a plot", "good"), ("a film", "the plot", "bad")]
    pairs = write_tsv(tmp_path / "pairs.tsv", rows, ("text", "text_pair", "label"))
    names = tmp_path / "names.txt"
    names.write_text("the O\nfilm B-X\n\n")
    for path, changes, message in (
        (
            pairs,
            {"long_texts": "windows_max"},
            "windows_max is for single texts, got pairs",
        ),
        (
            names,
            {"task": "tagging", "long_texts": "head_tail"},
            "`long_texts` is for texts, got a task of kind tagging",
        ),
    ):
        with pytest.raises(InputError, match=message):
            run_with((path, path), init, tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()
    given = ["window_stride=8"]
    with pytest.raises(InputError, match="`window_stride` is for `long_texts` wind"):
        loading.load(finetuning.FinetuningConfig, None, given)
    given.append("long_texts=windows_mean")
    loading.load(finetuning.FinetuningConfig, None, given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "task"),
    [
        ("windows_max", {"kind": "multi_label", "labels": ("a", "b", "c")}),
        ("windows_mean", {"kind": "regression"}),
        ("head_tail", {"kind": "regression", "has_text_pair": True}),
    ],
)
def test_answers_of_every_kind(randomize, tmp_path, how, task):
    """Random weights: exports give what `predict` does."""
    settings = finetuning.FinetuningConfig(
        max_seq_length=20,
        long_texts=how,
        window_stride=None if how == "head_tail" else 5,
        multi_label=task["kind"] == "multi_label",
        regression=task["kind"] == "regression",
    )
    run = make_run(tmp_path / "run", randomize, settings=settings, **task)
    export.export_model(run, tmp_path / "exported")
    serve = tf.saved_model.load(str(tmp_path / "exported")).signatures
    words = "the cat sat a bad dog".split()
    texts = [" ".join(words[i % 6] for i in range(n)) for n in (0, 3, 9, 25, 70)]
    asked = {"text": tf.constant(texts)}
    examples = texts
    if task.get("has_text_pair"):
        asked["text_pair"] = tf.constant(texts[::-1])
        examples = list(zip(texts, texts[::-1], strict=True))
    served = serve["serving_default"](**asked)
    records = bert_keras.load(run).predict(examples)
    if task["kind"] == "regression":
        wanted = [record.prediction for record in records]
        np.testing.assert_allclose(served["score"], wanted, rtol=1e-4, atol=1e-5)
        return
    wanted = [[r.probabilities[label] for label in task["labels"]] for r in records]
    np.testing.assert_allclose(served["probabilities"], wanted, atol=1e-5)
