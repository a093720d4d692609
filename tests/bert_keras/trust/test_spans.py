"""The promise of a run that finds answers in texts."""

import json

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

import bert_keras
from bert_keras.core.settings import finetuning, tasks
from bert_keras.data import features, tokenization
from bert_keras.inference import finetuned
from bert_keras.kinds.span import squad_scores
from bert_keras.trust import calibrating
from tests import make

# No articles, of which the official scores take no notice.
WORDS = [f"w{number}" for number in range(60)]
VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *WORDS))
SETTINGS = finetuning.FinetuningConfig(
    task="span",
    max_seq_length=16,
    span={"doc_stride": 6, "max_query_length": 3, "max_answer_length": 2},
)


def write_questions(path, rows, *, version):
    """A file of questions, contexts and answers; an answer of "" is none."""
    paragraphs = []
    for number, (question, context, text) in enumerate(rows):
        answer = {"text": text, "answer_start": context.find(text)}
        asked = {"id": str(number), "question": question, "answers": [answer]}
        if version == "2.0":
            asked |= {"is_impossible": not text, "answers": [answer] if text else []}
        paragraphs.append({"context": context, "qas": [asked]})
    path.write_text(
        json.dumps({"version": version, "data": [{"paragraphs": paragraphs}]})
    )
    return path


@pytest.fixture(scope="module", params=["1.1", "2.0"])
def made(request, tmp_path_factory, randomize):
    """A run, a file of questions whose answers are drawn by its probabilities, and new
    questions with theirs."""
    folder, version = tmp_path_factory.mktemp("spans"), request.param

    def change(network):
        randomize(network, stddev=1.0)
        kernel = network.trainable_variables[-2]
        assert kernel.path.endswith("kernel")
        kernel.assign(2 * kernel)

    run = make.make_run(
        folder / "run",
        VOCABULARY,
        settings=SETTINGS,
        change=change,
        kind="span",
        has_text_pair=True,
        has_impossible=version == "2.0",
    )
    rng, rows = np.random.default_rng(3), []
    for _ in range(900):
        # Shorter than a window, or of two.
        words = rng.permutation(WORDS)[: rng.integers(4, 18)]
        rows.append((str(rng.choice(WORDS)), " ".join(words), str(words[0])))
    model = finetuned.FinetunedModel.load(run)
    path = write_questions(folder / "all.json", rows, version=version)
    answers = model.answer(model.read(path, has_labels=True))
    labelled = []
    for (question, context, _), n_best in zip(
        rows, answers.n_best.values(), strict=True
    ):
        scores = np.array([candidate.score for candidate in n_best])
        shares = scipy.special.softmax(scores / 2)
        drawn = n_best[rng.choice(len(n_best), p=shares)]
        labelled.append((question, context, drawn.text))
    data = write_questions(folder / "seen.json", labelled[:700], version=version)
    return run, data, labelled[700:], version


def test_every_place_gives_the_same_answers(made, tmp_path, caplog):
    run, data, rows, version = made
    before = bert_keras.load(run).predict([row[:2] for row in rows])
    promise = calibrating.calibrate(run, data, precision=0.8, confidence=0.95)
    assert isinstance(promise, tasks.Calibration)
    assert promise.temperature == pytest.approx(2, rel=0.3)
    assert promise.examples == "questions"
    # 1. Python.
    records = bert_keras.load(run).predict([row[:2] for row in rows])
    for record, earlier in zip(records, before, strict=True):
        assert record.best_text == earlier.best_text
        is_sure = record.probability >= promise.threshold
        assert record.prediction == (record.best_text if is_sure else "")
    given = [record for record in records if record.prediction]
    assert 20 < len(given) < 180
    # 2. The graph.
    model = make.served(run)
    questions, contexts, right = zip(*rows, strict=True)
    answer = model.answer(tf.constant(questions), tf.constant(contexts))
    texts = [text.decode() for text in answer["answer"].numpy()]
    assert texts == [record.prediction for record in records]
    shares = [record.probability for record in records]
    np.testing.assert_allclose(answer["probability"], shares, atol=1e-5)
    assert np.isfinite(answer["score"]).all()
    decisions = model.decisions
    assert decisions["threshold"] == promise.threshold
    assert decisions["temperature"] == promise.temperature
    # 3. Files and scores.
    new = write_questions(tmp_path / "new.json", rows, version=version)
    finetuned.predict(run, new, tmp_path / "answers")
    assert "calibrated on" not in caplog.text and len(promise.inputs) == 3
    predictions = json.loads((tmp_path / "answers/predictions.json").read_text())
    assert [*predictions.values()] == texts
    scores = finetuned.evaluate(run, new)
    pairs = [(t, r) for t, r in zip(texts, right, strict=True) if t]
    exact = [squad_scores.normalize_answer(t) == r for t, r in pairs]
    assert scores["share_answered"] == pytest.approx(len(pairs) / len(rows))
    assert scores["precision_of_answers"] == pytest.approx(np.mean(exact))
    assert scores["precision_of_answers"] > 0.7
