import dataclasses

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.data import features, tokenization
from bert_keras.inference.features import word_inputs
from bert_keras.kinds.tagging import ner, ner_windows
from bert_keras.kinds.text import text
from bert_keras.labelled import tokenized

TOKENS = (
    *features.SPECIAL_TOKENS,
    *("un", "##believ", "##able", "the", "cat", ",", "sat"),
)
IDS = {token: number for number, token in enumerate(TOKENS)}


@pytest.fixture(scope="module")
def tokenizer():
    vocabulary = tokenization.Vocabulary(TOKENS)
    return tokenization.Tokenizer(vocabulary, do_lower_case=True)


@pytest.fixture
def encode(tokenizer):
    def encode(examples, pooling, *, max_seq_length=9, document_context=True):
        encoder = word_inputs.Aligner(
            tokenizer,
            max_seq_length=max_seq_length,
            pooling=pooling,
            document_context=document_context,
        )
        return encoder(examples)

    return encode


def texts(*values):
    return [
        text.LabelledText(
            *(value if isinstance(value, tuple) else (value, None)), "", n
        )
        for n, value in enumerate(values, start=1)
    ]


def sentences(*documents):
    made = []
    for number, document in enumerate(documents):
        for words in document:
            made.append(ner.Sentence(tuple(words.split()), None, number, len(made) + 1))
    return made


def inputs_of(aligned):
    """The tokens of each input."""
    batch = aligned.inputs.batch(np.arange(len(aligned.inputs)))
    rows = zip(batch["input_ids"], aligned.inputs.lengths, strict=True)
    return [" ".join(TOKENS[i] for i in row[:length]) for row, length in rows]


def rows_of(aligned):
    """What the vector of each row is made of, example after example."""
    inputs = [tokens.split() for tokens in inputs_of(aligned)]
    owners = np.repeat(np.arange(len(inputs)), aligned.num_rows)
    columns = zip(owners, aligned.positions, aligned.num_pieces, strict=True)
    return [inputs[n][begin : begin + count] for n, begin, count in columns]


def test_words_of_texts(encode):
    made = encode(texts("The unbelievable cat, xx", " ", "cat"), "mean")
    assert inputs_of(made) == [
        "[CLS] the un ##believ ##able cat , [UNK] [SEP]",
        "[CLS] [SEP]",
        "[CLS] cat [SEP]",
    ]
    assert rows_of(made) == [
        *(["the"], ["un", "##believ", "##able"], ["cat"], [","], ["[UNK]"]),
        ["cat"],
    ]
    assert made.num_rows.tolist() == [5, 0, 1]
    assert made.examples == [
        {
            "line": 1,
            "words": ["The", "unbelievable", "cat", ",", "xx"],
            "starts": [0, 4, 17, 20, 22],
            "ends": [3, 16, 20, 21, 24],
        },
        {"line": 2, "words": [], "starts": [], "ends": []},
        {"line": 3, "words": ["cat"], "starts": [0], "ends": [3]},
    ]
    assert made.num_cut == 0
    assert not made.inputs.segment_ids.any()


def test_the_first_piece_of_each_word(encode):
    mean = encode(texts("The unbelievable cat, xx"), "mean")
    first = encode(texts("The unbelievable cat, xx"), "first")
    assert rows_of(first) == [row[:1] for row in rows_of(mean)]
    assert first.examples == mean.examples


def test_pieces_of_texts(encode):
    made = encode(texts("The unbelievable cat"), "none")
    assert rows_of(made) == [["the"], ["un"], ["##believ"], ["##able"], ["cat"]]
    assert made.examples == [
        {
            "line": 1,
            "pieces": ["the", "un", "##believ", "##able", "cat"],
            "word_ids": [0, 1, 1, 1, 2],
            "starts": [0, 4, 6, 12, 17],
            "ends": [3, 6, 12, 16, 20],
        }
    ]


def test_pairs_of_texts(encode):
    made = encode(texts(("The unbelievable", "cat sat"), ("cat", "")), "mean")
    assert inputs_of(made) == [
        "[CLS] the un ##believ ##able [SEP] cat sat [SEP]",
        "[CLS] cat [SEP]",
    ]
    assert made.inputs.segment_ids.tolist() == [0] * 6 + [1] * 3 + [0] * 3
    assert rows_of(made) == [
        *(["the"], ["un", "##believ", "##able"], ["cat"], ["sat"]),
        ["cat"],
    ]
    assert made.examples == [
        {
            "line": 1,
            "words": ["The", "unbelievable", "cat", "sat"],
            "starts": [0, 4, 0, 4],
            "ends": [3, 16, 3, 7],
            "segment_ids": [0, 0, 1, 1],
        },
        {
            "line": 2,
            "words": ["cat"],
            "starts": [0],
            "ends": [3],
            "segment_ids": [0],
        },
    ]


def test_a_text_that_is_too_long_is_cut_and_counted(encode):
    whole = "cat unbelievable cat"
    made = encode(texts(whole, "cat cat cat"), "mean", max_seq_length=5)
    assert made.num_cut == 1
    assert inputs_of(made) == ["[CLS] cat un ##believ [SEP]", "[CLS] cat cat cat [SEP]"]
    assert rows_of(made)[:2] == [["cat"], ["un", "##believ"]]
    assert made.examples[0] == {
        "line": 1,
        # As a whole, although a piece is lost.
        "words": ["cat", "unbelievable"],
        "starts": [0, 4],
        "ends": [3, 16],
    }
    pair = encode(texts(("the cat cat", "the cat")), "none", max_seq_length=6)
    assert inputs_of(pair) == ["[CLS] the cat [SEP] the [SEP]"]
    assert rows_of(pair) == [["the"], ["cat"], ["the"]]
    assert pair.num_cut == 1


def test_inputs_of_texts_are_those_that_classifiers_have(encode, tokenizer):
    examples = texts("The unbelievable cat, xx", "", "the cat " * 9, ("a cat", "sat"))
    made = encode(examples[:3], "first").inputs
    pairs = [example[:2] for example in examples]
    expected = tokenized.tokenize(pairs[:3], tokenizer, max_seq_length=9)
    pair = encode(examples[3:], "first").inputs
    expected_pair = tokenized.tokenize(pairs[3:], tokenizer, max_seq_length=9)
    for found, wanted in ((made, expected), (pair, expected_pair)):
        # What the data report of classifiers counts is no input of a model.
        for field in dataclasses.fields(wanted)[:-1]:
            assert field.name != "uncut_lengths"
            np.testing.assert_array_equal(
                getattr(found, field.name), getattr(wanted, field.name)
            )


TAGGED = sentences(["the unbelievable cat", "Cat, sat"], ["sat"])


def test_words_of_sentences_have_their_document_around_them(encode):
    made = encode(TAGGED, "mean")
    assert inputs_of(made) == [
        "[CLS] the un ##believ ##able cat cat , [SEP]",
        "[CLS] un ##believ ##able cat cat , sat [SEP]",
        "[CLS] sat [SEP]",
    ]
    assert rows_of(made) == [
        *(["the"], ["un", "##believ", "##able"], ["cat"]),
        *(["cat", ","], ["sat"]),
        ["sat"],
    ]
    assert made.examples == [
        {"line": 1, "words": ["the", "unbelievable", "cat"]},
        {"line": 2, "words": ["Cat,", "sat"]},
        {"line": 3, "words": ["sat"]},
    ]
    alone = encode(TAGGED, "mean", document_context=False)
    assert inputs_of(alone)[1] == "[CLS] cat , sat [SEP]"
    assert rows_of(alone) == rows_of(made)
    first = encode(TAGGED, "first")
    assert rows_of(first) == [row[:1] for row in rows_of(made)]


def test_pieces_of_sentences(encode):
    made = encode(TAGGED, "none")
    assert rows_of(made) == [
        [token] for token in "the un ##believ ##able cat cat , sat sat".split()
    ]
    assert made.num_rows.tolist() == [5, 3, 1]
    assert made.examples == [
        {
            "line": 1,
            "pieces": ["the", "un", "##believ", "##able", "cat"],
            "word_ids": [0, 1, 1, 1, 2],
        },
        {"line": 2, "pieces": ["cat", ",", "sat"], "word_ids": [0, 0, 1]},
        {"line": 3, "pieces": ["sat"], "word_ids": [0]},
    ]


@pytest.mark.parametrize("pooling", word_inputs.POOLINGS)
def test_a_sentence_of_several_inputs_has_every_row_once(encode, pooling):
    long = sentences([" ".join(["cat", "unbelievable", "\x01", "the"] * 6)])
    made = encode(long, pooling)
    assert len(made.inputs) > 3
    whole = ["cat", "un ##believ ##able", "[UNK]", "the"] * 6
    expected = {
        "mean": [word.split() for word in whole],
        "first": [word.split()[:1] for word in whole],
        "none": [[piece] for word in whole for piece in word.split()],
    }
    assert rows_of(made) == expected[pooling]
    assert made.num_rows.sum() == len(expected[pooling])


def test_positions_of_first_pieces_are_those_of_tagging(encode, tokenizer):
    made = encode(TAGGED, "first")
    expected = ner_windows.tokenize(TAGGED, tokenizer, max_seq_length=9)
    np.testing.assert_array_equal(made.positions, expected.positions)
    np.testing.assert_array_equal(made.num_rows, expected.num_words)


def test_parts_keep_documents_whole(monkeypatch):
    monkeypatch.setattr(word_inputs, "_EXAMPLES_AT_A_TIME", 2)
    made = sentences(["a"], ["b", "c", "d"], ["e"])
    parts = [[s.words[0] for s in part] for part in word_inputs.parts(made)]
    assert parts == [["a", "b", "c", "d"], ["e"]]
    made = texts("a", "b", "c")
    parts = [[example.text for example in part] for part in word_inputs.parts(made)]
    assert parts == [["a", "b"], ["c"]]


def test_reads_every_form(tmp_path):
    columns = finetuning.TextColumns(text="sentence")
    (tmp_path / "a.txt").write_text("The cat\n\nsat\n")
    (tmp_path / "b.tsv").write_text("sentence\tother\nThe cat\t1\nsat\t2\n")
    (tmp_path / "c.conll").write_text("The DT O\ncat NN O\n\nsat VB O\n")
    (tmp_path / "d.jsonl").write_text('{"words": ["The", "cat"]}\n')
    lines, rows, tagged, words = (
        word_inputs.read(tmp_path / name, form=form, columns=columns)
        for name, form in (
            ("a.txt", "lines"),
            ("b.tsv", "text"),
            ("c.conll", "tagging"),
            ("d.jsonl", "tagging"),
        )
    )
    assert [(x.text, x.line) for x in lines] == [("The cat", 1), ("", 2), ("sat", 3)]
    assert [(x.text, x.line) for x in rows] == [("The cat", 2), ("sat", 3)]
    assert [(x.words, x.line) for x in tagged] == [(("The", "cat"), 1), (("sat",), 4)]
    assert [x.words for x in words] == [("The", "cat")]


def test_the_form_is_told_by_the_name(tmp_path):
    assert word_inputs.form_of("a.TXT") == "lines"
    assert word_inputs.form_of("a.tsv") == word_inputs.form_of("a.jsonl") == "text"
    with pytest.raises(InputError, match=r"eng\.train: the name does not .* --form"):
        word_inputs.form_of("eng.train")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InputError, match=r"empty\.txt: is empty, expected lines"):
        word_inputs.read(
            tmp_path / "empty.txt",
            form="lines",
            columns=finetuning.TextColumns(),
        )


def test_ranges():
    made = tokenized.ranges(np.array([7, 0, 3]), np.array([2, 0, 3]))
    assert made.tolist() == [7, 8, 3, 4, 5]
