"""Fine-tuning on tags, answers, GLUE and labels: tiny networks that really train."""

import json
import logging
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import bert_keras
from bert_keras import export
from bert_keras.checkpoints import conversion, run_directory, starting_point, weights
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.data import tokenization
from bert_keras.inference import finetuned, forward
from bert_keras.kinds import catalogue, registry
from bert_keras.kinds.tagging import ner
from bert_keras.kinds.text import glue
from bert_keras.report import task_summaries
from tests.bert_keras.kinds import kind_data
from tests.bert_keras.kinds.kind_data import BAD, FILLER, GOOD
from tests.bert_keras.training.finetuning.test_finetune import (
    BERT_CONFIG,
    make_init,
    run_finetune,
    write_tsv,
)

SETTINGS = finetuning.FinetuningConfig(
    max_seq_length=32,
    batch_size=16,
    num_train_epochs=5,
    learning_rate=2e-3,
    dropout_prob=0.0,
    span=finetuning.SpanConfig(doc_stride=8, max_query_length=4, max_answer_length=3),
)


def tune(init: Path, output_dir: Path, train: Path, *dev: Path, **changes) -> dict:
    files = init, train, list(dev), output_dir
    return run_finetune(*files, settings=SETTINGS, **changes)


def fillers(rng: random.Random, low: int, high: int) -> list[str]:
    return rng.choices(FILLER, k=rng.randint(low, high))


def tagged_file(path: Path, num_sentences: int, *, seed: int) -> Path:
    """Good words are of one type, bad words of another."""
    rng = random.Random(seed)
    blocks = []
    for _ in range(num_sentences):
        lines = [f"{word} O" for word in fillers(rng, 1, 5)]
        for name, words in (("GOOD", GOOD), ("BAD", BAD)):
            entity = f"{rng.choice(words)} B-{name}"
            lines.insert(rng.randint(0, len(lines)), entity)
        blocks.append("\n".join(lines) + "\n")
    path.write_text("\n".join(blocks))
    return path


def questions_file(
    path: Path, num_questions: int, *, seed: int, share_without: float = 0.0
) -> Path:
    """The only good word of the text is the answer; without one there is none."""
    rng, data = random.Random(seed), kind_data.DATA["span"]
    rows = [data.row(rng, number) for number in range(num_questions)]
    content = json.loads(data.write(rows, True))
    if share_without:
        content["version"] = "v2.0"
        paragraphs = content["data"][0]["paragraphs"]
        for row, paragraph in zip(rows, paragraphs, strict=True):
            [question] = paragraph["qas"]
            question["is_impossible"] = rng.random() < share_without
            if question["is_impossible"]:
                question["answers"] = []
                paragraph["context"] = row["context"].replace(f" {row['answer']}", "")
    path.write_text(json.dumps(content))
    return path


def records(run: Path) -> list[dict]:
    lines = (run / "dev_answers.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def tagging_run(init, tmp_path_factory) -> Path:
    """A finished run; its development file is beside it."""
    folder = tmp_path_factory.mktemp("tagging")
    train = tagged_file(folder / "train.txt", 300, seed=1)
    dev = tagged_file(folder / "dev.txt", 30, seed=2)
    run = folder / "run"
    options = {"num_train_epochs": 15, "evaluate_steps": 1000}
    tune(init, run, train, dev, task="tagging", **options)
    return run


def test_tags_are_learnt(tagging_run, tmp_path):
    run, dev = tagging_run, tagging_run.parent / "dev.txt"
    results = json.loads((run / "results.json").read_text())
    assert results["eval"]["f1"] > 0.95
    assert results["num_train_examples"] == 300
    task = json.loads((run / "task.json").read_text())
    assert task["labels"] == ["O", "B-BAD", "I-BAD", "B-GOOD", "I-GOOD"]
    assert len(records(run)) == 30
    finetuned.predict(run, dev, tmp_path / "out.txt")
    words = [line.split() for line in (tmp_path / "out.txt").read_text().splitlines()]
    assert {len(word) for word in words if word} == {3}  # its columns and the answer
    predicted = [word[2] for word in words if word]
    assert predicted == [tag for r in records(run) for tag in r["prediction"]]


def spans_file(path: Path, sentences: list[ner.Sentence]) -> Path:
    """The same words with two blanks, an emoji or a line's end between them."""
    lines = []
    for number, (words, tags, *_) in enumerate(sentences):
        text, entities = " ", []
        blank = ("  ", " \U0001f469\u200d\U0001f52c ", "\r\n")[number % 3]
        for word, tag in zip(words, tags, strict=True):
            start = len(text)
            text += word
            if tag != "O":
                found = {"start": start, "end": len(text), "label": tag[2:]}
                entities.append(found)
            text += blank
        row = {"text": text, "entities": entities, "id": number}
        lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines))
    return path


def test_spans_of_characters(tagging_run, tmp_path, capsys):
    """Of the same sentences as texts, by a run as if it were trained on such."""
    run = shutil.copytree(tagging_run, tmp_path / "run")
    task = json.loads((run / "task.json").read_text()) | {"reads_text": True}
    (run / "task.json").write_text(json.dumps(task))
    dev = spans_file(tmp_path / "dev.jsonl", ner.read(tagging_run.parent / "dev.txt"))
    assert finetuned.evaluate(run, dev)["f1"] > 0.8
    rows = [json.loads(line) for line in dev.read_text().splitlines()]
    # Both kinds of files of texts, of several lines in one of them only.
    finetuned.predict(run, dev, tmp_path / "out.jsonl")
    answers = [json.loads(x) for x in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(a["text"], a["id"]) for a in answers] == [
        (row["text"], row["id"]) for row in rows
    ]
    keys = ("start", "end", "label")
    found = [[{k: e[k] for k in keys} for e in a["entities"]] for a in answers]
    right = sum(f == row["entities"] for f, row in zip(found, rows, strict=True))
    # It was trained without the signs between words.
    assert right >= 0.6 * len(rows)
    assert all(0 < e["probability"] <= 1 for a in answers for e in a["entities"])
    lines = [row["text"].replace("\r\n", " ") for row in rows] + ["", " \u200d"]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    finetuned.predict(run, tmp_path / "in.txt", "-")
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [a["text"] for a in answers] == lines
    assert [a["entities"] for a in answers[-2:]] == [[], []]
    (tmp_path / "blank.txt").write_text("\n \n")
    finetuned.predict(run, tmp_path / "blank.txt", "-")
    assert capsys.readouterr().out == (
        '{"text": "", "entities": []}\n{"text": " ", "entities": []}\n'
    )


@pytest.mark.slow
def test_spans_of_characters_are_learnt(init, tagging_run, tmp_path):
    train, dev = (
        spans_file(tmp_path / f"{name}.jsonl", ner.read(tagging_run.parent / file))
        for name, file in (("train", "train.txt"), ("dev", "dev.txt"))
    )
    options = {"num_train_epochs": 15, "evaluate_steps": 1000}
    results = tune(init, tmp_path / "run", train, dev, task="tagging", **options)
    assert results["eval"]["f1"] > 0.95


@pytest.mark.slow
def test_answers_are_found_and_a_second_stage_keeps_the_head(init, tmp_path, capsys):
    """TriviaQA before SQuAD, as in the paper: what was learnt is not thrown away."""
    train = questions_file(tmp_path / "train.json", 400, seed=1)
    dev = questions_file(tmp_path / "dev.json", 40, seed=2)
    first = tmp_path / "first"
    results = tune(init, first, train, dev, task="span")
    assert results["eval"]["exact_match"] > 90
    out = tmp_path / "answers"
    finetuned.predict(first, dev, out)
    assert sorted(p.name for p in out.iterdir()) == [
        "nbest_predictions.json",
        "predictions.json",
    ]
    predictions = json.loads((out / "predictions.json").read_text())
    assert predictions == {r["id"]: r["prediction"] for r in records(first)}
    with pytest.raises(InputError, match="answers: exists already"):
        finetuned.predict(first, dev, out)
    finetuned.predict(first, dev, "-")
    assert capsys.readouterr().out == (out / "predictions.json").read_text()
    second = tmp_path / "second"
    still = {"num_train_epochs": 0.01, "learning_rate": 1e-30}
    again = tune(first, second, train, dev, task="span", **still)
    assert again["eval"] == pytest.approx(results["eval"], abs=1e-4)


@pytest.mark.slow
def test_no_answer_is_an_answer_and_its_threshold_is_chosen(init, tmp_path):
    train = questions_file(tmp_path / "train.json", 400, seed=1, share_without=0.4)
    dev = questions_file(tmp_path / "dev.json", 50, seed=2, share_without=0.4)
    run = tmp_path / "run"
    results = tune(init, run, train, dev, task="span")
    scores = results["eval"]
    assert scores["best_f1"] > 90
    assert scores["best_f1"] >= scores["f1"]
    model = finetuned.FinetunedModel.load(run)
    assert model.decision.no_answer_odds == scores["best_f1_thresh"]
    evaluated = finetuned.evaluate(run, dev)
    assert evaluated["f1"] == pytest.approx(scores["best_f1"])
    odds = {r["id"]: r["null_odds"] for r in records(run)}
    for record in records(run):
        is_none = odds[record["id"]] > model.decision.no_answer_odds
        assert (record["prediction"] == "") == is_none


def write_glue(folder: Path, name: str) -> None:
    """The official files of a task, tiny."""
    task, rng = glue.TASKS[name], random.Random(name)
    folder = folder / (task.folder or name)
    folder.mkdir()
    columns = [task.columns.text, *filter(None, [task.columns.text_pair])]
    for split in (*filter(None, [task.train]), *task.dev, *task.submissions):
        is_test = split in task.submissions
        names = task.column_names if task.column_names and not is_test else None
        header = names or ["index", *columns]
        if not names and not is_test:
            header.append(task.columns.label)
        lines = [] if names else ["\t".join(header)]
        for index in range(96 if split == "train" else 12):
            is_good = index % 2
            row = {"index": str(index)}
            for column in columns:
                words = [*fillers(rng, 1, 4), rng.choice(GOOD if is_good else BAD)]
                row[column] = " ".join(words)
            label = ("1.0", "4.5") if task.labels is None else task.labels[:2]
            row[task.columns.label] = label[is_good]
            lines.append("\t".join(row.get(column, "x") for column in header))
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def glue_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("glue")
    for name in glue.TASKS:
        write_glue(folder, name)
    return folder


@pytest.fixture(scope="module")
def glue_runs(init, glue_folder, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for name in ("CoLA", "STS-B", "MNLI"):
        train, dev = catalogue.training_files(name, glue_folder)
        options = {"num_train_epochs": 25, "evaluate_steps": 1000}
        tune(init, folder / name, train, *dev, task=name, **options)
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.slow
def test_glue_is_scored_by_its_metrics(glue_runs, glue_folder):
    scores = {
        name: json.loads((run / "results.json").read_text())["eval"]
        for name, run in glue_runs.items()
    }
    assert {name: set(values) - {"loss"} for name, values in scores.items()} == {
        "CoLA": {"matthews"},
        "STS-B": {"pearson", "spearman"},
        "MNLI": {"accuracy", "dev_mismatched_loss", "dev_mismatched_accuracy"},
    }
    assert scores["CoLA"]["matthews"] > 0.8
    assert scores["STS-B"]["pearson"] > 0.8
    mismatched = glue_folder / "MNLI" / "dev_mismatched.tsv"
    again = finetuned.evaluate(glue_runs["MNLI"], mismatched)
    assert scores["MNLI"]["dev_mismatched_accuracy"] == again["accuracy"]
    assert scores["MNLI"]["dev_mismatched_loss"] == pytest.approx(again["loss"])
    task = json.loads((glue_runs["MNLI"] / "task.json").read_text())
    assert task["name"] == "MNLI"
    assert task["labels"] == ["contradiction", "entailment", "neutral"]


@pytest.mark.slow
def test_the_leaderboard_gets_its_tables(glue_runs, glue_folder, tmp_path):
    """One model answers three test files."""
    finetuned.submit_glue(list(glue_runs.values()), glue_folder, tmp_path / "tables")
    classes = {"contradiction", "entailment", "neutral"}
    labels = dict.fromkeys(("MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"), classes)
    labels |= {"CoLA.tsv": {"0", "1"}, "STS-B.tsv": None}
    tables = {path.name: path.read_text() for path in (tmp_path / "tables").iterdir()}
    assert tables.keys() == labels.keys()
    for name, table in tables.items():
        header, *lines = table.splitlines()
        assert header == "index\tprediction"
        numbers, answers = zip(*(line.split("\t") for line in lines), strict=True)
        assert list(numbers) == [str(i) for i in range(12)]
        assert labels[name] is None or set(answers) <= labels[name]


@pytest.mark.slow
def test_runs_that_are_no_submission(glue_runs, glue_folder, tagging_run, tmp_path):
    """All before any run answers."""
    cola = glue_runs["CoLA"]
    missing = (
        "a submission to GLUE has 11 files, missing: .*MNLI-m.tsv, .*: give runs on "
        "SST-2, MRPC, .* too"
    )
    for runs, folder, name, message in (
        ([cola, cola], glue_folder, "out", "a second run on CoLA: give one"),
        ([tagging_run], glue_folder, "out", "a run on tagging, expected one on a task"),
        ([cola], tmp_path, "out", r"no test.tsv: expected the folder of GLUE"),
        ([cola], glue_folder, "all.zip", missing),
    ):
        with pytest.raises(InputError, match=message):
            finetuned.submit_glue(runs, folder, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_heads_that_are_kept_and_heads_that_are_new(init):
    def checkpoint(task: tasks.Task) -> weights.Checkpoint:
        network = registry.build_network(BERT_CONFIG, task, seed=3)
        return weights.Checkpoint(
            arrays=weights.from_network(network),
            bert_config=BERT_CONFIG,
            task=task,
            vocabulary=None,
            do_lower_case=None,
        )

    def tuning_arrays(checkpoint, task):
        head = registry.find(task.kind).transfers_head
        return starting_point.tuning_arrays(checkpoint, task, transfers_head=head)

    span = tasks.Task(kind="span", has_text_pair=True)
    other = span.model_copy(update={"name": "SQuAD2.0", "has_impossible": True})
    kept = tuning_arrays(checkpoint(span), other)
    assert "head/classifier/kernel" in kept
    classes = tasks.Task(kind="classification", labels=("0", "1"))
    for old, new in (
        (classes, classes),
        (classes, span),
        (span, tasks.Task(kind="choice")),
        (span, span.model_copy(update={"bilstm_units": 8})),
    ):
        arrays = tuning_arrays(checkpoint(old), new)
        assert arrays and all(name.startswith("encoder/") for name in arrays)
    pretrained = conversion.read(init)
    assert all(n.startswith("encoder/") for n in tuning_arrays(pretrained, span))


def test_answers_come_to_their_places_whatever_the_batches(tmp_path, monkeypatch):
    """Of tokens and words too, which are many to an input."""
    task = tasks.Task(kind="span", has_text_pair=True)
    network = registry.build_network(BERT_CONFIG, task, seed=3)
    data = catalogue.read(
        questions_file(tmp_path / "dev.json", 12, seed=2),
        finetuning.FinetuningConfig(task="span"),
    )
    settings = SETTINGS.model_copy(update={"task": "span"})
    tokenizer = tokenization.Tokenizer(
        conversion.read(make_init(tmp_path / "init", BERT_CONFIG)).vocabulary,
        do_lower_case=True,
    )
    windows = data.encode(task, tokenizer, settings)
    found = {}
    for tokens in (40, 400):
        monkeypatch.setattr(forward, "TOKENS_PER_BATCH", tokens)
        found[tokens] = forward.predictor_for(network)(windows, title="predicting")
    assert found[40].shape == (len(windows.texts.input_ids), 2)
    np.testing.assert_allclose(found[400], found[40], rtol=0, atol=1e-5)
    alone = windows.batch(np.array([5]))
    outputs = network({k: alone[k] for k in ("input_ids", "input_mask", "segment_ids")})
    first = windows.texts.starts[5]
    np.testing.assert_allclose(
        found[40][first : first + alone["input_ids"].shape[1], 1],
        outputs["end_logits"][0],
        rtol=0,
        atol=1e-5,
    )


# Texts with any number of labels, rare labels and smoothing.

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
def labelled_files(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("texts")
    return (
        write_tsv(folder / "train.tsv", mixed_texts(800, seed=1)),
        write_tsv(folder / "dev.tsv", mixed_texts(60, seed=2)),
    )


@pytest.fixture(scope="module")
def labels_run(init, labelled_files, tmp_path_factory) -> tuple[Path, dict]:
    directory = tmp_path_factory.mktemp("labels") / "run"
    results = run_finetune(
        *(init, *labelled_files, directory),
        multi_label=True,
        label_smoothing=0.02,
        class_weights="balanced",
    )
    return directory, results


def test_all_labels_are_learnt(labels_run):
    directory, results = labels_run
    assert results["eval"]["best_macro_f1"] > 0.95
    task = run_directory.read_task(directory, kinds=["multi_label"], verb="finetune")
    assert task.labels == ("bad", "good", "spelt")
    assert sorted(results["thresholds"]) == ["bad", "good", "spelt"]
    assert run_directory.read_results(directory) == results


def texts_of(files) -> list[list[str]]:
    return [line.split("\t") for line in files[1].read_text().splitlines()[1:]]


def test_predict_has_the_thresholds_that_were_chosen(
    labels_run, labelled_files, tmp_path, caplog
):
    directory, results = labels_run
    caplog.set_level(logging.INFO, logger="bert_keras")
    rows = texts_of(labelled_files)
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
def test_exports_give_the_same_labels(labels_run, labelled_files, tmp_path):
    texts = [text for text, _ in texts_of(labelled_files)]
    export.export_model(labels_run[0], tmp_path / "exported")
    loaded = tf.saved_model.load(str(tmp_path / "exported"))
    served = loaded.signatures["serving_default"](text=tf.constant(texts))
    for number, record in enumerate(bert_keras.load(labels_run[0]).predict(texts)):
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
    conversion.convert(labels_run[0], directory, to="hugging_face")
    scores = finetuned.evaluate(directory, labelled_files[1])
    # Their files have no thresholds: it is 0.5 for all.
    assert scores["best_macro_f1"] == pytest.approx(
        labels_run[1]["eval"]["best_macro_f1"]
    )


def test_the_report_has_scores_by_label(labels_run):
    (by_label, mistakes) = task_summaries.read_sections(
        registry.labelled("multi_label"), labels_run[0]
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
    for name, class_weights in (("plain", None), ("heavy", {"good": 40.0})):
        run_finetune(
            *(init, train, train, tmp_path / name),
            class_weights=class_weights,
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


def test_rows_are_not_set_aside_for_a_promise_that_cannot_be_made(init, tmp_path):
    train = tmp_path / "pairs.tsv"
    rows = "".join(f"a {number}\tb {number}\n" for number in range(80))
    train.write_text(f"text\ttext_pair\n{rows}")
    with pytest.raises(InputError, match="`calibration_fraction` is for answers that"):
        run_finetune(
            *(init, train, train, tmp_path / "run"),
            task="embedding",
            calibration_fraction=0.5,
        )
