"""Answers beside the columns of their input."""

import numpy as np
import pytest

from bert_keras.core.settings import finetuning
from bert_keras.kinds import catalogue
from bert_keras.kinds.tagging import ner
from bert_keras.labelled import tables

ROWS = [{"id": 7, "text": 'a "b",\tc', "prediction": "old"}, {"text": "d\ne"}]
COLUMNS = {
    "prediction": tables.Column(["x", "y"]),
    "p(x)": tables.Column([0.91, 0.2], ".1f"),
    "p(y)": tables.Column([0.09, 0.8], ".1f"),
}


@pytest.mark.parametrize(
    ("suffix", "expected"),
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
def test_tables(suffix, expected):
    assert tables.joined(ROWS, COLUMNS, suffix=suffix) == expected


@pytest.mark.parametrize(
    ("name", "content", "columns", "json_lines"),
    [
        (
            "words.txt",
            "-DOCSTART- -X- O\n\na NN  O\nb NN B-X\n\n\nc VB O\n",
            "a NN O O\nb NN B-X B-X\n\nc VB O B-Y\n\n",
            '{"words": ["a", "b"], "prediction": ["O", "B-X"]}\n'
            '{"words": ["c"], "prediction": ["B-Y"]}\n',
        ),
        (
            "words.jsonl",
            '{"id": 7, "words": ["a", "b\u3000"], "prediction": "old"}\n\n'
            '{"words": ["ü"], "tags": ["O"]}',
            "a O\nb\u3000 B-X\n\nü B-Y\n\n",
            '{"id": 7, "words": ["a", "b\u3000"], "prediction": ["O", "B-X"]}\n'
            '{"words": ["ü"], "tags": ["O"], "prediction": ["B-Y"]}\n',
        ),
    ],
)
def test_tagged_words_stay_beside_their_answers(
    tmp_path, name, content, columns, json_lines
):
    path = tmp_path / name
    path.write_text(content)
    answers = ner.read(path, has_tags=False), [["O", "B-X"], ["B-Y"]]
    for suffix, expected in ((".txt", columns), (".jsonl", json_lines)):
        assert ner.with_columns(path, *answers, suffix=suffix) == expected


def test_columns_of_a_file_of_glue(tmp_path):
    """Those of CoLA's dev file have no line of names, those of its test file have."""
    settings = finetuning.FinetuningConfig(task="CoLA")
    (tmp_path / "CoLA").mkdir()
    for name, content, wanted in (
        ("dev", 'x\t1\t\tit "rains\n', 'x\t1\t\tit "rains'),
        ("test", "index\tsentence\n0\tit rains\n", "0\tit rains"),
    ):
        path = tmp_path / f"CoLA/{name}.tsv"
        path.write_text(content)
        data = catalogue.read(path, settings, has_labels=False)
        answers = data.answers_of(np.zeros((1, 2)), data.describe())
        (content,) = data.files(answers, suffix=".tsv").values()
        header, line = content.splitlines()
        assert line == f"{wanted}\t0\t0.500000\t0.500000"
        assert header.endswith("sentence\tprediction\tp(0)\tp(1)")
