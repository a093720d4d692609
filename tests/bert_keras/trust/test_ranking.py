"""The promise of a run that orders passages: is the first one right at all?"""

import csv

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

import bert_keras
from bert_keras.core.settings import finetuning
from bert_keras.data import features, tokenization
from bert_keras.inference import finetuned
from bert_keras.report import promises
from bert_keras.trust import calibrating
from tests import make

WORDS = [f"w{number}" for number in range(60)]
VOCABULARY = tokenization.Vocabulary((*features.SPECIAL_TOKENS, *WORDS))
SETTINGS = finetuning.FinetuningConfig(task="ranking", max_seq_length=12)
NUM_SEEN = 500


def write_rows(path, questions, relevances):
    lines = [
        f"{question}\t{passage}\t{relevance}\n"
        for (question, passages), of_question in zip(questions, relevances, strict=True)
        for passage, relevance in zip(passages, of_question, strict=True)
    ]
    path.write_text("question\tpassage\trelevance\n" + "".join(lines))
    return path


def test_every_place_says_whether_the_first_passage_answers(
    tmp_path, randomize, caplog
):
    def change(network):
        randomize(network, stddev=1.0)
        kernel = network.trainable_variables[-2]
        kernel.assign(8 * kernel)

    run = make.make_run(
        tmp_path / "run",
        VOCABULARY,
        settings=SETTINGS,
        change=change,
        kind="ranking",
        has_text_pair=True,
    )
    # 1. Questions with a right passage, drawn by half of the scores; a tenth has none.
    rng = np.random.default_rng(4)
    questions = [
        (f"w{n % 60} w{n // 60}", [" ".join(rng.choice(WORDS, 4)) for _ in range(4)])
        for n in range(700)
    ]
    before = bert_keras.load(run).predict(questions)
    logits = np.array([record.scores for record in before])
    right = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=-1)
    relevances = (np.arange(4) == right[:, None]).astype(int)
    relevances[rng.random(700) < 0.1] = 0
    seen = write_rows(
        tmp_path / "seen.tsv", questions[:NUM_SEEN], relevances[:NUM_SEEN]
    )
    promise = calibrating.calibrate(run, seen, precision=0.7, confidence=0.95)
    assert promise.temperature == pytest.approx(2, rel=0.3)
    assert promises.sentence(promise).startswith("Of 1,000 questions like these it")
    # 2. Python, and the graph.
    questions, relevances = questions[NUM_SEEN:], relevances[NUM_SEEN:]
    logits = logits[NUM_SEEN:]
    shares = scipy.special.softmax(logits / promise.temperature, axis=-1).max(axis=-1)
    is_sure = shares >= promise.threshold
    assert 20 < is_sure.sum() < 180
    records = bert_keras.load(run).predict(questions)
    for record, earlier in zip(records, before[NUM_SEEN:], strict=True):
        assert record.prediction == earlier.prediction
        assert "is_sure" not in dict(earlier)
    assert [record.is_sure for record in records] == is_sure.tolist()
    actual = [record.probability for record in records]
    np.testing.assert_allclose(actual, shares, atol=1e-6)
    texts, passages = zip(*questions, strict=True)
    model = make.served(run)
    outputs = model.answer(tf.constant(texts), tf.constant(passages))
    assert outputs["is_sure"].numpy().tolist() == is_sure.astype(int).tolist()
    np.testing.assert_allclose(outputs["probability"], shares, atol=1e-5)
    assert model.decisions["threshold"] == promise.threshold
    # 3. Files and scores.
    new = write_rows(tmp_path / "new.tsv", questions, relevances)
    finetuned.predict(run, new, tmp_path / "answers.tsv")
    assert "calibrated on" not in caplog.text and len(promise.inputs) == 3
    rows = [
        *csv.DictReader(
            (tmp_path / "answers.tsv").read_text().splitlines(), delimiter="\t"
        )
    ]
    marks = np.array([int(row["is_answer"]) for row in rows]).reshape(-1, 4)
    assert (marks[:, 0] == is_sure).all() and not marks[:, 1:].any()
    scores = finetuned.evaluate(run, new)
    first = relevances[np.arange(len(questions)), logits.argmax(axis=-1)]
    assert scores["share_answered"] == pytest.approx(is_sure.mean())
    assert scores["precision_of_answers"] == pytest.approx(first[is_sure].mean())
    assert scores["precision_of_answers"] > 0.6
