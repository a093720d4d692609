"""Labelled files of people: read, tokenized, scored."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from bert_keras.core.errors import InputError
from bert_keras.core.settings import config
from bert_keras.core.settings.finetuning import FinetuningConfig, TextColumns
from bert_keras.data import features, tokenization
from bert_keras.kinds.text import text, text_forms
from bert_keras.labelled import tokenized

COLUMNS = TextColumns()
TOKENIZER = tokenization.Tokenizer(
    tokenization.Vocabulary((*features.SPECIAL_TOKENS, *"abcdefgh")),
    do_lower_case=True,
)
PAD, UNK, CLS, SEP, MASK, A, B, C = range(8)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(path: Path, content: str | bytes, **options) -> list[tuple]:
    columns = options.pop("columns", COLUMNS)
    return [tuple(e) for e in text.read_texts(write(path, content), columns, **options)]


def test_tsv_takes_quotes_as_they_are(tmp_path):
    content = '\ufefflabel\ttext\tnote\r\n1\t"so bad\t\r\n0\the said ""a"", b\tx\n'
    assert read(tmp_path / "a.tsv", content) == [
        ('"so bad', None, "1", 2),
        ('he said ""a"", b', None, "0", 3),
    ]


def test_tsv_lines_end_only_at_line_feeds(tmp_path):
    content = "text\tlabel\na\u2028b\x0bc\x85\t1\n\n\t0"
    assert read(tmp_path / "a.TSV", content) == [
        ("a\u2028b\x0bc\x85", None, "1", 2),
        ("", None, "0", 4),
    ]


def test_tsv_of_one_column_may_hold_empty_texts(tmp_path):
    rows = read(tmp_path / "a.tsv", "text\na\n\nb\n\n", has_label=False)
    assert [(row[0], row[3]) for row in rows] == [("a", 2), ("", 3), ("b", 4), ("", 5)]


def test_csv_has_standard_quoting_and_true_line_numbers(tmp_path):
    long = "word " * 40_000
    content = (
        'label,text,text_pair\n1,"two\nlines, ""quoted""",\n\n0,plain\u2028,second\n'
        f'2,,"{long}"\n'
    )
    assert read(tmp_path / "a.csv", content) == [
        ('two\nlines, "quoted"', "", "1", 2),
        ("plain\u2028", "second", "0", 5),
        ("", long, "2", 6),
    ]


def test_jsonl_labels_may_be_numbers_or_truth_values(tmp_path):
    rows = [
        {"label": 1, "text": "a\nb", "more": [1]},
        {"text": "", "label": -0.5},
        {"text": "\u2028é", "label": True},
        {"text": "x", "label": "ja"},
    ]
    content = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    assert read(tmp_path / "a.jsonl", content) == [
        ("a\nb", None, "1", 1),
        ("", None, "-0.5", 3),
        ("\u2028é", None, "true", 5),
        ("x", None, "ja", 7),
    ]


def test_columns_are_found_by_name(tmp_path):
    content = "id\tsentence1\tsentence2\ttext_pair\tgold\n9\ta\tb\tc\tyes\n"
    renamed = {"text": "sentence1", "label": "gold"}
    for pair_name, wanted in (("sentence2", "b"), (None, "c")):
        columns = TextColumns(text_pair=pair_name, **renamed)
        rows = read(tmp_path / "a.tsv", content, columns=columns)
        assert rows == [("a", wanted, "yes", 2)]
    rows = read(
        tmp_path / "a.tsv",
        content,
        columns=TextColumns(**renamed),
        has_text_pair=False,
        has_label=False,
    )
    assert rows == [("a", None, None, 2)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", r"a.txt: expected a file named .tsv, .csv or .jsonl, got .txt$"),
        ("a", "", "a: expected a file named .tsv, .csv or .jsonl, got no suffix"),
        ("a.tsv", "", "expected a first line with names of columns"),
        ("a.csv", "", "a.csv: holds no rows"),
        ("a.jsonl", "\n\n", "a.jsonl: holds no rows, expected at least one"),
        ("a.tsv", "text\tlabel\n", "a.tsv: holds no rows"),
        (
            "a.tsv",
            "txt\tlabel\na\t1\n",
            r"a.tsv: no column 'text' \(there: txt, label\); did you mean 'txt'\?; "
            "rename it, or fine-tune with --set columns.text=NAME",
        ),
        ("a.tsv", "text\tx\na\t1\n", "no column 'label'.*--set columns.label=NAME"),
        (
            "a.jsonl",
            '{"text": "a", "label": 1}\n{"label": 1}\n',
            r"a.jsonl: line 2: no column 'text' \(there: label\)",
        ),
        (
            "a.tsv",
            "text\tlabel\na\t1\nb\n",
            r"a.tsv: line 3: expected 2 columns \(text, label\), got 1$",
        ),
        ("a.tsv", "text\tlabel\na\tb\t1\n", "line 2: expected 2 columns .*, got 3"),
        ("a.csv", 'text,label\n"a\nb",1\nc\n', "line 4: expected 2 columns .*, got 1"),
        ("a.csv", 'text,label\na,1\n"b,2\n', "a.csv: line 3: not CSV"),
        ("a.csv", 'text,label\n"a" b,1\n', "a.csv: line 2: not CSV"),
        ("a.csv", "text,label,text\na,1,b\n", "two columns are named 'text'"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"te', "a.jsonl: line 2: not JSON"),
        ("a.tsv", "text,label\na,b\n", r"expected tabs .* found commas \(.csv\): name"),
        ("a.csv", "text;label\na;b\n", r"expected commas .* found semicolons: save"),
        ("a.csv", "text\tlabel\na\tb\n", r"expected commas .* found tabs \(.tsv\)"),
        ("a.jsonl", "[" * 99_999, "line 1: not JSON: brackets are nested too deeply"),
        (
            "a.jsonl",
            '{"text": "a", "label": 1}\n{"text": "b \\ud83d", "label": 1}',
            "a.jsonl: line 2: half of a surrogate pair, .* cut within an emoji",
        ),
        ("a.jsonl", "[1]\n", r"line 1: expected \{\"text\": ..., ...\}, got \[1\]"),
        (
            "a.jsonl",
            '{"text": 5, "label": 1}',
            "line 1: 'text': expected a string, got 5",
        ),
        (
            "a.jsonl",
            '{"text": "a", "label": null}',
            "'label': expected a string, got None",
        ),
        ("a.tsv", "text\tlabel\na\t\n", "line 2: expected a label of one line, got ''"),
        (
            "a.jsonl",
            '{"text": "a", "label": "x\\ty"}',
            r"line 1: expected a label of one line, got 'x\\ty'",
        ),
        (
            "a.tsv",
            b"text\tlabel\na\t1\n\xff\xfe\t0\n",
            "a.tsv: line 3: not UTF-8: save it as UTF-8",
        ),
    ],
)
def test_bad_files_are_explained(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message):
        text.read_texts(write(tmp_path / name, content), COLUMNS)


def test_what_is_no_file_is_explained(tmp_path):
    with pytest.raises(InputError, match="none.tsv: expected a file of texts, cannot"):
        text.read_texts(tmp_path / "none.tsv", COLUMNS)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="folder.csv: expected a file of texts"):
        text.read_texts(tmp_path / "folder.csv", COLUMNS)


def test_a_pair_column_that_was_set_must_be_there(tmp_path):
    columns = TextColumns(text_pair="b")
    with pytest.raises(InputError, match="no column 'b'.*--set columns.text_pair=NAME"):
        read(tmp_path / "a.tsv", "text\tlabel\na\t1\n", columns=columns)


def labelled(*labels: str) -> list[text.LabelledText]:
    return [
        text.LabelledText("a", None, label, line)
        for line, label in enumerate(labels, start=2)
    ]


def test_labels_are_ordered_by_value_or_name():
    def order(*labels):
        return text.distinct_labels(labelled(*labels), path="a.tsv")

    assert order("10", "9", "-1", "9") == ("-1", "9", "10")
    assert order("10", "9", "b") == ("10", "9", "b")
    with pytest.raises(InputError, match="a.tsv: every row is labelled 'x'"):
        order("x", "x")


def test_label_ids_are_places_or_numbers():
    ids = text.label_ids(labelled("b", "a", "b"), ("a", "b"), path="a.tsv")
    assert ids.dtype == np.int32
    assert ids.tolist() == [1, 0, 1]
    numbers = text.label_ids(labelled("1", "-2.5e1"), None, path="a.tsv")
    assert numbers.dtype == np.float32
    assert numbers.tolist() == [1.0, -25.0]
    message = (
        r"a.tsv: line 3: label 'goo' was not in the training data \(known: bad, good\);"
        " did you mean 'good'"
    )
    with pytest.raises(InputError, match=message):
        text.label_ids(labelled("bad", "goo"), ("bad", "good"), path="a.tsv")
    for word in ("nan", "inf", "1e60", "good", "1,5"):
        with pytest.raises(
            InputError, match=f"line 2: .* a label is a number, got '{word}'"
        ):
            text.label_ids(labelled(word), None, path="a.tsv")


def test_inputs_are_packed_and_padded_to_the_longest():
    rows = [
        text.LabelledText("a b", None, None, 2),
        text.LabelledText("", "", None, 3),
        text.LabelledText("a z", "b c", None, 4),
        text.LabelledText("a b c a b c a b c", "c a b", None, 5),
    ]
    texts = tokenized.tokenize([row[:2] for row in rows], TOKENIZER, max_seq_length=11)
    assert texts.lengths.tolist() == [4, 2, 7, 11]
    batch = texts.batch(np.array([2, 0, 1]))
    assert batch["input_ids"].tolist() == [
        [CLS, A, UNK, SEP, B, C, SEP],
        [CLS, A, B, SEP, PAD, PAD, PAD],
        [CLS, SEP, PAD, PAD, PAD, PAD, PAD],
    ]
    assert batch["input_mask"].tolist() == [
        [1, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
    ]
    assert batch["segment_ids"].tolist() == [[0, 0, 0, 0, 1, 1, 1], [0] * 7, [0] * 7]
    longest = texts.batch(np.array([3, 1]))
    assert longest["input_ids"].tolist() == [
        [CLS, A, B, C, A, B, SEP, C, A, B, SEP],
        [CLS, SEP, *[PAD] * 9],
    ]
    assert {array.dtype for array in longest.values()} == {np.dtype(np.int32)}


def test_scores_of_two_classes():
    logits = np.array([[2, 0], [0, 1], [3, 0], [0, 4], [0, 1]], np.float32)
    true = np.array([0, 1, 1, 1, 0])
    # Positive is class 1: two found, one missed, one false alarm.
    tp, fp, fn, tn = 2, 1, 1, 1
    margins = [2, 1, -3, 4, -1]
    assert text.scores(logits, true) == pytest.approx(
        {
            "loss": np.mean([math.log1p(math.exp(-margin)) for margin in margins]),
            "accuracy": 3 / 5,
            "f1": 2 * tp / (2 * tp + fp + fn),
            "matthews": (tp * tn - fp * fn) / math.sqrt(3 * 3 * 2 * 2),
        }
    )


def test_the_f1_of_two_labels_names_its_label():
    """One of ten is fraud, and always `legit` is no good answer."""
    rows = [
        text.LabelledText("a", None, "fraud" if n < 2 else "legit", n)
        for n in range(20)
    ]
    logits = np.tile(np.array([[0.0, 1.0]], np.float32), (20, 1))

    def described(**options):
        data = text_forms.TextDataset(
            path="a.tsv", rows=rows, has_labels=True, kind="classification", **options
        )
        task = data.describe()
        return task, data.answers_of(logits, task).scores()

    task, scores = described()
    assert task.positive_label == "fraud" and scores["f1 of fraud"] == 0.0
    assert "f1" not in scores
    _, scores = described(positive_label="legit")
    assert scores["f1 of legit"] == pytest.approx(36 / 38)
    with pytest.raises(
        InputError, match="`positive_label` is one of fraud, legit, got"
    ):
        described(positive_label="Fraud")
    assert FinetuningConfig(positive_label=1).positive_label == "1"
    # Equally rare, or a third-party model's: the second.
    rows[2:] = [row._replace(label="legit") for row in rows[:2]]
    logits = logits[:4]
    assert described()[0].positive_label == "legit"
    task = config.Task(kind="classification", labels=("x", "y"))
    assert "f1 of y" in text.own_scores(logits, np.array([0, 1, 0, 1]), task)


def test_scores_of_three_classes_average_over_those_that_occur():
    logits = np.eye(4)[[0, 1, 1, 2]]
    true = np.array([0, 1, 2, 2])
    result = text.scores(logits, true)
    assert result["accuracy"] == 3 / 4
    assert result["f1"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)


def test_constant_answers_score_zero_without_a_warning():
    logits = np.array([[1.0, 0.0]] * 3)
    result = text.scores(logits, np.array([0, 1, 0]))
    assert (result["f1"], result["matthews"]) == (0.0, 0.0)
    result = text.scores(logits[:1], np.array([0]))
    assert (result["accuracy"], result["matthews"]) == (1.0, 0.0)
    numbers = np.ones([3, 1], np.float32)
    result = text.scores(numbers, np.array([1.0, 2.0, 3.0]))
    assert result == {"loss": pytest.approx(5 / 3), "pearson": 0.0, "spearman": 0.0}
    assert text.scores(numbers[:1], np.array([2.0])) == {
        "loss": 1.0,
        "pearson": 0.0,
        "spearman": 0.0,
    }


def test_scores_of_numbers():
    predicted = np.array([[1.0], [2.0], [3.0], [10.0]], np.float32)
    true = np.array([1, 2, 4, 5], np.float32)
    result = text.scores(predicted, true)
    assert result["loss"] == pytest.approx((1 + 25) / 4)
    assert result["pearson"] == pytest.approx(np.corrcoef(predicted[:, 0], true)[0, 1])
    assert result["spearman"] == pytest.approx(1.0)


def test_predictions_are_a_table():
    logits = np.array([[0, 0, math.log(2)], [800, 0, 0]], np.float32)
    assert text.predictions_tsv(logits, ("a b", "ü", "2")) == (
        "prediction\tp(a b)\tp(ü)\tp(2)\n"
        "2\t0.250000\t0.250000\t0.500000\n"
        "a b\t1.000000\t0.000000\t0.000000\n"
    )
    numbers = np.array([[0.5], [-1234567.0]], np.float32)
    assert text.predictions_tsv(numbers, None) == "prediction\n0.5\n-1.23457e+06\n"


def test_glue_files_are_read_whole(shared_data):
    folder = shared_data / "glue" / "SST-2"
    columns = TextColumns(text="sentence")
    train = text.read_texts(folder / "train.tsv", columns)
    assert len(train) == 67_349
    assert text.distinct_labels(train, path="train.tsv") == ("0", "1")
    assert train[-1].line == 67_350
