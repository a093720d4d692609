"""Texts with any number of labels: files, targets, thresholds, scores."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import sklearn.metrics

from bert_keras.core.errors import InputError
from bert_keras.core.settings import loading, tasks
from bert_keras.core.settings.finetuning import FinetuningConfig
from bert_keras.kinds import catalogue
from bert_keras.kinds.text import text, text_forms
from tests.bert_keras.kinds.kind_data import write

SETTINGS = FinetuningConfig(multi_label=True)


def read(path: Path, content: str, settings: FinetuningConfig = SETTINGS, **options):
    return catalogue.read(write(path, content), settings, **options)


@pytest.mark.parametrize(
    ("name", "content", "changes"),
    [
        ("a.tsv", "text\tlabel\na\tjoy, anger\nb\t\nc\tjoy,joy\n", {}),
        ("a.csv", 'text,label\na,"joy,anger"\nb,\nc,joy\n', {}),
        (
            *("a.tsv", "text\tmood\na\tjoy | anger\nb\t \nc\tjoy\n"),
            {"columns": {"label": "mood", "label_separator": "|"}},
        ),
        (
            "a.jsonl",
            '{"text": "a", "label": ["joy", "anger"]}\n{"text": "b", "label": []}\n'
            '{"text": "c", "label": ["joy"]}\n',
            {},
        ),
        (
            *("a.tsv", "joy\tanger\ttext\n1\t1\ta\n0\t0\tb\n1\t0\tc\n"),
            {"columns": {"label": ["joy", "anger"]}, "multi_label": False},
        ),
        (
            "a.jsonl",
            '{"text": "a", "joy": 1, "anger": true}\n{"text": "b", "joy": 0, "anger": '
            '"0"}\n{"text": "c", "joy": "1", "anger": false}\n',
            {"columns": {"label": ["joy", "anger"]}},
        ),
    ],
)
def test_labels_are_listed_or_have_columns(tmp_path, name, content, changes):
    settings = FinetuningConfig.model_validate({"multi_label": True, **changes})
    data = read(tmp_path / name, content, settings)
    assert [row.label for row in data.rows] == [("joy", "anger"), (), ("joy",)]
    in_columns = not isinstance(settings.columns.label, str)
    labels = ("joy", "anger") if in_columns else ("anger", "joy")
    assert data.describe() == tasks.Task(kind="multi_label", labels=labels)
    task = tasks.Task(kind="multi_label", labels=("joy", "anger"))
    assert data.targets(task).tolist() == [[1, 1], [0, 0], [1, 0]]


def test_numbers_are_labels_too_and_come_in_their_order(tmp_path):
    content = '{"text": "a", "label": [10, 9]}\n{"text": "b", "label": ["2"]}\n'
    assert read(tmp_path / "a.jsonl", content).describe().labels == ("2", "9", "10")


def test_a_column_without_a_single_text_is_named(tmp_path, caplog):
    settings = loading.load(FinetuningConfig, None, ["columns.label=[joy, anger]"])
    data = read(tmp_path / "a.tsv", "text\tjoy\tanger\na\t1\t0\n", settings)
    assert data.describe().labels == ("joy", "anger")
    assert "a.tsv: no text has the label 'anger'" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "changes", "message"),
    [
        (
            *("a.jsonl", '{"text": "a", "label": "joy"}\n', {}),
            r"line 1: 'label': with `multi_label` a list such as .*\"b\"\], got 'joy'",
        ),
        (
            "a.jsonl",
            '{"text": "a", "label": [1, null]}\n',
            {},
            "expected a string, got",
        ),
        ("a.tsv", "text\tlabel\na\tb,,c\n", {}, "line 2: expected a label of one line"),
        ("a.tsv", "text\tx\na\tb\n", {}, "no column 'label'"),
        (
            *("a.tsv", "text\tjoy\na\t2\n", {"columns": {"label": ["joy"]}}),
            "line 2: 'joy': expected 0 or 1, got '2'",
        ),
        (
            *("a.jsonl", '{"text": "a", "label": ["a,b"]}\n', {}),
            "'a,b' has ',' in it, which stands between labels: --set columns.label_se",
        ),
        ("a.tsv", "text\tlabel\na\t\n", {}, "a.tsv: no row has a label, expected at"),
        (
            *("a.jsonl", '{"text": "a", "label": ["a"]}\n', {"multi_label": False}),
            "line 1: 'label': expected a label, got a list; --set multi_label=true",
        ),
    ],
)
def test_bad_rows_are_named(tmp_path, name, content, changes, message):
    settings = FinetuningConfig.model_validate({"multi_label": True, **changes})
    with pytest.raises(InputError, match=message):
        read(tmp_path / name, content, settings).describe()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("class_weights={a: 0}", r"`class_weights.a` is a number above 0, got 0"),
        ("class_weights={a: heavy}", "`class_weights.a` is a number above 0, got 'hea"),
        ("class_weights=equal", "`balanced` or weights by label, such as .* 'equal'"),
        ("label_smoothing=1", "`label_smoothing`"),
        ("columns.label=[]", r"is a column or several different ones, got \[\]"),
        ("columns.label=[a, a]", r"several different ones, got \['a', 'a'\]"),
        ("regression=true", "give `regression` or `multi_label`.*, got both"),
    ],
)
def test_settings_that_cannot_be(override, message):
    with pytest.raises(InputError, match=message):
        loading.load(FinetuningConfig, None, ["multi_label=true", override])


def random_answers(num_texts: int, num_labels: int, *, seed: int):
    random = np.random.default_rng(seed)
    logits = random.normal(size=(num_texts, num_labels)).round(1).astype(np.float32)
    targets = random.random((num_texts, num_labels)) < scipy.special.expit(logits - 1)
    return logits, targets.astype(np.float32)


@pytest.mark.parametrize("is_sure", [False, True])
def test_no_threshold_is_better(is_sure):
    logits, targets = random_answers(25, 6, seed=0)
    probabilities = scipy.special.expit(logits)
    if is_sure:
        # Numbers of float32 that are next to each other, as those just below 1 are.
        steps = np.round(logits * 2).astype(np.int32)
        probabilities = (np.float32(0.9).view(np.int32) + steps).view(np.float32)
    thresholds = text_forms.best_thresholds(probabilities, targets)
    for values, true, chosen in zip(
        probabilities.T, targets.T, thresholds, strict=True
    ):
        # Between two neighbours among the probabilities, all thresholds are one.
        best, *others = (
            sklearn.metrics.f1_score(true, values >= threshold)
            for threshold in (chosen, *np.unique(values), 1.1)
        )
        assert best == max(others)


def test_literal_thresholds():
    for probabilities, true, threshold in (
        ([0.2, 0.4, 0.9], [0, 1, 1], 0.3),
        ([0.2, 0.4, 0.9], [0, 0, 1], 0.65),
        # All have it: from any threshold below on.
        ([0.6, 0.7], [1, 1], 0.5),
        ([0.2, 0.7], [1, 1], 0.1),
        # Equal probabilities cannot be told apart.
        ([0.3, 0.3, 0.1], [1, 0, 0], 0.2),
        ([0.3, 0.8], [0, 0], 0.5),
    ):
        columns = (np.float32(values)[:, None] for values in (probabilities, true))
        found = text_forms.best_thresholds(*columns)
        assert found == pytest.approx([threshold], abs=1e-6)


def answers_of(logits, targets, labels=("a", "b")) -> text_forms.MultiLabelAnswers:
    names, targets = np.array(labels), np.float32(targets)
    rows = [
        text.LabelledText(f"t{i}", None, tuple(names[row > 0].tolist()), i)
        for i, row in enumerate(targets)
    ]
    return text_forms.MultiLabelAnswers(
        rows=rows,
        logits=np.float32(logits),
        targets=targets,
        task=tasks.Task(kind="multi_label", labels=labels),
    )


def test_scores_are_those_of_scikit_learn():
    logits, targets = random_answers(60, 5, seed=9)
    # A label that nobody has and nobody is given is left out of the mean.
    targets[:, 4], logits[:, 4] = 0, -9
    thresholds = np.float32([0.5, 0.3, 0.6, 0.5, 0.5])
    probabilities = scipy.special.expit(logits)
    given = probabilities >= thresholds
    answers = answers_of(logits, targets, tuple("abcde"))
    found = answers.scores(
        decision=tasks.Decision(label_thresholds={"b": 0.3, "c": 0.6})
    )
    assert found["accuracy"] == sklearn.metrics.accuracy_score(targets, given)
    for mean in ("micro", "macro"):
        expected = sklearn.metrics.f1_score(
            targets[:, :4], given[:, :4], average=mean, zero_division=0.0
        )
        assert found[f"{mean}_f1"] == pytest.approx(expected)
    expected = sklearn.metrics.log_loss(targets.ravel(), probabilities.ravel())
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert found["best_macro_f1"] > found["macro_f1"]


def test_scores_of_overconfident_answers_are_finite():
    found = answers_of([[1000.0], [-1000.0]], [[0], [1]], ("a",)).scores()
    assert found["loss"] == 1000
    nothing = answers_of([[-1000.0]], [[0]], ("a",)).scores()
    assert (nothing["macro_f1"], nothing["accuracy"], nothing["loss"]) == (0, 1, 0)


def test_tables_and_records_follow_the_thresholds(caplog):
    answers = answers_of([[0, 2], [-1, -1]], [[0, 1], [1, 0]])
    assert answers.columns()["prediction"].values == [("a", "b"), ()]
    thresholds = answers.best_decision().label_thresholds
    assert thresholds == pytest.approx({"a": 0.1344707, "b": 0.574869})
    chosen = tasks.Decision(label_thresholds={"a": 0.2, "b": 0.9})
    (first, second) = answers.records(decision=chosen)
    assert (first.labels, first.prediction) == (("b",), ("a",))
    assert (second.labels, second.prediction) == (("a",), ("a",))
    assert first.probabilities == pytest.approx({"a": 0.5, "b": 0.880797})
    assert answers.scores(decision=chosen)["accuracy"] == 0.5
    assert not caplog.records
    # A label without texts in dev keeps its threshold.
    best = answers_of([[0.1, 2]], [[0, 1]]).best_decision()
    assert best.label_thresholds == {"a": 0.5, "b": 0.5}
    warning = "no text of the dev file has the label 'a': its threshold stays 0.5"
    assert caplog.messages == [warning]


def test_json_lines_have_lists_of_labels(tmp_path):
    rows = [{"text": "x", "label": ["a"]}, {"text": "y", "label": []}]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    data = read(tmp_path / "a.jsonl", content)
    answers = answers_of([[0, 2], [-1, -1]], [[0, 1], [1, 0]])
    assert data.files(answers, suffix=".tsv")["predictions"] == (
        "text\tlabel\tprediction\tp(a)\tp(b)\n"
        'x\t["a"]\ta,b\t0.500000\t0.880797\n'
        "y\t[]\t\t0.268941\t0.268941\n"
    )
    lines = data.files(answers, suffix=".jsonl")["predictions"].splitlines()
    assert [json.loads(line) for line in lines] == [
        {**rows[0], "prediction": ["a", "b"], "p(a)": 0.5, "p(b)": 0.880797},
        {**rows[1], "prediction": [], "p(a)": 0.268941, "p(b)": 0.268941},
    ]


def test_balanced_weights_are_those_of_scikit_learn():
    labels = np.array([0, 0, 0, 2, 2, 3])
    expected = sklearn.utils.class_weight.compute_class_weight(
        "balanced", classes=np.array([0, 2, 3]), y=labels
    )
    balanced = FinetuningConfig(class_weights="balanced")
    found = text.label_weights(labels, "abcd", balanced)
    np.testing.assert_allclose(found, [expected[0], 1, *expected[1:]], rtol=1e-6)
    targets = np.float32([[1, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]])
    assert text.label_weights(targets, "abc", balanced).tolist() == [3, 1, 1]


def test_a_weight_of_an_unknown_label_is_refused():
    settings = FinetuningConfig(class_weights={"angre": 2.0})
    message = "`class_weights` has 'angre', which no text .*; did you mean 'anger'"
    with pytest.raises(InputError, match=message):
        text.label_weights(np.array([0]), ("joy", "anger"), settings)
