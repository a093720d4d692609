"""Exported taggers: against `dataset` and `ner_windows`."""

import functools
import itertools
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from bert_keras import export
from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.data import features, tokenization
from bert_keras.inference import finetuned
from bert_keras.kinds.tagging import dataset, ner, ner_windows, served_tags, tag_schemes
from tests import make
from tests.bert_keras.export.conftest import IDS, numbers_of, signatures_of

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
    tuple("the cat sat on a mat .".split()) * 5,
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


SETTINGS = finetuning.FinetuningConfig(task="tagging", max_seq_length=MAX_SEQ_LENGTH)


def make_run(directory: Path, randomize, **options) -> Path:
    """A finished run with random weights."""
    return make.make_run(
        *(directory, VOCABULARY),
        change=functools.partial(randomize, stddev=0.5),
        bert_config=make.small_config(len(VOCABULARY), max_position_embeddings=40),
        do_lower_case=False,
        kind="tagging",
        **options,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("tags")


@pytest.fixture(scope="module")
def run(folder, randomize) -> Path:
    return make_run(folder / "run", randomize, settings=SETTINGS, labels=LABELS)


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
    words = ner_windows.tokenize(
        *(sentences, model.tokenizer),
        max_seq_length=model.max_seq_length,
        document_context=True,
    )
    if not len(words.lengths):
        return np.zeros((0, len(model.labels)))
    return numbers_of(model, words)["logits"]


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
    wanted = answers_of(logits, model.labels, sentences).tags()
    names = [] if documents is None else [tf.constant([f"{d}.txt" for d in documents])]
    answers = ask(padded(all_words), *names)
    probabilities = scipy.special.softmax(logits, axis=-1).max(axis=-1)
    ends = np.cumsum(list(map(len, all_words)))
    for row, of_words in enumerate(np.split(probabilities, ends[:-1])):
        tags = [tag.decode() for tag in answers["tags"][row].numpy()]
        num_padding = len(tags) - len(of_words)
        assert tags == [*wanted[row], *[""] * num_padding], sentences[row]
        expected = np.pad(of_words, (0, num_padding))
        np.testing.assert_allclose(answers["probability"][row], expected, rtol=1e-5)


def answers_of(logits, labels, sentences) -> dataset.TaggingAnswers:
    return dataset.TaggingAnswers(
        sentences=sentences, word_logits=logits, labels=labels
    )


def entities_of(text, logits, labels) -> list[tuple]:
    """Text, type, start, end and mean probability."""
    [record] = answers_of(logits, labels, [ner.of_text(text, 0, 0)]).records()
    rows = [entity.model_dump().values() for entity in record.entities]
    return [(text[s:e].encode(), name.encode(), s, e, p) for s, e, name, p in rows]


def check_entities(model, ask, texts) -> int:
    """Entities of texts are those of Python's tags; returns how many there are."""
    sentences = [ner.of_text(text, row, 0) for row, text in enumerate(texts)]
    ends = np.cumsum([len(sentence.words) for sentence in sentences])
    rows = np.split(word_logits(model, sentences), ends[:-1])
    wanted = [
        entities_of(text, logits, model.labels)
        for text, logits in zip(texts, rows, strict=True)
    ]
    answers = {name: v.numpy() for name, v in ask(tf.constant(texts)).items()}
    counts = [len(of_text) for of_text in wanted]
    assert answers["num_entities"].tolist() == counts
    padding = [(b"", b"", 0, 0, 0)]
    rows = [[*row, *padding * (max(1, *counts) - len(row))] for row in wanted]
    for column, name in enumerate(("entity", "type", "start", "end", "probability")):
        values = [[entity[column] for entity in row] for row in rows]
        if name == "probability":
            np.testing.assert_allclose(answers[name], values, atol=1e-5)
        else:
            assert answers[name].tolist() == values
    return sum(counts)


DOCUMENTS = [4, 4, 4, 7, 7, 4, 5, 5, 5]
"""Of `SENTENCES`; the second 4 is another document than the first."""


def test_words_are_tagged_as_in_python(run):
    model = make.served(run)
    model.compute = stand_in
    for length in (3, 8, MAX_SEQ_LENGTH, 40):
        model.max_seq_length = length
        for documents in (None, DOCUMENTS):
            check_tags(model, model.tag_words, SENTENCES, documents)
    check_tags(model, model.tag_words, SENTENCES, [0] * len(SENTENCES))
    for documents in (None, [1, 1]):
        check_tags(model, model.tag_words, [(), ()], documents)
    # Or the above would see nothing.
    alone = model.tag_words(padded(SENTENCES))
    names = tf.constant(list(map(str, DOCUMENTS)))
    together = model.tag_words(padded(SENTENCES), names)
    assert (alone["tags"] != together["tags"]).numpy().any()


def test_texts_are_tagged_as_in_python(run):
    model = make.served(run)
    model.compute = stand_in
    assert check_entities(model, model.answer, TEXTS) > 20
    assert check_entities(model, model.answer, TEXTS[1:4]) == 0


@pytest.mark.slow
def test_signatures_are_as_documented(exported, folder):
    texts, strings = (1, tf.string), (2, tf.string)
    numbers, floats = (2, tf.int32), (2, tf.float32)
    of_words = {"tags": strings, "probability": floats}
    entities = {"num_entities": (1, tf.int32), "entity": strings, "type": strings}
    entities |= {"start": numbers, "end": numbers, "probability": floats}
    expected = {
        "serving_default": ({"text": texts}, entities),
        "words": ({"words": strings}, of_words),
        "documents": ({"words": strings, "document": texts}, of_words),
        "ids": (dict.fromkeys(IDS, numbers), {"logits": (3, tf.float32)}),
    }
    assert signatures_of(exported) == expected
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


def test_documents_and_labels_that_a_model_has(folder, randomize):
    settings = finetuning.FinetuningConfig(task="tagging", document_context=False)
    run = make_run(folder / "alone", randomize, settings=settings, labels=LABELS)
    assert list(make.served(run).signatures()) == ["serving_default", "words", "ids"]
    run = make_run(folder / "unlabelled", randomize)
    with pytest.raises(InputError, match="unlabelled: tagging needs labels, its task"):
        export.export_model(run, folder / "new")
    assert not (folder / "new").exists()


@pytest.mark.slow
def test_what_answers_otherwise_is_not_kept(run, tmp_path, monkeypatch):
    def without_neighbours(*args, **options):
        windows = cut_windows(*args, **options)
        return windows._replace(begins=windows.own_begins, ends=windows.own_ends)

    cut_windows = served_tags.cut_windows
    monkeypatch.setattr(served_tags, "cut_windows", without_neighbours)
    with pytest.raises(RuntimeError, match="the exported model answers differently"):
        export.export_model(run, tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_whole_dev_file(shared_data, tmp_path, randomize):
    """With a real vocabulary, and exact scores."""
    sentences = ner.read(shared_data / "ner/conll2003/eng.testa")
    path = shared_data / "vocab/cased_L-12_H-768_A-12/vocab.txt"
    vocabulary = tokenization.Vocabulary.load(path)
    run = make.make_run(
        *(tmp_path / "run", vocabulary),
        bert_config=make.small_config(
            len(vocabulary),
            hidden_size=4,
            intermediate_size=4,
            max_position_embeddings=512,
        ),
        do_lower_case=False,
        change=randomize,
        kind="tagging",
        labels=LABELS,
    )
    model = make.served(run)
    assert model.max_seq_length == 128
    model.compute = stand_in
    for first in range(0, len(sentences), 256):
        batch = [s.words for s in sentences[first : first + 256]]
        check_tags(model, model.tag_words, batch)
        documents = [s.document for s in sentences[first : first + 256]]
        check_tags(model, model.tag_words, batch, documents)
        check_entities(model, model.answer, [" ".join(ws) for ws in batch])
    # All as one sentence, of more than 70,000 pieces.
    everything = [word for sentence in sentences for word in sentence.words]
    check_tags(model, model.tag_words, [everything])


@pytest.mark.parametrize("letters", ["BI", "BIES", "BILU", ""])
def test_tags_and_entities_of_every_scheme(letters):
    """Random tags, most of them in an order that no file has, in Python too."""
    labels = ("O", *(f"{p}-{name}" for name in ("X", "Y-Z") for p in letters))
    labels = labels if letters else ("O", "NN", "E_B")
    rng, counts = np.random.default_rng(len(letters)), (40, 1, 60)
    sentences = [ner.Sentence(("w",) * n, None, 0, 0) for n in counts]
    logits = rng.standard_normal((101, len(labels))).astype(np.float32)
    rows = np.repeat([0, 1, 2], counts)
    tagged = served_tags.tag(tf.constant(logits), tf.constant(rows), labels)
    decoded = answers_of(logits, labels, sentences).tags()
    tags = [tag.decode() for tag in tagged.tags.numpy()]
    assert tags == list(itertools.chain(*decoded))
    first, last, _ = tagged.entities()
    starts = np.cumsum([0, *counts])
    assert list(zip(first.numpy().tolist(), last.numpy().tolist(), strict=True)) == [
        (start + begin, start + end - 1)
        for start, tags in zip(starts, decoded, strict=False)
        for _, begin, end in tag_schemes.entities(tags)
    ]


def test_blank_texts_have_no_entities_in_python_either(run):
    tuned = finetuned.FinetunedModel.load(run)
    for texts in (["", " \u200b"], ["", "Anna lives in New York."]):
        first, second = tuned.predict(texts)
        assert (first.prediction, first.entities) == ((), ())
        assert len(second.prediction) == len(ner.of_text(texts[1], 0, 0).words)
