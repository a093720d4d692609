"""Questions of four endings: SWAG's files and own ones."""

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import finetuning
from bert_keras.kinds.choice import dataset
from tests.bert_keras.kinds import kind_data
from tests.bert_keras.kinds.kind_data import write

TOKENIZER = kind_data.tokenizer(*"abcdefgh")
PAD, UNK, CLS, SEP, MASK, A, B, C, D, E, F, G, H = range(13)


def test_official_files_are_read(shared_data):
    folder = shared_data / "multiple_choice" / "swag_sample"
    assert dataset.read(folder / "train.csv")[1] == (
        "A drum line passes by walking down the street playing their instruments.",
        "Members of the procession",
        (
            "are playing ping pong and celebrating one left each in quick.",
            "wait slowly towards the cadets.",
            "continues to play as well along the crowd along with the band being "
            "interviewed.",
            "continue to play marching, interspersed.",
        ),
        3,
        3,
    )
    # The last row of these has no line end.
    assert [q.label for q in dataset.read(folder / "val.csv")] == [2, 2, 2, 2]
    assert len(dataset.read(folder / "val_12_rows.csv")) == 11
    test = dataset.read(folder / "test.csv", has_label=False)
    assert test[0].beginning == "Then, the person"
    assert [question.label for question in test] == [None] * 4
    with pytest.raises(InputError, match="test.csv: no column 'label'"):
        dataset.read(folder / "test.csv")


def test_own_files_need_no_other_columns(tmp_path):
    content = (
        "label,sent1,ending3,ending2,ending1,ending0,sent2\r\n"
        '1,"a, ""b""","d\nd",c,b,a,x\r\n\r\n0,,h,g,f,e,y\r\n'
    )
    assert dataset.read(write(tmp_path / "a.CSV", content)) == [
        ('a, "b"', "x", ("a", "b", "c", "d\nd"), 1, 2),
        ("", "y", ("e", "f", "g", "h"), 0, 5),
    ]


CSV = "sent1,sent2,ending0,ending1,ending2,ending3,label\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "", "a.tsv: expected a file named .csv or .parquet with the columns"),
        ("a.csv", CSV, "a.csv: holds no rows, expected at least one"),
        (
            *("a.csv", "sent1,sent2,ending0,ending1,ending2,label\na,b,c,d,e,0\n"),
            r"a.csv: no column 'ending3' \(there: sent1, sent2, ending0, ending1, "
            r"ending2, label\); did you mean '.*'\?; rename it",
        ),
        (
            *("a.csv", CSV.replace("label", "ending4,label") + "a,b,c,d,e,f,g,0\n"),
            "a.csv: expected 4 endings, but there is a column 'ending4'",
        ),
        *(
            ("a.csv", CSV + f"a,b,c,d,e,f,{label}\n", f"label .* ending, got '{label}'")
            for label in ("4", "-1", "")
        ),
        ("a.csv", CSV + " ,,c,d,e,f,0\n", "line 2: `sent1` and `sent2` are both empty"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message):
        dataset.read(write(tmp_path / name, content))


QUESTIONS = [
    dataset.Question("a b", "c", ("d", "e e", "", "f g h"), 2, 2),
    dataset.Question("", "h", ("a", "b", "c", "z"), 0, 3),
]


def test_inputs_pair_the_sentence_with_each_continuation():
    data = dataset.ChoiceDataset(path="x", rows=QUESTIONS, has_labels=False)
    settings = finetuning.FinetuningConfig(max_seq_length=9)
    texts = data.encode(data.describe(), TOKENIZER, settings)
    assert texts.lengths.tolist() == [9, 5]
    batch = texts.batch(np.array([1, 0]))
    assert batch["input_ids"].tolist() == [
        [[CLS, SEP, H, last, SEP, *[PAD] * 4] for last in (A, B, C, UNK)],
        [
            [CLS, A, B, SEP, C, D, SEP, PAD, PAD],
            [CLS, A, B, SEP, C, E, E, SEP, PAD],
            [CLS, A, B, SEP, C, SEP, PAD, PAD, PAD],
            [CLS, A, B, SEP, C, F, G, H, SEP],
        ],
    ]
    assert batch["segment_ids"][1, 0].tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0]
    assert batch["input_mask"][1, 2].tolist() == [1, 1, 1, 1, 1, 1, 0, 0, 0]
    assert {values.dtype for values in batch.values()} == {np.dtype(np.int32)}


def test_scores():
    logits = np.log([[0.1, 0.2, 0.5, 0.2], [0.25, 0.5, 0.2, 0.05]])
    expected = {"loss": -np.log([0.5, 0.25]).mean(), "accuracy": 1 / 2}
    answers = dataset.ChoiceAnswers(questions=QUESTIONS, logits=logits)
    assert answers.scores() == pytest.approx(expected)
