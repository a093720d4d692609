"""Exported answers to questions: against `squad` and `squad_predictions`."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_keras import export
from bert_keras.checkpoints import run_directory, run_weights, starting_point
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning
from bert_keras.data import features, tokenization
from bert_keras.export import formats, loading
from bert_keras.inference import finetuned
from bert_keras.kinds import registry
from bert_keras.kinds.span import (
    served_search,
    served_spans,
    served_windows,
    squad,
    squad_predictions,
)

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


def make_run(
    directory: Path, randomize, *, settings=None, results=None, **task
) -> Path:
    """A finished run with random weights."""
    bert_config = config.BertConfig(
        vocab_size=len(SMALL),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=80,
    )
    run = run_directory.Run(
        directory=directory,
        task=config.Task(kind="span", **task),
        bert_config=bert_config,
        vocabulary=SMALL,
        do_lower_case=True,
    )
    directory.mkdir()
    run_directory.describe_run(run, settings)
    network = registry.build_network(bert_config, run.task, seed=0)
    randomize(network, stddev=0.5)
    run_weights.finish_run(run, network, results or {"steps": 0})
    return directory


def small_settings(**span) -> finetuning.FinetuningConfig:
    return finetuning.FinetuningConfig(
        task="span",
        max_seq_length=MAX_SEQ_LENGTH,
        span=finetuning.SpanConfig(**(SETTINGS.model_dump() | span)),
    )


def model_of(run: Path) -> served_spans.Spans:
    checkpoint = starting_point.read_with_tokenizer(run)
    return served_spans.Spans(loading.load(checkpoint, path=run))


def hostile_questions() -> list[squad.Question]:
    pairs = [(question, context) for context in CONTEXTS for question in QUESTIONS]
    return [squad.Question(str(i), q, c, ()) for i, (q, c) in enumerate(pairs)]


def predicted(questions, tokenizer, score, *, settings, max_seq_length, has_impossible):
    """What `squad_predictions` makes of scores that `score` gives for a batch."""
    windows = squad.featurize(
        questions,
        tokenizer,
        max_seq_length=max_seq_length,
        doc_stride=settings.doc_stride,
        max_query_length=settings.max_query_length,
    )
    logits = np.zeros((2, len(windows.texts.input_ids)), np.float32)
    for first in range(0, len(windows.questions), 64):
        rows = np.arange(first, min(first + 64, len(windows.questions)))
        outputs = score(ids_of(windows.batch(rows)))
        tokens, mask = windows.texts.tokens(rows)
        for values, name in zip(logits, ("start_logits", "end_logits"), strict=True):
            values[tokens[mask]] = np.asarray(outputs[name])[mask]
    return squad_predictions.predict(
        questions,
        windows,
        start_logits=logits[0],
        end_logits=logits[1],
        has_impossible=has_impossible,
        n_best_size=settings.n_best_size,
        max_answer_length=settings.max_answer_length,
    )


def ids_of(batch) -> dict[str, np.ndarray]:
    return {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}


def ask(function, questions, *, batch_size=64) -> dict[str, np.ndarray]:
    """The answers of a signature to many questions."""
    parts = []
    for first in range(0, len(questions), batch_size):
        batch = questions[first : first + batch_size]
        found = function(
            question=tf.constant([q.question for q in batch]),
            context=tf.constant([q.context for q in batch]),
        )
        parts.append({name: values.numpy() for name, values in found.items()})
    return {n: np.concatenate([part[n] for part in parts]) for n in parts[0]}


def check_places(questions, found) -> None:
    """Answers are where they are said to be."""
    for question, answer, start, end in zip(
        questions, found["answer"], found["start"], found["end"], strict=True
    ):
        assert question.context[start:end] == answer.decode(), question.id
        assert 0 <= start <= end


# The search, with scores that are exact and often equal


def stand_in(ids):
    """Whole numbers in place of logits, a function of tokens and their places."""
    numbers = tf.cast(ids["input_ids"], tf.int64)
    places = tf.range(tf.shape(numbers, tf.int64)[1])
    return {
        "start_logits": tf.cast((numbers * 7919 + places * 31) % 13, tf.float32),
        "end_logits": tf.cast((numbers * 104729 + places * 17) % 11, tf.float32),
    }


def check_search(model, questions, *, threshold=0.0, compiled=False) -> dict:
    """Answers of the graph with the stand-in's scores are exactly those of Python."""
    model.compute = stand_in
    model._threshold = threshold
    answer = model.answer
    if compiled:
        specs = model.signatures()["serving_default"].inputs
        answer = tf.function(model.answer, input_signature=specs, autograph=False)
    found = ask(answer, questions)
    predictions = predicted(
        questions,
        model._python_tokenizer,
        stand_in,
        settings=model._settings,
        max_seq_length=model.max_seq_length,
        has_impossible=model._has_impossible,
    )
    wanted = predictions.answers(null_score_diff_threshold=threshold)
    check_places(questions, found)
    for row, question in enumerate(questions):
        candidates = predictions.n_best[question.id]
        text = wanted[question.id]
        assert found["answer"][row].decode() == text, question
        (answer,) = (c for c in candidates if c.text == text)
        assert found["score"][row] == answer.start_logit + answer.end_logit
        np.testing.assert_allclose(
            found["probability"][row], answer.probability, rtol=1e-6
        )
        if model._has_impossible:
            (null,) = (c for c in candidates if not c.text)
            np.testing.assert_allclose(
                found["no_answer_probability"][row], null.probability, rtol=1e-6
            )
    assert ("no_answer_probability" in found) == model._has_impossible
    return found


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
    ("n_best_size", "threshold"), [(1, 3.0), (3, 0.0), (8, 0.0), (8, -4.0), (8, 3.0)]
)
def test_the_search_is_that_of_python(impossible_run, n_best_size, threshold):
    model = model_of(impossible_run)
    model._settings = SETTINGS.model_copy(update={"n_best_size": n_best_size})
    found = check_search(model, hostile_questions(), threshold=threshold)
    num_answered = np.count_nonzero(found["answer"])
    if (n_best_size, threshold) == (8, 0.0):
        assert 10 < num_answered < 40  # or this test would see little


def test_the_search_where_every_question_has_an_answer(possible_run):
    found = check_search(model_of(possible_run), hostile_questions())
    has_text = [
        bool(q.context.strip("\x00\u200b\ufffd \t\n")) for q in hostile_questions()
    ]
    assert (found["answer"] != b"").tolist() == has_text


@pytest.mark.parametrize("doc_stride", [1, 5, 100])
def test_the_search_in_other_windows(possible_run, doc_stride):
    model = model_of(possible_run)
    model._settings = SETTINGS.model_copy(update={"doc_stride": doc_stride})
    check_search(model, hostile_questions()[::3])


def test_decisions_beside_a_file_are_those_of_the_run(impossible_run, folder):
    """A caller of the file needs all limits and the threshold that lie beside it."""
    export.export_model(impossible_run, folder / "file", to="litert")
    inputs, decisions = (
        json.loads((folder / "file" / name).read_text())
        for name in ("tokenizer_config.json", "decisions.json")
    )
    assert decisions == {**SETTINGS.model_dump(), "no_answer_threshold": 0.25}
    questions = hostile_questions()
    found = predicted(
        questions,
        tokenization.Tokenizer(SMALL, do_lower_case=True),
        formats.load_litert(folder / "file"),
        settings=SETTINGS.model_copy(update=decisions),
        max_seq_length=inputs["model_max_length"],
        has_impossible=True,
    ).answers(null_score_diff_threshold=decisions["no_answer_threshold"])
    records = finetuned.FinetunedModel.load(impossible_run).predict(
        [(question.question, question.context) for question in questions]
    )
    assert list(found.values()) == [record.prediction for record in records]
    assert 0 < sum(map(bool, found.values())) < len(questions)


def test_windows_are_those_of_python():
    rng = np.random.default_rng(5)
    sizes = [(n, w, s) for n in range(9) for w in range(1, 6) for s in range(1, 7)]
    sizes += [tuple(rng.integers((1, 1, 1), (900, 381, 200))) for _ in range(150)]
    # The last window, shorter by a hundred, has one more token around: almost equal.
    sizes += [(300 + i, 200, 100 + j) for i in range(0, 100, 7) for j in (0, 1, 50)]
    for stride in sorted({stride for _, _, stride in sizes}):
        batch = [(int(n), int(w)) for n, w, s in sizes if s == stride]
        windows = served_windows.cut_windows(
            tf.constant([n for n, _ in batch], tf.int64),
            tf.constant([w for _, w in batch], tf.int64),
            int(stride),
        )
        windows = served_windows.Windows(*(values.numpy() for values in windows))
        first_token, number = 0, 0
        for example, (num_tokens, window_length) in enumerate(batch):
            for window in squad.cut_windows(num_tokens, window_length, int(stride)):
                start, end = windows.starts[number], windows.ends[number]
                assert windows.examples[number] == example
                assert start == first_token + window.start
                assert end == first_token + window.end
                owners = windows.owners[start:end]
                assert (owners == number).tolist() == window.has_max_context.tolist()
                number += 1
            first_token += num_tokens
        assert number == len(windows.examples)


def test_equal_texts_are_one_candidate():
    """Also where they are cut into other pieces or lie at the end."""
    texts = ["banana anan", "banana", "a\x00\x00", ""]
    ranges = [
        *((0, s, e) for s in range(11) for e in range(s + 1, 12)),
        *((1, s, e) for s in range(6) for e in range(s + 1, 7)),
        *((2, 0, 1), (2, 0, 2), (2, 0, 3), (2, 1, 2), (2, 2, 3)),
    ]
    code_points = tf.ragged.constant([list(map(ord, t)) for t in texts], dtype=tf.int32)
    columns = list(zip(*ranges, strict=True))
    numbers = served_search.fingerprinter(code_points)(
        tf.constant(columns[0], tf.int64),
        tf.constant(columns[1], tf.int32),
        tf.constant(columns[2], tf.int32),
    ).numpy()
    by_text = {}
    for (text, start, end), number in zip(ranges, numbers, strict=True):
        by_text.setdefault((text, texts[text][start:end]), set()).add(int(number))
    assert all(len(found) == 1 for found in by_text.values())
    assert len({number for found in by_text.values() for number in found}) == len(
        by_text
    )
    assert len(by_text) < len(ranges)


def real_model(shared_data, folder, randomize, name: str) -> served_spans.Spans:
    """Of the paper's settings, with a real vocabulary."""
    path = shared_data / "vocab" / name / "vocab.txt"
    vocabulary = tokenization.Vocabulary.load(path)
    bert_config = config.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=4,
    )
    run = run_directory.Run(
        directory=folder,
        task=config.Task(kind="span", has_impossible=True),
        bert_config=bert_config,
        vocabulary=vocabulary,
        do_lower_case=name.startswith("uncased"),
    )
    run_directory.describe_run(run, None)
    network = registry.build_network(bert_config, run.task, seed=0)
    randomize(network)
    run_weights.finish_run(run, network, {"steps": 0})
    model = model_of(folder)
    assert (model.max_seq_length, model._settings) == (
        384,
        finetuning.SpanConfig(),
    )
    return model


def read_questions(path: Path) -> list[squad.Question]:
    return list(squad.read_squad(path, has_answers=False).questions)


UNCASED, MULTI_CASED = "uncased_L-12_H-768_A-12", "multi_cased_L-12_H-768_A-12"


def test_the_search_on_some_of_a_dev_file(shared_data, tmp_path, randomize):
    model = real_model(shared_data, tmp_path, randomize, UNCASED)
    path = shared_data / "squad/v2.0/dev-v2.0-2-articles.json"
    questions = read_questions(path)[::6]
    # As in TriviaQA: contexts of several windows.
    long = " ".join(dict.fromkeys(q.context for q in read_questions(path)))
    questions += [q._replace(id=f"long {q.id}", context=long) for q in questions[:2]]
    check_search(model, questions)


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
    questions = read_questions(shared_data / "squad" / file)
    assert len(questions) == count
    model = real_model(shared_data, tmp_path, randomize, name)
    check_search(model, questions, compiled=True)


# The whole, from an export


@pytest.fixture(scope="module")
def exported(impossible_run, folder):
    """Signatures."""
    export.export_model(impossible_run, folder / "1")
    return tf.saved_model.load(str(folder / "1")).signatures


def check_answers(model, questions, found, *, threshold) -> None:
    """The same network's answers by way of Python, but for rounding."""
    predictions = predicted(
        questions,
        model._python_tokenizer,
        model.compute,
        settings=model._settings,
        max_seq_length=model.max_seq_length,
        has_impossible=True,
    )
    wanted = predictions.answers(null_score_diff_threshold=threshold)
    check_places(questions, found)
    num_equal = 0
    for row, question in enumerate(questions):
        candidates = predictions.n_best[question.id]
        (null,) = (c for c in candidates if not c.text)
        assert abs(found["no_answer_probability"][row] - null.probability) < 1e-5
        text = found["answer"][row].decode()
        num_equal += text == wanted[question.id]
        # Of candidates that are equal but for rounding either is right.
        (answer,) = (c for c in candidates if c.text == text)
        (best,) = (c for c in candidates if c.text == wanted[question.id])
        assert abs(found["score"][row] - answer.start_logit - answer.end_logit) < 1e-4
        assert abs(found["score"][row] - best.start_logit - best.end_logit) < 1e-4
        assert abs(found["probability"][row] - answer.probability) < 1e-5
    assert num_equal >= 0.998 * len(questions)


def test_an_export_answers_as_python_does(impossible_run, exported):
    questions = hostile_questions()
    found = ask(exported["serving_default"], questions)
    model = model_of(impossible_run)
    assert model._threshold == 0.25
    check_answers(model, questions, found, threshold=0.25)
    assert 10 < np.count_nonzero(found["answer"]) < 48  # or this would see little
    # Neither other questions of the batch nor its size change an answer.
    alone = ask(exported["serving_default"], questions[4:8], batch_size=1)
    assert alone["answer"].tolist() == found["answer"][4:8].tolist()
    np.testing.assert_allclose(alone["score"], found["score"][4:8], atol=1e-5)


def test_an_export_answers_as_predict_does(impossible_run, exported, tmp_path):
    questions = hostile_questions()
    paragraphs = [
        {"context": q.context, "qas": [{"id": q.id, "question": q.question}]}
        for q in questions
    ]
    (tmp_path / "dev.json").write_text(
        json.dumps({"data": [{"paragraphs": paragraphs}]})
    )
    finetuned.predict(impossible_run, tmp_path / "dev.json", tmp_path / "answers")
    wanted = json.loads((tmp_path / "answers/predictions.json").read_text())
    found = ask(exported["serving_default"], questions)
    answers = [answer.decode() for answer in found["answer"]]
    assert dict(zip(wanted, answers, strict=True)) == wanted
    assert list(wanted) == [q.id for q in questions]


def test_signatures_are_as_documented(exported, folder):
    strings, ids = exported["serving_default"], exported["ids"]
    assert strings.structured_input_signature[1] == {
        name: tf.TensorSpec([None], tf.string, name) for name in ("question", "context")
    }
    outputs = {
        n: (s.shape.rank, s.dtype) for n, s in strings.structured_outputs.items()
    }
    assert outputs == {
        "answer": (1, tf.string),
        "start": (1, tf.int32),
        "end": (1, tf.int32),
        "score": (1, tf.float32),
        "probability": (1, tf.float32),
        "no_answer_probability": (1, tf.float32),
    }
    assert ids.structured_input_signature[1] == {
        name: tf.TensorSpec([None, None], tf.int32, name)
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    assert kinds_of(ids.structured_outputs) == {
        "start_logits": (2, tf.float32),
        "end_logits": (2, tf.float32),
    }
    assert not (folder / "1/assets.extra").exists()


def kinds_of(outputs) -> dict:
    return {name: (spec.shape.rank, spec.dtype) for name, spec in outputs.items()}


def test_an_empty_batch_has_no_answers(exported):
    none = tf.constant([], tf.string)
    for values in exported["serving_default"](question=none, context=none).values():
        assert values.shape == (0,)


def test_bytes_that_are_not_utf8_are_answered(exported):
    context = b"\xff\xfe the cat \xe4\xb8 sat"
    found = exported["serving_default"](
        question=tf.constant(["who?"]), context=tf.constant([context])
    )
    replaced = context.decode("utf-8", errors="replace")
    start, end = int(found["start"][0]), int(found["end"][0])
    assert found["answer"][0].numpy().decode() == replaced[start:end]


def test_ids_give_logits_in_all_forms(impossible_run, exported, folder):
    pytest.importorskip("tf2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    interpreters = pytest.importorskip("ai_edge_litert.interpreter")
    export.export_model(impossible_run, folder / "litert", to="litert")
    export.export_model(impossible_run, folder / "onnx", to="onnx")
    assert json.loads((folder / "litert/tokenizer_config.json").read_text()) == {
        "do_lower_case": True,
        "model_max_length": MAX_SEQ_LENGTH,
    }
    session = onnxruntime.InferenceSession(folder / "onnx/model.onnx")
    lite = interpreters.Interpreter(str(folder / "litert/model.tflite"))
    names = ["start_logits", "end_logits"]
    runs = [
        lite.get_signature_runner(),
        lambda **ids: dict(zip(names, session.run(names, ids), strict=True)),
        lambda **ids: exported["ids"](**{n: tf.constant(v) for n, v in ids.items()}),
    ]
    network = registry.build_network(
        starting_point.read_with_tokenizer(impossible_run).bert_config,
        config.Task(kind="span"),
    )
    run_weights.load_weights(
        run_weights.read_finished_run(impossible_run, kinds=("span",), verb="finetune"),
        network,
    )
    windows = squad.featurize(
        hostile_questions()[:9],
        tokenization.Tokenizer(SMALL, do_lower_case=True),
        max_seq_length=MAX_SEQ_LENGTH,
        doc_stride=SETTINGS.doc_stride,
        max_query_length=SETTINGS.max_query_length,
    )
    for rows in (np.arange(5), np.arange(1)):
        ids = ids_of(windows.batch(rows))
        wanted = network(ids, training=False)
        for run in runs:
            found = run(**ids)
            assert sorted(found) == sorted(names)
            for name in names:
                np.testing.assert_allclose(
                    found[name], wanted[name], rtol=1e-4, atol=1e-5
                )


# Where settings come from


def test_settings_of_a_run_and_of_a_model_without(possible_run, folder, randomize):
    model = model_of(possible_run)
    assert (model.max_seq_length, model._settings) == (MAX_SEQ_LENGTH, SETTINGS)
    assert (model._threshold, model._has_impossible) == (0.0, False)
    converted = make_run(folder / "converted", randomize, results={"converted": True})
    model = model_of(converted)
    # The paper's, but for the positions that there are.
    assert (model.max_seq_length, model._settings) == (
        80,
        finetuning.SpanConfig(),
    )


def test_windows_need_room(folder, randomize):
    settings = small_settings(max_query_length=21)
    run = make_run(folder / "narrow", randomize, settings=settings)
    message = "narrow: windows of 24 tokens have no room for 21 of the question, 3 spec"
    with pytest.raises(InputError, match=message):
        export.export_model(run, folder / "new")
    assert not (folder / "new").exists()


@pytest.mark.slow
def test_what_answers_otherwise_is_not_kept(impossible_run, tmp_path, monkeypatch):
    def one_owner(*args):
        windows = cut_windows(*args)
        return windows._replace(owners=tf.zeros_like(windows.owners))

    cut_windows = served_windows.cut_windows
    monkeypatch.setattr(served_windows, "cut_windows", one_owner)
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
def test_a_context_of_a_million_characters(impossible_run, exported, folder):
    done = subprocess.run(
        [sys.executable, "-I", "-c", LONG, str(folder / "1")],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # 29 characters make a window of 7 new tokens here: some 130,000 windows.
    assert int(done.stdout.split()[-1]) < 600
    questions = [squad.Question("0", "who?", "the cat sat on a mat. " * 2000, ())]
    found = ask(exported["serving_default"], questions)
    check_answers(model_of(impossible_run), questions, found, threshold=0.25)
