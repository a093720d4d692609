"""Exported taggers: against `ner` and `ner_windows`."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from seqeval.metrics import sequence_labeling

from bert_keras import export
from bert_keras.checkpoints import run_directory, run_weights, starting_point
from bert_keras.core.errors import InputError
from bert_keras.core.settings import config, finetuning
from bert_keras.data import features, tokenization
from bert_keras.export import loading
from bert_keras.inference import finetuned
from bert_keras.kinds import registry
from bert_keras.kinds.tagging import ner, ner_windows, served_tags, served_windows

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
VOCABULARY = tokenization.Vocabulary(
    (*features.SPECIAL_TOKENS, *LETTERS, *".,!?'[]()-日本語", "the", "##é")
    + tuple(f"##{char}" for char in LETTERS)
)
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
MAX_SEQ_LENGTH = 16
SENTENCES = [
    ("Anna", "lives", "in", "New", "York", "."),
    (),
    ("a" * 40, "b", "c" * 3, "d" * 30),
    tuple("the cat sat on a mat .".split()) * 9,
    ("\u200b", "x", "\x00", "日本", "don't", "naïve", "🙂", "U.S."),
    ("x" * 300,),
    ("é",) * 13,
    ("word",),
    (" ", "a b"),
]
TEXTS = [
    "Anna lives in New York.",
    "",
    " \t\n",
    "\u200b\x00",
    "The U.S. (and Bruce's naïve friends) 日本へ行った🙂!\u0301 so\u00adft e\u0301",
    "the cat sat on a mat, " * 12,
    "x" * 300 + " y",
]


def make_run(directory: Path, randomize, *, settings=None, **task) -> Path:
    """A finished run with random weights."""
    run = run_directory.Run(
        directory=directory,
        task=config.Task(kind="tagging", **task),
        bert_config=config.BertConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=40,
        ),
        vocabulary=VOCABULARY,
        do_lower_case=False,
    )
    directory.mkdir()
    run_directory.describe_run(run, settings)
    network = registry.build_network(run.bert_config, run.task, seed=0)
    randomize(network, stddev=0.5)
    run_weights.finish_run(run, network, {"steps": 0})
    return directory


def model_of(run: Path) -> served_tags.Tags:
    checkpoint = starting_point.read_with_tokenizer(run)
    return served_tags.Tags(loading.load(checkpoint, path=run))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("tags")


@pytest.fixture(scope="module")
def run(folder, randomize) -> Path:
    settings = finetuning.FinetuningConfig(
        task="tagging", max_seq_length=MAX_SEQ_LENGTH
    )
    return make_run(folder / "run", randomize, settings=settings, labels=LABELS)


@pytest.fixture(scope="module")
def exported(run, folder):
    """Signatures."""
    export.export_model(run, folder / "1")
    return tf.saved_model.load(str(folder / "1")).signatures


def as_sentences(all_words, documents=None) -> list[ner.Sentence]:
    documents = itertools.count() if documents is None else documents
    return [
        ner.Sentence(tuple(ws), None, i, 0)
        for i, ws in zip(documents, all_words, strict=False)
    ]


def padded(all_words) -> tf.Tensor:
    longest = max(map(len, all_words))
    rows = [[*ws, *[""] * (longest - len(ws))] for ws in all_words]
    return tf.constant(rows, tf.string, shape=(len(rows), longest))


def word_logits(model, sentences) -> np.ndarray:
    """Of all words, by way of `ner_windows`; sentences of one document see another."""
    tokenized = ner_windows.tokenize(
        sentences,
        model._python_tokenizer,
        max_seq_length=model.max_seq_length,
        document_context=True,
    )
    num_words = sum(len(sentence.words) for sentence in sentences)
    logits = np.zeros((num_words, len(model.labels)), np.float32)
    for first in range(0, len(tokenized), 64):
        rows = np.arange(first, min(first + 64, len(tokenized)))
        words = tokenized.places(rows)
        found = np.asarray(model.compute(tokenized.batch(rows))["logits"])
        logits[words.ids] = found[words.index]
    return logits


def stand_in(ids):
    """Whole numbers in place of logits, a function of tokens and their places."""
    numbers = tf.cast(ids["input_ids"], tf.int64)
    places = tf.range(tf.shape(numbers, tf.int64)[1])
    mixed = (numbers * 7919 + places * 31)[..., tf.newaxis]
    columns = tf.constant([3, 5, 7, 11, 13], tf.int64)
    return {"logits": tf.cast(mixed * columns % 17, tf.float32)}


def check_tags(model, ask, all_words, documents=None) -> None:
    """Tags of words are those of Python, with scores that are exact and often equal."""
    sentences = as_sentences(all_words, documents)
    logits = word_logits(model, sentences)
    wanted = ner.decode(logits, model.labels, sentences)
    if documents is None:
        found = ask(padded(all_words))
    else:
        found = ask(padded(all_words), tf.constant([f"{d}.txt" for d in documents]))
    probabilities = iter(scipy.special.softmax(logits, axis=-1).max(axis=-1))
    for row, sentence in enumerate(sentences):
        count = len(sentence.words)
        of_row = [tag.decode() for tag in found["tags"][row].numpy()]
        assert tuple(of_row[:count]) == wanted[row], sentence
        assert set(of_row[count:]) <= {""}
        of_row = found["probability"][row].numpy()
        expected = list(itertools.islice(probabilities, count))
        np.testing.assert_allclose(of_row[:count], expected, rtol=1e-5)
        assert not of_row[count:].any()


def entities_of(text: str, places, of_words: np.ndarray, word_tags) -> list[tuple]:
    """What IOB2 tags mean: text, type, start, end and mean probability."""
    found = []
    for tag, (start, end), probability in zip(word_tags, places, of_words, strict=True):
        if tag.startswith("B-"):
            found.append((tag[2:], start, end, [probability]))
        elif tag.startswith("I-"):
            kind, first, _, before = found[-1]
            assert kind == tag[2:]
            found[-1] = (kind, first, end, [*before, probability])
    return [(text[s:e], kind, s, e, np.mean(p)) for kind, s, e, p in found]


def check_entities(model, ask, texts) -> int:
    """Entities of texts are those of Python's tags; returns how many there are."""
    places = [ner.split_words(text) for text in texts]
    all_words = [
        [text[start:end] for start, end in of_text]
        for text, of_text in zip(texts, places, strict=True)
    ]
    sentences = as_sentences(all_words)
    logits = word_logits(model, sentences)
    probabilities = scipy.special.softmax(logits, axis=-1).max(axis=-1)
    probabilities = np.split(probabilities, np.cumsum(list(map(len, all_words)))[:-1])
    wanted = [
        entities_of(*columns)
        for columns in zip(
            texts,
            places,
            probabilities,
            ner.decode(logits, model.labels, sentences),
            strict=True,
        )
    ]
    found = {name: v.numpy() for name, v in ask(tf.constant(texts)).items()}
    counts = [len(of_text) for of_text in wanted]
    assert found["num_entities"].tolist() == counts
    for row, of_text in enumerate(wanted):
        for column, (entity, kind, start, end, probability) in enumerate(of_text):
            place = row, column
            assert found["entity"][place].decode() == entity
            assert found["type"][place].decode() == kind
            assert (found["start"][place], found["end"][place]) == (start, end)
            assert abs(found["probability"][place] - probability) < 1e-5
        for name, padding in (("entity", b""), ("type", b""), ("start", 0), ("end", 0)):
            assert set(found[name][row, len(of_text) :].tolist()) <= {padding}
        assert found["entity"].shape == (len(texts), max(1, *counts))
    return sum(counts)


def test_words_are_tagged_as_in_python(run):
    model = model_of(run)
    model.compute = stand_in
    check_tags(model, model.tag_words, SENTENCES)
    check_tags(model, model.tag_words, [(), ()])
    for length in range(3, 12):
        model.max_seq_length = length
        check_tags(model, model.tag_words, SENTENCES)


DOCUMENTS = [4, 4, 4, 7, 7, 4, 5, 5, 5]
"""Of `SENTENCES`; the second 4 is another document than the first."""


@pytest.mark.slow
def test_words_of_documents_are_tagged_as_in_python(run):
    model = model_of(run)
    model.compute = stand_in
    for length in (*range(3, 12), 40):
        model.max_seq_length = length
        check_tags(model, model.tag_words, SENTENCES, DOCUMENTS)
        check_tags(model, model.tag_words, SENTENCES, [0] * len(SENTENCES))
    check_tags(model, model.tag_words, [(), ()], [1, 1])
    # Or the above would see nothing.
    alone = model.tag_words(padded(SENTENCES))
    names = tf.constant(list(map(str, DOCUMENTS)))
    together = model.tag_words(padded(SENTENCES), names)
    assert (alone["tags"] != together["tags"]).numpy().any()


def test_texts_are_tagged_as_in_python(run):
    model = model_of(run)
    model.compute = stand_in
    assert check_entities(model, model.find_entities, TEXTS) > 20
    assert check_entities(model, model.find_entities, TEXTS[1:4]) == 0


@pytest.mark.parametrize("sentences_per_document", [1, 2, 7, 40])
def test_windows_are_those_of_python(sentences_per_document):
    """All of them at once, and each for itself."""
    rng = np.random.default_rng(3)
    documents = np.arange(40) // sentences_per_document
    letters = "abcdefgh"
    tokenizer = tokenization.Tokenizer(VOCABULARY, do_lower_case=False)
    for max_seq_length in (3, 4, 7, 20):
        all_words = [
            [letters[0] * rng.integers(1, 25) for _ in range(rng.integers(0, 40))]
            for _ in range(40)
        ]
        sentences = as_sentences(all_words, documents.tolist())
        tokenized = ner_windows.tokenize(
            sentences,
            tokenizer,
            max_seq_length=max_seq_length,
            document_context=sentences_per_document > 1,
        )
        max_pieces = max_seq_length - 2
        lengths = [min(len(w), max_pieces) for s in sentences for w in s.words]
        starts = np.cumsum([0, *lengths])
        found = served_windows.cut_windows(
            tf.constant([len(s.words) for s in sentences], tf.int64),
            tf.constant(starts, tf.int64),
            max_pieces=max_pieces,
            documents=None if sentences_per_document == 1 else tf.constant(documents),
        )
        own_begins, own_ends, begins, ends = (values.numpy() for values in found)
        assert (own_ends - own_begins).tolist() == tokenized.num_words.tolist()
        assert own_begins[0] == 0 and (own_begins[1:] == own_ends[:-1]).all()
        sizes = starts[ends] - starts[begins] + 2
        assert sizes.tolist() == tokenized.lengths.tolist()
        first = np.repeat(begins, own_ends - own_begins)
        positions = 1 + starts[:-1] - starts[first]
        assert positions.tolist() == tokenized.positions.tolist()


def test_entities_by_hand(run):
    model = model_of(run)
    of_word = {"a": "B-PER", "b": "I-PER", "c": "I-LOC", "d": "B-LOC", "e": "O"}
    label_of_id = np.zeros(len(VOCABULARY), np.int32)
    for word, label in of_word.items():
        label_of_id[VOCABULARY.ids[word]] = LABELS.index(label)

    def by_word(ids):
        labels = tf.gather(label_of_id, ids["input_ids"])
        return {"logits": tf.one_hot(labels, len(LABELS)) * 20}

    model.compute = by_word
    found = model.find_entities(tf.constant(["e a b, bbc c  dc aa", "b", "", "c-c"]))
    assert found["num_entities"].numpy().tolist() == [5, 1, 0, 2]
    assert [
        list(zip(*row, strict=True))
        for row in zip(
            found["entity"].numpy().tolist(),
            found["type"].numpy().tolist(),
            found["start"].numpy().tolist(),
            found["end"].numpy().tolist(),
            strict=True,
        )
    ] == [
        [
            (b"a b", b"PER", 2, 5),
            (b"bbc", b"PER", 7, 10),
            (b"c", b"LOC", 11, 12),
            (b"dc", b"LOC", 14, 16),
            (b"aa", b"PER", 17, 19),
        ],
        [(b"b", b"PER", 0, 1), *[(b"", b"", 0, 0)] * 4],
        [(b"", b"", 0, 0)] * 5,
        [(b"c", b"LOC", 0, 1), (b"c", b"LOC", 2, 3), *[(b"", b"", 0, 0)] * 3],
    ]
    rows = [["b", "b", "c", "e", "c"], ["a", "", "b", "", ""]]
    found = model.tag_words(tf.constant(rows))
    assert found["tags"].numpy().tolist() == [
        [b"B-PER", b"I-PER", b"B-LOC", b"O", b"B-LOC"],
        [b"B-PER", b"", b"I-PER", b"", b""],
    ]


def test_labels_that_are_not_iob(folder, randomize):
    run = make_run(folder / "plain", randomize, labels=("O", "NAME", "E_PER"))
    model = model_of(run)
    assert model.max_seq_length == 40  # no settings: 128, or what positions there are

    def by_word(ids):
        labels = tf.gather(tf.constant([0, 1, 1, 2, 0]), ids["input_ids"] % 5)
        return {"logits": tf.one_hot(labels, 3)}

    model.compute = by_word
    chosen = {VOCABULARY.ids[c] % 5: c for c in LETTERS}
    name, other, last, outside = (chosen[i] for i in (1, 2, 3, 0))
    text = f"{name} {other} {outside} {last} {last} {name}"
    found = model.find_entities(tf.constant([text]))
    assert found["type"].numpy().tolist() == [[b"NAME", b"E_PER", b"NAME"]]
    assert found["entity"].numpy().tolist() == [
        [f"{name} {other}".encode(), f"{last} {last}".encode(), name.encode()]
    ]


@pytest.mark.slow
def test_an_export_answers_as_python_does(run, exported):
    model = model_of(run)
    check_tags(model, lambda words: exported["words"](words=words), SENTENCES)

    def of_documents(words, document):
        return exported["documents"](words=words, document=document)

    check_tags(model, of_documents, SENTENCES, DOCUMENTS)

    def find_entities(text):
        return exported["serving_default"](text=text)

    num_entities = check_entities(model, find_entities, TEXTS)
    assert num_entities > 20  # or this test would see little
    for text in TEXTS:
        check_entities(model, find_entities, [text, ""])


@pytest.mark.slow
def test_an_export_tags_as_predict_does(run, exported, tmp_path):
    rows = [(ws, d) for ws, d in zip(SENTENCES, DOCUMENTS, strict=True) if ws][:-1]
    all_words, documents = zip(*rows, strict=True)
    blocks = []
    for _, group in itertools.groupby(rows, key=lambda row: row[1]):
        sentences = ["".join(f"{word} O\n" for word in words) for words, _ in group]
        blocks += ["-DOCSTART- O\n", *sentences]
    (tmp_path / "dev.txt").write_bytes("\n".join(blocks).encode())
    finetuned.predict(run, tmp_path / "dev.txt", tmp_path / "tags.txt")
    names = tf.constant(list(map(str, documents)))
    answers = exported["documents"](words=padded(all_words), document=names)
    found = answers["tags"].numpy()
    columns = [
        "".join(
            f"{word} O {tag.decode()}\n"
            for word, tag in zip(words, of_row, strict=False)
        )
        for words, of_row in zip(all_words, found, strict=True)
    ]
    wanted = (tmp_path / "tags.txt").read_bytes().decode()
    assert "".join(f"{block}\n" for block in columns) == wanted


@pytest.mark.slow
def test_signatures_are_as_documented(exported, folder):
    def kinds_of(specs):
        return {name: (spec.shape.rank, spec.dtype) for name, spec in specs.items()}

    names = ("serving_default", "words", "documents", "ids")
    strings, by_words, of_documents, ids = (exported[name] for name in names)
    assert strings.structured_input_signature[1] == {
        "text": tf.TensorSpec([None], tf.string, "text")
    }
    assert kinds_of(strings.structured_outputs) == {
        "num_entities": (1, tf.int32),
        "entity": (2, tf.string),
        "type": (2, tf.string),
        "start": (2, tf.int32),
        "end": (2, tf.int32),
        "probability": (2, tf.float32),
    }
    assert by_words.structured_input_signature[1] == {
        "words": tf.TensorSpec([None, None], tf.string, "words")
    }
    assert kinds_of(by_words.structured_outputs) == {
        "tags": (2, tf.string),
        "probability": (2, tf.float32),
    }
    assert of_documents.structured_input_signature[1] == {
        "words": tf.TensorSpec([None, None], tf.string, "words"),
        "document": tf.TensorSpec([None], tf.string, "document"),
    }
    assert kinds_of(of_documents.structured_outputs) == {
        "tags": (2, tf.string),
        "probability": (2, tf.float32),
    }
    assert kinds_of(ids.structured_outputs) == {"logits": (3, tf.float32)}
    listed = (folder / "1/assets.extra/labels.txt").read_text()
    assert listed.splitlines() == list(LABELS)


@pytest.mark.slow
def test_empty_batches(exported):
    found = exported["serving_default"](text=tf.constant([], tf.string))
    assert found["num_entities"].shape == (0,)
    assert {v.shape for n, v in found.items() if n != "num_entities"} == {(0, 1)}
    for shape in ((0, 3), (2, 0)):
        words = tf.zeros(shape, tf.string)
        found = exported["words"](words=words)
        assert {values.shape for values in found.values()} == {shape}
        document = tf.zeros(shape[:1], tf.string)
        found = exported["documents"](words=words, document=document)
        assert {values.shape for values in found.values()} == {shape}


def test_documents_are_for_models_that_were_trained_on_them(folder, randomize):
    settings = finetuning.FinetuningConfig(task="tagging", document_context=False)
    run = make_run(folder / "alone", randomize, settings=settings, labels=LABELS)
    assert list(model_of(run).signatures()) == ["serving_default", "words", "ids"]


@pytest.mark.slow
def test_ids_give_logits_in_all_forms(run, exported, folder):
    pytest.importorskip("tf2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    interpreters = pytest.importorskip("ai_edge_litert.interpreter")
    export.export_model(run, folder / "litert", to="litert")
    export.export_model(run, folder / "onnx", to="onnx")
    for form in ("litert", "onnx"):
        listed = (folder / form / "labels.txt").read_text()
        assert listed.splitlines() == list(LABELS)
        assert json.loads((folder / form / "tokenizer_config.json").read_text()) == {
            "do_lower_case": False,
            "model_max_length": MAX_SEQ_LENGTH,
        }
    session = onnxruntime.InferenceSession(folder / "onnx/model.onnx")
    lite = interpreters.Interpreter(str(folder / "litert/model.tflite"))
    made = run_weights.read_finished_run(run, kinds=("tagging",), verb="finetune")
    network = registry.build_network(made.bert_config, made.task)
    run_weights.load_weights(made, network)
    tokenized = ner_windows.tokenize(
        as_sentences(SENTENCES),
        tokenization.Tokenizer(VOCABULARY, do_lower_case=False),
        max_seq_length=MAX_SEQ_LENGTH,
        document_context=False,
    )
    for rows in (np.arange(len(tokenized)), np.arange(1)):
        ids = tokenized.batch(rows)
        wanted = network(ids, training=False)["logits"]
        for found in (
            lite.get_signature_runner()(**ids)["logits"],
            session.run(["logits"], ids)[0],
            exported["ids"](**{n: tf.constant(v) for n, v in ids.items()})["logits"],
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_bilstm_below_the_head(folder, randomize):
    pytest.importorskip("tf2onnx")
    settings = finetuning.FinetuningConfig(
        task="tagging", max_seq_length=MAX_SEQ_LENGTH
    )
    run = make_run(
        folder / "bilstm", randomize, settings=settings, labels=LABELS, bilstm_units=4
    )
    export.export_model(run, folder / "bilstm_1")
    tag = tf.saved_model.load(str(folder / "bilstm_1")).signatures["words"]
    check_tags(model_of(run), lambda words: tag(words=words), SENTENCES)
    # Compared with the network before it is kept.
    export.export_model(run, folder / "bilstm_onnx", to="onnx")


def test_a_tagger_needs_labels(folder, randomize):
    run = make_run(folder / "unlabelled", randomize)
    with pytest.raises(InputError, match="unlabelled: tagging needs labels, its task"):
        export.export_model(run, folder / "new")
    assert not (folder / "new").exists()


@pytest.mark.slow
def test_what_answers_otherwise_is_not_kept(run, tmp_path, monkeypatch):
    def without_neighbours(*args, **options):
        windows = cut_windows(*args, **options)
        return windows._replace(begins=windows.own_begins, ends=windows.own_ends)

    cut_windows = served_windows.cut_windows
    monkeypatch.setattr(served_windows, "cut_windows", without_neighbours)
    with pytest.raises(RuntimeError, match="the exported model answers differently"):
        export.export_model(run, tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


def conll_model(shared_data, directory, randomize) -> served_tags.Tags:
    """With a real vocabulary, and exact scores."""
    path = shared_data / "vocab/cased_L-12_H-768_A-12/vocab.txt"
    vocabulary = tokenization.Vocabulary.load(path)
    made = run_directory.Run(
        directory=directory,
        task=config.Task(kind="tagging", labels=LABELS),
        bert_config=config.BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=4,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=4,
        ),
        vocabulary=vocabulary,
        do_lower_case=False,
    )
    run_directory.describe_run(made, None)
    network = registry.build_network(made.bert_config, made.task, seed=0)
    randomize(network)
    run_weights.finish_run(made, network, {"steps": 0})
    model = model_of(directory)
    assert model.max_seq_length == 128
    model.compute = stand_in
    return model


def test_some_of_a_dev_file(shared_data, tmp_path, randomize):
    sentences = ner.read(shared_data / "ner/conll2003/eng.testa")[::16]
    model = conll_model(shared_data, tmp_path, randomize)
    check_tags(model, model.tag_words, [s.words for s in sentences])
    texts = [" ".join(s.words) for s in sentences]
    assert check_entities(model, model.find_entities, texts) > 300


@pytest.mark.slow
def test_a_whole_dev_file(shared_data, tmp_path, randomize):
    sentences = ner.read(shared_data / "ner/conll2003/eng.testa")
    assert len(sentences) == 3250
    model = conll_model(shared_data, tmp_path, randomize)
    for first in range(0, len(sentences), 256):
        batch = [s.words for s in sentences[first : first + 256]]
        check_tags(model, model.tag_words, batch)
        documents = [s.document for s in sentences[first : first + 256]]
        check_tags(model, model.tag_words, batch, documents)
        check_entities(model, model.find_entities, [" ".join(ws) for ws in batch])
    # All as one sentence, of more than 70,000 pieces.
    everything = [word for sentence in sentences for word in sentence.words]
    check_tags(model, model.tag_words, [everything])


@pytest.mark.parametrize("letters", ["BI", "BIES", "BILU", ""])
def test_tags_and_entities_of_every_scheme(letters):
    """Random tags, most of them in an order that no file has, against `ner`."""
    types = ("X", "Y-Z")
    labels = ("O", *(f"{p}-{name}" for name in types for p in letters))
    if not letters:
        labels = ("O", "NN", "VB")
    rng = np.random.default_rng(len(letters))
    sentences = [ner.Sentence(("w",) * n, None, 0, 0) for n in (40, 1, 60)]
    logits = rng.standard_normal((101, len(labels))).astype(np.float32)
    rows = tf.constant(np.repeat([0, 1, 2], [40, 1, 60]))
    tagged = served_tags._tag(tf.constant(logits), rows, labels)
    is_begin = tf.cast(tagged.begins_entity, tf.int32)
    names = np.array([*labels, *map(served_tags._as_begin, labels)])
    decoded = ner.decode(logits, labels, sentences)
    flat = [tag for of_sentence in decoded for tag in of_sentence]
    assert names[tagged.label_ids + len(labels) * is_begin].tolist() == flat
    first, last, _ = served_tags._entities(tagged)
    found = list(zip(first.numpy().tolist(), last.numpy().tolist(), strict=True))
    wanted, start = [], 0
    for of_sentence in decoded:
        if letters:
            entities = sequence_labeling.get_entities(ner.in_bioes(of_sentence))
            wanted += [(start + a, start + b) for _, a, b in entities]
        else:
            for tag, run in itertools.groupby(enumerate(of_sentence), lambda p: p[1]):
                places = [start + place for place, _ in run]
                wanted += [(places[0], places[-1])] if tag != "O" else []
        start += len(of_sentence)
    assert found == wanted
