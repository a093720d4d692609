"""Answers beside the columns of their input."""

import pytest

from bert_keras.tasks import ner, tables

ROWS = [{"id": 7, "text": 'a "b",\tc', "prediction": "old"}, {"text": "d\ne"}]
ANSWERS = "prediction\tp(x)\tp(y)\nx\t0.9\t0.1\ny\t0.2\t0.8\n"


@pytest.mark.parametrize(
    ("suffix", "wanted"),
    [
        (
            ".tsv",
            "id\ttext\tprediction\tp(x)\tp(y)\n"
            '7\ta "b", c\tx\t0.9\t0.1\n'
            "\td e\ty\t0.2\t0.8\n",
        ),
        (
            ".csv",
            "id,text,prediction,p(x),p(y)\n"
            '7,"a ""b"",\tc",x,0.9,0.1\n'
            ',"d\ne",y,0.2,0.8\n',
        ),
        (
            ".jsonl",
            r'{"id": 7, "text": "a \"b\",\tc", "prediction": "x", '
            '"p(x)": 0.9, "p(y)": 0.1}\n'
            r'{"text": "d\ne", "prediction": "y", "p(x)": 0.2, "p(y)": 0.8}'
            "\n",
        ),
    ],
)
def test_tables(suffix, wanted):
    assert tables.joined(ROWS, ANSWERS, suffix=suffix) == wanted


def test_a_predicted_number_is_a_number_in_json():
    found = tables.joined([{"text": "a"}], "prediction\n0.5\n", suffix=".jsonl")
    assert found == '{"text": "a", "prediction": 0.5}\n'


def test_columns_of_tagged_words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("-DOCSTART- -X- O\n\na NN  O\nb NN B-X\n\n\nc VB O\n")
    answers = ner.predictions_columns(
        ner.read(path, has_tags=False), [["O", "B-X"], ["B-Y"]]
    )
    assert answers == "a O\nb B-X\n\nc B-Y\n\n"
    found = ner.with_columns(path, answers)
    assert found == "a NN O O\nb NN B-X B-X\n\nc VB O B-Y\n\n"
