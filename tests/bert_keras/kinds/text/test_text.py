"""Labelled files of people: read, tokenized, scored."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import tasks
from bert_keras.core.settings.finetuning import FinetuningConfig, TextColumns
from bert_keras.kinds.text import text, text_forms
from bert_keras.labelled import logit_scores, tables, tokenized
from tests.bert_keras.kinds import kind_data
from tests.bert_keras.kinds.kind_data import write

COLUMNS = TextColumns()
TOKENIZER = kind_data.tokenizer(*"abcdefgh")
PAD, UNK, CLS, SEP, MASK, A, B, C = range(8)


def read(path: Path, content: str | bytes, **options) -> list[tuple]:
    columns = options.pop("columns", COLUMNS)
    return [tuple(e) for e in text.read_texts(write(path, content), columns, **options)]


LONG = "word " * 40_000
JSON_ROWS = [
    {"label": 1, "text": "a\nb", "more": [1]},
    {"text": "", "label": -0.5},
    {"text": "\u2028é", "label": True},
    {"text": "x", "label": "ja"},
]


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        (  # Quotes are ordinary.
            "a.tsv",
            '\ufefflabel\ttext\tnote\r\n1\t"so bad\t\r\n0\the said ""a"", b\tx\n',
            [('"so bad', None, "1", 2), ('he said ""a"", b', None, "0", 3)],
        ),
        (  # Lines end at line feeds alone.
            "a.TSV",
            "text\tlabel\na\u2028b\x0bc\x85\t1\n\n\t0",
            [("a\u2028b\x0bc\x85", None, "1", 2), ("", None, "0", 4)],
        ),
        (  # Standard quoting, true line numbers, fields of any length.
            "a.csv",
            'label,text,text_pair\n1,"two\nlines, ""quoted""",\n\n0,plain\u2028,second'
            f'\n2,,"{LONG}"\n',
            [
                ('two\nlines, "quoted"', "", "1", 2),
                ("plain\u2028", "second", "0", 5),
                ("", LONG, "2", 6),
            ],
        ),
        (  # Labels may be numbers or truth values.
            "a.jsonl",
            "\n\n".join(json.dumps(row, ensure_ascii=False) for row in JSON_ROWS),
            [
                ("a\nb", None, "1", 1),
                ("", None, "-0.5", 3),
                ("\u2028é", None, "true", 5),
                ("x", None, "ja", 7),
            ],
        ),
    ],
)
def test_files_of_all_formats(tmp_path, name, content, rows):
    assert read(tmp_path / name, content) == rows


def test_tsv_of_one_column_may_hold_empty_texts(tmp_path):
    rows = read(tmp_path / "a.tsv", "text\na\n\nb\n\n", has_label=False)
    assert [(row[0], row[3]) for row in rows] == [("a", 2), ("", 3), ("b", 4), ("", 5)]


def test_columns_are_found_by_name(tmp_path):
    path = tmp_path / "a.tsv"
    content = "id\tsentence1\tsentence2\ttext_pair\tgold\n9\ta\tb\tc\tyes\n"
    renamed = {"text": "sentence1", "label": "gold"}
    for pair_name, second in (("sentence2", "b"), (None, "c")):
        columns = TextColumns(text_pair=pair_name, **renamed)
        assert read(path, content, columns=columns) == [("a", second, "yes", 2)]
    options = {"has_text_pair": False, "has_label": False}
    rows = read(path, content, columns=TextColumns(**renamed), **options)
    assert rows == [("a", None, None, 2)]
    # A column that was set must be there.
    with pytest.raises(InputError, match="no column 'b'.*--set columns.text_pair=NAME"):
        read(path, "text\tlabel\na\t1\n", columns=TextColumns(text_pair="b"))


HEAD, ROW = "text\tlabel\n", '{"text": "a", "label": 1}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.doc",
            "",
            "a.doc: expected a file named .tsv, .csv, .jsonl, .parquet or .t",
        ),
        ("a", "", "a: expected a file named .tsv, .* or .txt, got no suffix"),
        ("a.txt", "a\nb\n", r"a.txt: no column 'label' \(there: text\)"),
        ("a.tsv", "", "expected a first line with names of columns"),
        *(
            (name, content, f"{name}: holds no rows, expected at least one")
            for name, content in (("a.txt", ""), ("a.csv", ""), ("a.jsonl", "\n\n"))
        ),
        ("a.tsv", HEAD, "a.tsv: holds no rows"),
        (
            *("a.tsv", "txt\tlabel\na\t1\n"),
            r"a.tsv: no column 'text' \(there: txt, label\); did you mean 'txt'\?; "
            "rename it, or fine-tune with --set columns.text=NAME$",
        ),
        ("a.tsv", "text\tx\na\t1\n", "no column 'label'.*--set columns.label=NAME"),
        (
            *("a.csv", "It was late.,pos\nIt was dark.,neg\n"),
            r"no column 'text' \(there: It was late., pos\); rename it, or fine-tune "
            "with --set columns.text=NAME; if the first line is a row, put a line of "
            "names above it$",
        ),
        (
            *("a.jsonl", ROW + '{"label": 1}\n'),
            r"a.jsonl: line 2: no column 'text' \(there: label\)",
        ),
        ("a.tsv", f"{HEAD}a\t1\nb\n", r"line 3: .* 2 columns \(text, label\), got 1$"),
        ("a.tsv", f"{HEAD}a\tb\t1\n", "line 2: expected 2 columns .*, got 3"),
        ("a.csv", 'text,label\n"a\nb",1\nc\n', "line 4: expected 2 columns .*, got 1"),
        ("a.csv", 'text,label\na,1\n"b,2\n', "a.csv: line 3: not CSV"),
        ("a.csv", 'text,label\n"a" b,1\n', "a.csv: line 2: not CSV"),
        ("a.csv", "text,label,text\na,1,b\n", "two columns are named 'text'"),
        ("a.jsonl", ROW + '{"te', "a.jsonl: line 2: not JSON"),
        ("a.tsv", "text,label\na,b\n", r"expected tabs .* found commas \(.csv\): name"),
        ("a.csv", "text;label\na;b\n", r"expected commas .* found semicolons: save"),
        ("a.csv", "text\tlabel\na\tb\n", r"expected commas .* found tabs \(.tsv\)"),
        ("a.jsonl", "[" * 99_999, "line 1: not JSON: brackets are nested too deeply"),
        (
            *("a.jsonl", ROW + '{"text": "b \\ud83d", "label": 1}'),
            "a.jsonl: line 2: half of a surrogate pair, .* cut within an emoji",
        ),
        ("a.jsonl", "[1]\n", r"line 1: expected \{\"text\": ..., ...\}, got \[1\]"),
        ("a.jsonl", '{"text": 5, "label": 1}', "'text': expected a string, got 5"),
        (
            "a.jsonl",
            '{"text": "a", "label": null}',
            "'label': expected a string, got N",
        ),
        ("a.tsv", f"{HEAD}a\t\n", "line 2: expected a label of one line, got ''"),
        ("a.jsonl", '{"text": "a", "label": "x\\ty"}', "expected a label of one li"),
        (
            "a.tsv",
            HEAD.encode() + b"a\t1\n\xff\t0\n",
            "line 3: not UTF-8: save it as U",
        ),
    ],
)
def test_bad_files_are_explained(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path / name, content)


def test_what_is_no_file_is_explained(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    for name in ("none.tsv", "folder.csv"):
        with pytest.raises(InputError, match=f"{name}: expected a file of texts"):
            text.read_texts(tmp_path / name, COLUMNS)


def labelled(*labels: str) -> list[text.LabelledText]:
    return [text.LabelledText("a", None, label, n) for n, label in enumerate(labels, 2)]


def dataset_of(rows, kind="classification", **options) -> text_forms.TextDataset:
    return text_forms.TextDataset(
        path="a.tsv", rows=rows, has_labels=True, kind=kind, **options
    )


def test_labels_are_ordered_by_value_or_name():
    def order(*labels):
        return dataset_of(labelled(*labels)).describe().labels

    assert order("10", "9", "-1", "9") == ("-1", "9", "10")
    assert order("10", "9", "b") == ("10", "9", "b")
    with pytest.raises(InputError, match="a.tsv: every row is labelled 'x'"):
        order("x", "x")


def test_targets_are_places_or_numbers():
    def targets(*words, labels=None, kind="classification"):
        task = tasks.Task(kind=kind, labels=labels)
        return dataset_of(labelled(*words), kind).targets(task)

    ids = targets("b", "a", "b", labels=("a", "b"))
    assert (ids.dtype, ids.tolist()) == (np.int32, [1, 0, 1])
    numbers = targets("1", "-2.5e1", kind="regression")
    assert (numbers.dtype, numbers.tolist()) == (np.float32, [1.0, -25.0])
    message = (
        r"a.tsv: line 3: label 'goo' was not in the training data \(known: bad, good\)"
    )
    with pytest.raises(InputError, match=message):
        targets("bad", "goo", labels=("bad", "good"))
    for word in ("nan", "inf", "1e60", "good", "1,5"):
        with pytest.raises(InputError, match=f"line 2: .* is a number, got '{word}'"):
            targets(word, kind="regression")


def test_inputs_know_what_was_cut_off():
    pairs = [("a b", None), ("", ""), ("a z", "b c"), ("a b c a b c", "c a b")]
    texts = tokenized.tokenize(pairs, TOKENIZER, max_seq_length=11)
    assert texts.lengths.tolist() == [4, 2, 7, 11]
    assert texts.whole_lengths.tolist() == [4, 2, 7, 12]
    longest = texts.batch(np.array([3, 1]))["input_ids"]
    assert longest.tolist() == [
        [CLS, A, B, C, A, B, SEP, C, A, B, SEP],
        [CLS, SEP, *[PAD] * 9],
    ]


@pytest.mark.parametrize("num_labels", [2, 3])
def test_scores_of_classes_are_those_of_the_definitions(num_labels):
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(200, num_labels)).astype(np.float32)
    true, given = rng.integers(0, num_labels, 200), logits.argmax(axis=1)
    counts = np.zeros((num_labels, num_labels))
    np.add.at(counts, (true, given), 1)
    t, p = counts.sum(axis=1), counts.sum(axis=0)
    f1 = 2 * counts.diagonal() / (t + p)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert logit_scores.scores(logits, true) == pytest.approx(
        {
            "loss": -np.log(probabilities[np.arange(200), true]).mean(),
            "accuracy": counts.trace() / 200,
            "f1": f1[1] if num_labels == 2 else f1.mean(),
            "matthews": (counts.trace() * 200 - t @ p)
            / math.sqrt((200**2 - p @ p) * (200**2 - t @ t)),
        }
    )


def test_f1_of_several_classes_averages_over_those_that_occur():
    result = logit_scores.scores(np.eye(4)[[0, 1, 1, 2]], np.array([0, 1, 2, 2]))
    assert result["f1"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)


def test_scores_of_numbers_are_those_of_the_definitions():
    rng = np.random.default_rng(5)
    true = np.float32(rng.integers(0, 26, 100) / 5)
    predicted = np.float32(true + rng.normal(size=100)).round(1)
    # Ties have the mean of their ranks.
    ranks = [
        (v[None, :] < v[:, None]).sum(axis=1)
        + (v[None, :] == v[:, None]).sum(axis=1) / 2
        for v in (true, predicted)
    ]
    assert logit_scores.scores(predicted[:, None], true) == pytest.approx(
        {
            "loss": ((predicted - true) ** 2).mean(),
            "pearson": np.corrcoef(true, predicted)[0, 1],
            "spearman": np.corrcoef(*ranks)[0, 1],
        }
    )


def test_constant_answers_and_labels_score_zero_without_a_warning():
    zeros, mixed = np.zeros(4, int), np.array([0, 1, 0, 1])
    for true, given in ((zeros, mixed), (mixed, zeros), (zeros, zeros)):
        result = logit_scores.scores(np.eye(2)[given], true)
        assert (result["f1"], result["matthews"]) == (0.0, 0.0)
        assert result["accuracy"] == (true == given).mean()
    numbers, constant = np.arange(4.0), np.full(4, 2.5)
    for true, given in ((numbers, constant), (constant, numbers), ([1.0], [1.0])):
        result = logit_scores.scores(np.array(given)[:, None], np.array(true))
        assert (result["pearson"], result["spearman"]) == (0.0, 0.0)


def test_the_f1_of_two_labels_names_its_label():
    """One of ten is fraud, and always `legit` is no good answer."""
    rows = labelled(*["fraud"] * 2, *["legit"] * 18)
    logits = np.tile(np.array([[0.0, 1.0]], np.float32), (20, 1))

    def described(**options):
        data = dataset_of(rows, **options)
        task = data.describe()
        return task, data.answers_of(logits, task).scores()

    task, scores = described()
    assert task.positive_label == "fraud" and scores["f1 of fraud"] == 0.0
    assert "f1" not in scores
    _, scores = described(positive_label="legit")
    assert scores["f1 of legit"] == pytest.approx(36 / 38)
    message = "`positive_label` is one of fraud, legit, got"
    with pytest.raises(InputError, match=message):
        described(positive_label="Fraud")
    assert FinetuningConfig(positive_label=1).positive_label == "1"
    # Equally rare, or a third-party model's: the second.
    rows, logits = rows[:4], logits[:4]
    assert described()[0].positive_label == "legit"
    task = tasks.Task(kind="classification", labels=("x", "y"))
    targets = np.array([0, 1, 0, 1])
    answers = text_forms.TextAnswers(
        rows=rows, logits=logits, targets=targets, task=task
    )
    assert "f1 of y" in answers.scores()


def test_predictions_are_a_table():
    logits = np.array([[0, 0, math.log(2)], [800, 0, 0]], np.float32)
    columns = logit_scores.prediction_columns(logits, ("a b", "ü", "2"))
    assert tables.joined([{}, {}], columns, suffix=".tsv") == (
        "prediction\tp(a b)\tp(ü)\tp(2)\n"
        "2\t0.250000\t0.250000\t0.500000\n"
        "a b\t1.000000\t0.000000\t0.000000\n"
    )
    logits = np.array([[0.5], [-1234567.0]], np.float32)
    columns = logit_scores.prediction_columns(logits, None)
    table = tables.joined([{}, {}], columns, suffix=".tsv")
    assert table == "prediction\n0.5\n-1.23457e+06\n"
