"""Reports of labelled files before a model learns them."""

from pathlib import Path

import pytest

from bert_keras.core.settings.finetuning import FinetuningConfig
from bert_keras.kinds import registry
from bert_keras.kinds.choice import dataset as choice_data
from bert_keras.kinds.span import dataset as span_data
from bert_keras.kinds.span import squad
from bert_keras.kinds.tagging import dataset as tagging_data
from bert_keras.kinds.tagging import ner
from bert_keras.labelled import data_report
from tests.bert_keras.kinds import kind_data
from tests.bert_keras.kinds.kind_data import texts

TOKENIZER = kind_data.tokenizer(*"abcd", "?")
FILE = Path("train.tsv")


def describe(*data, kind="classification", max_seq_length=5, **settings):
    values = FinetuningConfig(max_seq_length=max_seq_length, **settings)
    task = data[0].describe()
    return data_report.describe(
        [
            (name, examples, examples.encode(task, TOKENIZER, values))
            for name, examples in zip(["train.tsv", "dev.tsv"], data, strict=False)
        ],
        values,
        kind=kind,
    )


def lines(report: data_report.DataReport) -> list[str]:
    return data_report.lines(report, registry.labelled(report.kind))


def problems(report: data_report.DataReport) -> list[str]:
    return data_report.problems(report, registry.labelled(report.kind))


def test_problems_are_named_before_counts():
    train = texts(
        *(("x", "a"), ("x", "a b"), ("y", "a"), ("x", "a b c d")),
        *(("x", "  "), ("x", "b"), ("x", "b")),
    )
    dev = texts(("x", "a"), ("y", "c"), ("y", "a b"))
    report = describe(train, dev)
    assert lines(report) == [
        "problem: train.tsv: 2 of 7 (28.6 %) of the texts are there again with another "
        "answer: 'a'",
        "problem: train.tsv: 1 of 7 (14.3 %) of the texts lack a text",
        "problem: train.tsv: 1 of 7 (14.3 %) of the texts are longer than "
        "max_seq_length=5 and lose their end; the longest has 6 tokens",
        "problem: train.tsv: 2 of 7 (28.6 %) of the texts repeat an earlier one and "
        "count more often",
        "problem: train.tsv: fewer than 5 examples of 'y'",
        "problem: dev.tsv: 2 of 3 (66.7 %) of the texts are in train.tsv too, so their "
        "scores say little about new ones: 'a'",
        "train.tsv: 7 texts; labels: x 6, y 1; tokens: median 3, 95 % up to 5, "
        "longest 6",
        "dev.tsv: 3 texts; labels: y 2, x 1; tokens: median 3, 95 % up to 3, longest 4",
    ]


def test_data_without_problems_has_a_line_a_file():
    rows = [(label, f"{a} {label}{b}") for label in "xy" for a in "abcd" for b in "xy"]
    told = lines(describe(texts(*rows), texts(("x", "d d"))))
    assert [line.split(":")[0] for line in told] == ["train.tsv", "dev.tsv"]


def test_a_long_text_that_keeps_its_end_loses_its_middle():
    train = texts(("x", "a b c d"), ("y", "b"))
    (problem, *_) = problems(describe(train, long_texts="head_tail"))
    assert "max_seq_length=5 and lose their middle; the longest has 6" in problem


def test_rare_labels_are_counted_among_all():
    """More labels than are listed: the rare ones are those that are not."""
    names = [f"l{number:03}" for number in range(data_report.MAX_LABELS + 100)]
    rows = [(name, f"{name} {n}") for name in names[:-100] for n in range(5)]
    rows += [(name, name) for name in names[-100:]]
    (*_, rare, summary) = lines(describe(texts(*rows)))
    assert rare == ("problem: train.tsv: fewer than 5 examples of 100 labels")
    assert "l004 5, l005 5, ... (600 labels); tokens" in summary


def test_labels_that_differ_in_spaces_or_capitals_only_are_named():
    names = ["Yes", "yes", "no", "New York", " NewYork ", "ja"]
    rows = [(name, f"{a} {b}") for name in names for a in "abc" for b in "xy"]
    found = problems(describe(texts(*rows)))
    assert [problem for problem in found if "labels that" in problem] == [
        "train.tsv: labels that differ in spaces or capital letters only are learnt as "
        f"different ones, give them one spelling: {names}"
        for names in ("'Yes' 6, 'yes' 6", "'New York' 6, ' NewYork ' 6")
    ]


@pytest.mark.parametrize(
    ("labels", "separator"),
    [
        (["vegan,dessert", "vegan", "dessert,soup", "soup, vegan"], ","),
        (["a;b", "b", "c;a", "b;c"], ";"),
        (["a,b", "b", "c"], None),
        (["Paris, France", "Rome, Italy"], None),
    ],
)
def test_labels_that_look_like_several_are_named(labels, separator):
    rows = [(label, f"{a} {b}") for label in labels for a in "abc" for b in "xy"]
    found = [p for p in problems(describe(texts(*rows))) if "in them" in p]
    assert found == (separator is not None) * [
        f"train.tsv: 18 of 24 labels have {separator!r} in them, such as "
        f"{labels[0]!r}: if these are several labels of a text, give --set "
        "multi_label=true and, unless it is a comma, --set "
        f"columns.label_separator={separator!r}"
    ]


@pytest.mark.parametrize(
    ("kind", "answers"),
    [("multi_label", [("a", "b"), ("b", "a"), ()]), ("regression", ["1", "1.0", "2"])],
)
def test_the_same_answer_in_other_words_contradicts_nothing(kind, answers):
    data = texts(*zip(answers, "aab", strict=True), kind=kind)
    report = describe(data, kind=kind)
    (train,) = report.files
    assert (train.num_repeated, train.num_contradicted) == (1, 0)
    # That a text has no label is not rare by itself.
    assert not any("none" in problem for problem in problems(report))


def test_pairs_repeat_only_as_a_whole():
    report = describe(
        texts(("x", "a / b"), ("y", "b / a"), ("y", "a / b"), ("x", "a / "))
    )
    (train,) = report.files
    assert (train.num_repeated, train.num_contradicted, train.num_empty) == (1, 2, 1)
    assert train.contradicted == ("a / b",)
    # [CLS] a [SEP] b [SEP]; without a second text [CLS] a [SEP].
    assert train.lengths.longest == 5 and train.lengths.counts[:5] == (0, 0, 1, 0, 3)


def test_lengths_are_those_before_the_cut():
    settings = FinetuningConfig(max_seq_length=6)
    rows = [choice_data.Question("a", "b", ("c", "c d", "c", "a b c d"), 0, 1)]
    choice = choice_data.ChoiceDataset(path=FILE, rows=rows, has_labels=True)
    inputs = choice.encode(choice.describe(), TOKENIZER, settings)
    assert inputs.whole_lengths.tolist() == [9] and inputs.lengths.tolist() == [6]


def test_sentences_and_questions_are_divided_and_not_cut():
    def sentence(words: str, tags: str) -> ner.Sentence:
        return ner.Sentence(tuple(words.split()), tuple(tags.split()), 1, 1)

    words = (("a b c d", "O O O B-X"), ("a", "O"), ("a", "B-X"))
    rows = [sentence(*pair) for pair in words]
    tagged = tagging_data.TaggingDataset(path=FILE, rows=rows, has_labels=True)
    report = describe(tagged, tagged.subset([1]), kind="tagging")
    train, dev = report.files
    assert train.labels == {"O": 4, "B-X": 2}
    assert train.lengths.longest == 6 and train.lengths.num_long == 1
    assert (train.num_contradicted, dev.num_in_training) == (2, 1)
    told = problems(report)
    assert any("sentences are longer" in p and "into windows" in p for p in told)
    asked = [
        squad.Question("1", "a b?", "c d " * 4, (squad.Answer("c", 0),)),
        squad.Question("2", "a?", "c", ()),
    ]
    span = span_data.SpanDataset(
        path=FILE, rows=asked, has_labels=True, has_impossible=True
    )
    report = describe(span, kind="span", max_seq_length=9, span={"max_query_length": 2})
    (train,) = report.files
    assert train.labels == {"answer": 1, "no answer": 1}
    assert train.lengths.longest == 3 + 8 + 3 and train.lengths.num_long == 1


def test_numbers_and_several_labels():
    numbers = texts(("1", "a"), ("2.5", "b"), kind="regression")
    report = describe(numbers, kind="regression")
    assert "2 texts; numbers 1 to 2.5, mean 1.75; tokens" in lines(report)[0]
    several = texts((("x", "y"), "a"), ((), "b"), (("x",), "c"), kind="multi_label")
    report = describe(several, kind="multi_label")
    assert report.files[0].labels == {"x": 2, "y": 1, "(none)": 1}


def test_a_report_is_read_as_it_was_written():
    report = describe(texts(("x", "a"), ("y", "b" * 3)), texts(("x", "\ud800 a")))
    again = data_report.DataReport.model_validate_json(report.model_dump_json())
    assert again == report
