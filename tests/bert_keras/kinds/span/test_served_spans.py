"""Exported answers to questions: against `squad` and `dataset`."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_keras import export
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning, tasks
from bert_keras.data import features, tokenization
from bert_keras.export import formats
from bert_keras.graphs import graph_windows
from bert_keras.inference import finetuned
from bert_keras.kinds import served
from bert_keras.kinds.span import dataset, served_spans, squad
from tests import make
from tests.bert_keras.export.conftest import IDS, numbers_of, signatures_of
from tests.bert_keras.kinds.span import test_dataset

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
SMALL = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, *LETTERS, *".,!?'[]()-日本語ᄒ", "the")
    + tuple(f"##{char}" for char in (*LETTERS, "ᅡ", "ᆫ", "σ", "ς"))
)
SETTINGS = finetuning.SpanConfig(
    doc_stride=7, max_query_length=9, max_answer_length=6, n_best_size=8
)
MAX_SEQ_LENGTH = 24
CONTEXTS = [
    "the cat sat, the dog sat, the cat ran.",
    "",
    "   \t\n ",
    "\x00\u200b\ufffd",
    "e\u0301te\u0301 caf\u00e9 \u0301 o\u0308 \u302e\U0001d165 \U0001d165\u302ea",
    "한국어 한하 (한) 하하 ᄒ" * 9,
    "🙂 family 👨‍👩‍👧 and flags 🇩🇪 ok ☺️!",
    "日本語と日本 a日b" * 5,
    "a" * 300 + " bc " + "d" * 250,
    "b\x01a\u00adn\u200dana, ba\x00nana; \ufeffanana\x85x\u2028y",
    "ab. " * 60,
    "x",
    "ΑΣ ΑΣ.Α ΟΔΥΣΣΕΥΣ İstanbul ǅ ß",
]
QUESTIONS = ["who?", "", "where is the cat and why is it there", "日 🙂 e\u0301"]


def make_run(directory: Path, randomize, **options) -> Path:
    """A finished run with random weights."""
    return make.make_run(
        *(directory, SMALL),
        change=functools.partial(randomize, stddev=0.5),
        bert_config=make.small_config(len(SMALL), max_position_embeddings=80),
        kind="span",
        **options,
    )


def small_settings(**span) -> finetuning.FinetuningConfig:
    return finetuning.FinetuningConfig(
        task="span",
        max_seq_length=MAX_SEQ_LENGTH,
        span=finetuning.SpanConfig(**(SETTINGS.model_dump() | span)),
    )


def hostile_questions() -> list[squad.Question]:
    pairs = [(question, context) for context in CONTEXTS for question in QUESTIONS]
    return [squad.Question(str(i), q, c, ()) for i, (q, c) in enumerate(pairs)]


def predicted(model, questions) -> dataset.SpanAnswers:
    """What `dataset` makes of the model's numbers."""
    data = test_dataset.data_of(questions, has_impossible=model._has_impossible)
    settings = finetuning.FinetuningConfig(
        max_seq_length=model.max_seq_length, span=model._settings
    )
    windows = data.encode(data.describe(), model.tokenizer, settings)
    numbers = numbers_of(model, windows)
    outputs = np.stack([numbers[name] for name in model.outputs], axis=1)
    return data.answer(outputs, windows, data.describe(), settings)


def ask(function, questions) -> dict[str, np.ndarray]:
    """The answers of a signature to many questions."""
    parts = []
    for first in range(0, len(questions), 64):
        batch = questions[first : first + 64]
        found = function(
            question=tf.constant([q.question for q in batch]),
            context=tf.constant([q.context for q in batch]),
        )
        parts.append({name: values.numpy() for name, values in found.items()})
    return {n: np.concatenate([part[n] for part in parts]) for n in parts[0]}


# The search, with scores that are exact and often equal


def stand_in(ids):
    """Whole numbers in place of logits, a function of tokens and their places."""
    numbers = tf.cast(ids["input_ids"], tf.int64)
    places = tf.range(tf.shape(numbers, tf.int64)[1])
    return {
        "start_logits": tf.cast((numbers * 7919 + places * 31) % 13, tf.float32),
        "end_logits": tf.cast((numbers * 104729 + places * 17) % 11, tf.float32),
    }


def check_search(model, questions, *, compiled=False) -> dict:
    """Answers of the graph are those of Python."""
    model.compute, answer = stand_in, model.answer
    if compiled:
        specs = model.signatures()["serving_default"].inputs
        answer = tf.function(answer, input_signature=specs, autograph=False)
    answers, predictions = ask(answer, questions), predicted(model, questions)
    texts = predictions.texts(decision=model.decision)
    for row, question in enumerate(questions):
        values = {name: of_all[row] for name, of_all in answers.items()}
        text = values["answer"].decode()
        assert text == texts[question.id], question
        assert 0 <= values["start"] <= values["end"]
        assert text == question.context[values["start"] : values["end"]]
        candidates = {c.text: c for c in predictions.n_best[question.id]}
        assert values["score"] == candidates[text].score
        expected = {"probability": candidates[text].probability}
        if model._has_impossible:
            expected["no_answer_probability"] = candidates[""].probability
        for name, value in expected.items():
            np.testing.assert_allclose(values[name], value, rtol=1e-6)
    assert ("no_answer_probability" in answers) == model._has_impossible
    return answers


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("spans")


@pytest.fixture(scope="module")
def impossible_run(folder, randomize) -> Path:
    """Of a model that knows questions without an answer."""
    return make_run(
        folder / "impossible",
        randomize,
        settings=small_settings(),
        results={"steps": 0, "eval": {"best_f1_thresh": 0.25}},
        has_impossible=True,
    )


@pytest.fixture(scope="module")
def possible_run(folder, randomize) -> Path:
    return make_run(folder / "possible", randomize, settings=small_settings())


@pytest.mark.parametrize(
    ("n_best_size", "threshold", "stride"), [(1, 3.0, 7), (3, 0.0, 1), (8, -4.0, 100)]
)
def test_the_search_is_that_of_python(impossible_run, n_best_size, threshold, stride):
    model = make.served(impossible_run)
    changes = {"n_best_size": n_best_size, "doc_stride": stride}
    model._settings = SETTINGS.model_copy(update=changes)
    model.decision = tasks.Decision(no_answer_odds=threshold)
    check_search(model, hostile_questions()[::5])


def test_the_search_in_a_graph(impossible_run):
    answers = check_search(
        make.served(impossible_run), hostile_questions(), compiled=True
    )
    # Or this test would see little.
    assert 10 < np.count_nonzero(answers["answer"]) < 40


def test_the_search_where_every_question_has_an_answer(possible_run):
    answers = check_search(make.served(possible_run), hostile_questions()[::4])
    has_text = [bool(context.strip("\x00\u200b\ufffd \t\n")) for context in CONTEXTS]
    assert (answers["answer"] != b"").tolist() == has_text
    # A batch without any candidate.
    check_search(make.served(possible_run), hostile_questions()[4:5])


@pytest.mark.slow
def test_decisions_beside_a_file_are_those_of_the_run(impossible_run, folder):
    """A caller of the file needs all limits and the threshold that lie beside it."""
    export.export_model(impossible_run, folder / "file", to="litert")
    inputs, decisions = (
        json.loads((folder / "file" / name).read_text())
        for name in ("tokenizer_config.json", "decisions.json")
    )
    assert inputs == {"do_lower_case": True, "model_max_length": MAX_SEQ_LENGTH}
    assert decisions == {**SETTINGS.model_dump(), "no_answer_threshold": 0.25}
    run = formats.load_litert(folder / "file/model.tflite")
    model = make.served(impossible_run)
    model.compute = lambda ids: {
        name: tf.constant(values) for name, values in run(served.as_arrays(ids)).items()
    }
    model.max_seq_length = inputs["model_max_length"]
    odds = decisions.pop("no_answer_threshold")
    model._settings = SETTINGS.model_copy(update=decisions)
    questions = hostile_questions()
    decision = tasks.Decision(no_answer_odds=odds)
    texts = predicted(model, questions).texts(decision=decision)
    records = finetuned.FinetunedModel.load(impossible_run).predict(
        [(question.question, question.context) for question in questions]
    )
    assert list(texts.values()) == [record.prediction for record in records]
    assert 0 < sum(map(bool, texts.values())) < len(questions)


def test_windows_are_those_of_python():
    rng = np.random.default_rng(5)
    sizes = [(n, w, s) for n in range(9) for w in range(1, 6) for s in range(1, 7)]
    sizes += [(n, w, 128) for n, w in rng.integers((1, 1), (900, 381), (60, 2))]
    # The last window, shorter by a hundred, has one more token around: almost equal.
    sizes += [(300 + i, 200, 100 + j) for i in range(0, 100, 7) for j in (0, 1, 50)]
    for stride in sorted({stride for _, _, stride in sizes}):
        batch = [(int(n), int(w)) for n, w, s in sizes if s == stride]
        num_tokens, lengths = tf.constant(list(zip(*batch, strict=True)), tf.int64)
        windows = graph_windows.cut(num_tokens, lengths, stride)
        owners = served_spans.context_owners(windows, tf.reduce_sum(num_tokens)).numpy()
        actual = [tuple(row) for row in np.stack(windows, axis=1).tolist()]
        expected, first_token = [], 0
        for text, (num_tokens, length) in enumerate(batch):
            for window, is_best in dataset.cut_windows(num_tokens, length, stride):
                start, end = first_token + window.start, first_token + window.stop
                is_owner = owners[start:end] == len(expected)
                assert is_owner.tolist() == is_best.tolist()
                expected.append((text, start, end))
            first_token += num_tokens
        assert actual == expected


UNCASED, MULTI_CASED = "uncased_L-12_H-768_A-12", "multi_cased_L-12_H-768_A-12"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file", "count"),
    [
        (UNCASED, "v1.1/dev-v1.1.json", 10_570),
        (UNCASED, "v2.0/dev-v2.0-16-articles.json", 6078),
        (MULTI_CASED, "xquad/xquad.de.json", 1190),
        (MULTI_CASED, "xquad/xquad.zh.json", 1190),
    ],
)
def test_the_search_on_dev_files(shared_data, tmp_path, randomize, name, file, count):
    """With the paper's settings, and a real vocabulary."""
    path = shared_data / "squad" / file
    questions = [*squad.read_squad(path, has_answers=False).questions]
    assert len(questions) == count
    # As in TriviaQA: contexts of several windows.
    long = " ".join(dict.fromkeys(q.context for q in questions[:60]))
    questions += [q._replace(id=f"long {q.id}", context=long) for q in questions[:2]]
    vocabulary = tokenization.Vocabulary.load(
        shared_data / "vocab" / name / "vocab.txt"
    )
    run = make.make_run(
        *(tmp_path / "run", vocabulary),
        bert_config=make.small_config(
            len(vocabulary),
            hidden_size=4,
            intermediate_size=4,
            max_position_embeddings=512,
        ),
        do_lower_case=name == UNCASED,
        change=randomize,
        kind="span",
        has_impossible=True,
    )
    model = make.served(run)
    assert (model.max_seq_length, model._settings) == (384, finetuning.SpanConfig())
    check_search(model, questions, compiled=True)


# The whole, from an export


@pytest.fixture(scope="module")
def exported(impossible_run, folder):
    """Signatures."""
    export.export_model(impossible_run, folder / "1")
    return tf.saved_model.load(str(folder / "1")).signatures


@pytest.mark.slow
def test_signatures_are_as_documented(exported, folder):
    rows, numbers, floats = (1, tf.string), (1, tf.int32), (1, tf.float32)
    answers = {"answer": rows, "start": numbers, "end": numbers, "score": floats}
    answers |= {"probability": floats, "no_answer_probability": floats}
    logits = dict.fromkeys(("start_logits", "end_logits"), (2, tf.float32))
    assert signatures_of(exported) == {
        "serving_default": ({"question": rows, "context": rows}, answers),
        "ids": (dict.fromkeys(IDS, (2, tf.int32)), logits),
    }
    assert not (folder / "1/assets.extra").exists()


@pytest.mark.slow
def test_empty_batches_and_bytes_that_are_not_utf8_are_answered(exported):
    serve, none = exported["serving_default"], tf.constant([], tf.string)
    for values in serve(question=none, context=none).values():
        assert values.shape == (0,)
    context = b"\xff\xfe the cat \xe4\xb8 sat"
    found = serve(question=tf.constant(["who?"]), context=tf.constant([context]))
    replaced = context.decode("utf-8", errors="replace")
    start, end = int(found["start"][0]), int(found["end"][0])
    assert found["answer"][0].numpy().decode() == replaced[start:end]


# Where settings come from


def test_settings_of_a_run_and_of_a_model_without(
    impossible_run, possible_run, folder, randomize
):
    decisions = {**SETTINGS.model_dump(), "no_answer_threshold": 0.25}
    assert make.served(impossible_run).decisions == decisions
    model = make.served(possible_run)
    assert (model.max_seq_length, model._settings) == (MAX_SEQ_LENGTH, SETTINGS)
    assert model.decisions == SETTINGS.model_dump()
    converted = make_run(folder / "converted", randomize, results={"converted": True})
    model = make.served(converted)
    # The paper's, but for the positions that there are.
    assert (model.max_seq_length, model._settings) == (80, finetuning.SpanConfig())


def test_windows_need_room(folder, randomize):
    settings = small_settings(max_query_length=21)
    run = make_run(folder / "narrow", randomize, settings=settings)
    message = "narrow: windows of 24 tokens have no room for 21 of the question, 3 spec"
    with pytest.raises(InputError, match=message):
        export.export_model(run, folder / "new")
    assert not (folder / "new").exists()


@pytest.mark.slow
def test_what_answers_otherwise_is_not_kept(impossible_run, tmp_path, monkeypatch):
    owners = served_spans.context_owners
    one_owner = lambda *args: tf.zeros_like(owners(*args))  # noqa: E731
    monkeypatch.setattr(served_spans, "context_owners", one_owner)
    with pytest.raises(RuntimeError, match="the exported model answers differently"):
        export.export_model(impossible_run, tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


# Long contexts

LONG = """
import resource, sys
import tensorflow as tf, tensorflow_text
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
def ask(context):
    return serve(question=tf.constant(["who?"]), context=tf.constant([context]))
ask("the cat sat. " * 400)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
context = "the cat sat on a mat, and 123 dogs ran. " * 25_000 + "why?"
found = {name: value.numpy()[0] for name, value in ask(context).items()}
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert len(context) > 1_000_000
assert context[found["start"]:found["end"]] == found["answer"].decode()
print((after - before) // 1024)
"""


@pytest.mark.slow
def test_a_context_of_a_million_characters(exported, folder):
    command = [sys.executable, "-I", "-c", LONG, str(folder / "1")]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # 29 characters make a window of 7 new tokens here: some 130,000 windows.
    assert int(done.stdout.split()[-1]) < 600
