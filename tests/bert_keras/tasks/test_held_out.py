"""A share of the training file, held out by what the examples are about."""

import random
from pathlib import Path

import pytest

from bert_keras.errors import InputError
from bert_keras.tasks import forms, held_out, ner, squad, swag, text, text_forms

FILE = Path("train.tsv")


def texts(*rows: str) -> text_forms.TextDataset:
    made = [text.LabelledText(row, None, "a", n) for n, row in enumerate(rows)]
    return text_forms.TextDataset(
        path=FILE, rows=made, has_labels=True, kind="classification"
    )


@pytest.mark.parametrize(
    ("dev", "share"),
    [(["10%"], 0.1), (["0.5%", "b.tsv"], 0.005), (["dev.tsv"], None), ([], None)],
)
def test_a_share_is_in_percent(dev, share):
    assert held_out.share_of(dev) == share


@pytest.mark.parametrize(
    ("dev", "message"),
    [
        (["0%"], "above 0% and below 100%, such as 10%, got 0%"),
        (["100%"], "got 100%"),
        (["-5%"], "got -5%"),
        (["ten%"], "got ten%"),
        (["a.tsv", "10%"], "comes first, got 10% after a.tsv"),
    ],
)
def test_shares_that_are_none(dev, message):
    with pytest.raises(InputError, match=message):
        held_out.share_of(dev)


def test_a_file_of_such_a_name_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "10%").write_text("text\tlabel\na\tb\n")
    assert held_out.share_of(["10%"]) is None


def test_the_choice_is_that_of_every_machine():
    """Literal values: another hash would move examples between training and dev."""
    chosen = [key for key in map(str, range(40)) if held_out.is_held_out(key, 0.1)]
    assert chosen == ["9", "39"]
    assert held_out.is_held_out("\udcff", 1.0)


def test_a_share_of_many():
    data = texts(*map(str, range(5000)))
    trained, evaluated = held_out.split(data, 0.1)
    assert len(trained) + len(evaluated) == 5000
    assert abs(len(evaluated) - 500) < 65  # Three deviations of a binomial.
    larger = held_out.split(data, 0.2)[1]
    assert set(evaluated.rows) < set(larger.rows)


def test_duplicates_are_on_one_side_in_any_order():
    rows = [str(n % 100) for n in range(400)]
    random.Random(1).shuffle(rows)
    trained, evaluated = held_out.split(texts(*rows), 0.3)
    assert not set(trained.keys()) & set(evaluated.keys())
    again = held_out.split(texts(*sorted(rows)), 0.3)[1]
    assert sorted(again.keys()) == sorted(evaluated.keys())
    # The order of the file stays.
    assert [row.line for row in trained.rows] == sorted(r.line for r in trained.rows)


def test_no_side_may_be_empty():
    with pytest.raises(
        InputError,
        match="train.tsv: of 3 examples, which are about 1 different things, --dev 10% "
        "holds 0 out: give another share, or a file",
    ):
        held_out.split(texts("a", "a", "a"), 0.1)


def test_what_examples_of_every_form_are_about():
    def sentence(words: str, document: int) -> ner.Sentence:
        return ner.Sentence(tuple(words.split()), None, document, 1)

    def tagging(*sentences: ner.Sentence) -> forms.TaggingDataset:
        return forms.TaggingDataset(path=FILE, sentences=sentences, has_labels=False)

    two = tagging(sentence("a b", 1), sentence("c", 1), sentence("d", 2))
    assert two.keys() == ["a b\nc", "a b\nc", "d"]
    one = tagging(sentence("a b", 1), sentence("c", 1))
    assert one.keys() == ["a b", "c"]
    assert one.subset([1]).sentences == [sentence("c", 1)]
    asked = tuple(squad.Question(n, f"{n}?", "a text", ()) for n in "xy")
    span = forms.SpanDataset(
        path=FILE, questions=squad.QuestionSet(asked, False, 0, ())
    )
    assert span.keys() == ["a text", "a text"]
    assert span.subset([1]).questions.questions == asked[1:]
    rows = [swag.Question("a", "b", tuple("wxyz"), 0, 1)]
    choice = forms.ChoiceDataset(path=FILE, questions=rows, has_labels=True)
    assert choice.keys() == ["a\0b"]
    assert choice.subset([]).questions == []
    pair = text.LabelledText("a", "b", None, 1)
    data = text_forms.TextDataset(
        path=FILE, rows=[pair], has_labels=False, kind="regression"
    )
    assert data.keys() == ["a\0b"]


def test_digests_know_a_share_from_a_file(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text("a")
    assert held_out.digests(["10%", path]) == ["10%", held_out.digest(path)]
    with pytest.raises(InputError, match=r"none.tsv: cannot be read: No such file"):
        held_out.digests([tmp_path / "none.tsv"])


def test_a_smaller_fraction_is_part_of_a_larger_one():
    data = texts(*(f"text {number}" for number in range(1000)))
    sizes, earlier = [], set()
    for share in (0.001, 0.01, 0.07, 0.3, 0.3001, 1):
        rows = held_out.fraction(data, share, seed=3).rows
        assert earlier <= {*rows} and rows == sorted(rows, key=data.rows.index)
        sizes.append(len(rows))
        earlier = {*rows}
    assert sizes == [1, 10, 70, 300, 301, 1000]
    tenth, other = (held_out.fraction(data, 0.1, seed=s).rows for s in (3, 4))
    assert 0 < len({*tenth} & {*other}) < 30
    # What every machine chooses.
    assert [row.text for row in held_out.fraction(data, 0.003, seed=3).rows] == [
        "text 318",
        "text 644",
        "text 825",
    ]
