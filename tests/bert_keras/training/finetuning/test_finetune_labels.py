"""Texts with any number of labels, rare labels, smoothing: from the file to answers."""

import json
import logging
import random
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import bert_keras
from bert_keras import export
from bert_keras.checkpoints import conversion, run_directory
from bert_keras.core.errors import InputError
from bert_keras.inference import finetuned
from bert_keras.kinds import registry
from bert_keras.report import task_summaries
from tests.bert_keras.training.finetuning.test_finetune import (
    BAD,
    FILLER,
    GOOD,
    run_finetune,
    write_tsv,
)

TELLING = {"good": GOOD, "bad": BAD, "spelt": list("bcd")}


def mixed_texts(num_rows: int, *, seed: int) -> list[tuple[str, str]]:
    """Texts of a few words, one of which tells each of their labels."""
    rng = random.Random(seed)
    rows = []
    for _ in range(num_rows):
        words = rng.choices(FILLER, k=rng.randint(1, 3))
        labels = [label for label in TELLING if rng.random() < 0.4]
        for label in labels:
            words.insert(rng.randrange(len(words)), rng.choice(TELLING[label]))
        rows.append((" ".join(words), ",".join(labels)))
    return rows


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("texts")
    return (
        write_tsv(folder / "train.tsv", mixed_texts(800, seed=1)),
        write_tsv(folder / "dev.tsv", mixed_texts(60, seed=2)),
    )


@pytest.fixture(scope="module")
def run(init, files, tmp_path_factory) -> tuple[Path, dict]:
    directory = tmp_path_factory.mktemp("labels") / "run"
    results = run_finetune(
        *(init, *files, directory),
        multi_label=True,
        label_smoothing=0.02,
        class_weights="balanced",
    )
    return directory, results


def test_all_labels_are_learnt(run):
    directory, results = run
    assert results["eval"]["best_macro_f1"] > 0.95
    task = run_directory.read_task(directory, kinds=["multi_label"], verb="finetune")
    assert task.labels == ("bad", "good", "spelt")
    assert sorted(results["thresholds"]) == ["bad", "good", "spelt"]
    assert json.loads((directory / "results.json").read_text()) == results


def texts_of(files) -> list[list[str]]:
    return [line.split("\t") for line in files[1].read_text().splitlines()[1:]]


def test_predict_has_the_thresholds_that_were_chosen(run, files, tmp_path, caplog):
    directory, results = run
    caplog.set_level(logging.INFO, logger="bert_keras")
    rows = texts_of(files)
    source = tmp_path / "new.jsonl"
    source.write_text("".join(json.dumps({"text": t}) + "\n" for t, _ in rows))
    finetuned.predict(directory, source, tmp_path / "answers.jsonl")
    chosen = ", ".join(f"{n} {value:.3g}" for n, value in results["thresholds"].items())
    assert f"a text has a label from this probability on: {chosen}" in caplog.text
    lines = (tmp_path / "answers.jsonl").read_text().splitlines()
    given = [set(json.loads(line)["prediction"]) for line in lines]
    right = [set(filter(None, labels.split(","))) for _, labels in rows]
    assert sum(a == b for a, b in zip(right, given, strict=True)) >= 54
    # No text without a label, or with several, would show little.
    assert {len(labels) for labels in right} == {0, 1, 2, 3}


@pytest.mark.slow
def test_exports_give_the_same_labels(run, files, tmp_path):
    texts = [text for text, _ in texts_of(files)]
    export.export_model(run[0], tmp_path / "exported")
    loaded = tf.saved_model.load(str(tmp_path / "exported"))
    served = loaded.signatures["serving_default"](text=tf.constant(texts))
    for number, record in enumerate(bert_keras.load(run[0]).predict(texts)):
        names = [name.decode() for name in served["labels"][number].numpy() if name]
        assert sorted(names) == list(record.prediction)
        probabilities = [record.probabilities[name] for name in names]
        assert probabilities == sorted(probabilities, reverse=True)
        holds = served["holds"][number].numpy()
        np.testing.assert_array_equal(holds, [n in names for n in sorted(TELLING)])
        given = served["probabilities"][number].numpy()
        expected = [record.probabilities[name] for name in sorted(TELLING)]
        np.testing.assert_allclose(given, expected, atol=2e-6)
    directory = tmp_path / "hugging_face"
    conversion.convert(run[0], directory, to="hugging_face")
    scores = finetuned.evaluate(directory, files[1])
    # Their files have no thresholds: it is 0.5 for all.
    assert scores["best_macro_f1"] == pytest.approx(run[1]["eval"]["best_macro_f1"])


def test_the_report_has_scores_by_label(run):
    (by_label, mistakes) = task_summaries.read_sections(
        registry.labelled("multi_label"), run[0]
    )
    assert by_label.name == "scores_by_label"
    for label in TELLING:
        assert label in by_label.text
    assert "of 60 texts have wrong labels" in mistakes.text


@pytest.mark.slow
def test_rare_labels_count_for_more_if_asked(init, tmp_path):
    """One text in twelve is good, and a word of it is missing half of the time."""
    rng = random.Random(3)
    rows = []
    for number in range(240):
        words = rng.choices(FILLER, k=6)
        label = "bad" if number % 12 else "good"
        telling = {"bad": BAD, "good": GOOD if rng.random() < 0.5 else BAD}[label]
        rows.append((" ".join([rng.choice(telling), *words]), label))
    train = write_tsv(tmp_path / "train.tsv", rows)
    found = {}
    for name, weights in (("plain", None), ("heavy", {"good": 40.0})):
        run_finetune(
            *(init, train, train, tmp_path / name),
            class_weights=weights,
            num_train_epochs=3,
        )
        records = finetuned.FinetunedModel.load(tmp_path / name).predict(
            ["weak the plot is so very and"]
        )
        found[name] = records[0].probabilities["good"]
    assert found["plain"] < 0.3
    assert found["heavy"] > 0.5


def test_what_is_not_for_every_task(init, tmp_path):
    train = write_tsv(tmp_path / "numbers.tsv", [("a", "1"), ("b", "2")])
    for changes in ({"class_weights": "balanced"}, {"label_smoothing": 0.1}):
        (key,) = changes
        message = f"`{key}` is for texts with labels, got a task of kind regression"
        with pytest.raises(InputError, match=message):
            run_finetune(
                *(init, train, train, tmp_path / "run"), regression=True, **changes
            )
    assert not (tmp_path / "run").exists()
