"""The promise of runs whose texts have any number of answers: labels, entities."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf

import bert_keras
from bert_keras import export
from bert_keras.checkpoints import run_directory
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.data import features, tokenization
from bert_keras.export import formats
from bert_keras.inference import finetuned
from bert_keras.kinds.tagging import dataset as tagging
from bert_keras.kinds.tagging import ner, tag_schemes
from bert_keras.labelled import drift
from bert_keras.report import promises
from bert_keras.trust import calibrating
from tests import make
from tests.bert_keras.report import test_promises

WORDS = [f"w{number}" for number in range(200)]
VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *WORDS))
NAMES = ("A", "B", "C")
TAGS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


def make_run(folder, randomize, task, logits_of=None, **kind):
    """A run that is too sure of itself. `logits_of` gives the logits of a run: their
    means are taken from the biases, so that no answer is the same everywhere."""
    settings = finetuning.FinetuningConfig(max_seq_length=16, **task)

    def make_one(name, means=0.0):
        def change(network):
            randomize(network, stddev=1.0)
            kernel, bias = network.trainable_variables[-2:]
            assert kernel.path.endswith("classifier/kernel")
            kernel.assign(4 * kernel)
            bias.assign(bias - means)

        options = {"settings": settings, "change": change, **kind}
        return make.make_run(folder / name, VOCABULARY, **options)

    if logits_of is None:
        return make_one("run")
    first = logits_of(make_one("first"))
    return make_one("run", first.mean(axis=0))


def harder(is_right):
    """A precision between that of all answers and 1."""
    return float(round((1 + 2 * np.mean(is_right)) / 3, 3))


def drawn(log_odds, rng):
    """Whether answers are right, as if half of their log odds were true."""
    return rng.random(np.shape(log_odds)) < scipy.special.expit(log_odds / 2)


# ---- several labels ------------------------------------------------------------------


@pytest.fixture(scope="module")
def labels(tmp_path_factory, randomize):
    """A calibrated run, its promise, new texts, their logits and right labels."""
    folder, rng = tmp_path_factory.mktemp("labels"), np.random.default_rng(5)
    texts = [" ".join(rng.choice(WORDS, 6)) for _ in range(1500)]
    unlabelled = folder / "texts.tsv"
    unlabelled.write_text("text\n" + "".join(f"{text}\n" for text in texts))

    def logits_of(run):
        model = finetuned.FinetunedModel.load(run)
        return model.answer(model.read(unlabelled, has_labels=False)).logits

    run = make_run(
        *(folder, randomize, {"task": "text", "multi_label": True}, logits_of),
        kind="multi_label",
        labels=NAMES,
        results={"steps": 1, "thresholds": {"A": 0.1, "B": 0.9, "C": 0.3}},
    )
    logits = logits_of(run)
    holds = drawn(logits.astype(float), rng)
    paths = folder / "seen.tsv", folder / "new.tsv"
    for path, part in zip(paths, (slice(1200), slice(1200, None)), strict=True):
        names = [",".join(np.array(NAMES)[row]) for row in holds[part]]
        rows = [f"{t}\t{n}\n" for t, n in zip(texts[part], names, strict=True)]
        path.write_text("text\tlabel\n" + "".join(rows))
    precision = harder(holds[logits >= 0])
    promise = calibrating.calibrate(run, paths[0], precision=precision, confidence=0.9)
    return run, promise, paths[1], texts[1200:], logits[1200:], holds[1200:]


def test_labels_of_a_promise_everywhere(labels, tmp_path):
    run, promise, path, texts, logits, holds = labels
    assert promise.temperature == pytest.approx(2, rel=0.3)
    assert (promise.several, promise.examples) == ("labels", "texts")
    assert promise.most_counted in (2, 3)
    shares = scipy.special.expit(logits.astype(float) / promise.temperature)
    likely = logits >= 0
    given = likely & (shares >= promise.threshold)
    assert 0.2 * likely.sum() < given.sum() < 0.95 * likely.sum()
    expected = [tuple(np.array(NAMES)[row]) for row in given]
    # 1. Python, files, and scores; the thresholds of the F1 are of no account.
    records = bert_keras.load(run).predict(texts)
    assert [record.prediction for record in records] == expected
    found = [[*record.probabilities.values()] for record in records]
    np.testing.assert_allclose(found, shares, atol=1e-5)
    finetuned.predict(run, path, tmp_path / "answers.tsv")
    with (tmp_path / "answers.tsv").open() as file:
        rows = [*csv.DictReader(file, delimiter="\t")]
    assert [row["prediction"] for row in rows] == [*map(",".join, expected)]
    scores = finetuned.evaluate(run, path)
    assert scores["share_answered"] == pytest.approx(given.sum() / likely.sum())
    assert scores["precision_of_answers"] == pytest.approx(holds[given].mean())
    f1 = 2 * (likely & holds).sum() / (likely.sum() + holds.sum())
    assert scores["micro_f1"] == pytest.approx(f1)
    # 2. The graph, and what makes answers of numbers.
    export.export_model(run, tmp_path / "1")
    signatures = tf.saved_model.load(str(tmp_path / "1")).signatures
    answer = signatures["serving_default"](text=tf.constant(texts))
    np.testing.assert_array_equal(answer["holds"], given)
    np.testing.assert_allclose(answer["probabilities"], shares, atol=1e-5)
    limit = pytest.approx(max(0.5, promise.threshold))
    assert make.served(run).decisions == {
        "temperature": promise.temperature,
        "threshold": promise.threshold,
        "thresholds": dict.fromkeys(NAMES, limit),
    }


def test_several_labels_each_with_its_promise(labels, tmp_path):
    run, _, path, texts, logits, holds = labels
    run = shutil.copytree(run, tmp_path / "run")
    seen = path.parent / "seen.tsv"
    promise = calibrating.calibrate(
        run, seen, precision=0.8, confidence=0.9, by_label=True
    )
    # A text has a label once at most, so the binomial bound is right.
    assert (promise.most_counted, promise.threshold) == (1, 0.0)
    assert promise.num_rows == sum(count for count, _, _ in promise.by_label.values())
    for _, given, wrong in promise.by_label.values():
        level = (1 - 0.9) / len(NAMES)
        assert not given or scipy.stats.binom.cdf(wrong, given, 0.2) <= level
    limits = [promise.label_thresholds.get(name, 2) for name in NAMES]
    shares = scipy.special.expit(logits.astype(float) / promise.temperature)
    expected = (shares >= limits) & (logits >= 0)
    assert 0 < expected.sum() < (logits >= 0).sum()
    assert len({*limits}) > 1
    records = bert_keras.load(run).predict(texts)
    names = [tuple(np.array(NAMES)[row]) for row in expected]
    assert [record.prediction for record in records] == names
    answer = make.served(run).answer(tf.constant(texts))
    np.testing.assert_array_equal(answer["holds"], expected)
    assert make.served(run).decisions["thresholds"] == {
        name: pytest.approx(max(0.5, limit))
        for name, limit in promise.label_thresholds.items()
    }


def test_the_least_sure_label_of_a_text_is_compared_with_others(labels):
    run, promise, path, _, logits, _ = labels
    model = finetuned.FinetunedModel.load(run)
    data = model.read(path, has_labels=False)
    measured = drift.measure(
        data, model.answer(data), model.tokenizer, temperature=promise.temperature
    )
    shares = scipy.special.expit(logits.astype(float) / promise.temperature)
    expected = np.where(logits >= 0, shares, 1).min(axis=1)
    found = measured.values["confidence"]
    np.testing.assert_allclose(np.sort(found), np.sort(expected), atol=1e-4)
    assert promise.inputs.keys() == measured.values.keys()


# ---- entities ------------------------------------------------------------------------


class Entities:
    def __init__(self, folder: Path, randomize, *, reads_text: bool):
        rng = np.random.default_rng(6)
        self.sentences = [rng.choice(WORDS, 6).tolist() for _ in range(900)]
        # Windows are cut in long sentences.
        self.sentences += [rng.choice(WORDS, 40).tolist() for _ in range(100)]
        rows = [
            ner.Sentence(tuple(s), None, n, n) for n, s in enumerate(self.sentences)
        ]
        data = tagging.TaggingDataset(path=folder, rows=rows, has_labels=False)
        self.run = make_run(
            *(folder, randomize, {"task": "tagging", "document_context": False}),
            lambda run: finetuned.FinetunedModel.load(run).answer(data).word_logits,
            kind="tagging",
            labels=TAGS,
            reads_text=reads_text,
        )
        answers = finetuned.FinetunedModel.load(self.run).answer(data)
        self.entities, right = [], []
        for tags, found in zip(
            answers.tags(), answers.entities(answers.tags()), strict=True
        ):
            self.entities.append(found)
            right.append(["O"] * len(tags))
            for (name, begin, end), p in found:
                if drawn(scipy.special.logit(p), rng):
                    right[-1][begin:end] = tags[begin:end]
                elif rng.random() < 0.5:
                    other = "LOC" if name == "PER" else "PER"
                    wrong = [f"{tag[:2]}{other}" for tag in tags[begin:end]]
                    right[-1][begin:end] = wrong
        self.tags = answers.tags()
        self.right = [[*tag_schemes.to_iob2(row)] for row in right]
        suffix = "jsonl" if reads_text else "txt"
        self.paths = folder / f"seen.{suffix}", folder / f"new.{suffix}"
        lines = [*map(self.line_of, self.sentences, self.right)]
        self.paths[0].write_text("".join(lines[100:]))
        self.paths[1].write_text("".join(lines[:100] + lines[-100:]))
        self.new = [*range(100), *range(900, 1000)]
        is_right = [
            entity in tag_schemes.entities(tags)
            for found, tags in zip(self.entities, self.right, strict=True)
            for entity, _ in found
        ]
        self.promise = calibrating.calibrate(
            self.run, self.paths[0], precision=harder(is_right), confidence=0.9
        )

    def line_of(self, words, tags):
        if self.promise_reads_text():
            starts = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()
            entities = [
                {"start": starts[e.start], "end": starts[e.end] - 1, "label": e.type}
                for e in tag_schemes.entities(tags)
            ]
            return json.dumps({"text": " ".join(words), "entities": entities}) + "\n"
        pairs = zip(words, tags, strict=True)
        return "".join(f"{word} {tag}\n" for word, tag in pairs) + "\n"

    def promise_reads_text(self):
        return run_directory.read_task(self.run).reads_text

    def given(self, row):
        """The entities of a sentence that are given, with calibrated probabilities."""
        found = []
        for entity, p in self.entities[row]:
            odds = scipy.special.logit(p) / self.promise.temperature
            found.append((entity, scipy.special.expit(odds)))
        return [(e, p) for e, p in found if p >= self.promise.threshold]

    def given_tags(self, row):
        tags, given = [*self.tags[row]], [entity for entity, _ in self.given(row)]
        for entity, _ in self.entities[row]:
            if entity not in given:
                tags[entity.start : entity.end] = ["O"] * (entity.end - entity.start)
        return tags

    def check_scores(self):
        scores = finetuned.evaluate(self.run, self.paths[1])
        given = [(row, e) for row in self.new for e, _ in self.given(row)]
        num_found = sum(len(self.entities[row]) for row in self.new)
        num_right = sum(e in tag_schemes.entities(self.right[row]) for row, e in given)
        assert 0.2 < len(given) / num_found < 0.95
        assert scores["share_answered"] == pytest.approx(len(given) / num_found)
        assert scores["precision_of_answers"] == pytest.approx(num_right / len(given))


@pytest.fixture(scope="module")
def words(tmp_path_factory, randomize):
    return Entities(tmp_path_factory.mktemp("words"), randomize, reads_text=False)


@pytest.fixture(scope="module")
def texts(tmp_path_factory, randomize):
    return Entities(tmp_path_factory.mktemp("texts"), randomize, reads_text=True)


def test_tags_of_a_promise_everywhere(words, tmp_path):
    assert words.promise.temperature == pytest.approx(2, rel=0.2)
    assert words.promise.several == "entities"
    expected = [words.given_tags(row) for row in words.new]
    sentences = [words.sentences[row] for row in words.new]
    # 1. Python, files and scores.
    records = bert_keras.load(words.run).predict(sentences)
    assert [[*record.prediction] for record in records] == expected
    finetuned.predict(words.run, words.paths[1], tmp_path / "answers.txt")
    blocks = (tmp_path / "answers.txt").read_text().split("\n\n")[: len(expected)]
    lines = [[line.split()[-1] for line in block.splitlines()] for block in blocks]
    assert lines == expected
    words.check_scores()
    # 2. The graph of words. Left-out words have the probability of their entity.
    export.export_model(words.run, tmp_path / "1")
    signatures = tf.saved_model.load(str(tmp_path / "1")).signatures
    padded = np.full((len(sentences), 40), "", object)
    for row, sentence in zip(padded, sentences, strict=True):
        row[: len(sentence)] = sentence
    answer = signatures["words"](words=tf.constant(padded.astype(str)))
    tags = [[t.decode() for t in row if t] for row in answer["tags"].numpy()]
    assert tags == expected
    temperature = words.promise.temperature
    for row, shares in zip(words.new, answer["probability"].numpy(), strict=True):
        for (_, begin, end), p in words.entities[row]:
            odds = scipy.special.logit(p) / temperature
            share = scipy.special.expit(odds)
            np.testing.assert_allclose(shares[begin:end], share, atol=1e-4)
    assert make.served(words.run).decisions == {
        "temperature": temperature,
        "threshold": words.promise.threshold,
    }


def test_entities_of_a_promise_everywhere(texts, tmp_path):
    inputs = [" ".join(texts.sentences[row]) for row in texts.new]
    expected = [
        [(e.type, *np.array(words_to(text, e)), p) for e, p in texts.given(row)]
        for row, text in zip(texts.new, inputs, strict=True)
    ]
    # 1. Python, files and scores.
    records = bert_keras.load(texts.run).predict(inputs)
    check_entities([r.model_dump()["entities"] for r in records], expected)
    assert [[*r.prediction] for r in records] == [*map(texts.given_tags, texts.new)]
    finetuned.predict(texts.run, texts.paths[1], tmp_path / "answers.jsonl")
    lines = (tmp_path / "answers.jsonl").read_text().splitlines()
    check_entities([json.loads(line)["entities"] for line in lines], expected)
    texts.check_scores()
    # 2. The graph.
    export.export_model(texts.run, tmp_path / "1")
    signatures = tf.saved_model.load(str(tmp_path / "1")).signatures
    answer = signatures["serving_default"](text=tf.constant(inputs))
    answer = {name: values.numpy() for name, values in answer.items()}
    rows = [
        [
            {
                "label": answer["type"][row, n].decode(),
                **{k: answer[k][row, n] for k in ("start", "end", "probability")},
            }
            for n in range(count)
        ]
        for row, count in enumerate(answer["num_entities"])
    ]
    check_entities(rows, expected)


def words_to(text, entity):
    """Start and end of an entity in a text with a blank between words."""
    words = text.split()
    start = len(" ".join([*words[: entity.start], ""]))
    return start, start + len(" ".join(words[entity.start : entity.end]))


def check_entities(actual, expected):
    for found, right in zip(actual, expected, strict=True):
        places = [(e["label"], e["start"], e["end"]) for e in found]
        assert places == [e[:3] for e in right]
        shares = [e["probability"] for e in found]
        np.testing.assert_allclose(shares, [e[3] for e in right], atol=1e-4)


# ---- files of ids and numbers --------------------------------------------------------


FORMS = [
    pytest.param(form, id=form, marks=marks)
    for form, marks in (("onnx", ()), ("litert", pytest.mark.slow))
]


def exported(run, form, folder, texts):
    """The logits of a file for texts of six whole words, and what is beside it."""
    pytest.importorskip({"litert": "ai_edge_litert"}.get(form, "tf2onnx"))
    export.export_model(run, folder / "out", to=form)
    vocabulary = (folder / "out/vocab.txt").read_text().splitlines()
    rows = [f"[CLS] {text} [SEP]".split() for text in texts]
    ids = np.int32([[*map(vocabulary.index, row)] for row in rows])
    inputs = {"input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    load = formats.ID_FORMATS[form].load
    path = folder / "out" / formats.ID_FORMATS[form].file_name
    labels = (folder / "out/labels.txt").read_text().splitlines()
    decisions = json.loads((folder / "out/decisions.json").read_text())
    return load(path)({"input_ids": ids, **inputs})["logits"], labels, decisions


@pytest.mark.parametrize("form", FORMS)
def test_labels_by_a_line_of_numpy(form, labels, tmp_path):
    run, _, _, texts, *_ = labels
    logits, names, decisions = exported(run, form, tmp_path, texts[:100])
    shares = 1 / (1 + np.exp(-logits.astype(float) / decisions["temperature"]))
    limits = np.array([decisions["thresholds"][name] for name in names])
    records = bert_keras.load(run).predict(texts[:100])
    expected = [record.prediction for record in records]
    assert [tuple(np.array(names)[row]) for row in shares >= limits] == expected
    assert len({*expected}) > 4
    found = [[*record.probabilities.values()] for record in records]
    np.testing.assert_allclose(found, shares, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_entities_by_a_few_lines_of_numpy(form, texts, tmp_path):
    inputs = [" ".join(words) for words in texts.sentences[:100]]
    logits, names, decisions = exported(texts.run, form, tmp_path, inputs)
    # Without those of [CLS] and [SEP].
    logits = logits[:, 1:-1].astype(float)
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares = (shares / shares.sum(axis=-1, keepdims=True)).max(axis=-1)
    num_left_out = 0
    records = bert_keras.load(texts.run).predict(inputs)
    for best, of_words, record in zip(
        logits.argmax(axis=-1), shares, records, strict=True
    ):
        tags, found = [names[place] for place in best], []
        for n, tag in enumerate(tags):
            goes_on = n and tag[0] == "I" and tags[n - 1][1:] == tag[1:]
            if goes_on:
                found[-1][-1] = n + 1
            elif tag != "O":
                found.append([tag[2:], n, n + 1])
                tags[n] = f"B-{tag[2:]}"
        given = []
        for name, start, end in found:
            p = of_words[start:end].mean()
            odds = np.log(p / (1 - p)) / decisions["temperature"]
            if (p := 1 / (1 + np.exp(-odds))) >= decisions["threshold"]:
                given.append((name, start, end, p))
            else:
                tags[start:end] = ["O"] * (end - start)
                num_left_out += 1
        assert [*record.prediction] == tags
        words = [
            (e.label, *(len(record.text[:at].split()) for at in (e.start, e.end)))
            for e in record.entities
        ]
        assert words == [entity[:3] for entity in given]
        actual = [entity.probability for entity in record.entities]
        np.testing.assert_allclose(actual, [e[3] for e in given], atol=1e-4)
    assert num_left_out > 20


# ---- what depends on what, and what is refused ---------------------------------------


def test_entities_of_a_sentence_belong_together():
    """Each sentence has two entities, of which the first is right."""
    rows = [ner.Sentence(("a", "b"), ("B-PER", "O"), 1, line) for line in range(3)]
    logits = np.tile([[0.0, 0, 0, 2, 0], [0, 3, 0, 0, 0]], (len(rows), 1))
    answers = tagging.TaggingAnswers(sentences=rows, word_logits=logits, labels=TAGS)
    found = answers.candidates()
    assert found.texts.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.is_right[:, 0].tolist() == [True, False] * 3
    np.testing.assert_allclose(
        found.answered(1.0).probabilities[:2],
        [scipy.special.softmax([0, 0, 0, 2, 0])[3], np.exp(3) / (np.exp(3) + 4)],
    )


def test_too_few_answers_and_too_many_mistakes(labels, tmp_path):
    run, _, path, texts, _, holds = labels
    before = (run / run_directory.CALIBRATION_NAME).read_bytes()
    header, *lines = path.read_text().splitlines()
    few = tmp_path / "few.tsv"
    few.write_text("\n".join([header, *lines[:60]]) + "\n")
    refusal = r"needs about \d+ labels to test the promise, beside a quarter for the "
    refusal += r"temperature: give \d+ labels or more, got \d+"
    with pytest.raises(InputError, match=refusal):
        calibrating.calibrate(run, few, precision=0.95, confidence=0.95)
    wrong = tmp_path / "wrong.tsv"
    others = [",".join(np.array(NAMES)[~row]) for row in holds]
    rows = [f"{text}\t{names}" for text, names in zip(texts, others, strict=True)]
    wrong.write_text("\n".join([header, *rows]) + "\n")
    with pytest.raises(InputError, match="too many: ask for less --precision"):
        calibrating.calibrate(run, wrong, precision=0.8, confidence=0.9)
    assert (run / run_directory.CALIBRATION_NAME).read_bytes() == before


def test_plain_tags_are_refused(randomize, tmp_path):
    run = make_run(
        *(tmp_path, randomize, {"task": "tagging"}), kind="tagging", labels=("N", "V")
    )
    path = tmp_path / "tags.txt"
    path.write_text("w1 N\nw2 V\n\n" * 200)
    with pytest.raises(InputError, match="a model for tagging, expected one for"):
        calibrating.calibrate(run, path, precision=0.95, confidence=0.95)


def test_no_answer_at_all_has_no_share():
    rows = [ner.Sentence(("a",), ("O",), 1, 1)]
    answers = tagging.TaggingAnswers(
        sentences=rows, word_logits=np.eye(1, 5), labels=TAGS
    )
    assert len(answers.candidates().logits) == 0
    assert answers.promise_scores(test_promises.PROMISE) == {}


def test_the_sentence():
    promise = test_promises.PROMISE.model_copy(
        update={"several": "labels", "most_counted": 3}
    )
    assert promises.sentence(promise) == (
        "Of 1,000 labels found in texts like these it gives 870, and at most 5 of 100 "
        "labels are wrong (99 % sure)."
    )
    assert promises.facts(promise).startswith(
        "An answer is given from a probability of 0.912345 on, else it is left out. "
        "Of 3,000 labels that were neither trained on nor used for the temperature, "
        "2,610 were given, of which 99 are wrong. More than 3 answers to one text "
        "count as so many. The temperature is 1.71:"
    )
    assert tasks.Calibration.model_validate(promise.model_dump()) == promise
