"""Files of questions with their candidates."""

import json

import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.kinds.ranking import dataset
from bert_keras.kinds.ranking.dataset import Candidate, Question
from tests.bert_keras.kinds.kind_data import write

USUAL = finetuning.TextColumns()
ROWS = "question\tpassage\trelevance\n"


def read(path, text: str, columns=USUAL, **options):
    return dataset.read_questions(write(path, text), columns, **options)


def test_rows_of_a_question_may_be_anywhere(tmp_path):
    questions = [
        Question("q1", (Candidate("a", 0.0, 0, 2), Candidate("b", 2.5, 2, 4))),
        Question("q2", (Candidate("a", 1.0, 1, 3),)),
    ]
    table = f"{ROWS}q1\ta\t0\nq2\ta\t1\nq1\tb\t2.5\n"
    assert read(tmp_path / "a.tsv", table) == questions
    assert read(tmp_path / "crlf.tsv", table.replace("\n", "\r\n")) == questions
    assert read(tmp_path / "a.csv", table.replace("\t", ",")) == questions
    other = finetuning.TextColumns(text="query", text_pair="doc", label="grade")
    renamed = table.replace(ROWS, "query\tdoc\tgrade\n")
    assert read(tmp_path / "other.tsv", renamed, other) == questions
    lines = [
        {"question": "q1", "passage": "a", "relevance": False, "more": [1]},
        {"question": "q2", "passage": "a", "relevance": 1},
        {"question": "q1", "passage": "b", "relevance": "2.5"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    found = read(tmp_path / "a.jsonl", text)
    assert [[c[:3] for c in question.candidates] for question in found] == [
        [c[:3] for c in question.candidates] for question in questions
    ]


def test_ids_divide_equal_questions(tmp_path):
    text = "question_id\tquestion\tpassage\n7\tq\ta\n8\tq\tb\n7\tq\ta\n"
    assert read(tmp_path / "a.tsv", text, has_labels=False) == [
        Question("q", [Candidate("a", None, 0, 2), Candidate("a", None, 2, 4)]),
        Question("q", [Candidate("b", None, 1, 3)]),
    ]


def test_triples_and_right_passages_alone(tmp_path):
    text = "question\tpositive\tnegative\nq\ta\tb\nq\ta\tc\nq\td\tb\n"
    first = Candidate("a", 1.0, 0, 2), Candidate("b", 0.0, 0, 2)
    others = Candidate("c", 0.0, 1, 3), Candidate("d", 1.0, 2, 4)
    assert read(tmp_path / "a.tsv", text) == [Question("q", (*first, *others))]
    found = read(tmp_path / "b.tsv", "question\tpositive\nq\ta\n")
    assert found == [Question("q", (Candidate("a", 1.0, 0, 2),))]
    assert not found[0].can_be_learnt
    # The loss compares float32 numbers.
    table = f"{ROWS}q\ta\t1\nq\tb\t1.00000001\nr\ta\t0\nr\tb\t1e-60\n"
    assert not any(q.can_be_learnt for q in read(tmp_path / "equal.tsv", table))
    columns = finetuning.TextColumns(text="q", text_pair="good")
    found = read(tmp_path / "c.tsv", "q\tgood\tnegative\nx\ty\tz\n", columns)
    assert found == [
        Question("x", (Candidate("y", 1.0, 0, 2), Candidate("z", 0.0, 0, 2)))
    ]


def test_a_repeated_passage_counts_once(tmp_path, caplog):
    text = f"{ROWS}q\ta\t0\nq\tb\t1\nq\ta\t2\nq\tb\t1\n"
    assert read(tmp_path / "a.tsv", text) == [
        Question("q", (Candidate("a", 2.0, 0, 2), Candidate("b", 1.0, 1, 3)))
    ]
    assert caplog.messages == [
        f"{tmp_path / 'a.tsv'}: 1 passages come again for their question with another "
        "relevance, such as line 4: the highest one counts"
    ]


LINE = '{"question": "q", "passage": "a", "relevance": 1}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROWS, "holds no rows"),
        ("question\tpassage\nq\ta\n", "no column 'relevance'"),
        ("question\trelevance\nq\t1\n", "no column 'passage'"),
        ("query\tpassage\trelevance\nq\ta\t1\n", "no column 'question'"),
        (f"{ROWS} \ta\t1\n", "line 2: 'question' is empty: expected a question"),
        (f"{ROWS}q\t \t1\n", "line 2: 'passage' is empty: expected a passage"),
        *(
            (f"{ROWS}q\ta\t1\nq\tb\t{value}\n", f"line 3: .* got '{value}'")
            for value in ("nan", "inf", "-1", "yes", "", "1e7")
        ),
        (
            f"question_id\t{ROWS}1\tq\ta\t1\n1\tr\tb\t1\n",
            "line 3: question_id '1' is that of another question in line 2",
        ),
        *(
            (LINE + '{"question": "q"' + wrong + "}", f"line 2: .*{message}")
            for wrong, message in (
                (', "passage": 3, "relevance": 1', "'passage': expected a s"),
                (', "passage": "a"', "no column 'relevance'"),
                (', "passage": "a", "relevance": null', "got None"),
                (', "passage": "a", "relevance": NaN', "got nan"),
            )
        ),
    ],
)
def test_files_that_cannot_be_read(tmp_path, text, message):
    name = "a.jsonl" if text.startswith(LINE) else "a.tsv"
    with pytest.raises(InputError, match=f"{name}: .*{message}"):
        read(tmp_path / name, text)
