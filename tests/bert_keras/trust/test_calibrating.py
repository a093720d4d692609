"""The promise of a run, and that it travels to every place where the run answers."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf

import bert_keras
from bert_keras import export
from bert_keras.checkpoints import conversion, run_directory, weights
from bert_keras.commands import main as cli
from bert_keras.core import files
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.data import features, tokenization
from bert_keras.export import formats, writing
from bert_keras.inference import finetuned
from bert_keras.kinds import registry
from bert_keras.kinds.text import text, text_forms
from bert_keras.labelled import dataset, drift
from bert_keras.report import promises
from bert_keras.trust import calibrating, thresholds
from tests import make

LABELS = ("bad", "good", "so so")
WORDS = [f"w{number}" for number in range(200)]
VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *WORDS))
TEXT = finetuning.FinetuningConfig(task="text", max_seq_length=8)
NAME = run_directory.CALIBRATION_NAME


def write_rows(path: Path, texts, labels) -> Path:
    lines = [f"{text}\t{label}\n" for text, label in zip(texts, labels, strict=True)]
    path.write_text("text\tlabel\n" + "".join(lines))
    return path


class Made:
    """A run that is too sure of itself, and texts whose labels are drawn by the softmax
    of half its logits."""

    def __init__(self, folder: Path, randomize):
        def make_one(name, means=0.0):
            def change(network):
                randomize(network, stddev=1.0)
                kernel, bias = network.trainable_variables[-2:]
                assert kernel.path.endswith("classifier/kernel")
                kernel.assign(6 * kernel)
                bias.assign(bias - means)

            run = make.make_run(
                folder / name,
                VOCABULARY,
                settings=TEXT,
                change=change,
                kind="classification",
                labels=LABELS,
                results={"steps": 3, "eval": {"accuracy": 0.75}},
            )
            model = finetuned.FinetunedModel.load(run)
            data = registry.labelled("classification").from_python(texts, model.task)
            return run, model.answer(data).logits

        rng = np.random.default_rng(5)
        texts = [" ".join(rng.choice(WORDS, 6)) for _ in range(1500)]
        # Each label is the answer to many of the texts.
        _, logits = make_one("first")
        self.run, self.logits = make_one("run", logits.mean(axis=0))
        noise = rng.gumbel(size=self.logits.shape)
        right = (self.logits / 2 + noise).argmax(axis=-1)
        labels = [LABELS[place] for place in right]
        self.data = write_rows(folder / "seen.tsv", texts[:1200], labels[:1200])
        self.new = write_rows(folder / "new.tsv", texts[1200:], labels[1200:])
        self.texts, self.logits = texts[1200:], self.logits[1200:]
        self.right = labels[1200:]

    def calibrate(self, run: Path | None = None, **changes) -> tasks.Calibration:
        options = {"data": self.data, "precision": 0.95, "confidence": 0.95, **changes}
        return calibrating.calibrate(run or self.run, options.pop("data"), **options)

    def copy(self, folder: Path) -> Path:
        return shutil.copytree(self.run, folder / "run")


@pytest.fixture(scope="module")
def made(tmp_path_factory, randomize) -> Made:
    return Made(tmp_path_factory.mktemp("promise"), randomize)


@pytest.fixture(scope="module")
def calibrated(made) -> tasks.Calibration:
    return made.calibrate()


def test_the_temperature_is_that_of_the_labels(made, calibrated):
    assert calibrated.temperature == pytest.approx(2, rel=0.25)
    before, after = (
        sum(share * abs(mean - right) for mean, right, share in bins)
        for bins in (calibrated.before, calibrated.after)
    )
    assert after < 0.6 * before
    assert 0 < calibrated.num_wrong / calibrated.num_answered < 0.05


def test_every_place_gives_the_same_answers(made, calibrated, tmp_path):
    """The answer is empty, or the label, beside the calibrated probabilities."""
    probabilities = scipy.special.softmax(
        made.logits.astype(float) / calibrated.temperature, axis=-1
    )
    labels = np.array(LABELS)[probabilities.argmax(axis=-1)]
    is_sure = probabilities.max(axis=-1) >= calibrated.threshold
    expected = np.where(is_sure, labels, "").tolist()
    assert 30 < is_sure.sum() < 270
    # 1. Python.
    records = bert_keras.load(made.run).predict(made.texts)
    assert [record.prediction for record in records] == expected
    for record, row in zip(records, probabilities, strict=True):
        assert [*record.probabilities] == [*LABELS]
        np.testing.assert_allclose([*record.probabilities.values()], row, atol=1e-6)
    # 2. Files.
    for suffix in ("tsv", "jsonl"):
        output = tmp_path / f"answers.{suffix}"
        finetuned.predict(made.run, made.new, output)
        lines = output.read_text().splitlines()
        rows = [*csv.DictReader(lines, delimiter="\t")]
        if suffix == "jsonl":
            rows = [*map(json.loads, lines)]
        assert [row["prediction"] for row in rows] == expected
        shares = [float(row["p(good)"]) for row in rows]
        np.testing.assert_allclose(shares, probabilities[:, 1], atol=1e-6)
    # 3. The graph, as a SavedModel; `serve` has the same one.
    export.export_model(made.run, tmp_path / "1")
    signatures = tf.saved_model.load(str(tmp_path / "1")).signatures
    answer = signatures["serving_default"](text=tf.constant(made.texts))
    assert [label.decode() for label in answer["label"].numpy()] == expected
    np.testing.assert_allclose(answer["probabilities"], probabilities, atol=5e-5)
    # 4. Numbers beside what makes answers of them.
    pytest.importorskip("tf2onnx")
    export.export_model(made.run, tmp_path / "onnx", to="onnx")
    decisions = json.loads((tmp_path / "onnx/decisions.json").read_text())
    assert decisions == {
        "temperature": calibrated.temperature,
        "threshold": calibrated.threshold,
    }
    ids = make.served(made.run).encode(tf.constant(made.texts))
    ids = {name: values.numpy() for name, values in ids.items()}
    logits = formats.load_onnx(tmp_path / "onnx/model.onnx")(ids)["logits"]
    shares = scipy.special.softmax(logits / decisions["temperature"], axis=-1)
    np.testing.assert_allclose(shares, probabilities, atol=5e-5)
    # Vectors of the same run have nothing to be sure of.
    assert writing.load(made.run, embedding="mean").decisions == {}
    card = (tmp_path / "onnx/README.md").read_text()
    assert "## When it answers\n\nOf 1,000 texts like these it answers" in card
    assert "`decisions.json` has both" in card


@pytest.mark.slow
@pytest.mark.parametrize("form", ["litert", "transformers_js"])
def test_the_other_formats_have_it_too(form, made, calibrated, tmp_path):
    pytest.importorskip({"litert": "ai_edge_litert"}.get(form, "tf2onnx"))
    export.export_model(made.run, tmp_path / "out", to=form)
    name = {"litert": "decisions.json"}.get(form, "config.json")
    facts = json.loads((tmp_path / "out" / name).read_text())
    facts = facts.get("bert_keras", facts)
    assert facts["temperature"] == calibrated.temperature
    assert facts["threshold"] == calibrated.threshold


def test_evaluate_says_what_the_threshold_makes_of_new_rows(made, calibrated):
    scores = finetuned.evaluate(made.run, made.new)
    predictions = [r.prediction for r in bert_keras.load(made.run).predict(made.texts)]
    pairs = [(p, r) for p, r in zip(predictions, made.right, strict=True) if p]
    right = sum(p == r for p, r in pairs)
    assert scores["share_answered"] == pytest.approx(len(pairs) / len(predictions))
    assert scores["precision_of_answers"] == pytest.approx(right / len(pairs))
    best = [LABELS[place] for place in made.logits.argmax(axis=-1)]
    accuracy = np.mean([p == r for p, r in zip(best, made.right, strict=True)])
    assert scores["accuracy"] == pytest.approx(accuracy)


def test_the_command_says_it_in_a_sentence(made, tmp_path, capsys):
    run = made.copy(tmp_path)
    (run / NAME).unlink(missing_ok=True)
    command = ["calibrate", "--model", str(run), "--data", str(made.data)]
    assert cli.main(command) == 0
    first = (run / NAME).read_bytes()
    promise = run_directory.read_calibration(run)
    answered = round(1000 * promise.num_answered / promise.num_rows)
    assert capsys.readouterr().out.startswith(
        f"Of 1,000 texts like these it answers {answered}, and at most 5 of 100 "
        "answers are wrong (95 % sure).\nAn answer is given from a probability of 0."
    )
    # On a calibrated run it does the same again.
    assert cli.main([*command, "--precision", "0.95"]) == 0
    assert (run / NAME).read_bytes() == first


def test_a_promise_belongs_to_the_weights(made, calibrated, tmp_path, caplog):
    run = made.copy(tmp_path)
    network = registry.build_network(
        make.small_config(len(VOCABULARY)), run_directory.read_task(run), seed=99
    )
    weights.finish_run(run_directory.read_run(run), network, {"steps": 4})
    refused = f"{run / NAME}: was made for other weights than those beside it"
    for use in (bert_keras.load, finetuned.FinetunedModel.load, make.served):
        with pytest.raises(InputError, match=refused):
            use(run)
    # The new network is sure of nothing.
    with pytest.raises(InputError, match="ask for less --precision"):
        made.calibrate(run)
    assert "it is deleted" in caplog.text
    assert {r.prediction for r in bert_keras.load(run).predict(["w1", "w2"])} <= {
        *LABELS
    }


def test_a_promise_ends_when_fit_changes_the_weights(made, calibrated):
    model = bert_keras.load(made.run)
    assert "" in {record.prediction for record in model.predict(made.texts)}
    inputs = model.encode(made.texts[:4])
    targets = {"logits": np.eye(3, dtype="float32")[[0, 1, 2, 0]]}
    model.network.compile(optimizer="sgd", loss={"logits": "mse"})
    model.network.fit(inputs, targets, verbose=0)
    assert {r.prediction for r in model.predict(made.texts)} <= {*LABELS}


@pytest.mark.parametrize(
    ("key", "value"),
    [("temperature", 0), ("threshold", 1.5), ("precision", 95), ("num_answered", 0)],
)
def test_a_promise_that_is_none(key, value, made, calibrated, tmp_path):
    run = made.copy(tmp_path)
    values = files.read_json(run / NAME) | {key: value}
    (run / NAME).write_text(json.dumps(values))
    with pytest.raises(InputError, match=f"{NAME}: `{key}`: input should be"):
        bert_keras.load(run)


def test_a_conversion_keeps_it_or_says_that_it_is_lost(
    made, calibrated, tmp_path, caplog
):
    pruned = conversion.convert(
        made.run, tmp_path / "pruned", to="native", keep_tokens=made.texts
    )
    assert pruned
    promise = run_directory.read_calibration(tmp_path / "pruned")
    digests = {"model_sha256": calibrated.model_sha256}
    assert promise.model_sha256 != calibrated.model_sha256
    assert promise.model_copy(update=digests) == calibrated
    assert "calibrate" not in caplog.text
    conversion.convert(made.run, tmp_path / "theirs", to="hugging_face")
    assert (
        "has no temperature and no threshold of `bert-keras calibrate`" in caplog.text
    )


# Texts to predict, and what the line about them says; `None`: there is no line.
OTHERS = {
    "new ones": (lambda texts: texts, None),
    "longer": (
        lambda texts: [f"{text} {text} unheard" for text in texts],
        r"longer in pieces \(100% above 6, there 0%\), more unknown pieces \(100% "
        r"above 0.0%, there 0%\); what",
    ),
    "too few": (lambda texts: [f"{text} {text}" for text in texts[:19]], None),
    "copies": (lambda texts: [f"{text} {text}" for text in texts[:9]] * 100, None),
}


@pytest.mark.parametrize("name", OTHERS)
def test_texts_unlike_those_of_the_promise_are_noticed(
    name, made, calibrated, tmp_path, caplog
):
    change, line = OTHERS[name]
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in change(made.texts)))
    finetuned.predict(made.run, path, tmp_path / "answers.tsv")
    found = re.findall(
        ".*unlike the rows that the run was calibrated on: .*", caplog.text
    )
    assert len(found) == (line is not None)
    assert line is None or re.search(line, found[0])
    # The same answers come from a promise that was made before it had this.
    run = made.copy(tmp_path)
    values = files.read_json(run / NAME)
    assert {*values["inputs"]} == {"pieces", "unknown", "confidence"}
    del values["inputs"]
    (run / NAME).write_text(json.dumps(values))
    caplog.clear()
    finetuned.predict(run, path, tmp_path / "same.tsv")
    assert "calibrated on" not in caplog.text
    same, answers = (tmp_path / f"{n}.tsv" for n in ("same", "answers"))
    assert same.read_bytes() == answers.read_bytes()


def test_a_file_is_measured_alike_with_labels_and_without(made, calibrated):
    model = finetuned.FinetunedModel.load(made.run)
    both = []
    for has_labels in (True, False):
        data = model.read(made.data, has_labels=has_labels)
        both.append(
            drift.measure(
                *(data, model.answer(data), model.tokenizer),
                temperature=calibrated.temperature,
            )
        )
    assert both[0].keys == both[1].keys
    assert both[0].describe() == both[1].describe() == calibrated.inputs
    assert calibrated.inputs["pieces"].points == ((6, 1.0),)
    assert calibrated.inputs["pieces"].num_rows == 1200


def test_both_parts_are_samples_of_the_rows_and_no_part_of_dev():
    keys = [f"text {number}" for number in range(4000)] + ["yes"] * 4000
    first = calibrating.in_first_part(keys)
    # Equal texts are parted, too, row by row.
    for half in (first[:4000], first[4000:]):
        assert abs(half.mean() - thresholds.FIRST_PART) < 0.03
    order = np.random.default_rng(0).permutation(4000)
    shuffled = calibrating.in_first_part([keys[place] for place in order])
    assert (shuffled == first[order]).all()


# Rows of the calibration file, options, and the error.
REFUSED = {
    "ten rows": (
        {"rows": 10},
        {},
        "needs 59 rows to test the promise, beside a quarter",
    ),
    "one class": ({"labels": "bad"}, {}, "every row is labelled 'bad'"),
    "unknown label": ({"labels": "ba"}, {}, "label 'ba' was not in the training data"),
    "percent": ({}, {"precision": 95.0}, "--precision: expected a share between 0 and"),
    "sure": ({}, {"confidence": 1.0}, "--confidence: expected a share between 0 and 1"),
    "nan": ({}, {"precision": float("nan")}, "--precision: expected a share"),
    "too precise": ({}, {"precision": 0.995}, "needs 598 rows"),
    "too few": ({"rows": 90}, {"precision": 0.9}, "too few to be sure of: give about"),
    "hopeless": ({"labels": None}, {}, "too many: ask for less --precision"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_promised(name, made, calibrated, tmp_path):
    rows, options, message = REFUSED[name]
    before = (made.run / NAME).read_bytes()
    lines = made.data.read_text().splitlines()[1 : 1 + rows.get("rows", 700)]
    texts, labels = zip(*(line.split("\t") for line in lines), strict=True)
    if "labels" in rows:
        labels = [rows["labels"] or LABELS[n % 3] for n in range(len(texts))]
        if rows["labels"] == "ba":
            labels[1] = "bad"
    path = write_rows(tmp_path / "rows.tsv", texts, labels)
    with pytest.raises(InputError) as caught:
        made.calibrate(**{"data": path, **options})
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert (made.run / NAME).read_bytes() == before


def test_files_that_the_run_knows_and_runs_that_give_no_label(made, tmp_path):
    run = made.copy(tmp_path)
    digest = finetuned.files.sha256(made.data)
    for key, value, verb in (
        ("train_sha256", digest, "trained"),
        ("dev_sha256", ["0", digest], "evaluated"),
    ):
        (run / run_directory.INPUTS_NAME).write_text(json.dumps({key: value}))
        with pytest.raises(InputError, match=f"the run was {verb} on this very file"):
            made.calibrate(run)
    with pytest.raises(InputError, match="expected a run directory made by"):
        made.calibrate(tmp_path)


def test_numbers_have_an_interval(made, randomize, tmp_path):
    run = make.make_run(
        tmp_path / "rating",
        VOCABULARY,
        settings=TEXT.model_copy(update={"regression": True}),
        change=lambda network: randomize(network, stddev=1.0),
        kind="regression",
    )
    texts = made.texts
    answers = np.array([r.prediction for r in bert_keras.load(run).predict(texts)])
    distances = np.random.default_rng(0).permutation(np.arange(1, len(texts) + 1))
    numbers = [f"{a + d:.6f}" for a, d in zip(answers, distances, strict=True)]
    few = write_rows(tmp_path / "few.tsv", texts[:58], numbers[:58])
    with pytest.raises(InputError, match="needs 59 rows to test the promise: give 59"):
        made.calibrate(run, data=few)
    assert "low" not in dict(bert_keras.load(run).predict(texts[:1])[0])
    data = write_rows(tmp_path / "numbers.tsv", texts, numbers)
    promise = made.calibrate(run, data=data)
    # Of 300, the 292nd: 95 % are 285, and six more for the confidence.
    rank = scipy.stats.binom.ppf(0.95, 300, 0.95) + 1
    assert promise.half_width == pytest.approx(rank, rel=1e-4) and rank == 292
    assert promise.num_wrong == 8
    low, high = answers - promise.half_width, answers + promise.half_width
    assert {*promise.inputs} == {"pieces", "unknown"}
    # Python, files, scores, the graph.
    records = bert_keras.load(run).predict(texts)
    found = [(r.prediction, r.low, r.high) for r in records]
    expected = np.stack([answers, low, high], axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    finetuned.predict(run, data, tmp_path / "answers.tsv")
    with (tmp_path / "answers.tsv").open() as file:
        rows = [*csv.DictReader(file, delimiter="\t")]
    np.testing.assert_allclose([float(r["low"]) for r in rows], low, rtol=1e-4)
    assert finetuned.evaluate(run, data)["share_within_interval"] == 292 / 300
    model = make.served(run)
    outputs = model.answer(tf.constant(texts))
    actual = np.stack([outputs[n] for n in ("score", "low", "high")], axis=1)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
    assert model.decisions == {"half_width": promise.half_width}
    assert promises.sentence(promise) == (
        "Of 100 texts like these at least 95 have their number within "
        f"{promise.half_width:.6g} of the answer (95 % sure)."
    )
    assert promises.section(promise).picture is None


def test_a_precision_of_no_answers_is_not_told(calibrated):
    rows = [text.LabelledText("a", None, label, 1) for label in "xyz"]
    task = tasks.Task(kind="classification", labels=("x", "y", "z"))
    answers = text_forms.TextAnswers(
        rows=rows, logits=np.eye(3), targets=np.arange(3), task=task
    )
    for threshold, expected in (
        (0.0, {"share_answered": 1.0, "precision_of_answers": 1.0}),
        (1.0, {"share_answered": 0.0}),
    ):
        promise = calibrated.model_copy(update={"threshold": threshold})
        assert answers.promise_scores(promise) == expected
    assert answers.promise_scores(tasks.LIKELIEST) == {}


# ---- a promise for each label --------------------------------------------------------


def test_a_promise_for_each_label(made, tmp_path, capsys):
    run = made.copy(tmp_path)
    command = ["calibrate", "--model", str(run), "--data", str(made.data)]
    assert cli.main([*command, "--precision", "0.9", "--by_label"]) == 0
    promise = run_directory.read_calibration(run)
    rows = capsys.readouterr().out.splitlines()
    assert "and of each label at most 10 of 100 answers are wrong" in rows[0]
    assert [row.split("\t")[0] for row in rows[2:]] == ["label", *promise.by_label]
    # 1. Each label has the threshold that it would have alone.
    model = finetuned.FinetunedModel.load(run)
    data = model.read(made.data, has_labels=True)
    logits, right = model.answer(data).logits, [row.label for row in data.rows]
    probabilities = scipy.special.softmax(logits / promise.temperature, axis=-1)
    best = np.array(LABELS)[logits.argmax(axis=-1)]
    is_right = best == right
    first = calibrating.in_first_part(data.keys())
    for label in LABELS:
        parts = [
            dataset.Answered(probabilities.max(axis=-1)[part], is_right[part])
            for part in (first & (best == label), ~first & (best == label))
        ]
        tested = thresholds.choose_threshold(
            *parts, precision=0.9, confidence=1 - 0.05 / 3
        )
        limit = tested.thresholds[tested.lowest]
        assert promise.label_thresholds[label] == pytest.approx(limit, abs=2e-6)
        given = parts[1].probabilities >= limit
        counts = len(given), given.sum(), (given & ~parts[1].is_right).sum()
        assert promise.by_label[label] == counts
    assert len({*promise.label_thresholds.values()}) == 3
    # 2. Every place follows them.
    shares = scipy.special.softmax(made.logits / promise.temperature, axis=-1)
    best = np.array(LABELS)[made.logits.argmax(axis=-1)]
    limits = np.array([promise.label_thresholds[label] for label in best])
    expected = np.where(shares.max(axis=-1) >= limits, best, "").tolist()
    assert {*expected} == {"", *LABELS}
    records = bert_keras.load(run).predict(made.texts)
    assert [record.prediction for record in records] == expected
    present = make.served(run).answer(tf.constant(made.texts))
    assert [label.decode() for label in present["label"].numpy()] == expected
    assert make.served(run).decisions == {
        "temperature": promise.temperature,
        "thresholds": promise.label_thresholds,
    }
    scores = finetuned.evaluate(run, made.new)
    pairs = [(p, r) for p, r in zip(expected, made.right, strict=True) if p]
    assert scores["share_answered"] == pytest.approx(len(pairs) / len(expected))
    assert scores["precision_of_answers"] == pytest.approx(
        np.mean([p == r for p, r in pairs])
    )


def test_a_label_without_a_promise_is_never_given(made, tmp_path, caplog):
    """Half of the answers with one label are wrong; the others keep theirs."""
    run, rows = made.copy(tmp_path), made.data.read_text().splitlines()
    texts = [row.split("\t")[0] for row in rows[1:]]
    records = [*finetuned.FinetunedModel.load(run).predict(texts)]
    best = [max(r.probabilities, key=r.probabilities.get) for r in records]
    right = [
        "good" if label == "bad" and place % 2 else label
        for place, label in enumerate(best)
    ]
    path = write_rows(tmp_path / "rows.tsv", texts, right)
    promise = made.calibrate(run, data=path, by_label=True)
    assert {*promise.label_thresholds} == {"good", "so so"}
    assert promise.by_label["bad"][1:] == (0, 0)
    assert re.search(
        r"never given, as too few or too often wrong: bad \(\d+ rows\)\n", caplog.text
    )
    assert promise.num_answered == sum(n for _, n, _ in promise.by_label.values())
    # The other labels have been right throughout.
    assert promise.num_wrong == 0
    model = bert_keras.load(run)
    assert {r.prediction for r in model.predict(made.texts)} == {"", "good", "so so"}
    present = make.served(run).answer(tf.constant(made.texts))
    assert {*present["label"].numpy().tolist()} == {b"", b"good", b"so so"}
    row = next(row for row in promises.by_label(promise) if row[0] == "bad")
    assert row[1:] == ["never", f"{promise.by_label['bad'][0]:,}", "0", "0"]
    # Nothing but mistakes.
    path = write_rows(tmp_path / "wrong.tsv", texts, ["bad", "good"] * 600)
    before = (run / NAME).read_bytes()
    with pytest.raises(InputError, match="--precision 0.95 .*bad .*good .*ask for le"):
        made.calibrate(run, data=path, by_label=True)
    assert (run / NAME).read_bytes() == before


def test_numbers_have_no_promise_for_each_label(tmp_path):
    settings = TEXT.model_copy(update={"regression": True})
    run = make.make_run(
        tmp_path / "run", VOCABULARY, settings=settings, kind="regression"
    )
    path = write_rows(tmp_path / "rows.tsv", ["w1", "w2"], [1.5, 2.5])
    with pytest.raises(InputError, match="--by_label: a model for regression, expect"):
        calibrating.calibrate(run, path, precision=0.9, confidence=0.9, by_label=True)
