import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.data import features, tokenization
from bert_keras.inference.features import word_inputs
from bert_keras.kinds.tagging import ner, ner_windows

TOKENS = (
    *features.SPECIAL_TOKENS,
    *("un", "##believ", "##able", "the", "cat", ",", "sat"),
)


@pytest.fixture(scope="module")
def tokenizer():
    vocabulary = tokenization.Vocabulary(TOKENS)
    return tokenization.Tokenizer(vocabulary, do_lower_case=True)


@pytest.fixture
def encode(tokenizer):
    def encode(sentences, pooling, *, document_context=True):
        return word_inputs.encode(
            sentences,
            tokenizer,
            max_seq_length=9,
            pooling=pooling,
            document_context=document_context,
        )

    return encode


def sentences(*documents):
    made = []
    for number, document in enumerate(documents):
        for words in document:
            made.append(ner.Sentence(tuple(words.split()), None, number, len(made) + 1))
    return made


def inputs_of(words):
    """The tokens of each input."""
    batch = words.windows.batch(np.arange(len(words.windows)))
    rows = zip(batch["input_ids"], words.lengths, strict=True)
    return [" ".join(TOKENS[i] for i in row[:length]) for row, length in rows]


def rows_of(words):
    """What the vector of each word is made of."""
    inputs = [tokens.split() for tokens in inputs_of(words)]
    owners = np.repeat(np.arange(len(inputs)), words.num_words)
    columns = zip(owners, words.positions, words.num_pieces, strict=True)
    return [" ".join(inputs[n][begin : begin + count]) for n, begin, count in columns]


TAGGED = sentences(["the unbelievable cat", "Cat, sat"], ["sat"])


def test_words_have_their_document_around_them(encode, tokenizer):
    mean = encode(TAGGED, "mean")
    assert inputs_of(mean) == [
        "[CLS] the un ##believ ##able cat cat , [SEP]",
        "[CLS] un ##believ ##able cat cat , sat [SEP]",
        "[CLS] sat [SEP]",
    ]
    whole = ["the", "un ##believ ##able", "cat", "cat ,", "sat", "sat"]
    assert rows_of(mean) == whole
    alone = encode(TAGGED, "mean", document_context=False)
    assert inputs_of(alone)[1] == "[CLS] cat , sat [SEP]"
    assert rows_of(alone) == whole
    first = encode(TAGGED, "first")
    assert rows_of(first) == [row.split()[0] for row in whole]
    expected = ner_windows.tokenize(TAGGED, tokenizer, max_seq_length=9)
    np.testing.assert_array_equal(first.positions, expected.positions)


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_a_text_of_several_inputs_has_every_word_once(encode, pooling):
    words = encode(sentences(["cat unbelievable \x01 the " * 6]), pooling)
    assert len(words.windows) > 3
    whole = ["cat", "un ##believ ##able", "[UNK]", "the"] * 6
    first = [row.split()[0] for row in whole]
    assert rows_of(words) == (whole if pooling == "mean" else first)


def test_parts_keep_documents_whole(monkeypatch):
    monkeypatch.setattr(word_inputs, "_SENTENCES_AT_A_TIME", 2)
    made = sentences(["a"], ["b", "c", "d"], ["e"])
    parts = [[s.words[0] for s in part] for part in word_inputs.parts(made)]
    assert parts == [["a", "b", "c", "d"], ["e"]]


@pytest.mark.parametrize(
    ("name", "content", "form", "expected"),
    [
        (
            *("a.txt", "The cat,sat\n\nsat\n", "lines"),
            [(("The", "cat", ",", "sat"), 1), ((), 2), (("sat",), 3)],
        ),
        (
            *("b.tsv", "sentence\tother\nThe cat\t1\nsat\t2\n", "text"),
            [(("The", "cat"), 2), (("sat",), 3)],
        ),
        (
            *("c.conll", "The DT O\ncat NN O\n\nsat VB O\n", "tagging"),
            [(("The", "cat"), 1), (("sat",), 4)],
        ),
        (*("d.jsonl", '{"words": ["The", "cat"]}\n', "tagging"), [(("The", "cat"), 1)]),
        ("a.txt", "", "lines", r"a\.txt: is empty, expected lines of text"),
        (
            *("b.tsv", "sentence\ttext_pair\na\tb\n", "text"),
            r"b\.tsv: has pairs of texts, expected one text a row: leave the column",
        ),
    ],
)
def test_every_form_is_read(name, content, form, expected, tmp_path):
    path, columns = tmp_path / name, finetuning.TextColumns(text="sentence")
    path.write_text(content)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            word_inputs.read_sentences(path, form=form, columns=columns)
        return
    made = word_inputs.read_sentences(path, form=form, columns=columns)
    assert [(sentence.words, sentence.line) for sentence in made] == expected
    # Only sentences of tagged words may have context.
    is_tagged = form == "tagging"
    assert is_tagged or len({s.document for s in made}) == len(made)


def test_the_form_is_told_by_the_name():
    assert word_inputs.form_of("a.TXT") == "lines"
    assert word_inputs.form_of("a.tsv") == word_inputs.form_of("a.jsonl") == "text"
    with pytest.raises(InputError, match=r"eng\.train: the name does not .* --form"):
        word_inputs.form_of("eng.train")
